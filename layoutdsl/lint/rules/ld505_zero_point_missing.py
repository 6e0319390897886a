"""Codes need a zero point, and the format has no tensor of them.

## Why is this bad

`u4` says which integers are stored, not which of them is zero. Without a zero point it is 0, so all weights would be
positive: nearly always the code should carry its bias, or the tensor of zero points is missing under some parameters.

## Example

    w: {role: codes, dtype: int32, code: u4, ...}
    s: {role: scale, ...}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, ...}
    s: {role: scale, ...}
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
        codes = roles.get("codes")
        code = code_of(codes.tensor, scope) if codes is not None else None
        if codes is None or code is None or not code.needs_zero_point or "zero_point" in roles:
            continue
        path = codes.path("code")
        if path not in seen:
            seen.add(path)
            yield Found(
                f"`{codes.key}` holds {code.name}, which says nothing of its zero point, and no tensor does",
                path,
                help=f"write `{code.name}b{1 << (code.bits - 1)}` where zero is in the middle, or add a tensor with "
                "`role: zero_point`",
            )
