"""A block of outputs that share a scale may hold outputs of two fused parts.

## Why is this bad

gate and up were quantized apart, each with blocks of its own: the last block of gate may be short. If the scales of a
stacked tensor are laid out as if its parts shared blocks, all of up's are looked up in the wrong row: for parts of 192
outputs and blocks of 128, a quarter of the matrix is wrong.

## Example

    parts: {stored: [apart, stacked], orders: [[gate, up]]}
    s: {role: scale, split: "n = nb ni:128 · k = kb ki:128", order: "nb, kb (ni ki)", ...}

## Use instead

    parts: {stored: [apart, stacked], orders: [[gate, up]]}
    s: {role: scale, split: "n = nb ni:128 · k = kb ki:128", order: "p nb, kb (ni ki)", ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import digits, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

EXPLAINS = ("LP200",)


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Format) or set(spec.parts.stored) == {"apart"}:
        return
    for one in stated(spec, "order", "split"):
        along = [name for name, _ in digits(one.tensor, "n")]
        roles = {item.name: item.role for item in one.tensor.order}
        shared = [name for name in along if roles.get(name) == "shared"]
        if shared and len(shared) < len(along) and "p" not in roles:
            item = next(item for item in one.tensor.order if item.name in along and item.role != "shared")
            yield Found(
                f"outputs of two parts may share a block of `{one.key}`: parts stand one after the other inside "
                f"`{item.name}`",
                one.path("order"),
                within=(item.start, item.end),
                help=f"write `p {item.name}`: each part has blocks of its own",
            )
