"""A key that must be there is not.

## Why is this bad

Every layout fact is stated, none is guessed: a tensor without `order` would have to be stored in some order.

## Example

    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8"}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}"}
"""
