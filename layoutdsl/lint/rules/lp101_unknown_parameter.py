"""A parameter is given that no spec of the conversion has.

## Why is this bad

A size to try sets a parameter so that the case which depends on it is proven. One that is not there sets nothing.

## Example

    params: {bits: [4, 8]}
    try: [{n: 64, k: 128, bit: 8}]

## Use instead

    params: {bits: [4, 8]}
    try: [{n: 64, k: 128, bits: 8}]
"""
