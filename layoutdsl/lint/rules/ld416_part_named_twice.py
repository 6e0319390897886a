"""A part of a fused matrix is named twice.

## Why is this bad

Parts are found by their names: of two that have the same one, a checkpoint holds one tensor, and the second is read
from the first or not at all.

## Example

    matrices:
      w13: {n: i, k: h, parts: [gate, gate]}

## Use instead

    matrices:
      w13: {n: i, k: h, parts: [gate, up]}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.grammar import Template
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module

EXPLAINS = ("LP200",)


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Module):
        return
    for name, matrix in subject.spec.matrices.items():
        parts = () if isinstance(matrix.parts, Template) else matrix.parts
        for at, part in enumerate(parts):
            if part in parts[:at]:
                yield Found(
                    f"part `{part}` of `{name}` is named twice",
                    ("matrices", name, "parts", at),
                    help="give each part its own name",
                )
