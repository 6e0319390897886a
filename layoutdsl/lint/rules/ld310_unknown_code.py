"""An element code that does not exist, or none for a dtype that has no code of its own.

## Why is this bad

The code says what a stored number is worth: `u4b8` is a number from 0 to 15 less 8. Without it bytes can be moved and
not understood.

## Example

    w: {role: codes, dtype: int32, code: int4, order: "kw, n {kp}"}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, order: "kw, n {kp}"}
"""
