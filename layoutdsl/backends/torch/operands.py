"""Zero points and scales beside the codes that a recode changes, for any box of a program's target.

Where an operand's code stands is the sum of an address along n and one along k. Both are kept by coordinate, so that
boxes of the codes need not be boxes of the operand; along loops where the address stays, such as those inside a group,
one code is read for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layoutdsl.backends.torch.boxes import Addresses, Box, Last
from layoutdsl.backends.torch.codes import indexed
from layoutdsl.backends.torch.recodes import decode
from layoutdsl.backends.torch.sources import Sources
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Lookup, Operand, Program

HOST = torch.device("cpu")

Tables = tuple[torch.Tensor, torch.Tensor]
"""Addresses along n and along k, by coordinate."""


class Operands:
    """The operands of a program for one expert."""

    def __init__(self, program: Program, sources: Sources, expert: int):
        self.operands, self.sources, self.expert = program.operands, sources, expert
        self.known: dict[tuple[str, int], Tables] = {}

    def of(self, box: Box) -> dict[str, Beside]:
        """By role."""
        return {
            operand.role: Beside(operand, self.tables(operand, box.part), self.sources, self.expert, box)
            for operand in self.operands
        }

    def tables(self, operand: Operand, part: int) -> Tables:
        if (operand.role, part) not in self.known:
            moves = [move for move in operand.moves if any(run.part == part for run in move.n)]
            n = [run for move in moves for run in move.n if run.part == part]
            k = [run for move in moves for run in move.k]
            gathered = (moves[0].gather_n, moves[0].gather_k) if moves else (None, None)
            self.known[operand.role, part] = self._table(n, gathered[0], part), self._table(k, gathered[1], 0)
        return self.known[operand.role, part]

    def _table(self, runs: Sequence[Run], lookup: Lookup | None, part: int) -> torch.Tensor:
        grids = [(indexed(_column(run.x, run, 1), HOST), indexed(_column(run.src, run, 3), HOST)) for run in runs]
        table = torch.zeros(max((int(x.max()) + 1 for x, _ in grids), default=0), dtype=torch.int64, device=HOST)
        for x, src in grids:
            table[x] = src
        return self.sources.addresses(lookup, part, table.to(self.sources.device), self.expert).to(HOST)


class Beside:
    """One operand beside a box."""

    def __init__(self, operand: Operand, tables: Tables, sources: Sources, expert: int, box: Box):
        self.operand, self.tables, self.device = operand, tables, sources.device
        self.codes = sources.codes(operand.sources[box.part], expert)
        self.changes = {loop for axis in (0, 1) for loop in self._changing(axis, box)}
        self.last = Last(), Last()

    def _changing(self, axis: int, box: Box) -> list[tuple[int, int]]:
        """The loops, as (axis, dx), along which the address changes."""
        found = self.tables[axis][indexed(box.along(axis, 2, box.at[axis]), HOST)]
        changes = [bool((found != found.narrow(dim, 0, 1)).any()) for dim in range(found.dim())]
        return [(axis, loop[2]) for loop, one in zip(box.loops, changes) if one]

    def values(self, piece: Box) -> torch.Tensor:
        """Zero points and global scales as values, scales as codes, for a piece of the box; of size one along loops
        where they stay the same."""
        few = piece.single(self.changes)
        codes = self.codes.take(self._along(0, few), self._along(1, few))
        if self.operand.role == "zero_point":
            return codes + self.operand.plus
        return decode(code_named(self.operand.code), codes) if self.operand.role == "global_scale" else codes

    def _along(self, axis: int, box: Box) -> torch.Tensor:
        grid = box.along(axis, 2, 0)
        index = self.last[axis].of(grid, lambda: indexed(grid, HOST))
        return self.tables[axis][box.at[axis] :][index].to(self.device)


def _column(first: int, run: Run, column: int) -> Addresses:
    """What a run says of each of its elements: coordinates (column 1) or source addresses (3)."""
    return Addresses(first, tuple(loop[0] for loop in run.loops), tuple(loop[column] for loop in run.loops))
