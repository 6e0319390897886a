"""A scale is stored times a power of two that its code does not hold.

## Why is this bad

`scaled` moves the scales up by as many binary places. If a scale of 1 is out of range already, most others are, and
converting any checkpoint is refused, or all its scales become zero.

## Example

    params: {dtype: [float16, bfloat16]}
    s: {role: scale, dtype: "{dtype}", scaled: 120, ...}

## Use instead

    params: {dtype: [float16, bfloat16]}
    s: {role: scale, dtype: "{dtype}", scaled: "8 + 112 * (dtype == bfloat16)", ...}
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ldexp

from layoutdsl.codes import Code, Unrepresentable
from layoutdsl.lint.formats import code_of, number
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route

_HELD_WITHIN = 1000
"""Powers beyond are out of range of every code."""

EXPLAINS = ("LP200",)


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        for one in roles.values():
            power, code = number(one.tensor.scaled, scope), code_of(one.tensor, scope)
            path = one.path("scaled")
            if power and code is not None and path not in seen and (said := _beyond(code, power)):
                seen.add(path)
                yield Found(
                    f"a scale of 1 would be stored in `{one.key}` as 2^{power}, {said}",
                    path,
                    help="let the power depend on the dtype, or check its sign",
                )


def _beyond(code: Code, power: int) -> str | None:
    if code.kind not in ("float", "power"):
        return None
    if abs(power) > _HELD_WITHIN:
        return f"beyond what {code.name} holds"
    try:
        stored = code.decode(code.encode(ldexp(1.0, power)))
    except Unrepresentable:
        return f"beyond {code.top:.6g}, the largest {code.name}" if code.kind == "float" else f"which {code.name} lacks"
    return None if stored else f"which {code.name} rounds to 0"
