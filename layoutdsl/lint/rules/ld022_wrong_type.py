"""A value of another type than its key wants.

## Why is this bad

Text is not turned into a number or a number into text: `"64"` and `64` differ to whatever reads the spec next.

## Example

    try: {n: 64, k: 128}

## Use instead

    try: [{n: 64, k: 128}]
"""
