"""No matrix of a module lies on an axis.

## Why is this bad

Every command asks for the size of each axis, so a size is demanded that changes nothing. Mostly a matrix was meant to
lie on it: the inputs of an expert's first matrix are the hidden features, not the intermediate ones.

## Example

    axes: {i: intermediate features, h: hidden features}
    matrices:
      up: {n: i, k: i}
      down: {n: i, k: i}

## Use instead

    axes: {i: intermediate features, h: hidden features}
    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import products
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module):
        return
    used = {axis for _, axes in products(spec) for axis in axes} | {spec.experts}
    for axis, what in spec.axes.items():
        if axis not in used:
            yield Found(
                f"no matrix lies on axis `{axis}` ({what})",
                ("axes", axis),
                key=True,
                help="let the matrix that has these features name it as its `n` or `k`, or remove it",
            )
