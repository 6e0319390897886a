"""A format without a tensor of codes, or with one that is not always there.

## Why is this bad

The codes are the weights. Scales and zero points alone describe nothing that could be converted, also where they are
alone under some parameters only.

## Example

    tensors:
      s: {role: scale, dtype: float16, order: "g, n (gi)"}

## Use instead

    tensors:
      w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}"}
      s: {role: scale, dtype: float16, order: "g, n (gi)"}
"""
