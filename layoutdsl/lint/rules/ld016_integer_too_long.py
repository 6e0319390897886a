"""An integer of more than 18 digits.

## Why is this bad

It does not fit into 64 bits, so that what counts with it would be wrong or slow. No extent comes near it.

## Example

    try: [{n: 64000000000000000000, k: 128}]

## Use instead

    try: [{n: 64, k: 128}]
"""
