"""Zero points are stored in a code that is no plain integer.

## Why is this bad

A zero point is the code that stands for zero: a number to subtract, not a value. A bias, a sign or an exponent in its
own code means nothing, and a reader that heeds it subtracts another number than one that does not. What a writer adds
to zero points is their `plus`.

## Example

    w: {role: codes, dtype: int32, code: u4, ...}
    z: {role: zero_point, dtype: int32, code: u4b8, ...}

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
        zero = roles.get("zero_point")
        code = code_of(zero.tensor, scope) if zero is not None else None
        if zero is None or code is None or (code.kind == "integer" and not code.bias):
            continue
        path = zero.path("code" if zero.tensor.code is not None else "dtype")
        if path not in seen:
            seen.add(path)
            yield Found(
                f"the zero points in `{zero.key}` are {code.name}, a code with "
                f"{f'a bias of {code.bias}' if code.kind == 'integer' else 'values of its own'}",
                path,
                help=f"write `u{code.bits}`; what a writer adds to zero points is `plus`",
            )
