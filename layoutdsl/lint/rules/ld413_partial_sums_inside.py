"""Ranks cut the inputs of a matrix whose outputs stay inside the module.

## Why is this bad

Each rank then has a part of every sum, and they must be added before the activation, in the middle of the module, where
ranks do not meet: an activation of partial sums is not the activation of their sum.

## Example

    ranks: {tp: h}
    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}

## Use instead

    ranks: {tp: i}
    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import cuts, inner, readers, writers
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module):
        return
    cut = cuts(spec, "tp")
    for axis, (_, reader) in inner(spec).items():
        for writer in writers(spec, axis):
            for along in sorted(cut & {axis_ for axis_ in spec.axes if writer in readers(spec, axis_)}):
                yield Found(
                    f"ranks cut the inputs `{along}` of `{writer}`, so each has partial sums along `{axis}`, which "
                    f"`{reader}` reads inside the module",
                    ("ranks", "tp"),
                    help=f"cut `{axis}`: then the sums are complete where ranks meet, behind `{reader}`",
                )
