"""Values nested deeper than 32 levels.

## Why is this bad

No spec needs more than six, and a reader that follows a stranger's file to any depth can be made to fall over.

## Example

    x-notes: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]

## Use instead

    x-notes: []
"""
