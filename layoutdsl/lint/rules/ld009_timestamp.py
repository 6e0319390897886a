"""Plain text that reads as a date.

## Why is this bad

Some readers make a date of it and some keep the text, so that the same file means two things.

## Example

    source: 2026-05-01

## Use instead

    source: "release notes of 2026-05-01"
"""
