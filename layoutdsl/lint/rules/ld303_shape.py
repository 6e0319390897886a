"""The shape that a tensor reports does not hold its elements.

## Why is this bad

A shape is what the files state, and readers allocate by it. One that counts codes instead of words is too large by the
number of codes in a word.

## Example

    w: {dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}", shape: [k, n]}

## Use instead

    w: {dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}", shape: [k/8, n]}

or no `shape`: the commas of the order say it already.
"""
