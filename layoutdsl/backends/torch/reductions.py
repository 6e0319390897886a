"""Numbers found in the data before the recodes, by torch, a piece at a time."""

from __future__ import annotations

import math

import torch

from layoutdsl import recodes
from layoutdsl.backends.places import ratios
from layoutdsl.backends.torch.pieces import piece
from layoutdsl.backends.torch.recodes import decode
from layoutdsl.backends.torch.sources import Sources, data
from layoutdsl.codes import code_named
from layoutdsl.plan import Program, Reduction


class Reductions:
    """What the reductions of one run have found, each for every expert. `tops`: the largest scale of each alone."""

    def __init__(self, sources: Sources, count: int, stepwise: bool):
        self.sources, self.count, self.stepwise = sources, count, stepwise
        self.factors: dict[tuple[str, int], tuple[float, int]] = {}
        self.ratios: dict[tuple[str, int], list[int]] = {}
        self.tops: dict[tuple[str, int], float] = {}

    def factor(self, program: Program, part: int, expert: int) -> tuple[float, int]:
        """The factor and the shift of a recode of one part."""
        factor, shift = self.factors.get((program.reduction, expert), (1.0, 0))
        if program.recode.name == "nvfp4_scale":
            shift += self.ratios[program.reduction, expert][part]
        return factor, shift

    def largest(self, program: Program) -> float:
        """The number that a value without a source is made of."""
        return self.factors.get((program.reduction, 0), (0.0, 0))[0]

    def find(self, reduction: Reduction) -> None:
        plan = self.sources.plan
        program = next(program for program in plan.programs if program.output == reduction.output)
        experts = range(self.count)
        if reduction.kind == "largest":
            for expert in experts:
                found = (top for _, top in self._tops(program, expert, signs=self.stepwise))
                self.tops[reduction.name, expert] = max(found, default=0.0)
            largest = max(self.tops[reduction.name, expert] for expert in experts)
            self.factors.update({(reduction.name, expert): (largest, 0) for expert in experts})
            return
        for expert in experts:
            values = [
                float(decode(code_named("float32"), self.sources.codes(name, expert).wide[at]))
                for name, at in reduction.globals
            ]
            powers = self.ratios[reduction.name, expert] = ratios(plan, reduction, values, expert)
            self.factors[reduction.name, expert] = (1 / values[0] if reduction.reciprocal else values[0], 0)
            found = (top * 2.0 ** powers[part] for part, top in self._tops(program, expert, signs=False))
            self.tops[reduction.name, expert] = max(found, default=0.0)
        for expert in experts:
            folded = any(self.ratios[reduction.name, expert])
            seen = experts if reduction.scope == "tensor" else [expert]
            top = max(self.tops[reduction.name, one] for one in seen)
            shift = recodes.nvfp4_shift(top, program.recode.target, program.recode.power, folded)
            self.factors[reduction.name, expert] = (self.factors[reduction.name, expert][0], shift)

    def _tops(self, program: Program, expert: int, *, signs: bool) -> list[tuple[int, float]]:
        """(part, largest value or, without `signs`, magnitude) of each part that a program reads; NaN is left out."""
        code = code_named(program.recode.source)
        found: dict[int, float] = {}
        for move, box, name in data(program.sources, program.moves):
            codes = self.sources.codes(name, expert)
            for part in box.pieces(piece(self.sources.device)):
                values = decode(code, self.sources.box(move, part, codes, expert))
                values = torch.where(values.isnan(), -math.inf, values if signs else values.abs())
                found[box.part] = max(found.get(box.part, -math.inf), float(values.amax()))
        return [(part, top) for part, top in found.items() if top != -math.inf]
