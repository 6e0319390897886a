"""The two sides of a plan, read by `decode`, and which of their elements belong together.

sides = Sides(plan, source, target)
for pair in sides.given.pairs:
    for part in sides.parts(pair, expert):
        source, target = part.windows()    # the same rows and columns on both sides
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from layoutdsl.backends import buffers
from layoutdsl.decode import SCALES, Reading, Window, distinct
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.plan import Plan
from layoutdsl.prove.given import Pair, read
from layoutdsl.resolve import Stored

Flats = Mapping[str, list[torch.Tensor]]
"""Tensor name -> per expert its bytes; one entry where all experts share it."""


class Sides:
    """A plan, what its specs say of it, and the bytes of both sides.

    Raises LayoutError where a tensor is missing or of another dtype or shape, and where the plan is not what its specs
    make of it.
    """

    def __init__(
        self, plan: Plan, source: buffers.Given, target: Mapping[str, torch.Tensor], specs: tuple[str, ...] = ()
    ):
        self.plan, self.given = plan, read(plan, specs)
        self.flats: dict[str, Flats] = {"source": buffers.inputs(plan, source), "target": _outputs(plan, target)}
        self.losses = dict(plan.losses)
        self.programs = {program.output: program for program in plan.programs}

    @property
    def experts(self) -> range:
        return range(self.plan.experts[2] or 1)

    def flat(self, side: str, name: str, expert: int) -> torch.Tensor:
        """The bytes of one expert's tensor."""
        found = self.flats[side][name]
        return found[expert] if len(found) > 1 else found[0]

    def reading(self, side: str, pair: Pair, expert: int) -> Reading:
        found: list[Stored] = [stored for tensors in getattr(pair, side).values() for stored in tensors]
        flats = {stored.name: self.flat(side, stored.name, expert) for stored in found}
        return Reading(found, flats, self.given.group(side))

    def parts(self, pair: Pair, expert: int) -> Iterator[Part]:
        """Each part of a matrix, with the places of all its rows and inputs on both sides."""
        matrix = pair.matrix
        source, target = (self.reading(side, pair, expert) for side in ("source", "target"))
        inputs, outputs = self.sorted(pair, expert), self._sorted_rows(pair, expert)
        k = torch.arange(matrix.k.length, device=target.device)
        k_source = k if inputs is None else inputs - matrix.k.start
        for part, stretch in enumerate(matrix.n):
            n = torch.arange(stretch.length, device=target.device)
            n_source = n if outputs is None else outputs - stretch.start
            yield Part(expert, part, source, target, n_source, n, k_source, k)

    def sorted(self, pair: Pair, expert: int) -> torch.Tensor | None:
        """Of the inputs sorted by group those that the rank holds, where the source is in act-order and the target is
        not; int64, counted over all ranks."""
        if self.given.orders[pair.matrix.name] is None:
            return None
        reading, k = self.reading("source", pair, expert), pair.matrix.k
        groups = reading.groups(0, torch.arange(k.size, device=reading.device) - k.start)
        return groups.sort(stable=True).indices[k.start : k.start + k.length]

    def _sorted_rows(self, pair: Pair, expert: int) -> torch.Tensor | None:
        """The same of the outputs, which follow the inputs of the matrix that reads them."""
        if self.given.inner_order(pair) is None:
            return None
        axis = pair.matrix.n[0].axis
        return self.sorted(next(p for p in self.given.pairs if p is not pair and p.matrix.k.axis == axis), expert)


def _outputs(plan: Plan, target: Mapping[str, torch.Tensor]) -> Flats:
    for name in target:
        if name not in plan.output:
            raise LayoutError(
                f"the plan writes no tensor `{name}`",
                code="LP160",
                name="unknown-tensor",
                help=did_you_mean(name, plan.output) or f"it writes: {', '.join(plan.output)}",
            )
    found: dict[str, list[torch.Tensor]] = {}
    for info in plan.outputs:
        expected = f"{info.dtypes[0]} {list(info.full_shape)}"
        if info.name not in target:
            raise LayoutError(
                f"tensor `{info.name}` is missing", code="LP161", name="missing-tensor", help=f"expected {expected}"
            )
        tensor = target[info.name]
        stated = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        if stated != expected:
            raise LayoutError(
                f"`{info.name}` is {stated}, expected {expected}",
                code="LP162",
                name="wrong-shape",
                help="this tensor was made by another plan",
            )
        found[info.name] = buffers.experts_of(info, tensor, plan.experts[2] or 1)
    return found


@dataclass(frozen=True)
class Part:
    """One part of one expert: where its rows and inputs stand on both sides, counted from the rank's first ones."""

    expert: int
    part: int
    source: Reading
    target: Reading
    n_source: torch.Tensor
    n: torch.Tensor
    k_source: torch.Tensor
    k: torch.Tensor

    def windows(self, n: slice = slice(None), k: slice | torch.Tensor = slice(None)) -> tuple[Window, Window]:
        """Both sides, at all rows and inputs or at some."""
        return (
            self.source.at(self.part, self.n_source[n], self.k_source[k]),
            self.target.at(self.part, self.n[n], self.k[k]),
        )

    def columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first input of each set that meets the same scales on both sides, and for every input its set."""
        columns = torch.arange(len(self.k), device=self.k.device)
        key = torch.zeros_like(columns)
        for window in self.windows(slice(0, 1)):
            for role in SCALES:
                if role in window.planes:
                    _, meets = distinct(window.planes[role].meets)
                    _, key = distinct(key * (int(meets.max()) + 1) + meets)
        first = torch.full_like(columns[: int(key.max()) + 1], len(key)).scatter_reduce(0, key, columns, "amin")
        return first, key
