"""A module says why the padding between its matrices is harmless, and has none there.

## Why is this bad

`activation` and `tight` speak of an axis that one matrix writes and another one reads. Without such an axis they are
read by nobody. Mostly the axis was made visible by mistake, which asks callers to pad what they never see.

## Example

    visible: [i, h]
    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}
    activation: zero

## Use instead

    visible: [h]
    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}
    activation: zero
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import inner
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module) or inner(spec):
        return
    for key in ("activation", "tight"):
        if key in spec.model_fields_set:
            yield Found(
                f"`{key}` has no effect: no axis is written by one matrix, read by another and kept inside",
                (key,),
                key=True,
                help="remove it, or take the axis between the matrices out of `visible`",
            )
