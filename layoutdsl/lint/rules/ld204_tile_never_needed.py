"""A tile family of a kernel takes nothing that another one does not take with as little padding.

## Why is this bad

Of all families the one is chosen that pads least. Multiples of this one are multiples of a smaller one too, so it is
never chosen; if the kernel has a faster configuration for it, the spec does not say so by listing it, and if the
smaller one is a mistake, matrices are accepted that the kernel does not take.

## Example

    accepts: {tiles: [{n: 64, k: 128}, {n: 128, k: 128}], groups: [128]}

## Use instead

    accepts: {tiles: [{n: 64, k: 128}], groups: [128]}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Kernel):
        return
    tiles = subject.spec.accepts.tiles
    for at, tile in enumerate(tiles):
        for before, other in enumerate(tiles):
            covers = tile.n % other.n == 0 and tile.k % other.k == 0
            if covers and (tile != other or before < at):
                yield Found(
                    f"tiles of {tile.n} x {tile.k} are never needed: every multiple is one of {other.n} x "
                    f"{other.k} too",
                    ("accepts", "tiles", at),
                    help="remove one of the two",
                )
                break
