"""A value that is none of those its key allows.

## Why is this bad

A role, a type or a way to store parts that nothing knows would be ignored, and with it what it was to say.

## Example

    s: {role: scales, dtype: float16, order: "g, n (gi)"}

## Use instead

    s: {role: scale, dtype: float16, order: "g, n (gi)"}
"""
