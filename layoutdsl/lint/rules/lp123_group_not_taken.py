"""A kernel is to read groups of a size that it does not take.

## Why is this bad

The size of a group decides which scale a weight meets. A kernel that is handed another size reads the wrong scales, and
nothing in the shapes need tell.

## Example

    accepts: {tiles: [{n: 64, k: 128}], groups: [-1, 32, 64, 128]}
    try: [{n: 64, k: 128, group: 48}]

## Use instead

    accepts: {tiles: [{n: 64, k: 128}], groups: [-1, 32, 64, 128]}
    try: [{n: 64, k: 128, group: 64}]
"""
