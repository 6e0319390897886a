"""Bases that lead back to where they began.

## Why is this bad

Each would have its tensors from the other, so no file states them.

## Example

    # in one.yaml
    kernel: one
    base: two

    # in two.yaml
    kernel: two
    base: one

## Use instead

    # in two.yaml
    kernel: two
    base: marlin_int4_a16
"""
