"""All sizes to try are whole multiples of every word, group and block.

## Why is this bad

Real extents are not: the last group of a matrix may be short and its last word half full. A checkpoint's format that is
proven at round sizes alone may say something else of the rest, and that is where layouts go wrong.

## Example

    split: "k = g gi:32"
    try: [{n: 64, k: 128}]

## Use instead

    split: "k = g gi:32"
    try: [{n: 64, k: 128}, {n: 20, k: 72}]
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Checkpoint


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Checkpoint) or len(subject.tries) < len(subject.spec.try_):
        return
    for axis, what in (("k", "inputs"), ("n", "outputs")):
        counted: set[int] = set()
        for one in subject.tries:
            extent = one.sizes[axis]
            digits = [d for t in one.tensors for view in (t.k if axis == "k" else t.n) for d in view.chain.digits]
            units = {weight for weight, _, _ in digits if weight > 1}
            if any(extent % unit for unit in units):  # pyright: ignore
                return
            counted |= units
        if counted:
            yield Found(
                f"every size to try has whole multiples of {max(counted)} {what}: none leaves a word, group or "
                "block short",
                ("try",),
                key=True,
                help=f"add an entry whose {axis} is no multiple of {min(counted)}",
            )
            return
