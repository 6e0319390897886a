"""A split, order, condition, value or name that cannot be parsed.

## Why is this bad

These few words carry the whole layout. What does not parse is never read as something near it.

## Example

    split: "k = kw kp"

## Use instead

    split: "k = kw kp:8"

The first digit takes what is left of the axis; each of the others states its size.
"""
