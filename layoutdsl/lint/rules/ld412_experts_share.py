"""All experts share the codes, the scales, the zero points or the biases of a format.

## Why is this bad

Each expert was quantized by itself. With one scale for all, the experts whose weights are small lose nearly all of
their precision, and codes shared by all are one expert's. Only a factor of the activations may be one for all.

## Example

    s: {role: scale, dtype: float16, split: "k = g gi:32", order: "g, n (e gi)"}

## Use instead

    s: {role: scale, dtype: float16, split: "k = g gi:32", order: "g, n (gi)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

_OF_AN_EXPERT = ("codes", "zero_point", "scale", "bias")


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "order"):
        for item in one.tensor.order:
            if item.name == "e" and one.tensor.role in _OF_AN_EXPERT:
                yield Found(
                    f"all experts share `{one.key}`, a {one.tensor.role} tensor, which each expert has of its own",
                    one.path("order"),
                    within=(item.start, item.end),
                    help="leave `e` out: experts stand outermost without being written",
                )
