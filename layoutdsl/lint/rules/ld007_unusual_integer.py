"""A number that is not a plain decimal integer: `0x0F`, `04`, `1_024`.

## Why is this bad

YAML 1.1 reads `010` as eight, YAML 1.2 as ten, and others as text.

## Example

    try: [{n: 0x40, k: 128}]

## Use instead

    try: [{n: 64, k: 128}]
"""
