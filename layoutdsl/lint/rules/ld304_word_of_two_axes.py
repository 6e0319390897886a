"""A word of a checkpoint's tensor holds elements of several outputs and of several inputs.

## Why is this bad

Ranks cut a checkpoint along n or along k. Words along one axis stay whole when the other is cut; a word of both is cut
by every rank border that is no multiple of its digits, whichever axis is shared.

## Example

    split: "n = nw np:2 · k = kw kp:4"
    order: "nw, kw {np kp}"

## Use instead

    split: "k = kw kp:8"
    order: "n, kw {kp}"
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import digits, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Checkpoint


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Checkpoint):
        return
    for one in stated(subject.spec, "order", "split"):
        word = [item for item in one.tensor.order if item.role == "packed"]
        axes = {axis for axis in ("n", "k") for name, _ in digits(one.tensor, axis) if name in {i.name for i in word}}
        if len(axes) > 1:
            yield Found(
                f"a word of `{one.key}` holds digits of n and of k: ranks that cut either one cut words",
                one.path("order"),
                within=(word[0].start, word[-1].end),
                help="pack the digits of one axis",
            )
