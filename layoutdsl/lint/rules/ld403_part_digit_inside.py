"""The digit `p` of parts does not stand first, although the parts have unequal widths.

## Why is this bad

`p` counts parts inside a tensor. Where q has more rows than k and v, a step over one part is no fixed number of
elements, unless the parts stand one after the other.

## Example

    order: "n, p, k"

## Use instead

    order: "p, n, k"
"""
