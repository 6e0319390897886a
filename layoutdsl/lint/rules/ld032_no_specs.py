"""A folder to lint holds no spec.

## Why is this bad

A check of nothing passes. In CI that is a renamed folder, or a path that is mistyped.

## Example

    $ layoutdsl lint format/

## Use instead

    $ layoutdsl lint formats/
"""
