"""A key stands twice in one mapping.

## Why is this bad

YAML readers keep the last value and drop the first without a word. In a layout that is a tensor, a digit or a padding
rule gone, while the file still shows it.

## Example

    w: {role: codes, dtype: int32, order: "kw, n {kp}", dtype: int8}

## Use instead

    w: {role: codes, dtype: int32, order: "kw, n {kp}"}
"""
