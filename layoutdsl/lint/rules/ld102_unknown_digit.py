"""The order of a tensor names a digit that its axes do not have.

## Why is this bad

Mostly a digit is mistyped, or its split was changed and the order was not. Either way the place of the elements is
unknown.

## Example

    split: "k = kw kp:8"
    order: "kw, n {kq}"

## Use instead

    split: "k = kw kp:8"
    order: "kw, n {kp}"
"""
