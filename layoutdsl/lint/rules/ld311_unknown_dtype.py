"""A dtype that does not exist, or dtypes of different widths for one tensor.

## Why is this bad

The dtype is the width of a stored word, and what a reader of the files finds in their header.

## Example

    s: {role: scale, dtype: half, order: "g, n (gi)"}

## Use instead

    s: {role: scale, dtype: float16, order: "g, n (gi)"}
"""
