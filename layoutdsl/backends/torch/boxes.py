"""Boxes of elements as grids of addresses: what the torch backend reads and writes at once where it moves codes.

A box is one run along n times one along k. Its loops, outermost first, give the sizes of a grid, and their steps its
steps, on the target's side and on the source's. With a loop (count 4, ddst 8, dsrc 1) along n and one (count 8, ddst 1,
dsrc 4) along k, `box.target.of(a).copy_(box.source.of(b))` transposes 4 x 8 codes.

Elements that share a target (a loop with ddst 0) are one writer, the first, and its followers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from layoutdsl.plan import Move

if TYPE_CHECKING:
    import torch

Loop = tuple[int, int, int, int, int]
"""(axis, count, dx, ddst, dsrc); axis 0 is n, 1 is k."""


@dataclass(frozen=True)
class Addresses:
    """A grid of addresses, `at` the first."""

    at: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def low(self) -> int:
        """The smallest address."""
        return self.at + sum(min((size - 1) * step, 0) for size, step in zip(self.sizes, self.steps))

    def of(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.as_strided(self.sizes, self.steps, codes.storage_offset() + self.at)

    def moved(self, by: int) -> Addresses:
        return replace(self, at=self.at + by)

    def odd(self) -> int | None:
        """A dimension along which addresses are even and odd in turns."""
        return next((at for at, size in enumerate(self.sizes) if size > 1 and self.steps[at] % 2), None)

    def every_other(self, dim: int, first: int) -> Addresses:
        """Of one dimension, the indices that are even (first 0) or odd (first 1)."""
        sizes, steps = list(self.sizes), list(self.steps)
        sizes[dim], steps[dim] = (sizes[dim] + 1 - first) // 2, 2 * steps[dim]
        return Addresses(self.at + first * self.steps[dim], tuple(sizes), tuple(steps))

    def halved(self) -> Addresses:
        """Counted in units of two, where all are even or all are odd."""
        return Addresses(self.at // 2, self.sizes, tuple(step // 2 for step in self.steps))

    def paired(self) -> Addresses | None:
        """Counted in units of two, where they are in pairs: an even one and the next along `odd`."""
        dim = self.odd()
        if dim is None or self.at % 2 or self.steps[dim] != 1 or self.sizes[dim] % 2:
            return None
        even = self.every_other(dim, 0)
        return even.halved() if even.odd() is None else None


def in_halves(where: Addresses, bits: int) -> bool:
    """Whether codes do not fill bytes, so that each is put beside what stands there."""
    return bits == 4 and where.paired() is None


class Last:
    """What was last made, kept for as long as the same is asked for: pieces of a box are alike."""

    def __init__(self) -> None:
        self.known: tuple[object, Any] | None = None

    def of(self, key: object, make: Callable[[], Any]) -> Any:
        if self.known is None or self.known[0] != key:
            self.known = key, make()
        return self.known[1]


@dataclass(frozen=True)
class Box:
    """One run along n times one along k. `at` is the coordinate and `src` the source address along n and along k;
    `join` says that all its target elements are written by another box."""

    part: int
    at: tuple[int, int]
    dst: int
    src: tuple[int, int]
    loops: tuple[Loop, ...]
    join: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(loop[1] for loop in self.loops)

    @property
    def target(self) -> Addresses:
        return Addresses(self.dst, self.sizes, tuple(loop[3] for loop in self.loops))

    @property
    def source(self) -> Addresses:
        return Addresses(sum(self.src), self.sizes, tuple(loop[4] for loop in self.loops))

    def along(self, axis: int, column: int, first: int) -> Addresses:
        """Of each index along one axis: first + its steps in a column of the loops (2: coordinate, 4: source). As many
        dimensions as the box, those of the other axis of size one."""
        sizes = tuple(count if of == axis else 1 for of, count, *_ in self.loops)
        return Addresses(first, sizes, tuple(loop[column] if loop[0] == axis else 0 for loop in self.loops))

    def single(self, kept: Container[tuple[int, int]]) -> Box:
        """The first element of each loop but those that are kept, named by (axis, dx)."""
        loops = (loop if (loop[0], loop[2]) in kept else (loop[0], 1, *loop[2:]) for loop in self.loops)
        return replace(self, loops=tuple(loops))

    def place(self, index: int) -> tuple[int, int]:
        """(n, k) of an element, counted through the loops."""
        at = list(self.at)
        for axis, count, dx, _, _ in reversed(self.loops):
            at[axis] += index % count * dx
            index //= count
        return at[0], at[1]

    def fixed(self, loop: int, index: int) -> Box:
        """The elements at one index of a loop."""
        axis, _, dx, ddst, dsrc = self.loops[loop]
        step = (index, 0) if axis == 0 else (0, index)
        return replace(
            self, at=(self.at[0] + step[0] * dx, self.at[1] + step[1] * dx), dst=self.dst + index * ddst,
            src=(self.src[0] + step[0] * dsrc, self.src[1] + step[1] * dsrc),
            loops=self.loops[:loop] + self.loops[loop + 1 :],
        )

    def cut(self, loop: int, first: int, count: int) -> Box:
        """At most so many turns of a loop."""
        axis, turns, *steps = self.loops[loop]
        fewer = (axis, min(count, turns - first), *steps)
        return replace(self.fixed(loop, first), loops=(*self.loops[:loop], fewer, *self.loops[loop + 1 :]))

    def last(self) -> Box:
        """Of elements that share a target the last, which is the one that stays."""
        for at in reversed(range(len(self.loops))):
            if self.loops[at][3] == 0:
                return self.fixed(at, self.loops[at][1] - 1).last()
        return self

    def by_axis(self) -> Box:
        """The same elements with k outermost and n innermost, so that a sum of something along k and something along n
        goes through memory in long stretches; where two 4-bit codes share a byte they stand between. The order of the
        elements is another one: none is the first any more."""
        along_k, pair, along_n = [], [], []
        for axis, count, dx, ddst, dsrc in self.loops:
            if ddst == 1 and count % 2 == 0:
                pair.append((axis, 2, dx, ddst, dsrc))
                count, dx, ddst, dsrc = count // 2, 2 * dx, 2 * ddst, 2 * dsrc
            (along_k if axis else along_n).append((axis, count, dx, ddst, dsrc))
        return replace(self, loops=(*along_k, *pair, *along_n))

    def pieces(self, most: int) -> Iterator[Box]:
        """Cut along the outermost loops, in order, so that none has more elements than `most`."""
        size = math.prod(self.sizes)
        if size <= most or self.loops[0][3] == 0:
            yield self
            return
        axis, count, *steps = self.loops[0]
        step = most * count // size
        for first in range(0, count, max(step, 1)):
            start = self.fixed(0, first)
            if step < 2:
                yield from start.pieces(most)
            else:
                yield replace(start, loops=((axis, min(step, count - first), *steps), *start.loops))


def tiles(box: Box, most: int) -> Iterator[Box]:
    """Cut in any order, so that what each has lies together on both sides: the widest loop is halved until no tile has
    more elements than `most`."""
    counts = list(box.sizes)
    while math.prod(counts) > most:
        spans = [count * max(abs(loop[3]), abs(loop[4])) * (count > 1) for count, loop in zip(counts, box.loops)]
        widest = spans.index(max(spans))
        counts[widest] = (counts[widest] + 1) // 2
    cut = [at for at, loop in enumerate(box.loops) if counts[at] < loop[1]]
    for firsts in product(*(range(0, box.loops[at][1], counts[at]) for at in cut)):
        tile = box
        for at, first in zip(cut, firsts):
            tile = tile.cut(at, first, counts[at])
        yield tile


def boxes(move: Move) -> Iterator[Box]:
    """The boxes of a move, in order. Loops that move neither address, which only count elements, are left out."""
    for n in move.n:
        for k in move.k:
            loops = tuple(
                (axis, count, dx, ddst, dsrc) for axis, side in enumerate((n, k))
                for count, dx, ddst, dsrc in reversed(side.loops) if ddst or dsrc
            )
            yield Box(n.part, (n.x, k.x), n.dst + k.dst, (n.src, k.src), loops, n.join or k.join)


def alone(box: Box) -> Box:
    """Of elements that share a target the first, with loops of one turn in the place of theirs."""
    return replace(box, loops=tuple((axis, count if ddst else 1, *steps, ddst, dsrc)
                                    for axis, count, *steps, ddst, dsrc in box.loops))


def written(box: Box, made: torch.Tensor) -> torch.Tensor:
    """Of a box' elements those that are written: the first of those that share a target, and none that others write."""
    if box.join:
        return made.reshape(-1)[:0]
    for at, loop in enumerate(box.loops):
        if loop[3] == 0:
            made = made.narrow(at, 0, 1)
    return made


def first(mask: torch.Tensor) -> int | None:
    """Index of the first element that is set."""
    return int(mask.reshape(-1).byte().argmax()) if bool(mask.any()) else None


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """target.copy_(source); on a CPU apart for each turn of an innermost loop of two or three, where torch is slow."""
    steps = target.stride()
    dims = [(steps[at], at) for at, size in enumerate(target.shape) if size > 1]
    at = min(dims)[1] if dims else 0
    if not dims or target.shape[at] > 3 or target.is_cuda or target.numel() < 1 << 14:
        target.copy_(source)
        return
    for index in range(target.shape[at]):
        copy(target.select(at, index), source.select(at, index))
