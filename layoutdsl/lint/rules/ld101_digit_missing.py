"""The order of a tensor leaves out a digit of an axis.

## Why is this bad

Elements that differ in that digit would stand at one place: all but one are lost. Where they are meant to share one
stored value, as the weights of a group share a scale, the order says so in parentheses.

## Example

    split: "k = g gi:128"
    order: "g, n"

## Use instead

    split: "k = g gi:128"
    order: "g, n (gi)"
"""
