"""Plain text such as `16:32`, which some YAML readers take for a number in base 60.

## Why is this bad

What was meant as sixteen and thirty-two becomes 992.

## Example

    detect: {block: 16:32}

## Use instead

    detect: {block: "16:32"}
"""
