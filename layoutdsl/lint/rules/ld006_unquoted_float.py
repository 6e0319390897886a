"""Plain text that reads as a floating-point number.

## Why is this bad

No value of a spec is a fraction, and the version `1.10` would become 1.1. Whatever looks like one is text that lacks
its quotes, or an integer that was written in an odd way.

## Example

    version: 1.0

## Use instead

    version: "1"
"""
