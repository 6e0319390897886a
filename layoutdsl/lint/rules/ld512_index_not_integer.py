"""A tensor of group numbers or extents has a dtype that is no integer.

## Why is this bad

The order of inputs names the group of each of them, and a shape the extents of the weights. Both are whole numbers:
float16 cannot count beyond 2048, and no writer stores them so.

## Example

    g_idx: {role: act_order, dtype: float16, order: "k (n)"}

## Use instead

    g_idx: {role: act_order, dtype: int32, order: "k (n)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import choices, code_of, names, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

EXPLAINS = ("LP200",)

_HOLDS = {"act_order": "the group of each input", "weight_shape": "the extents of the weights"}


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Format):
        return
    for one in stated(spec, "dtype", "code"):
        if one.tensor.role not in _HOLDS:
            continue
        path = one.path("code" if one.tensor.code is not None else "dtype")
        for scope in choices(spec, names(one.tensor.expressions())):
            code = code_of(one.tensor, scope)
            if code is not None and code.kind not in ("signed", "integer"):
                yield Found(
                    f"`{one.key}` holds {_HOLDS[one.tensor.role]}, a whole number, as {code.name}",
                    path,
                    help="write `int32`, or `int64` if the file says so",
                )
                break
