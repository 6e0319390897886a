"""Where an operand's codes stand: the addresses of a second tensor for the elements of a move, by their coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layoutdsl.backends.cpu.axes import Carved, combined, moving, points
from layoutdsl.backends.cpu.forms import FAR, Order, Spread
from layoutdsl.backends.cpu.network import BITS
from layoutdsl.codes import code_named
from layoutdsl.plan import Operand, Plan

WIDTHS = (8, 16, 32, 64)
"""Bits of a second tensor that can be read for a vector, if not all beside it."""


class Unknown(Exception):
    """What no job does: a move beyond its tensor, an operand that is not beside its element. No proven plan has it."""


class Second:
    """An operand of a program: by part, addresses in codes for the coordinates along n and along k; -1 where there is
    none. A looked up n has positions in its order instead."""

    def __init__(self, plan: Plan, operand: Operand):
        self.plan, self.operand = plan, operand
        self.bits = code_named(operand.code).bits
        self.tables: dict[tuple[int, int], np.ndarray] = {}
        self.orders: dict[int, tuple[Order | None, Order | None]] = {}
        for move in operand.moves:
            if move.kind != "data":
                continue
            if any(run.join or any(loop[2] == 0 for loop in moving(run).loops) for run in (*move.n, *move.k)):
                raise Unknown
            for part in dict.fromkeys(run.part for run in move.n):
                self.tables[0, part] = _by_coordinate(run for run in move.n if run.part == part)
                self.tables[1, part] = _by_coordinate(move.k)
                self.orders[part] = (
                    (move.gather_n, part) if move.gather_n is not None else None,
                    (move.gather_k, 0) if move.gather_k is not None else None,
                )

    def beside(self, axis: int, part: int, carved: Carved) -> np.ndarray:
        """[elements, 2^digits] addresses, in codes, of what stands beside a run and its digits."""
        table = self.tables.get((axis, part))
        x = combined(points([carved.around]).x, carved.dx)
        if table is None or x.size == 0 or x.min() < 0 or x.max() >= len(table) or (found := table[x]).min() < 0:
            raise Unknown
        return found

    def spread(self, steps: Sequence[int], inside: int, beside: Sequence[np.ndarray]) -> Spread:
        """How a vector of operands is read, of which digits have these steps: what stands beside one code of a vector
        is at the sum of an address along n and one along k."""
        odd = self.bits == 4 and any(bool((column[:, 0] % 2).any()) for column in beside)
        moved = tuple(int(step != 0) for step in steps[inside:])
        if self.bits == 4 and not odd and list(steps[:inside]) == [1 << at for at in range(inside)]:
            return Spread(self.bits, BITS, (*steps[:inside], *moved))
        span, near = 1, {0}
        for step in sorted(step for step in steps[:inside] if step > 0):
            if (span + step + (self.bits == 4)) * self.bits <= WIDTHS[-1]:
                span += step
                near.add(step)
        marked = [step if step in near else FAR for step in steps[:inside]]
        away = [step for at, step in enumerate(steps) if at >= inside or marked[at] == FAR]
        odd = odd or (self.bits == 4 and any(step % 2 for step in away))
        width = next(width for width in WIDTHS if width >= (span + odd) * self.bits)
        return Spread(self.bits, width, (*marked, *moved), odd)


def _by_coordinate(runs) -> np.ndarray:
    found = points(map(moving, runs))
    table = np.full(int(found.x.max()) + 1 if len(found.x) else 0, -1, dtype=np.int64)
    table[found.x] = found.src
    return table
