"""Scales are dealt over the outputs in equal shares of all.

## Why is this bad

A fused matrix has a scale for each of its parts, and parts need not be equally wide: of 4096 queries, 1024 keys and
1024 values a third each gives half of the queries the scale of the keys. A digit that divides n cannot know where
parts end; `p` counts them, and takes their widths from the module.

## Example

    s: {role: scale, dtype: float32, split: "n = t r:(n / 3)", order: "t (r k)"}

## Use instead

    s: {role: scale, dtype: float32, order: "p (n k)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

_FACTORS = ("scale", "global_scale", "zero_point", "input_scale")

EXPLAINS = ("LD104",)


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "split"):
        for axis in one.tensor.split or ():
            for digit in axis.digits if axis.axis == "n" and one.tensor.role in _FACTORS else ():
                if digit.size is not None and any(name == "n" for name, _, _ in digit.size.names()):
                    yield Found(
                        f"`{one.key}` deals its elements over equal shares of n, and fused parts need not be "
                        "equally wide",
                        one.path("split"),
                        within=(digit.start, digit.end),
                        help="write `p`: it has one for each part, as wide as the module says",
                    )
