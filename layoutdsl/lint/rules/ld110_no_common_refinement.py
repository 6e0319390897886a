"""The digits of two formats do not divide each other along one axis.

## Why is this bad

A plan moves whole stretches. Digits of 48 and of 32 elements cut an axis at so many places that each element would be
a move of its own; mostly a group size or a tile is wrong.

## Example

    split: "k = g gi:48"    # beside tiles of 32

## Use instead

    split: "k = g gi:32"
"""
