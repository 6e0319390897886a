"""The base of a kernel has findings itself.

## Why is this bad

What a build inherits is as wrong as its base. The findings stand there, at their lines, and are not made twice.

## Example

    kernel: mine_n128
    base: mine    # whose order names a digit that is not there

## Use instead

    $ layoutdsl lint formats/kernel/mine.yaml

and mend what it finds.
"""
