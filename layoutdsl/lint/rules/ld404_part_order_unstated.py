"""A spec does not say in which order the parts of a matrix stand.

## Why is this bad

Gate before up and up before gate are both in use, and the shapes are the same: whatever is assumed is wrong for some
kernel, and only the model's answers show it.

## Example

    parts: {stored: [stacked]}

## Use instead

    parts: {stored: [stacked], orders: [[gate, up]]}
"""
