"""No tensor, matrix or condition depends on a parameter.

## Why is this bad

Whoever sets it expects another layout and gets the same one. Mostly a digit or a condition that should name the
parameter has a fixed number instead: a format with the parameter `group` whose scales have one value per output would
load grouped scales whole on every rank.

A parameter that a checkpoint's config states, or that allows one value alone, checks something and counts as used.

## Example

    params: {group: {type: group, default: 128}}
    tensors:
      s: {role: scale, dtype: float16, order: "n (k)"}

## Use instead

    params: {group: {type: group, default: 128}}
    tensors:
      s: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "g, n (gi)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.grammar import Expr, Template
from layoutdsl.lint.formats import expressions, names
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format, Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    used = names(expressions(spec) if isinstance(spec, Format) else _of_module(spec))
    if "groups" in used:
        used.add("group")
    for name, param in spec.params.items():
        if name not in used and param.config is None and len(param.values) != 1:
            yield Found(
                f"parameter `{name}` changes nothing: no {_places(spec)} names it",
                ("params", name),
                key=True,
                help="let a digit, a code or a condition depend on it, or remove it",
            )


def _of_module(spec: object) -> Iterator[Expr | Template]:
    assert isinstance(spec, Module)
    yield from spec.ranks.values()
    if spec.tight is not None:
        yield spec.tight
    for matrix in spec.matrices.values():
        if isinstance(matrix.parts, Template):
            yield matrix.parts
        if matrix.when is not None:
            yield matrix.when


def _places(spec: object) -> str:
    return "tensor" if isinstance(spec, Format) else "matrix, rank or condition"
