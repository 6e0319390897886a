"""The tiles that a kernel accepts are no multiple of what the digits of its tensors count.

## Why is this bad

A matrix of whole tiles would end inside a digit: the tensor is stored as wide as the digits make it, and the kernel
that was told the smaller size reads from other places.

## Example

    accepts: {tiles: [{n: 32, k: 64}], groups: [128]}
    tensors:
      w: {role: codes, split: "n = nt j:8 c:8", ...}

## Use instead

    accepts: {tiles: [{n: 64, k: 64}], groups: [128]}
    tensors:
      w: {role: codes, split: "n = nt j:8 c:8", ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import digits, stated, weights
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Kernel):
        return
    for axis, what in (("n", "outputs"), ("k", "inputs")):
        counted = dict(_counted(spec, axis))
        for at, tile in enumerate(spec.accepts.tiles):
            size = getattr(tile, axis)
            for key, count in counted.items():
                if size % count:
                    yield Found(
                        f"tiles of {size} {what} cut the {count} that the digits of `{key}` count together",
                        ("accepts", "tiles", at, axis),
                        help=f"accept multiples of {count}, or split {axis} into digits that fit",
                    )
                    break


def _counted(spec: Kernel, axis: str) -> Iterator[tuple[str, int]]:
    """Tensors with digits of fixed sizes, and how many elements all but the first count."""
    for one in stated(spec, "split"):
        of = weights(one.tensor, axis, {})
        if of is not None and len(of) > 1:
            yield one.key, of[digits(one.tensor, axis)[0][0]]
