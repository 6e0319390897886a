"""The conversion as strided copies: each box of a move is one view of the source, recoded, into one view of the target.

Works on any device and never loops over elements. Codes lie in flat arrays, a byte for each 4-bit code, and boxes are
`as_strided` over them (boxes.py). Gathered axes (act-order) look their addresses up in index tensors. Of 4-bit tensors
one expert is unpacked at a time.

Without `out` every tensor is made in one pass, and nothing is returned where a value is refused. With `out`, every
check and every recode that may refuse runs first, and nothing is written before all have passed; outputs that overlap
inputs, or stand on another device, are made apart and copied. Refusals name the first place in the order in which the
reference backend walks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from layoutdsl import recodes
from layoutdsl.backends import buffers
from layoutdsl.backends.boxes import Box, alone, boxes, copy, first, may_share, writes, written
from layoutdsl.backends.places import place, ratios, refused
from layoutdsl.backends.torch_recodes import STORED, decode, non_finite, signed, twin, unsigned, vanished
from layoutdsl.backends.torch_scratch import PIECE, TOTAL, scratch
from layoutdsl.backends.torch_sources import Sources, data
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Check, Lost, Move, Operand, Plan, Program, Reduction, TensorInfo

__all__ = ["Converter", "amend", "carry_into", "carry_out", "run", "scratch"]


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    return carry_out(Converter, plan, tensors, out, report)


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    """Carry out a plan that writes only some places of its outputs: all others stay as `out` has them. Elements that
    share a place which another plan writes are compared with what stands there."""
    carry_into(Converter, plan, tensors, out)


@torch.no_grad()
def carry_out(
    kind: type[Converter],
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None,
    report: list[Lost] | None,
) -> dict[str, torch.Tensor]:
    """Run a plan with a converter of that kind."""
    given = buffers.inputs(plan, tensors)
    target = buffers.allocate(plan, tensors, out)
    converter = kind(plan, given, buffers.device_of(target or tensors))
    converter.target = target
    converter.counted = {name for name, _ in plan.losses} if report is not None else set()
    if out is None or _apart(given, target):
        converter.prepare()
        if out is not None:
            converter.verify()
        converter.clear()
        converter.write()
        if report is not None:
            report += converter.lost()
        return target
    for name, made in carry_out(kind, plan, tensors, None, report).items():
        target[name].copy_(made.view(target[name].shape).view(target[name].dtype))
    return target


@torch.no_grad()
def carry_into(
    kind: type[Converter], plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]
) -> None:
    """Amend `out` with a converter of that kind."""
    given = buffers.inputs(plan, tensors)
    target = buffers.allocate(plan, tensors, out)
    if not _apart(given, target):
        apart = {name: tensor.to(buffers.device_of(tensors), copy=True) for name, tensor in target.items()}
        carry_into(kind, plan, tensors, apart)
        for name, made in apart.items():
            target[name].copy_(made)
        return
    converter = kind(plan, given, buffers.device_of(target or tensors))
    converter.target = target
    converter.prepare()
    converter.verify()
    converter.write()


def _apart(given: Mapping[str, list[torch.Tensor]], target: Mapping[str, torch.Tensor]) -> bool:
    """Whether the outputs share no memory with the inputs and stand on their device."""
    sources = [flat for flats in given.values() for flat in flats]
    if len({tensor.device for tensor in (*sources, *target.values())}) > 1:
        return False
    return not any(
        flat.data_ptr() < tensor.data_ptr() + tensor.nbytes and tensor.data_ptr() < flat.data_ptr() + flat.nbytes
        for flat in sources for tensor in target.values()
    )


class Converter:
    """One conversion into `target`, on whose device the inputs are. `prepare` runs the checks and reductions, then
    `verify` finds what `write` would refuse.

    The cpu backend has its own way with a program: `verify_program` and `write_program`.
    """

    def __init__(self, plan: Plan, given: Mapping[str, list[torch.Tensor]], device: torch.device):
        self.plan, self.sources, self.device = plan, Sources(plan, given, device), device
        self.target: Mapping[str, torch.Tensor] = {}
        self.stepwise = plan.habits.int16 == "stepwise"
        self.count = plan.experts[2] or 1
        self.factors: dict[tuple[str, int], tuple[float, int]] = {}
        self.ratios: dict[tuple[str, int], list[int]] = {}
        self.counted: set[str] = set()
        self.vanished: dict[tuple[str, int], list[tuple[torch.Tensor, int]]] = {}

    def prepare(self) -> None:
        for check in self.plan.checks:
            for expert in range(self.count if self.plan.input[check.tensor].experts else 1):
                self._check(check, expert)
        for reduction in self.plan.reductions:
            self._reduce(reduction)

    def verify(self) -> None:
        for program in self.plan.programs:
            self.verify_program(program, self.plan.output[program.output])
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            for expert in range(self._copies(info) if info.role == "k_perm" else 0):
                self.sources.k_perm(source, info, expert)

    def verify_program(self, program: Program, info: TensorInfo) -> None:
        for expert, view in enumerate(self._views(info)):
            scratch = self._standing(info, view).clone() if _shares(program) else None
            self._program(program, info, expert, scratch)

    def lost(self) -> list[Lost]:
        """What `write` has lost to 0."""
        found: list[Lost] = []
        for (name, expert), pieces in self.vanished.items():
            count = int(torch.stack([count for count, _ in pieces]).sum())
            if count:
                found.append(Lost(name, self.plan.source_experts[expert], count, sum(of for _, of in pieces)))
        return found

    def clear(self) -> None:
        """Zeros where a plan that was never proven writes nothing."""
        for program in self.plan.programs:
            if writes(program) < self.plan.output[program.output].codes:
                buffers.flat(self.target[program.output]).zero_()

    def write(self) -> None:
        """What no move writes stays as it is."""
        self.vanished.clear()
        for program in self.plan.programs:
            info = self.plan.output[program.output]
            self.write_program(program, info, self._views(info))
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            for expert, view in enumerate(self._views(info)):
                k_perm = info.role == "k_perm"
                view.copy_(self.sources.k_perm(source, info, expert) if k_perm else self.sources.given[source][expert])

    def write_program(self, program: Program, info: TensorInfo, views: Sequence[torch.Tensor]) -> None:
        for expert, view in enumerate(views):
            self._make(program, info, expert, view)

    def _copies(self, info: TensorInfo) -> int:
        return self.count if info.experts and not info.shared else 1

    def _views(self, info: TensorInfo) -> list[torch.Tensor]:
        """The flat bytes of an output, per expert."""
        return buffers.experts_of(info, self.target[info.name], self._copies(info))

    def _standing(self, info: TensorInfo, view: torch.Tensor) -> torch.Tensor:
        """The codes that an output holds."""
        bits = code_named(info.code).bits
        return torch.stack([view & 15, view >> 4], dim=1).view(-1) if bits == 4 else view.view(STORED[bits])

    def _zeros(self, codes: int, bits: int) -> torch.Tensor:
        return torch.zeros(codes, dtype=STORED[bits], device=self.device)

    def _make(self, program: Program, info: TensorInfo, expert: int, view: torch.Tensor) -> None:
        """Run a program into the flat bytes of one expert's output."""
        if program.recode.name == "shape":
            dtype = STORED[buffers.element_bits(info)]
            view.copy_(torch.tensor(program.values, dtype=dtype, device=view.device).view(torch.uint8))
            return
        codes = self._standing(info, view)
        self._program(program, info, expert, codes)
        if code_named(info.code).bits == 4:
            torch.bitwise_or(codes[0::2], codes[1::2].bitwise_left_shift_(4), out=view)

    # programs ---------------------------------------------------------------------------------------------------------

    def _program(self, program: Program, info: TensorInfo, expert: int, target: torch.Tensor | None) -> None:
        """Write one expert's codes; without a target only find what is refused."""
        if program.recode.name == "shape":
            return
        late = program.recode.name in TOTAL and not _shares(program) and writes(program) == info.codes
        operands = {operand.role: self._operand(operand, info, expert) for operand in program.operands}
        if program.fill is not None:
            self._fill(program, program.fill, info, expert, None)
        of, clean = "", False
        for move, box, name in data(program.sources, program.moves):
            if of != name:
                of, clean = name, late or self._is_clean(program, name, expert)
            if clean and target is None:
                self.sources.orders(move, expert)
                continue
            for piece in box.pieces():
                self._piece(program, move, piece, expert, target, operands, clean)
        if target is None:
            return
        if late:
            self._recode(program, operands, target)
        for move in program.moves:
            for box in boxes(move) if move.kind != "data" else ():
                self._constant(program, move, box.last(), target)
        if program.fill is not None:
            self._fill(program, program.fill, info, expert, target)

    def _recode(self, program: Program, operands: Mapping[str, torch.Tensor], target: torch.Tensor) -> None:
        """Recode what has been moved, where it stands: in one go, since no code is refused. Pads come after."""
        for at in range(0, target.numel(), PIECE):
            part = slice(at, at + PIECE)
            beside = {role: found[part] for role, found in operands.items()}
            made, _ = twin(program.recode, target[part], zero=beside.get("zero_point"), scale=beside.get("scale"))
            target[part] = made

    def _is_clean(self, program: Program, name: str, expert: int) -> bool:
        """Whether codes are copied and none of the tensor's can be refused; looked up once, since weights are many."""
        code = code_named(program.recode.source)
        if program.recode.name != "copy" or code.bits == 4:
            return program.recode.name == "copy"
        for part in self.sources.codes(name, expert).split(PIECE):
            bad = non_finite(code, part)
            if bad is not None and bool(bad.any()):
                return False
        return True

    def _piece(self, program: Program, move: Move, box: Box, expert: int, target: torch.Tensor | None,
               operands: Mapping[str, torch.Tensor], clean: bool) -> None:
        codes = self.sources.box(move, box, program.sources[box.part], expert)
        made, bad = codes, None
        if not clean:
            beside = {role: box.target(found) for role, found in operands.items()}
            factor, shift = self._factor(program, box.part, expert)
            made, bad = twin(program.recode, codes, zero=beside.get("zero_point"), scale=beside.get("scale"),
                             factor=beside.get("global_scale", factor), shift=shift, stepwise=self.stepwise)
            if target is not None and program.output in self.counted:
                lost = written(box, vanished(program.recode, codes, made))
                self.vanished.setdefault((program.output, expert), []).append((lost.count_nonzero(), lost.numel()))
        refuses = None if bad is None else first(bad)
        differs = None if target is None else _store(box, made, target)
        if differs is not None and (refuses is None or differs < refuses):
            raise self._refused(program, program.sources[box.part], box, differs, expert,
                                f"it differs from the value that shares its place in `{program.output}`")
        if refuses is not None:
            raise self._refused(program, program.sources[box.part], box, refuses, expert,
                                self._reason(program, box, codes, refuses, expert, operands))

    def _factor(self, program: Program, part: int, expert: int) -> tuple[float, int]:
        factor, shift = self.factors.get((program.reduction, expert), (1.0, 0))
        if program.recode.name == "nvfp4_scale":
            shift += self.ratios[program.reduction, expert][part]
        return factor, shift

    def _reason(self, program: Program, box: Box, codes: torch.Tensor, index: int, expert: int,
                operands: Mapping[str, torch.Tensor]) -> str:
        """Why the definition refuses one element."""
        factor, shift = self._factor(program, box.part, expert)
        if "global_scale" in operands:
            factor = float(box.target(operands["global_scale"]).reshape(-1)[index])
        code = unsigned(int(codes.reshape(-1)[index]), code_named(program.recode.source).bits)
        try:
            recodes.apply(program.recode, code, factor=factor, shift=shift, stepwise=self.stepwise)
        except Unrepresentable as error:
            return str(error)
        raise AssertionError(f"{program.recode.name} refuses {code:#x}, its definition does not")

    def _refused(self, program: Program, tensor: str, box: Box, index: int, expert: int, why: str) -> LayoutError:
        return refused(tensor, place(self.plan, program.output.split(".")[0], expert, box.part, *box.place(index)), why)

    def _constant(self, program: Program, move: Move, box: Box, target: torch.Tensor) -> None:
        """A pad, or a value that comes from no source."""
        bits, recode, view = target.element_size() * 8, program.recode, box.target(target)
        if move.kind == "pad":
            view.fill_(signed(move.pad, bits))
        elif recode.name == "ramp":
            coordinate = box.grid(1, 4, box.src[1], target.device)
            view.copy_(coordinate // recode.power if recode.power else torch.zeros_like(coordinate))
        else:
            factor, _ = self.factors.get((program.reduction, 0), (0.0, 0))
            view.fill_(signed(recodes.apply(recode, 0, factor=factor), bits))

    def _fill(
        self, program: Program, fill: Operand, info: TensorInfo, expert: int, target: torch.Tensor | None
    ) -> None:
        """Pads along k that repeat their group's zero point."""
        top = (1 << code_named(info.code).bits) - 1
        for move, box, name in data(fill.sources, fill.moves):
            for piece in box.pieces():
                codes = self.sources.box(move, piece, name, expert)
                index = first(codes > top - fill.plus)
                if index is not None:
                    code = int(codes.reshape(-1)[index]) + fill.plus
                    raise self._refused(program, name, piece, index, expert, f"zero point {code} does not fit")
                if target is not None:
                    stays = piece.last()
                    stays.target(target).copy_(self.sources.box(move, stays, name, expert) + fill.plus)

    def _operand(self, operand: Operand, info: TensorInfo, expert: int) -> torch.Tensor:
        """An operand at the target's addresses: zero points and global scales as values, scales as codes."""
        code = code_named(operand.code)
        found = self._zeros(info.codes, code.bits)
        for move, box, name in data(operand.sources, operand.moves):
            for piece in box.last().pieces():
                copy(piece.target(found), self.sources.box(move, piece, name, expert))
        if operand.role == "zero_point":
            return found + operand.plus
        return decode(code, found) if operand.role == "global_scale" else found

    # checks and reductions --------------------------------------------------------------------------------------------

    def _check(self, check: Check, expert: int) -> None:
        if check.kind == "shape":
            self._check_shape(check, expert)
            return
        for move in check.moves:
            for box in boxes(move):
                codes = self._plain(check.tensor, box, expert)
                expect = self._expected(check, box, expert).expand(codes.shape)
                index = first(codes != expect)
                if index is not None:
                    where = place(self.plan, check.tensor.split(".")[0], expert, box.part, *box.place(index))
                    code, wanted = int(codes.reshape(-1)[index]), int(expect.reshape(-1)[index])
                    raise refused(check.tensor, where, f"it is {code}, expected {wanted}; {check.why}")

    def _check_shape(self, check: Check, expert: int) -> None:
        flat, codes = self.sources.given[check.tensor][expert], self.plan.input[check.tensor].codes
        bits = flat.numel() * 8 // codes
        found = [unsigned(value, bits) for value in flat.view(STORED[bits]).tolist()]
        if tuple(found) != check.expect:
            raise refused(check.tensor, "its two elements", f"it says {found}, the matrix is {list(check.expect)}")

    def _plain(self, name: str, box: Box, expert: int) -> torch.Tensor:
        """Codes as plain numbers."""
        bits = code_named(self.plan.input[name].code).bits
        codes = box.source(self.sources.codes(name, expert)).to(torch.int64)
        return codes & ((1 << bits) - 1) if bits < 64 else codes

    def _expected(self, check: Check, box: Box, expert: int) -> torch.Tensor:
        if check.kind == "same":
            return self._plain(check.other, box, expert)
        if check.kind == "order":
            group, start = check.expect
            k = box.grid(1, 2, box.at[1], self.device) + start
            return k // group if group else torch.zeros_like(k)
        return torch.tensor(check.expect[0], device=self.device)

    def _reduce(self, reduction: Reduction) -> None:
        program = next(program for program in self.plan.programs if program.output == reduction.output)
        if reduction.kind == "largest":
            experts = range(self.count)
            found = [top for expert in experts for _, top in self._tops(program, expert, signs=self.stepwise)]
            self.factors.update({(reduction.name, expert): (max(found, default=0.0), 0) for expert in experts})
            return
        tops: list[float] = []
        for expert in range(self.count):
            values = [float(decode(code_named("float32"), self.sources.codes(name, expert)[at]))
                      for name, at in reduction.globals]
            powers = self.ratios[reduction.name, expert] = ratios(self.plan, reduction, values, expert)
            self.factors[reduction.name, expert] = (1 / values[0] if reduction.reciprocal else values[0], 0)
            found = [top * 2.0 ** powers[part] for part, top in self._tops(program, expert, signs=False)]
            tops.append(max(found, default=0.0))
        for expert in range(self.count):
            folded = any(self.ratios[reduction.name, expert])
            top = max(tops) if reduction.scope == "tensor" else tops[expert]
            shift = recodes.nvfp4_shift(top, program.recode.target, program.recode.power, folded)
            self.factors[reduction.name, expert] = (self.factors[reduction.name, expert][0], shift)

    def _tops(self, program: Program, expert: int, *, signs: bool) -> list[tuple[int, float]]:
        """(part, largest value or, without `signs`, magnitude) of each box that a program reads; NaN is left out."""
        code = code_named(program.recode.source)
        found: list[tuple[int, torch.Tensor]] = []
        for move, box, name in data(program.sources, program.moves):
            for piece in box.pieces():
                values = decode(code, self.sources.box(move, piece, name, expert))
                values = torch.where(values.isnan(), -math.inf, values if signs else values.abs())
                found.append((box.part, values.amax()))
        tops = torch.stack([top for _, top in found]).tolist() if found else []
        return [(part, top) for (part, _), top in zip(found, tops) if top != -math.inf]


def _shares(program: Program) -> bool:
    return any(may_share(move) for move in program.moves if move.kind == "data")


def _store(box: Box, made: torch.Tensor, target: torch.Tensor) -> int | None:
    """Write a box; of elements that share a target the first is written. Returns the first that differs from it."""
    if box.join:
        return first(box.target(target) != made)
    stays = written(box, made)
    if stays is made:
        copy(box.target(target), made)
        return None
    alone(box).target(target).copy_(stays)
    return first(made != stays)
