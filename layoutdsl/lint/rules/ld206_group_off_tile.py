"""A group size of a kernel and its tiles have no small common multiple, so k is padded far beyond both.

## Why is this bad

k is padded to whole tiles and to whole groups. Where neither divides the other, that is their least common multiple:
groups of 48 with tiles of 64 inputs pad a k of 200 to 384.

## Example

    accepts: {tiles: [{n: 64, k: 64}], groups: [48]}

## Use instead

    accepts: {tiles: [{n: 64, k: 64}], groups: [32, 64]}
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Kernel):
        return
    tiles = [tile.k for tile in subject.spec.accepts.tiles]
    for at, group in enumerate(subject.spec.accepts.groups):
        if group > 0 and all(group % tile and tile % group for tile in tiles):
            least = min(lcm(group, tile) for tile in tiles)
            yield Found(
                f"groups of {group} meet tiles of {' or '.join(map(str, dict.fromkeys(tiles)))} inputs only every "
                f"{least}, and k is padded to that",
                ("accepts", "groups", at),
                help="accept groups that divide a tile, or are a multiple of one",
            )
