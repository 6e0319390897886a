"""The digit `e` of experts stands in an order.

## Why is this bad

Experts always stand outermost, one after the other, in every format; a spec describes one of them. Only `(e)` says
something: that all experts share one value.

## Example

    order: "e, kw, n {kp}"

## Use instead

    order: "kw, n {kp}"
"""
