"""Boxes of elements as grids of addresses: what the torch backend reads and writes at once where it moves codes.

A box is one run along n times one along k. Its loops, outermost first, give the sizes of a grid, and their steps its
steps, on the target's side and on the source's. With a loop (count 4, ddst 8, dsrc 1) along n and one (count 8, ddst 1,
dsrc 4) along k, `box.target.of(a).copy_(box.source.of(b))` transposes 4 x 8 codes.

Elements that share a target (a loop with ddst 0) are one writer, the first, and its followers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from layoutdsl.plan import Move

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

    def index(self, device: torch.device, beyond: int = 0) -> torch.Tensor:
        """The addresses, counted from `beyond`."""
        found = torch.tensor(self.at - beyond, device=device)
        for size, step in zip(self.sizes, self.steps):
            found = found.unsqueeze(-1) + torch.arange(size, device=device) * step
        return found

    def odd(self) -> int | None:
        """A dimension along which addresses are even and odd in turns."""
        return next((at for at, size in enumerate(self.sizes) if size > 1 and self.steps[at] % 2), None)

    def every_other(self, dim: int, first: int) -> Addresses:
        """Of one dimension, the indices that are even (first 0) or odd (first 1)."""
        sizes, steps = list(self.sizes), list(self.steps)
        sizes[dim], steps[dim] = (sizes[dim] + 1 - first) // 2, 2 * steps[dim]
        return Addresses(self.at + first * self.steps[dim], tuple(sizes), tuple(steps))

    def halved(self) -> Addresses:
        """The bytes of 4-bit codes, all in the same half."""
        return Addresses(self.at // 2, self.sizes, tuple(step // 2 for step in self.steps))


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

    def along(self, axis: int, column: int, first: int, device: torch.device) -> torch.Tensor:
        """Of each index along one axis: first + its steps in a column of the loops (2: coordinate, 4: source). As many
        dimensions as the box, those of the other axis of size one."""
        sizes = tuple(count if of == axis else 1 for of, count, *_ in self.loops)
        return Addresses(first, sizes, tuple(loop[column] for loop in self.loops)).index(device)

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

    def last(self) -> Box:
        """Of elements that share a target the last, which is the one that stays."""
        for at in reversed(range(len(self.loops))):
            if self.loops[at][3] == 0:
                return self.fixed(at, self.loops[at][1] - 1).last()
        return self

    def by_target(self) -> Box:
        """The same elements in the order of the target, so that pieces are of few stretches of it. No first element is
        to be found any more."""
        return replace(self, loops=tuple(sorted(self.loops, key=lambda loop: -loop[3])))

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
    return int(mask.reshape(-1).to(torch.uint8).argmax()) if bool(mask.any()) else None


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
