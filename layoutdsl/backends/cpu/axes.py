"""Runs of one axis as tables of addresses: digits of two split off for a block, everything around them enumerated.

Addresses add up over axes, so a table for n and one for k say where all blocks of a move begin: block (i, j) at
rows[i] + columns[j]. However odd a run's loops are, they end in the same two columns of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutdsl.layout import Run

Step = tuple[int, int]
"""(target step, source step) of a digit."""


@dataclass(frozen=True)
class Points:
    """Elements of an axis: coordinates and both addresses, each an int64 array."""

    x: np.ndarray
    dst: np.ndarray
    src: np.ndarray


@dataclass(frozen=True)
class Carved:
    """A run of which digits have been split off: `kept` is what has them, `around` the same without them, `rests` what
    was cut away because a count had no such digit. `dx` are the digits' steps in coordinates."""

    kept: Run
    around: Run
    rests: tuple[Run, ...]
    dx: tuple[int, ...]


def size(run: Run) -> int:
    return math.prod(loop[0] for loop in run.loops)


def moving(run: Run) -> Run:
    """Without loops that move neither address: they count elements that share both."""
    return replace(run, loops=tuple(loop for loop in run.loops if loop[0] > 1 and (loop[2] or loop[3])))


def writers(run: Run) -> Run | None:
    """Of elements that share a target the first; None where another run writes it."""
    return None if run.join else replace(run, loops=tuple(loop for loop in run.loops if loop[2]))


def carve(run: Run, steps: Sequence[Step]) -> Carved | None:
    """Split digits of two with these steps off a run's loops; None where it has not all of them."""
    wanted = set(steps)
    found: dict[Step, int] = {}
    kept, around, rests = [], [], []
    for at, (count, dx, dst, src) in enumerate(run.loops):
        digits = 0
        while (dst << digits, src << digits) in wanted and count >> (digits + 1):
            found[dst << digits, src << digits] = dx << digits
            digits += 1
        whole = count >> digits << digits
        if whole < count:
            moved = replace(run, x=run.x + whole * dx, dst=run.dst + whole * dst, src=run.src + whole * src)
            rests.append(replace(moved, loops=(*kept, (count - whole, dx, dst, src), *run.loops[at + 1 :])))
        kept.append((whole, dx, dst, src))
        if whole >> digits > 1:
            around.append((whole >> digits, dx << digits, dst << digits, src << digits))
    if len(found) < len(wanted):
        return None
    return Carved(
        replace(run, loops=tuple(kept)), replace(run, loops=tuple(around)), tuple(rests), tuple(found[s] for s in steps)
    )


def points(runs: Iterable[Run]) -> Points:
    """All elements of some runs."""
    found = [_points(run) for run in runs]
    if not found:
        return Points(*[np.zeros(0, np.int64)] * 3)
    return Points(*(np.concatenate(columns) for columns in zip(*found)))


def _points(run: Run) -> list[np.ndarray]:
    columns = [np.array([first], dtype=np.int64) for first in (run.x, run.dst, run.src)]
    for count, *steps in run.loops:
        turns = np.arange(count, dtype=np.int64)
        columns = [np.add.outer(turns * step, column).reshape(-1) for step, column in zip(steps, columns)]
    return columns


def combined(firsts: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """[elements, 2^digits]: each first address plus every sum of digits' steps, the first digit fastest."""
    sums = np.zeros(1, dtype=np.int64)
    for step in steps:
        sums = np.concatenate([sums, sums + step])
    return np.ascontiguousarray(np.add.outer(firsts, sums))
