"""A key that means nothing where it stands, or a spec that does not say of which kind it is.

## Why is this bad

A key that is ignored is a rule that does not hold: a mistyped `cases` would leave a tensor without them, and nobody
would be told. Keys that begin with `x-` are free.

## Example

    w: {role: codes, dtype: int32, splt: "k = kw kp:8", order: "kw, n {kp}"}

## Use instead

    w: {role: codes, dtype: int32, split: "k = kw kp:8", order: "kw, n {kp}"}
"""

ALSO = ("kind-unstated",)
