"""A digit has the name of an axis, of the parts or of the experts.

## Why is this bad

An order names digits. `n` and `k` in it are the axes that are not split, `p` counts parts and `e` experts; a digit of
the same name cannot be told from these, and the order says two things at once.

## Example

    split: "k = n kp:8"
    order: "n {kp}"

## Use instead

    split: "k = kw kp:8"
    order: "kw, n {kp}"
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

_TAKEN = {"n": "the axis of outputs", "k": "the axis of inputs", "e": "the experts", "p": "the parts"}

EXPLAINS = ("LD101", "LP200")


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "split"):
        for axis in one.tensor.split or ():
            for digit in axis.digits:
                if digit.name in _TAKEN:
                    yield Found(
                        f"digit `{digit.name}` of axis {axis.axis} has the name of {_TAKEN[digit.name]}",
                        one.path("split"),
                        within=(digit.start, digit.end),
                        help="give the digit a name of its own",
                    )
