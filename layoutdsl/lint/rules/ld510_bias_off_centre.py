"""The bias of an integer code is not the middle of its range.

## Why is this bad

Symmetric quantizers put zero in the middle: code 8 of 16, or 7 where the last one stays unused. Another bias shifts
every weight by whole steps, which no shape and no checksum shows. Where zero points vary they are a tensor of their
own, and the code has none.

## Example

    w: {role: codes, dtype: int32, code: u4b6, ...}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, ...}
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
        for one in roles.values():
            code = code_of(one.tensor, scope)
            path = one.path("code")
            if code is None or code.kind != "integer" or not code.bias or path in seen:
                continue
            middle = 1 << (code.bits - 1)
            if code.bias not in (middle, middle - 1):
                seen.add(path)
                yield Found(
                    f"code {code.name} of `{one.key}` has its zero at {code.bias}, the middle of {code.bits} bits is "
                    f"{middle}, or {middle - 1} where the last code is unused",
                    path,
                    help=f"write `u{code.bits}b{middle}`, or `u{code.bits}` with a tensor of zero points",
                )
