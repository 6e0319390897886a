"""A scale is stored in a code of whole numbers.

## Why is this bad

A scale is a factor, mostly far below one. As int32 or uint8 all of those are 0, and a kernel that reads the bytes as a
float sees another number. Where a byte is an exponent, its code says so: `e8m0`. The scales of 8-bit activations are
`int16`, beside a global scale.

## Example

    s: {role: scale, dtype: int32, split: "k = g gi:32", order: "g, n (gi)"}

## Use instead

    s: {role: scale, dtype: float32, split: "k = g gi:32", order: "g, n (gi)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import code_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route

EXPLAINS = ("LP200",)


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        for role in ("scale", "global_scale"):
            one = roles.get(role)
            code = code_of(one.tensor, scope) if one is not None else None
            if one is None or code is None or code.kind not in ("signed", "integer", "nibble") or code.name == "int16":
                continue
            path = one.path("code" if one.tensor.code is not None else "dtype")
            if path not in seen:
                seen.add(path)
                yield Found(
                    f"the scales in `{one.key}` are {code.name}, whole numbers",
                    path,
                    help="write a float, as float16 or float32, or `code: e8m0` where a byte is an exponent",
                )
