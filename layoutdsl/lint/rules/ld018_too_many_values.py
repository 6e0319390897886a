"""More than 20000 values in one file, aliases written out.

## Why is this bad

The largest spec that ships has some 300. Without a bound, a file of one kilobyte could fill the memory by aliases.

## Example

    a: &a [1, 1, 1, 1, 1, 1, 1, 1]
    b: &b [*a, *a, *a, *a, *a, *a, *a, *a]
    c: &c [*b, *b, *b, *b, *b, *b, *b, *b]
    # and so on, to 8 to the power of 9

## Use instead

    x-notes: [1, 1, 1, 1]
"""
