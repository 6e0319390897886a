"""A merge key `<<`.

## Why is this bad

YAML 1.2 has none, and readers disagree about which value wins where both state one. What a tensor says should stand
at the tensor.

## Example

    s: {<<: *common, role: scale}

## Use instead

    s: {role: scale, dtype: float16, order: "g, n (gi)"}
"""
