"""An alias without an anchor before it, one inside what it refers to, or too many of them.

## Why is this bad

An alias that refers to what encloses it has no end, and a few that refer to each other make gigabytes of one line.

## Example

    s: *scales    # nothing is called so

## Use instead

    s: &scales {role: scale, dtype: float16, order: "g, n (gi)"}
"""
