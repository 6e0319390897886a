"""Boxes of elements as strided views of flat code arrays: what the torch backend copies at once.

A box is one run along n times one along k. Its loops, outermost first, give the sizes of a view, and their steps its
strides, on the target's side and on the source's. With a loop (count 4, ddst 8, dsrc 1) along n and one (count 8,
ddst 1, dsrc 4) along k, `box.target(a).copy_(box.source(b))` transposes 4 x 8 codes.

Elements that share a target (a loop with ddst 0) are one writer, the first, and its followers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from layoutdsl.backends.torch_scratch import PIECE
from layoutdsl.plan import Move, Program

Loop = tuple[int, int, int, int, int]
"""(axis, count, dx, ddst, dsrc); axis 0 is n, 1 is k."""


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
    def sizes(self) -> list[int]:
        return [loop[1] for loop in self.loops]

    def target(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.as_strided(self.sizes, [loop[3] for loop in self.loops], codes.storage_offset() + self.dst)

    def source(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.as_strided(self.sizes, [loop[4] for loop in self.loops], codes.storage_offset() + sum(self.src))

    def grid(self, axis: int, column: int, first: int, device: torch.device) -> torch.Tensor:
        """Of each point along one axis: first + its steps in a column of the loops (2: coordinate, 4: source)."""
        found = torch.tensor(first, device=device)
        for loop in self.loops:
            if loop[0] == axis:
                found = found.unsqueeze(-1) + torch.arange(loop[1], device=device) * loop[column]
        return found

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

    def pieces(self) -> Iterator[Box]:
        """Cut along the outermost loops, in order, so that none has more than PIECE elements."""
        size = math.prod(self.sizes)
        if size <= PIECE or self.loops[0][3] == 0:
            yield self
            return
        axis, count, *steps = self.loops[0]
        step = PIECE * count // size
        for first in range(0, count, max(step, 1)):
            start = self.fixed(0, first)
            if step < 2:
                yield from start.pieces()
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


def writes(program: Program) -> int:
    """How many codes of its output a program writes: all of them, where its plan is whole and proven."""
    moves = (*program.moves, *(program.fill.moves if program.fill else ()))
    found = [
        math.prod(loop[0] for side in (n, k) for loop in side.loops if loop[2])
        for move in moves for n in move.n for k in move.k if not (n.join or k.join)
    ]
    return sum(found) or len(program.values)


def may_share(move: Move) -> bool:
    """Whether some elements are compared with others that share their target."""
    return any(side.join or any(loop[2] == 0 and loop[3] for loop in side.loops) for side in (*move.n, *move.k))


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
