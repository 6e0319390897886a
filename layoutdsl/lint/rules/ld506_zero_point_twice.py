"""Codes carry a bias, and zero points are subtracted from them too.

## Why is this bad

`u4b8` is worth its code minus 8 already. A zero point beside it is subtracted once more, or is ignored: writers store
zero points for symmetric weights as well, and kernels that take their presence for asymmetry decode every weight 8
steps off.

## Example

    w: {role: codes, dtype: int32, code: u4b8, ...}
    z: {role: zero_point, dtype: int32, code: u4, ...}

## Use instead

    w: {role: codes, dtype: int32, code: u4, ...}
    z: {role: zero_point, dtype: int32, code: u4, ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import code_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        if "codes" not in roles or "zero_point" not in roles:
            continue
        codes, zero = roles["codes"], roles["zero_point"]
        code = code_of(codes.tensor, scope)
        if code is None or code.needs_zero_point:
            continue
        said = f"carries a bias of {code.bias}" if code.bias else "has no zero point"
        path = codes.path("code" if codes.tensor.code is not None else "dtype")
        if path not in seen:
            seen.add(path)
            yield Found(
                f"{code.name} in `{codes.key}` {said}, and `{zero.key}` would be subtracted from it all the same",
                path,
                help=f"write `u{code.bits}` where `{zero.key}` is there" if code.bias else f"remove `{zero.key}`",
            )
