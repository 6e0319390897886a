"""Scales are shared by another number of inputs than the parameter `group` says.

## Why is this bad

Padding, ranks and kernels go by the parameter: a rank is cut at its borders and a kernel is asked for its size. If the
digits of the scale count another group, borders fall inside groups that nobody knows of.

## Example

    params: {group: {type: group, default: 128}}
    s: {role: scale, dtype: float16, split: "k = g gi:(group / 2)", order: "g, n (gi)"}

## Use instead

    params: {group: {type: group, default: 128}}
    s: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "g, n (gi)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import by_role, scope_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format
from layoutdsl.source import Route

EXPLAINS = ("LP200",)


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    seen: set[Route] = set()
    for one in subject.tries:
        group = one.params.get("group")
        for tensor in one.tensors:
            if tensor.role not in ("scale", "zero_point") or not isinstance(group, int) or group < 1:
                continue
            found = by_role(subject.spec, scope_of(one))[tensor.role]
            path = found.path("split" if found.tensor.split else "order")
            if tensor.k_unit not in (None, group) and path not in seen:
                seen.add(path)
                yield Found(
                    f"{tensor.k_unit} inputs share an element of `{found.key}`, the parameter `group` says {group}",
                    path,
                    help="let the digits in parentheses count `(group)`",
                )
