"""A module has no matrix at a size to try, or not the one that is asked for.

## Why is this bad

A module is its matrices. Where the condition of each is false there is nothing to convert, and nothing is proven.

## Example

    params: {bias: {type: bool, default: false}}
    matrices:
      linear: {n: n, k: k, when: bias}
    try: [{n: 256, k: 512}]

## Use instead

    params: {bias: {type: bool, default: false}}
    matrices:
      linear: {n: n, k: k, when: bias}
    try: [{n: 256, k: 512, bias: true}]
"""
