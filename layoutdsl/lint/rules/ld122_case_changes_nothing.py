"""A case states what the tensor states anyway.

## Why is this bad

A case is there to change something where its condition holds. One that repeats the tensor, or states nothing at all,
was mostly copied and not finished: the layout that it should describe is the other one.

## Example

    order: "g, n (gi)"
    cases: [{when: groups > 1, order: "g, n (gi)"}]

## Use instead

    order: "g, n (gi)"
    cases: [{when: groups > 1, order: "n, g (gi)"}]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    text: Any = subject.tree.data
    for key in subject.spec.tensors:
        tensor = text["tensors"][key]
        cases = tensor.get("cases", ())
        for at, case in enumerate(cases):
            changed = [
                name for name, value in case.items() if name != "when" and _words(tensor.get(name)) != _words(value)
            ]
            if not changed and at == len(cases) - 1:
                yield Found(
                    f"case {at + 1} of `{key}` states nothing that the tensor does not state",
                    ("tensors", key, "cases", at),
                    help="state what differs there, or remove the case",
                )


def _words(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value
