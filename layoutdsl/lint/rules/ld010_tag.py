"""A YAML tag, such as `!!int` or `!python/object`.

## Why is this bad

A tag asks the reader to construct something. A spec is data alone: text, integers, booleans, lists and mappings.

## Example

    try: [{n: !!int "64", k: 128}]

## Use instead

    try: [{n: 64, k: 128}]
"""
