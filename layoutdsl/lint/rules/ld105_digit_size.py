"""The size of a digit comes out negative, or larger than any extent.

## Why is this bad

A digit counts elements. A size that a parameter makes negative has no meaning, and one beyond 2 to the power of 40
would overflow what counts with it.

## Example

    params: {bits: [4, 64]}
    split: "k = kw kp:(32-bits)"    # -32 for 64 bits

## Use instead

    params: {bits: [4, 8]}
    split: "k = kw kp:(32/bits)"
"""
