"""A parameter is given a value that it does not allow.

## Why is this bad

The values of a parameter are those for which the spec states a layout. For any other the layout would be made up.

## Example

    params: {bits: [4, 8]}
    try: [{n: 64, k: 128, bits: 5}]

## Use instead

    params: {bits: [4, 8]}
    try: [{n: 64, k: 128, bits: 8}]
"""
