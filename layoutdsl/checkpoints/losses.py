"""What a plan that declares a loss makes of the source's scales, worked out from the logical scales of the source.

The recodes are the plan's own: where a bound is declared, they are the definition of what is right within it. Which
scales there are, the largest of them and where each stands is decoded anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from layoutdsl import recodes
from layoutdsl.backends.torch.recodes import STORED, signed, twin
from layoutdsl.checkpoints.sides import Sides
from layoutdsl.codes import Unrepresentable
from layoutdsl.decode import SCALES, Plane, Window, numbers, product
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Program
from layoutdsl.prove.given import Pair
from layoutdsl.resolve import Stored

Made = tuple[torch.Tensor, "torch.Tensor | None"]
"""Recoded codes, and which of them are refused."""


class Recoded:
    """The scales of one matrix as the plan must store them."""

    def __init__(self, sides: Sides, pair: Pair):
        self.sides, self.pair = sides, pair
        self.stepwise = sides.plan.habits.int16 == "stepwise"
        self.largest = 0.0
        self.shifts: list[int] = []
        self.ratios: list[list[int]] = []
        self.references: list[float] = []
        names = {self._program(role, 0)[0].recode.name for role in SCALES if role in pair.target}
        if "int16_scale" in names:
            tops = [top for expert in sides.experts for _, top in self._tops(expert, signs=self.stepwise)]
            self.largest = recodes.largest(tops, self.stepwise)
        if "nvfp4_scale" in names:
            self._shift()

    def scales(self, expert: int, part: int, window: Window, rows: slice) -> torch.Tensor:
        """What the target's scales must be worth together where the source has those of a window; float64 [rows, k],
        NaN where they are refused."""
        roles = [role for role in SCALES if role in self.pair.target]
        made = [(self._program(role, part)[1], *self._made(role, expert, part, window, rows)) for role in roles]
        values = product((stored, codes) for stored, codes, _ in made)
        for _, _, bad in made:
            values = values if bad is None else values.masked_fill(bad, torch.nan)
        return values

    def other(self, role: str, part: int, window: Window, rows: slice) -> torch.Tensor:
        """The same of a tensor that has nothing to do with scales, such as a bias."""
        program, stored = self._program(role, part)
        codes, bad = twin(program.recode, window.planes[role].codes(rows))
        values = product([(stored, codes)])
        return values if bad is None else values.masked_fill(bad, torch.nan)

    def _program(self, role: str, part: int) -> tuple[Program, Stored]:
        stored = next(stored for stored in self.pair.target[role] if part in stored.parts)
        return self.sides.programs[stored.name], stored

    def _made(self, role: str, expert: int, part: int, window: Window, rows: slice) -> Made:
        program, stored = self._program(role, part)
        recode = program.recode
        if recode.name == "largest":
            code = signed(recodes.apply(recode, 0, factor=self.largest), stored.code.bits)
            return torch.full_like(window.planes["scale"].codes(rows), code, dtype=STORED[stored.code.bits]), None
        codes = window.planes[role].codes(rows)
        if recode.name == "int16_scale":
            return twin(recode, codes, factor=self.largest, stepwise=self.stepwise)
        if recode.name == "int16_undo":
            return twin(recode, codes, factor=_raw(window.planes["global_scale"], rows))
        if recode.name == "nvfp4_scale":
            return twin(recode, codes, shift=self.shifts[expert] + self.ratios[expert][part])
        if recode.name == "nvfp4_global":
            return twin(recode, codes, factor=self.references[expert], shift=self.shifts[expert])
        return twin(recode, codes)

    def _shift(self) -> None:
        """Per expert the powers of two that move between the scales, as recodes.py has them."""
        recode = self._program("scale", 0)[0].recode
        tops: list[float] = []
        for expert in self.sides.experts:
            powers = self._ratios(expert)
            tops.append(max(top * 2.0 ** powers[part] for part, top in self._tops(expert, signs=False)))
            self.ratios.append(powers)
        for powers, top in zip(self.ratios, tops):
            top = max(tops) if self.sides.plan.habits.nvfp4_factor == "tensor" else top
            self.shifts.append(recodes.nvfp4_shift(top, recode.target, recode.power, any(powers)))

    def _ratios(self, expert: int) -> list[int]:
        """Powers of two of the parts' global scales over the first part's, which is noted as the reference."""
        one = slice(0, 1)
        planes = [part.windows(one, one)[0].planes["global_scale"] for part in self.sides.parts(self.pair, expert)]
        values = [float(_raw(plane, one)) for plane in planes]
        first = planes[0].stored
        self.references.append(1 / values[0] if first.reciprocal else values[0])
        try:
            return [recodes.nvfp4_ratio(values[0], value, first.reciprocal) for value in values]
        except Unrepresentable as error:
            raise LayoutError(
                f"`{first.name}`: {error}",
                code="LP171",
                name="global-scales-differ",
                help="the kernel has one global scale for all parts; such a checkpoint is never converted",
            ) from None

    def _tops(self, expert: int, *, signs: bool) -> Iterator[tuple[int, float]]:
        """(part, largest stored scale or, without `signs`, magnitude) over the weights of the rank."""
        for part in self.sides.parts(self.pair, expert):
            window, _ = part.windows(k=part.columns()[0])
            for rows in window.blocks():
                values = _raw(window.planes["scale"], rows)
                yield part.part, float((values if signs else values.abs()).nan_to_num(0.0).amax())


def _raw(plane: Plane, rows: slice) -> torch.Tensor:
    """What is stored, as numbers."""
    return numbers(plane.stored.code, plane.codes(rows), torch.float64)
