"""The codes that a word packs do not fill it.

## Why is this bad

Packed digits and the width of a code must make up the storage word. Codes of 4 bits, 4 to a word of 32, leave half of
it unsaid: the real layout has other digits, another code or another dtype.

## Example

    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:4", order: "kw, n {kp}"}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}"}
"""
