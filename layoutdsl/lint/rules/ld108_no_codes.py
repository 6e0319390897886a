"""A format without a tensor of codes.

## Why is this bad

The codes are the weights. Scales and zero points alone describe nothing that could be converted.

## Example

    tensors:
      s: {role: scale, dtype: float16, order: "g, n (gi)"}

## Use instead

    tensors:
      w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}"}
      s: {role: scale, dtype: float16, order: "g, n (gi)"}
"""
