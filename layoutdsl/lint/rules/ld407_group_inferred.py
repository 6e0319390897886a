"""The group of a scale is computed from an extent instead of declared.

## Why is this bad

Ranks cut k and kernels pad it, so a quotient of k is another number on every rank: of a rank's 2752 inputs and 8 rows
it infers groups of 344, which nobody asked for, and where the quotient is a size that the kernel takes, the scales are
wrong without a word.

## Example

    s: {role: scale, dtype: float16, split: "k = g gi:(k / 16)", order: "g, n (gi)"}

## Use instead

    s: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "g, n (gi)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

_INFERS = ("k", "groups")


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "split"):
        shared = {item.name for item in one.tensor.order if item.role == "shared"}
        for axis in one.tensor.split or ():
            for digit in axis.digits if axis.axis == "k" else ():
                used = [name for name, _, _ in digit.size.names()] if digit.size is not None else []
                if digit.name in shared and (by := next((name for name in used if name in _INFERS), None)):
                    yield Found(
                        f"`{one.key}` infers its group from `{by}`, which ranks cut and kernels pad",
                        one.path("split"),
                        within=(digit.start, digit.end),
                        help="declare a parameter `group`, and write `(group)`",
                    )
