"""Zero points and scales beside the codes that a recode changes, for any box of a program's target.

Where an operand's code stands is the sum of an address along n and one along k. Both are kept by coordinate, so that
boxes of the codes need not be boxes of the operand; along loops where the address stays, such as those inside a group,
one code is read for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layoutdsl.backends.boxes import Addresses, Box
from layoutdsl.backends.torch_recodes import decode
from layoutdsl.backends.torch_sources import Sources
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Lookup, Operand, Program


class Operands:
    """The operands of a program for one expert."""

    def __init__(self, program: Program, sources: Sources, expert: int):
        self.operands, self.sources, self.expert = program.operands, sources, expert
        self.known: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def beside(self, box: Box) -> dict[str, torch.Tensor]:
        """By role: zero points and global scales as values, scales as codes; of size one along loops where they stay
        the same."""
        return {operand.role: self._values(operand, box) for operand in self.operands}

    def _values(self, operand: Operand, box: Box) -> torch.Tensor:
        by_n, by_k = self._addresses(operand, box.part)
        host = by_n.device
        n = _varying(by_n[box.along(0, 2, box.at[0], host)]).to(self.sources.device)
        k = _varying(by_k[box.along(1, 2, box.at[1], host)]).to(self.sources.device)
        codes = self.sources.codes(operand.sources[box.part], self.expert).take(n + k)
        if operand.role == "zero_point":
            return codes + operand.plus
        return decode(code_named(operand.code), codes) if operand.role == "global_scale" else codes

    def _addresses(self, operand: Operand, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Along n and along k, by coordinate, on the host."""
        if (operand.role, part) not in self.known:
            moves = [move for move in operand.moves if any(run.part == part for run in move.n)]
            n = [run for move in moves for run in move.n if run.part == part]
            k = [run for move in moves for run in move.k]
            gathered = (moves[0].gather_n, moves[0].gather_k) if moves else (None, None)
            self.known[operand.role, part] = self._table(n, gathered[0], part), self._table(k, gathered[1], 0)
        return self.known[operand.role, part]

    def _table(self, runs: Sequence[Run], lookup: Lookup | None, part: int) -> torch.Tensor:
        host = torch.device("cpu")
        grids = [(_column(run.x, run, 1).index(host), _column(run.src, run, 3).index(host)) for run in runs]
        table = torch.zeros(max((int(x.max()) + 1 for x, _ in grids), default=0), dtype=torch.int64, device=host)
        for x, src in grids:
            table[x] = src
        return self.sources.addresses(lookup, part, table.to(self.sources.device), self.expert).to(host)


def _column(first: int, run: Run, column: int) -> Addresses:
    """What a run says of each of its elements: coordinates (column 1) or source addresses (3)."""
    return Addresses(first, tuple(loop[0] for loop in run.loops), tuple(loop[column] for loop in run.loops))


def _varying(addresses: torch.Tensor) -> torch.Tensor:
    """The first of each dimension along which the addresses are the same."""
    for dim, size in enumerate(addresses.shape):
        if size > 1 and bool((addresses == addresses.narrow(dim, 0, 1)).all()):
            addresses = addresses.narrow(dim, 0, 1)
    return addresses
