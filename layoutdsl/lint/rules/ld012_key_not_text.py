"""A key that is no text: a number, a boolean, a list or a mapping.

## Why is this bad

YAML readers disagree about what such a key is, and JSON has none.

## Example

    map: {4: u4b8, true: u8b128}

## Use instead

    map: {"4": u4b8, "true": u8b128}
"""
