"""Plain text such as `yes`, `no`, `on`, `off` or `True`, which some YAML readers take for a boolean.

## Why is this bad

YAML 1.1 and 1.2 disagree, so the same file means two things. A spec must mean one.

## Example

    bias: {type: bool, default: True}

## Use instead

    bias: {type: bool, default: true}

or `"yes"` in quotes, where text is meant.
"""
