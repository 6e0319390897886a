"""A digit counts to one, so it says nothing.

## Why is this bad

A digit of size 1 is always 0 and moves no element, wherever it stands. It reads as if it did: mostly the size is
missing a factor, and the digit above it has taken that.

## Example

    split: "k = kw kp:1"
    order: "kw, n {kp}"

## Use instead

    split: "k = kw kp:8"
    order: "kw, n {kp}"
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import number, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "split"):
        for axis in one.tensor.split or ():
            for digit in axis.digits:
                if digit.size is not None and not any(digit.size.names()) and number(digit.size, {}) == 1:
                    yield Found(
                        f"digit `{digit.name}` of axis {axis.axis} counts to 1, so it is always 0",
                        one.path("split"),
                        within=(digit.start, digit.end),
                        help="leave it out of split and order, or give it its size",
                    )
