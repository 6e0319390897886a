"""One program carried out code by code, by torch: what has no launch, and what holds codes that may have to be refused.

A piece of a box at a time is read, recoded and written. What is refused is refused at the first place in the order in
which the reference backend walks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch

from layoutdsl import recodes
from layoutdsl.backends.moves import shares
from layoutdsl.backends.places import place, refused
from layoutdsl.backends.torch.boxes import Box, alone, boxes, first, in_halves, tiles, written
from layoutdsl.backends.torch.codes import Codes, indexed
from layoutdsl.backends.torch.operands import Operands
from layoutdsl.backends.torch.pieces import piece
from layoutdsl.backends.torch.recodes import twin, unsigned, vanished
from layoutdsl.backends.torch.reductions import Reductions
from layoutdsl.backends.torch.sources import Sources, data
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Move, Operand, Program

Vanished = list[tuple[int, int]]
"""Of each piece, how many values became 0, and of how many."""


class Carrier:
    """A program for one expert, carried into `target` or, where that is None, only looked through for what is refused.
    Values that become 0 are counted in `lost`."""

    def __init__(
        self,
        program: Program,
        sources: Sources,
        reductions: Reductions,
        expert: int,
        target: Codes | None,
        lost: Vanished | None = None,
    ):
        self.program, self.sources, self.reductions, self.expert = program, sources, reductions, expert
        self.target, self.lost = target, lost
        self.operands = Operands(program, sources, expert)
        self.most = piece(sources.device)
        self.of: tuple[str, Codes] | None = None

    def carry(self, done: Container[Box] = ()) -> None:
        """All but the boxes that are done."""
        program = self.program
        for operand in program.operands:
            for move in operand.moves:
                self.sources.orders(move, self.expert)
        if program.fill is not None:
            self._fill(program.fill)
        if self.target is not None:
            for move in program.moves:
                for box in boxes(move) if move.kind != "data" else ():
                    self._constant(move, box.last(), self.target)
        apart = not shares(program)
        for move, box, name in data(program.sources, program.moves):
            if box in done:
                continue
            sure = self.sources.refuses_none(program.recode, name, self.expert)
            if sure and self.target is None:
                self.sources.orders(move, self.expert)
                continue
            box = box.by_axis() if sure and apart else box
            beside = self.operands.of(box)
            for part in tiles(box, self.most) if sure and apart else box.pieces(self.most):
                self._piece(move, part, name, sure, {role: one.values(part) for role, one in beside.items()})

    def _codes(self, name: str) -> Codes:
        if self.of is None or self.of[0] != name:
            self.of = name, self.sources.codes(name, self.expert)
        return self.of[1]

    def _piece(self, move: Move, box: Box, name: str, sure: bool, beside: Mapping[str, torch.Tensor]) -> None:
        codes = self.sources.box(move, box, self._codes(name), self.expert)
        made, bad = codes, None
        if not sure or self.program.recode.name != "copy":
            made, bad = self._recoded(box, codes, beside)
        refuses = None if bad is None else first(bad)
        differs = None if self.target is None else _store(box, made, self.target)
        if differs is not None and (refuses is None or differs < refuses):
            why = f"it differs from the value that shares its place in `{self.program.output}`"
            raise self._refused(name, box, differs, why)
        if refuses is not None:
            raise self._refused(name, box, refuses, self._reason(box, codes, refuses, beside))

    def _recoded(self, box: Box, codes: torch.Tensor, beside: Mapping[str, torch.Tensor]) -> tuple:
        recode = self.program.recode
        factor, shift = self.reductions.factor(self.program, box.part, self.expert)
        made, bad = twin(
            recode, codes, zero=beside.get("zero_point"), scale=beside.get("scale"),
            factor=beside.get("global_scale", factor), shift=shift, stepwise=self.reductions.stepwise,
        )
        if self.lost is not None:
            lost = written(box, vanished(recode, codes, made))
            self.lost.append((int(lost.count_nonzero()), lost.numel()))
        return made, bad

    def _reason(self, box: Box, codes: torch.Tensor, index: int, beside: Mapping[str, torch.Tensor]) -> str:
        """Why the definition refuses one element."""
        recode = self.program.recode
        factor, shift = self.reductions.factor(self.program, box.part, self.expert)
        if "global_scale" in beside:
            factor = float(beside["global_scale"].expand(box.sizes).reshape(-1)[index])
        code = unsigned(int(codes.reshape(-1)[index]), code_named(recode.source).bits)
        try:
            recodes.apply(recode, code, factor=factor, shift=shift, stepwise=self.reductions.stepwise)
        except Unrepresentable as error:
            return str(error)
        raise AssertionError(f"{recode.name} refuses {code:#x}, its definition does not")

    def _refused(self, tensor: str, box: Box, index: int, why: str) -> LayoutError:
        matrix = self.program.output.split(".")[0]
        return refused(tensor, place(self.sources.plan, matrix, self.expert, box.part, *box.place(index)), why)

    def _constant(self, move: Move, box: Box, target: Codes) -> None:
        """A pad, or a value that comes from no source."""
        recode = self.program.recode
        if move.kind == "value" and recode.name == "ramp":
            for part in box.pieces(self.most):
                coordinate = indexed(part.along(1, 4, part.src[1]), self.sources.device)
                target.write(part.target, coordinate // recode.power if recode.power else torch.zeros_like(coordinate))
            return
        largest = self.reductions.largest(self.program)
        code = move.pad if move.kind == "pad" else recodes.apply(recode, 0, factor=largest)
        for part in box.pieces(self.most) if in_halves(box.target, target.bits) else [box]:
            target.fill(part.target, code)

    def _fill(self, fill: Operand) -> None:
        """Pads along k that repeat their group's zero point."""
        top = (1 << code_named(self.sources.plan.output[self.program.output].code).bits) - 1
        for move, box, name in data(fill.sources, fill.moves):
            codes = self.sources.codes(name, self.expert)
            for part in box.pieces(self.most):
                found = self.sources.box(move, part, codes, self.expert)
                index = first(found > top - fill.plus)
                if index is not None:
                    code = int(found.reshape(-1)[index]) + fill.plus
                    raise self._refused(name, part, index, f"zero point {code} does not fit")
                if self.target is not None:
                    stays = part.last()
                    self.target.write(stays.target, self.sources.box(move, stays, codes, self.expert) + fill.plus)


def _store(box: Box, made: torch.Tensor, target: Codes) -> int | None:
    """Write a box; of elements that share a target the first is written. Returns the first that differs from it."""
    if box.join:
        return first(target.read(box.target) != made)
    stays = written(box, made)
    if stays is made:
        target.write(box.target, made)
        return None
    target.write(alone(box).target, stays)
    return first(made != stays)
