"""Two tensors have the same role.

## Why is this bad

Tensors of two formats meet by their role. With two of one role, a conversion could not tell which is meant.

## Example

    s: {role: scale, dtype: float16, order: "g, n (gi)"}
    t: {role: scale, dtype: bfloat16, order: "g, n (gi)"}

## Use instead

    s: {role: scale, dtype: "{dtype}", order: "g, n (gi)"}

or one tensor with `cases`, where more than the dtype varies. The second factor of a weight is a `global_scale`.
"""
