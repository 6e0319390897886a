"""The definition of what a plan means: plain loops over elements, codes as integers, values exact.

Slow and obvious. Other backends are compared with it byte for byte.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from layoutdsl import recodes
from layoutdsl.backends import buffers
from layoutdsl.backends.places import ANY, order_refused, place, ratios, refused
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.errors import LayoutError
from layoutdsl.layout import Chain, Run, View
from layoutdsl.plan import Check, Lookup, Lost, Move, Operand, Plan, Program, Reduction, TensorInfo

Codes = dict[str, list[list[int]]]
"""Tensor name -> per expert its codes."""


def scratch(plan: Plan) -> int:
    """Bytes beside inputs and outputs: an object for each code of an output, which is why it is for small plans."""
    return OBJECT * max((info.codes for info in plan.outputs), default=0)


OBJECT = 32


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    reference = _Reference(plan, _codes(plan, tensors))
    target = buffers.allocate(plan, tensors, out)
    reference.run(target, {})
    if report is not None:
        report += reference.lost()
    return target


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    """Carry out a plan that writes only some places of its outputs: all others stay as `out` has them. Elements that
    share a place which another plan writes are compared with what stands there."""
    reference = _Reference(plan, _codes(plan, tensors))
    target = buffers.allocate(plan, tensors, out)
    standing: Codes = {}
    for program in plan.programs:
        info = plan.output[program.output]
        flats = buffers.experts_of(info, target[info.name], plan.experts[2] or 1)
        standing[info.name] = [_unpack(flat, info) for flat in flats]
    reference.run(target, standing)


def _codes(plan: Plan, tensors: buffers.Given) -> Codes:
    given = buffers.inputs(plan, tensors)
    return {info.name: [_unpack(flat, info) for flat in given[info.name]] for info in plan.inputs}


def _unpack(flat: torch.Tensor, info: TensorInfo) -> list[int]:
    raw = bytes(flat.cpu().numpy())
    if info.role == "weight_shape":
        return [
            int.from_bytes(raw[at : at + len(raw) // info.codes], "little")
            for at in range(0, len(raw), len(raw) // info.codes)
        ]
    bits = code_named(info.code).bits
    if bits == 4:
        return [code for byte in raw for code in (byte & 15, byte >> 4)]
    step = bits // 8
    return [int.from_bytes(raw[at : at + step], "little") for at in range(0, len(raw), step)]


def _pack(codes: list[int], bits: int) -> bytes:
    if bits == 4:
        return bytes(codes[at] | codes[at + 1] << 4 for at in range(0, len(codes), 2))
    return b"".join(code.to_bytes(bits // 8, "little") for code in codes)


@dataclass(frozen=True)
class Point:
    """One element of a run: its index coordinate and addresses; `first` says whether it is the one that is written."""

    x: int
    dst: int
    src: int
    first: bool


def points(run: Run) -> Iterator[Point]:
    """The elements of a run. Loops that move neither address only count elements that share, and are walked once."""
    loops = [loop for loop in run.loops if loop[2] or loop[3]]
    for index in itertools.product(*(range(loop[0]) for loop in reversed(loops))):
        steps = list(zip(reversed(index), loops))
        first = not run.join and all(i == 0 for i, loop in steps if loop[2] == 0)
        yield Point(
            run.x + sum(i * loop[1] for i, loop in steps),
            run.dst + sum(i * loop[2] for i, loop in steps),
            run.src + sum(i * loop[3] for i, loop in steps),
            first,
        )


@dataclass(frozen=True)
class Element:
    """One source element on its way: its part and coordinates, its target address, and whether it is written there or
    compared with what another one wrote."""

    part: int
    n: int
    k: int
    dst: int
    first: bool


class _Reference:
    def __init__(self, plan: Plan, codes: Codes):
        self.plan, self.codes = plan, codes
        self.orders: dict[tuple[str, int, int], list[int]] = {}
        self.factors: dict[tuple[str, int], tuple[float, int]] = {}
        self.ratios: dict[tuple[str, int], list[int]] = {}
        self.lossy = {name for name, _ in plan.losses}
        self.vanished: dict[tuple[str, int], list[bool]] = {}

    def run(self, target: dict[str, torch.Tensor], standing: Codes) -> None:
        """`standing`: the codes in which a program writes its own; zeros where it says none."""
        count = self.plan.experts[2] or 1
        for check in self.plan.checks:
            for expert in range(count if self.plan.input[check.tensor].experts else 1):
                self._check(check, expert)
        for reduction in self.plan.reductions:
            self._reduce(reduction, count)
        done: dict[str, list[list[int]]] = {}
        for program in self.plan.programs:
            info = self.plan.output[program.output]
            copies = 1 if info.shared or not info.experts else count
            begun = standing.get(info.name) or [[0] * info.codes for _ in range(copies)]
            done[program.output] = [self._program(program, info, expert, begun[expert]) for expert in range(copies)]
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            experts = range(count if info.experts else 1)
            done[output] = [
                self._k_perm(source, info, expert) if info.role == "k_perm" else self.codes[source][expert]
                for expert in experts
            ]
        for name, experts in done.items():
            info = self.plan.output[name]
            bits = buffers.element_bits(info) if info.role == "weight_shape" else code_named(info.code).bits
            for view, codes in zip(buffers.experts_of(info, target[name], len(experts)), experts):
                if codes:  # a rank without inputs has an order of none
                    view.copy_(torch.frombuffer(bytearray(_pack(codes, bits)), dtype=torch.uint8))

    def lost(self) -> list[Lost]:
        return [
            Lost(name, self.plan.source_experts[expert], sum(vanished), len(vanished))
            for (name, expert), vanished in self.vanished.items()
            if any(vanished)
        ]

    # programs ---------------------------------------------------------------------------------------------------------

    def _program(self, program: Program, info: TensorInfo, expert: int, target: list[int]) -> list[int]:
        if program.recode.name == "shape":
            return list(program.values)
        operands = {operand.role: self._read(program, operand, info, expert) for operand in program.operands}
        if program.fill is not None:
            for point, code in self._elements(program.fill.sources, program.fill.moves, expert):
                code += program.fill.plus
                if code >= 1 << code_named(info.code).bits:
                    raise self._refused(
                        program.fill.sources[point.part], program, point, expert, f"zero point {code} does not fit"
                    )
                target[point.dst] = code
        for move in program.moves:
            if move.kind == "pad":
                for n, k in itertools.product(move.n, move.k):
                    for a, b in itertools.product(points(n), points(k)):
                        target[a.dst + b.dst] = move.pad
            elif move.kind == "value":
                for n, k in itertools.product(move.n, move.k):
                    for a, b in itertools.product(points(n), points(k)):
                        target[a.dst + b.dst] = self._value(program, b.src)
        for point, code in self._elements(program.sources, program.moves, expert):
            self._write(program, point, code, expert, target, operands)
        return target

    def _value(self, program: Program, coordinate: int) -> int:
        recode = program.recode
        if recode.name == "ramp":
            return coordinate // recode.power if recode.power else 0
        largest, _ = self.factors.get((program.reduction, 0), (0.0, 0))
        return recodes.apply(recode, 0, factor=largest)

    def _write(
        self,
        program: Program,
        point: Element,
        code: int,
        expert: int,
        target: list[int],
        operands: dict[str, list[int]],
    ) -> None:
        factor, shift = self.factors.get((program.reduction, expert), (1.0, 0))
        if program.recode.name == "nvfp4_scale":
            shift += self.ratios[program.reduction, expert][point.part]
        if program.recode.name == "int16_undo":
            factor = code_named("float32").decode(operands["global_scale"][point.dst])
        plus = next((operand.plus for operand in program.operands if operand.role == "zero_point"), 0)
        try:
            made = recodes.apply(
                program.recode,
                code,
                zero=operands["zero_point"][point.dst] + plus if "zero_point" in operands else None,
                scale=operands["scale"][point.dst] if "scale" in operands else None,
                factor=factor,
                shift=shift,
                stepwise=self.plan.habits.int16 == "stepwise",
            )
        except Unrepresentable as error:
            raise self._refused(program.sources[point.part], program, point, expert, str(error)) from None
        if point.first:
            target[point.dst] = made
            if program.output in self.lossy:
                vanished = recodes.vanishes(program.recode, code, made)
                self.vanished.setdefault((program.output, expert), []).append(vanished)
        elif target[point.dst] != made:
            raise self._refused(
                program.sources[point.part],
                program,
                point,
                expert,
                f"it differs from the value that shares its place in `{program.output}`",
            )

    def _read(self, program: Program, operand: Operand, info: TensorInfo, expert: int) -> list[int]:
        found = [0] * info.codes
        for point, code in self._elements(operand.sources, operand.moves, expert):
            found[point.dst] = code
        return found

    def _elements(
        self, sources: tuple[str, ...], moves: tuple[Move, ...], expert: int
    ) -> Iterator[tuple[Element, int]]:
        """Every source element that moves bring, with its code."""
        for move in moves:
            if move.kind != "data":
                continue
            for n, k in itertools.product(move.n, move.k):
                name = sources[n.part]
                codes = self.codes[name][
                    0 if self.plan.input[name].shared or not self.plan.input[name].experts else expert
                ]
                for a, b in itertools.product(points(n), points(k)):
                    src = self._address(move.gather_n, n.part, a.src, expert) + self._address(
                        move.gather_k, 0, b.src, expert
                    )
                    yield Element(n.part, a.x, b.x, a.dst + b.dst, a.first and b.first), codes[src]

    def _address(self, lookup: Lookup | None, part: int, src: int, expert: int) -> int:
        if lookup is None:
            return src
        coordinate = self._order(lookup.tensor, expert, lookup.group)[src]
        offset, step, base = lookup.views[part]
        return base + View(Chain(lookup.digits), offset, step).at(coordinate)

    # checks and reductions --------------------------------------------------------------------------------------------

    def _check(self, check: Check, expert: int) -> None:
        if check.kind == "shape":
            if tuple(self.codes[check.tensor][expert]) != check.expect:
                raise refused(
                    check.tensor,
                    "its two elements",
                    f"it says {self.codes[check.tensor][expert]}, the matrix is {list(check.expect)}",
                )
            return
        for move in check.moves:
            for n, k in itertools.product(move.n, move.k):
                for a, b in itertools.product(points(n), points(k)):
                    code = self.codes[check.tensor][expert][a.src + b.src]
                    expect = self._expected(check, expert, a.src + b.src, b.x)
                    if code != expect:
                        where = place(self.plan, check.tensor.split(".")[0], expert, n.part, a.x, b.x)
                        raise refused(check.tensor, where, f"it is {code}, expected {expect}; {check.why}")

    def _expected(self, check: Check, expert: int, src: int, k: int) -> int:
        if check.kind == "same":
            return self.codes[check.other][expert][src]
        if check.kind == "order":
            group, start = check.expect
            return (start + k) // group if group else 0
        return check.expect[0]

    def _k_perm(self, source: str, info: TensorInfo, expert: int) -> list[int]:
        """The rank's slice of the sorted order, as indices into the whole input."""
        matrix = info.name.split(".")[0]
        moves = (move for p in self.plan.programs if p.output.startswith(matrix + ".") for move in p.moves)
        group = next((move.gather_k.group for move in moves if move.gather_k is not None), ANY)
        start = next(e.start for e in self.plan.extents if e.matrix == matrix and e.role == "k")
        return self._order(source, expert, group)[start : start + info.codes]

    def _order(self, tensor: str, expert: int, group: int) -> list[int]:
        """The coordinates of k sorted by group, stably. Refused where a group does not have its number of elements,
        unless that does not count (ANY)."""
        key = (tensor, expert, group)
        if key not in self.orders:
            groups = self.codes[tensor][expert]
            order = sorted(range(len(groups)), key=groups.__getitem__)
            for position, coordinate in enumerate(order if group != ANY else ()):
                if groups[coordinate] != (position // group if group else 0):
                    raise order_refused(self.plan, tensor, expert, position, coordinate, groups[coordinate], group)
            self.orders[key] = order
        return self.orders[key]

    def _reduce(self, reduction: Reduction, count: int) -> None:
        program = next(program for program in self.plan.programs if program.output == reduction.output)
        code = code_named(program.recode.source)
        if reduction.kind == "largest":
            values = [
                code.decode(c)
                for expert in range(count)
                for _, c in self._elements(program.sources, program.moves, expert)
            ]
            top = recodes.largest(values, self.plan.habits.int16 == "stepwise")
            self.factors.update({(reduction.name, expert): (top, 0) for expert in range(count)})
            return
        tops: list[float] = []
        for expert in range(count):
            values = [code_named("float32").decode(self.codes[name][expert][at]) for name, at in reduction.globals]
            powers = self.ratios[reduction.name, expert] = ratios(self.plan, reduction, values, expert)
            self.factors[reduction.name, expert] = (1 / values[0] if reduction.reciprocal else values[0], 0)
            found = self._elements(program.sources, program.moves, expert)
            tops.append(
                max(
                    (abs(code.decode(c)) * 2.0 ** powers[p.part] for p, c in found if not math.isnan(code.decode(c))),
                    default=0.0,
                )
            )
        for expert in range(count):
            folded = any(self.ratios[reduction.name, expert])
            top = max(tops) if reduction.scope == "tensor" else tops[expert]
            shift = recodes.nvfp4_shift(top, program.recode.target, program.recode.power, folded)
            self.factors[reduction.name, expert] = (self.factors[reduction.name, expert][0], shift)

    def _refused(self, tensor: str, program: Program, point: Element, expert: int, why: str) -> LayoutError:
        matrix = program.output.split(".")[0]
        return refused(tensor, place(self.plan, matrix, expert, point.part, point.n, point.k), why)
