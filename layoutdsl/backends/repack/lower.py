"""What the cuda and the host backend launch: a plan's programs, checks and reductions as calls of kernels.

A program's codes are a grid (axes.py). What lies in tiles of it is moved, filled or looked through by warps (tiles.py,
tile_kernels.py, row_kernels.py), the rest pair by pair (grid_kernels.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from layoutdsl.backends.repack import axes, grid_kernels, tile_kernels
from layoutdsl.backends.repack.axes import DATA, KIND, PART, Grid
from layoutdsl.backends.repack.calls import ALIGNED, About, Call, Kernel, Source, along_rows, looking, moving, writing
from layoutdsl.backends.repack.codes import ZERO_POINTS, may_refuse, non_finite
from layoutdsl.backends.repack.tiles import Tiles, recoded, source_order, tiled
from layoutdsl.codes import code_named
from layoutdsl.plan import Check, Plan, Program
from layoutdsl.recodes import Recode

__all__ = ["ALIGNED", "Call", "Kernel", "Lowered", "checks", "lowered", "reductions"]

IN_WORDS = ("fold_sign", *ZERO_POINTS)
"""Recodes of whole words, wherever their codes come from."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """One program. `checks` find what is refused and write nothing, `writes` find it as well; `compares`, where there
    are any, hold elements that share a place against what has been written there, and stand for the checks."""

    checks: tuple[Call, ...] = ()
    writes: tuple[Call, ...] = ()
    compares: tuple[Call, ...] = ()


@cache
def lowered(plan: Plan, index: int, alignment: int) -> Lowered:
    """The program of that index, on tensors whose addresses are multiples of `alignment`."""
    program = plan.programs[index]
    if program.recode.name == "shape":
        return Lowered()
    main, *fill = (_Lowering(plan, part, alignment) for part in (program, *_fill(plan, program)))
    return Lowered(
        tuple(call for part in (main, *fill) for call in part.checks()),
        tuple(call for part in (*fill, main) for call in part.writes()),
        tuple(main.looks("compare")) if main.shares else (),
    )


@cache
def reductions(plan: Plan) -> tuple[Call, ...]:
    """The calls that find what recodes need to know before."""
    programs = {program.output: program for program in plan.programs}
    found = [_Lowering(plan, programs[reduction.output], 1) for reduction in plan.reductions]
    return tuple(call for part in found for call in part.looks("largest"))


@cache
def checks(plan: Plan, alignment: int) -> tuple[Call, ...]:
    """The calls that look at what must hold in the data, but for stored shapes."""
    return tuple(call for check in plan.checks if check.kind != "shape" for call in _checked(plan, check, alignment))


def _checked(plan: Plan, check: Check, alignment: int) -> Iterator[Call]:
    info = plan.input[check.tensor]
    bits, expect = code_named(info.code).bits, check.expect
    numbers = {"expected": 0, "first": 0, "other_row": 1, **dict(zip(("expected", "first"), expect))}
    about = About((plan.experts[2] or 1) if info.experts else 1, alignment, numbers)
    sources = [(name, 0) for name in (check.tensor, check.other) if name]
    for grid in axes.listed(check.moves):
        grid = replace(grid, n=grid.n.copy())
        grid.n[PART] = 0
        if check.kind == "equal" and 0 <= expect[0] < 1 << bits:
            tiles, grid = tiled(axes.by_source(grid), bits, grid.actions == DATA)
            all_equal = replace(about, numbers={"value": _word(expect[0], bits)})
            yield from (along_rows(all_equal, "equal", "", one, bits, sources) for one in tiles)
        if np.any(grid.actions == DATA):
            yield from looking(about, grid_kernels.Form(check.kind, "copy", info.code, info.code), grid, sources)


def _fill(plan: Plan, program: Program) -> Iterator[Program]:
    """Pads that repeat a source's value, as a program of their own."""
    if program.fill is not None:
        fill, code = program.fill, plan.output[program.output].code
        yield Program(program.output, fill.sources, Recode("offset", fill.code, code, fill.plus), fill.moves)


class _Lowering:
    """One program into tensors whose addresses are multiples of `alignment`."""

    def __init__(self, plan: Plan, program: Program, alignment: int):
        self.plan, self.program, info = plan, program, plan.output[program.output]
        self.recode, self.operand = program.recode, next(iter(program.operands), None)
        self.bits = code_named(info.code).bits
        self.shares = axes.shares(program.moves)
        self.reduction = next((one for one in plan.reductions if one.name == program.reduction), None)
        copies = (plan.experts[2] or 1) if info.experts and not info.shared else 1
        step = info.codes * self.bits // 8  # from one expert's output to the next one's, in bytes
        alignment = math.gcd(alignment, step) if copies > 1 else alignment
        self.about = About(copies, alignment, self._numbers() | {"to_step": step}, program.output, program.reduction)

    def _numbers(self) -> dict[str, int]:
        """What kernels need to know of the program."""
        a, b = code_named(self.recode.source), code_named(self.recode.target)
        bias = a.bias or (b.bias if self.recode.name == "fp8_nibbles" else 0)
        found = {
            "power": self.recode.power,
            "plus": self.operand.plus if self.operand else bias,
            "beside_row": len(self.program.sources),
            "slot_step": 0,
        }
        if self.reduction is None:
            return found
        scale = next(one.recode for one in self.plan.programs if one.output == self.reduction.output)
        return found | {
            "slot_step": int(self.reduction.scope == "expert"),
            "scales_row": len(self.program.sources) + len(self.operand.sources if self.operand else ()),
            "parts": len(self.reduction.globals),
            "reciprocal": int(self.reduction.reciprocal),
            "scale_power": scale.power,
            "within": int(scale.target == "s0e5m3"),
        }

    def writes(self) -> Iterator[Call]:
        for grid in self._grids():
            tiles, grid = self._tiled(grid)
            yield from (self._moved(one) if one.action == DATA else self._filled(one) for one in tiles)
            yield from writing(self.about, self._form("write"), grid, self.bits, self._sources())

    def checks(self) -> Iterator[Call]:
        """Calls that find what is refused; where elements share places, `writes` and `compares` do."""
        if self.shares or not may_refuse(self.recode):
            return
        for grid in self._grids():
            tiles, grid = self._tiled(grid)
            for one in tiles:
                if one.action == DATA:
                    sources = [(self.program.sources[one.part], 0)]
                    yield along_rows(self.about, "check", self.recode.source, one, self.bits, sources)
            for n, k in zip(*np.nonzero(grid.actions == DATA)):
                left = replace(grid, n=grid.n[:, grid.n[KIND] == n], k=grid.k[:, grid.k[KIND] == k])
                if left.n.size and left.k.size:
                    yield from looking(self.about, self._form("check"), left, self._sources())

    def looks(self, use: str) -> Iterator[Call]:
        """Calls that look at every element."""
        for grid in axes.listed(self.program.moves, self.operand):
            yield from looking(self.about, self._form(use), grid, self._sources())

    def _grids(self) -> Iterator[Grid]:
        for grid in axes.written(self.program.moves, self.operand):
            if self.recode.name == "constant":
                grid = replace(grid, actions=np.where(grid.actions == DATA, self.recode.power, grid.actions))
            yield grid

    def _tiled(self, grid: Grid) -> tuple[list[Tiles], Grid]:
        """Pads are whole words wherever they stand, data where whole words can be recoded."""
        a, b = self.recode.source, self.recode.target
        alike = self.recode.name in ("copy", *IN_WORDS) or self.recode == Recode("offset", a, b)
        moves = alike and code_named(a).bits == self.bits and not any(one[3] for one in grid.lookups)
        return tiled(grid, self.bits, (grid.actions >= 0) | moves & (grid.actions == DATA))

    def _moved(self, tiles: Tiles) -> Call:
        recode = self.recode.name if self.recode.name in IN_WORDS else ""
        refuses = not recode and non_finite(code_named(self.recode.source)) is not None
        operand, word = self.operand if recode else None, (32 // self.bits).bit_length() - 1
        beside = [digit.beside for digit in sorted(tiles.digits, key=lambda digit: digit.target)]
        form = partial(
            tile_kernels.Form,
            self.bits,
            source_order(tiles.digits),
            code=self.recode.source if refuses else "",
            recode=recode,
            beside=operand.code if operand else "",
            apart=tuple(at for at, step in enumerate(beside) if step and operand),
            recoded=(recoded(tiles.digits, word) or "") if operand else "first",
        )
        names = [self.program.sources[tiles.part], *([operand.sources[tiles.part]] if operand else [])]
        return moving(self.about, form, tiles, self.bits, [(name, 0) for name in names])

    def _filled(self, tiles: Tiles) -> Call:
        about = replace(self.about, numbers={**self.about.numbers, "value": _word(tiles.action, self.bits)})
        return along_rows(about, "fill", "", tiles, self.bits, ())

    def _form(self, use: str) -> grid_kernels.Form:
        recode, stepwise = self.recode.name, self.plan.habits.int16 == "stepwise"
        return grid_kernels.Form(
            use,
            "stepwise" if recode == "int16_scale" and stepwise else "copy" if recode == "constant" else recode,
            self.recode.source,
            self.recode.target,
            beside=self.operand.code if self.operand and use != "largest" else "",
            counts=use == "write" and self.program.output in dict(self.plan.losses),
        )

    def _sources(self) -> tuple[Source, ...]:
        """The rows of the table of addresses: the parts' tensors, their operands, their global scales."""
        names = (*self.program.sources, *(self.operand.sources if self.operand else ()))
        scales = self.reduction.globals if self.reduction else ()
        return (*((name, 0) for name in names), *((name, at * 4) for name, at in scales))


def _word(code: int, bits: int) -> int:
    """A word of one code."""
    return sum(code << at for at in range(0, 32, bits))
