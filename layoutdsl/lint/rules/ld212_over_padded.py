"""A kernel pads a size to try further than another one that reads the same tensors.

## Why is this bad

Padding is bytes that every rank stores and reads: intermediate features padded from 192 to 256 are a third more. Which
tiles a kernel takes is a fact about it, so a rule of thumb, such as multiples of 256, must not stand there. A build
that has fewer tiles says so by naming the other one as its `base`.

## Example

    kernel: my_marlin        # tensors as in marlin_mxfp4_a16
    accepts: {tiles: [{n: 128, k: 256}], groups: [32]}

## Use instead

    kernel: my_marlin
    accepts: {tiles: [{n: 64, k: 128}, {n: 128, k: 64}], groups: [32]}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import lcm

from layoutdsl.lint.others import differing, plain
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel
from layoutdsl.resolve import up


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Kernel) or spec.base is not None:
        return
    own = plain(subject.tree.data)
    for name, other in subject.others:
        if differing(own, other, ("value", "tensors")):
            continue
        for one in subject.tries:
            n, k, group = one.sizes["n"], one.sizes["k"], one.params.get("group")
            unit = group if isinstance(group, int) and group > 0 else 1
            mine, theirs = (_padded(n, k, unit, text["accepts"]["tiles"]) for text in (own, other))  # pyright: ignore
            if mine[0] * mine[1] > theirs[0] * theirs[1]:
                more = 100 * (mine[0] * mine[1]) // (theirs[0] * theirs[1]) - 100
                yield Found(
                    f"{n} x {k} is padded to {mine[0]} x {mine[1]}; `{name}` reads the same tensors and pads to "
                    f"{theirs[0]} x {theirs[1]}: {more} per cent more is stored",
                    ("accepts", "tiles"),
                    key=True,
                    help=f"accept the tiles that `{name}` does, or state `base: {name}` where a build lacks them",
                )
                return


def _padded(n: int, k: int, unit: int, tiles: Iterable[dict[str, int]]) -> tuple[int, int]:
    padded = ((up(n, tile["n"]), up(k, lcm(tile["k"], unit))) for tile in tiles)
    return min(padded, key=lambda extents: extents[0] * extents[1])
