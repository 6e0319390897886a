"""A size is missing, is no positive number, or belongs to no axis.

## Why is this bad

A spec is proven at its sizes to try. Without the size of each axis there is nothing to prove: a format has n and k, a
module the axes that it lists.

## Example

    try: [{k: 128}]

## Use instead

    try: [{n: 64, k: 128}]
"""
