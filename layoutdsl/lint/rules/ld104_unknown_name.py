"""An expression uses a name that is no parameter, or cannot be evaluated at a size to try.

## Why is this bad

A condition about a parameter that is not there would never hold, and its case would never be taken.

## Example

    params: {bits: [4, 8]}
    tensors:
      w: {role: codes, dtype: int32, code: "u{bit}", order: "kw, n {kp}"}

## Use instead

    params: {bits: [4, 8]}
    tensors:
      w: {role: codes, dtype: int32, code: "u{bits}", order: "kw, n {kp}"}
"""

ALSO = ("bad-expression",)
