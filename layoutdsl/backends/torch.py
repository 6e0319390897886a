"""The conversion as strided copies: each run of a move is one view of the source, recoded, into one view of the target.

Works on any device and never loops over elements. Codes lie in flat arrays, a byte for each 4-bit code; a box (one run
along n times one along k) is `as_strided` over them, its sizes the loops' counts and its strides their steps. Gathered
axes (act-order) look their addresses up in index tensors. Of 4-bit tensors one expert is unpacked at a time.

Without `out` every tensor is made in one pass and nothing is returned where a value is refused. With `out`, all checks
and every recode that may refuse run first, and nothing is written before all of them have passed. Refusals name the
first place in the order in which the reference backend walks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from layoutdsl import recodes
from layoutdsl.backends import buffers
from layoutdsl.backends.places import place, refused
from layoutdsl.backends.torch_recodes import STORED, decode, non_finite, signed, twin, unsigned
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Check, Lookup, Move, Operand, Plan, Program, Reduction, TensorInfo

PIECE = 1 << 24
"""How many elements are recoded or looked up at once; bounds the memory of intermediate results."""
Loop = tuple[int, int, int, int, int]
"""(axis, count, dx, ddst, dsrc); axis 0 is n, 1 is k."""


def run(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    given = buffers.inputs(plan, tensors)
    if out is None:
        target = buffers.allocate(plan, tensors, None)
        _Torch(plan, given).write(target)
        return target
    target = buffers.allocate(plan, tensors, out)
    if _apart(given, target):
        _Torch(plan, given).verify()
        _Torch(plan, given).write(target)
        return target
    made = run(plan, tensors)
    for name, tensor in target.items():
        tensor.copy_(made[name].view(tensor.shape).view(tensor.dtype))
    return target


def _apart(given: Mapping[str, list[torch.Tensor]], target: Mapping[str, torch.Tensor]) -> bool:
    """Whether the outputs share no storage with the inputs and stand on their device."""
    sources = [flat for flats in given.values() for flat in flats]
    taken = {flat.untyped_storage().data_ptr() for flat in sources}
    devices = {tensor.device for tensor in (*sources, *target.values())}
    return len(devices) == 1 and not any(tensor.untyped_storage().data_ptr() in taken for tensor in target.values())


class _Torch:
    def __init__(self, plan: Plan, given: Mapping[str, list[torch.Tensor]]):
        self.plan, self.given = plan, given
        self.device = next((flat.device for flats in given.values() for flat in flats), torch.device("cpu"))
        self.unpacked: tuple[tuple[str, int], torch.Tensor] | None = None
        self.orders: dict[tuple[str, int, int], torch.Tensor] = {}
        self.factors: dict[tuple[str, int], tuple[float, int]] = {}
        self.ratios: dict[tuple[str, int], list[int]] = {}
        self.count = plan.experts[2] or 1

    def verify(self) -> None:
        """Raise what `write` would raise, writing nothing."""
        self._prepare()
        for program in self.plan.programs:
            info = self.plan.output[program.output]
            shares = any(_may_share(move) for move in program.moves if move.kind == "data")
            for expert in range(self._copies(info)):
                bits = code_named(info.code).bits
                scratch = torch.zeros(info.codes, dtype=STORED[bits], device=self.device) if shares else None
                self._program(program, info, expert, scratch)
        self._orders_passed()

    def write(self, target: Mapping[str, torch.Tensor]) -> None:
        self._prepare()
        for program in self.plan.programs:
            info = self.plan.output[program.output]
            for expert, view in enumerate(buffers.experts_of(info, target[program.output], self._copies(info))):
                self._make(program, info, expert, view)
        self._orders_passed()
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            for expert, view in enumerate(buffers.experts_of(info, target[output], self._copies(info))):
                view.copy_(self._k_perm(source, info, expert) if info.role == "k_perm" else self.given[source][expert])

    def _copies(self, info: TensorInfo) -> int:
        return self.count if info.experts and not info.shared else 1

    def _prepare(self) -> None:
        for check in self.plan.checks:
            for expert in range(self.count if self.plan.input[check.tensor].experts else 1):
                self._check(check, expert)
        for reduction in self.plan.reductions:
            self._reduce(reduction)

    # codes ------------------------------------------------------------------------------------------------------------

    def _codes(self, name: str, expert: int) -> torch.Tensor:
        """The codes of one tensor, flat."""
        info = self.plan.input[name]
        expert = 0 if info.shared or not info.experts else expert
        flat, bits = self.given[name][expert], code_named(info.code).bits
        if bits != 4:
            return flat.view(STORED[bits])
        if self.unpacked is None or self.unpacked[0] != (name, expert):
            self.unpacked = None
            nibbles = torch.empty(flat.numel(), 2, dtype=torch.uint8, device=flat.device)
            torch.bitwise_and(flat, 15, out=nibbles[:, 0])
            torch.bitwise_right_shift(flat, 4, out=nibbles[:, 1])
            self.unpacked = (name, expert), nibbles.view(-1)
        return self.unpacked[1]

    def _make(self, program: Program, info: TensorInfo, expert: int, view: torch.Tensor) -> None:
        """Run a program into the flat bytes of one expert's output."""
        if program.recode.name == "shape":
            dtype = STORED[buffers.element_bits(info)]
            view.copy_(torch.tensor(program.values, dtype=dtype).view(torch.uint8))
            return
        bits = code_named(info.code).bits
        if bits != 4:
            self._program(program, info, expert, view.view(STORED[bits]).zero_())
            return
        codes = torch.zeros(info.codes, dtype=torch.uint8, device=view.device)
        self._program(program, info, expert, codes)
        torch.bitwise_or(codes[0::2], codes[1::2].bitwise_left_shift_(4), out=view)

    # programs ---------------------------------------------------------------------------------------------------------

    def _program(self, program: Program, info: TensorInfo, expert: int, target: torch.Tensor | None) -> None:
        """Write one expert's codes; without a target only find what is refused."""
        if program.recode.name == "shape":
            return
        operands = {operand.role: self._operand(operand, info, expert) for operand in program.operands}
        if program.fill is not None:
            self._fill(program, program.fill, info, expert, target)
        for move in program.moves if target is not None else ():
            if move.kind == "data":
                continue
            for box in _boxes(move):
                assert target is not None
                self._constant(program, move, box.last(), target)
        clean: tuple[tuple[str, int], bool] = ("", 0), False
        for move, box, name in self._data(program.sources, program.moves):
            if clean[0] != (name, expert):
                clean = (name, expert), self._is_clean(program, name, expert)
            if clean[1] and target is None:
                continue
            for piece in box.pieces():
                self._piece(program, move, piece, expert, target, operands, clean[1])

    def _data(self, sources: tuple[str, ...], moves: tuple[Move, ...]) -> Iterator[tuple[Move, _Box, str]]:
        for move in moves:
            if move.kind == "data":
                for box in _boxes(move):
                    yield move, box, sources[box.part]

    def _is_clean(self, program: Program, name: str, expert: int) -> bool:
        """Whether no code of a tensor that is copied can be refused: looked up once, since weights are many."""
        if program.recode.name != "copy":
            return False
        bad = non_finite(code_named(program.recode.source), self._codes(name, expert))
        return bad is None or not bool(bad.any())

    def _piece(self, program: Program, move: Move, box: _Box, expert: int, target: torch.Tensor | None,
               operands: Mapping[str, torch.Tensor], clean: bool) -> None:
        codes = self._source(move, box, program.sources[box.part], expert)
        if clean:
            made, bad = codes, None
        else:
            beside = {role: box.target(found) for role, found in operands.items()}
            factor, shift = self._factor(program, box.part, expert)
            made, bad = twin(program.recode, codes, zero=beside.get("zero_point"), scale=beside.get("scale"),
                             factor=beside.get("global_scale", factor), shift=shift,
                             stepwise=self.plan.habits.int16 == "stepwise")
        first = None if bad is None else _first(bad)
        if target is not None:
            other = self._store(box, made, target)
            if other is not None and (first is None or other < first):
                raise self._refused(program, program.sources[box.part], box, other, expert,
                                    f"it differs from the value that shares its place in `{program.output}`")
        if first is not None:
            raise self._refused(program, program.sources[box.part], box, first, expert,
                                self._reason(program, box, codes, first, expert, operands))

    def _store(self, box: _Box, made: torch.Tensor, target: torch.Tensor) -> int | None:
        """Write a box; of elements that share a target the first is written. Returns the first that differs from it."""
        if box.join:
            return _first(box.target(target) != made)
        shared = [at for at, loop in enumerate(box.loops) if loop[3] == 0]
        if not shared:
            _copy(box.target(target), made)
            return None
        written = made
        for at in shared:
            written = written.narrow(at, 0, 1)
        alone = replace(box, loops=tuple((*loop[:1], 1, *loop[2:]) if loop[3] == 0 else loop for loop in box.loops))
        alone.target(target).copy_(written)
        return _first(made != written)

    def _factor(self, program: Program, part: int, expert: int) -> tuple[float, int]:
        factor, shift = self.factors.get((program.reduction, expert), (1.0, 0))
        if program.recode.name == "nvfp4_scale":
            shift += self.ratios[program.reduction, expert][part]
        return factor, shift

    def _reason(self, program: Program, box: _Box, codes: torch.Tensor, at: int, expert: int,
                operands: Mapping[str, torch.Tensor]) -> str:
        """Why the definition refuses one element."""
        factor, shift = self._factor(program, box.part, expert)
        if "global_scale" in operands:
            factor = float(box.target(operands["global_scale"]).reshape(-1)[at])
        code = unsigned(int(codes.reshape(-1)[at]), code_named(program.recode.source).bits)
        try:
            recodes.apply(program.recode, code, factor=factor, shift=shift, stepwise=self.plan.habits.int16 == "stepwise")
        except Unrepresentable as error:
            return str(error)
        raise AssertionError(f"{program.recode.name} refuses {code:#x}, its definition does not")

    def _constant(self, program: Program, move: Move, box: _Box, target: torch.Tensor) -> None:
        bits, recode = target.element_size() * 8, program.recode
        view = box.target(target)
        if move.kind == "pad":
            view.fill_(signed(move.pad, bits))
        elif recode.name == "ramp":
            coordinate = box.grid(1, 4, box.src[1], target.device)
            group = coordinate // recode.power if recode.power else torch.zeros_like(coordinate)
            view.copy_(group.to(target.dtype).expand(view.shape))
        else:
            factor, _ = self.factors.get((program.reduction, 0), (0.0, 0))
            view.fill_(signed(recodes.apply(recode, 0, factor=factor), bits))

    def _fill(self, program: Program, fill: Operand, info: TensorInfo, expert: int, target: torch.Tensor | None) -> None:
        top = (1 << code_named(info.code).bits) - 1
        for move, box, name in self._data(fill.sources, fill.moves):
            codes = self._source(move, box, name, expert)
            first = _first(codes > top - fill.plus)
            if first is not None:
                code = int(codes.reshape(-1)[first]) + fill.plus
                raise self._refused(program, name, box, first, expert, f"zero point {code} does not fit")
            if target is not None:
                stays = box.last()
                stays.target(target).copy_(self._source(move, stays, name, expert) + fill.plus)

    def _operand(self, operand: Operand, info: TensorInfo, expert: int) -> torch.Tensor:
        """An operand at the target's addresses: zero points and global scales as values, scales as codes."""
        code = code_named(operand.code)
        found = torch.zeros(info.codes, dtype=STORED[code.bits], device=self.device)
        for move, box, name in self._data(operand.sources, operand.moves):
            for piece in box.last().pieces():
                _copy(piece.target(found), self._source(move, piece, name, expert))
        if operand.role == "zero_point":
            return found + operand.plus
        return decode(code, found) if operand.role == "global_scale" else found

    # addresses --------------------------------------------------------------------------------------------------------

    def _source(self, move: Move, box: _Box, name: str, expert: int) -> torch.Tensor:
        """The source codes of a box, of its shape: a view, or looked up where an axis is gathered."""
        codes = self._codes(name, expert)
        if move.gather_n is None and move.gather_k is None:
            return box.source(codes)
        n = self._addresses(move.gather_n, box.part, box.grid(0, 4, box.src[0], self.device), expert)
        k = self._addresses(move.gather_k, 0, box.grid(1, 4, box.src[1], self.device), expert)
        return codes.take(n.reshape(-1, 1) + k.reshape(1, -1)).view(box.sizes)

    def _addresses(self, lookup: Lookup | None, part: int, src: torch.Tensor, expert: int) -> torch.Tensor:
        if lookup is None:
            return src
        offset, step, base = lookup.views[part]
        x = self._order(lookup.tensor, expert, lookup.group)[src] * step + offset
        found = torch.full_like(x, base)
        for weight, extent, stride in lookup.digits:
            found += (x // weight % extent if extent else x // weight) * stride
        return found

    def _order(self, tensor: str, expert: int, group: int) -> torch.Tensor:
        """The coordinates of k sorted by group, stably. Refused where a group does not have its number of elements."""
        key = (tensor, expert, group)
        if key not in self.orders:
            groups, order = (self._codes(tensor, expert).to(torch.int64) & 0xFFFFFFFF).sort(stable=True)
            position = torch.arange(groups.numel(), device=groups.device)
            first = _first(groups != (position // group if group else 0))
            if first is not None:
                raise refused(tensor, f"k {int(order[first])}", f"group {int(groups[first])} does not hold {group} inputs, "
                              "so sorting does not make whole groups")
            self.orders[key] = order
        return self.orders[key]

    def _orders_passed(self) -> None:
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            for expert in range(self._copies(info) if info.role == "k_perm" else 0):
                self._k_perm(source, info, expert)

    def _k_perm(self, source: str, info: TensorInfo, expert: int) -> torch.Tensor:
        """The rank's slice of the sorted order, as indices into the whole input; bytes."""
        matrix = info.name.split(".")[0]
        lookup = next(move.gather_k for program in self.plan.programs for move in program.moves
                      if program.output.startswith(matrix + ".") and move.gather_k is not None)
        start = next(e.start for e in self.plan.extents if e.matrix == matrix and e.role == "k")
        return buffers.flat(self._order(source, expert, lookup.group)[start : start + info.codes].to(torch.int32))

    # checks and reductions --------------------------------------------------------------------------------------------

    def _check(self, check: Check, expert: int) -> None:
        info = self.plan.input[check.tensor]
        if check.kind == "shape":
            flat = self.given[check.tensor][expert]
            bits = flat.numel() * 8 // info.codes
            found = [unsigned(value, bits) for value in flat.view(STORED[bits]).tolist()]
            if tuple(found) != check.expect:
                raise refused(check.tensor, "its two elements", f"it says {found}, the matrix is {list(check.expect)}")
            return
        bits = code_named(info.code).bits
        for move in check.moves:
            for box in _boxes(move):
                codes = box.source(self._codes(check.tensor, expert)).to(torch.int64)
                expect = self._expected(check, box, expert)
                first = _first(codes != expect)
                if first is None:
                    continue
                code = unsigned(int(codes.reshape(-1)[first]), bits)
                wanted = unsigned(int(expect.expand(codes.shape).reshape(-1)[first]), bits) if check.kind == "same" else int(expect.expand(codes.shape).reshape(-1)[first])
                where = place(self.plan, check.tensor.split(".")[0], expert, box.part, *box.place(first))
                raise refused(check.tensor, where, f"it is {code}, expected {wanted}; {check.why}")

    def _expected(self, check: Check, box: _Box, expert: int) -> torch.Tensor:
        if check.kind == "same":
            return box.source(self._codes(check.other, expert)).to(torch.int64)
        if check.kind == "order":
            group, start = check.expect
            k = box.grid(1, 2, box.at[1], self.device) + start
            return k // group if group else torch.zeros_like(k)
        return torch.tensor(check.expect[0], device=self.device)

    def _reduce(self, reduction: Reduction) -> None:
        program = next(program for program in self.plan.programs if program.output == reduction.output)
        if reduction.kind == "largest":
            signs = self.plan.habits.int16 == "stepwise"
            found = [value for expert in range(self.count) for value in self._tops(program, expert, signs=signs).values()]
            self.factors.update({(reduction.name, expert): (max(found, default=0.0), 0) for expert in range(self.count)})
            return
        tops: list[float] = []
        for expert in range(self.count):
            values = [float(decode(code_named("float32"), self._codes(name, expert)[at : at + 1])) for name, at in reduction.globals]
            try:
                ratios = recodes.nvfp4_ratios(values, reduction.reciprocal)
            except Unrepresentable as error:
                raise refused(reduction.globals[0][0], f"expert {self.plan.experts[1] + expert}", str(error)) from None
            self.ratios[reduction.name, expert] = ratios
            self.factors[reduction.name, expert] = (1 / values[0] if reduction.reciprocal else values[0], 0)
            found = self._tops(program, expert, signs=False)
            tops.append(max((top * 2.0 ** ratios[part] for part, top in found.items()), default=0.0))
        for expert in range(self.count):
            folded = any(self.ratios[reduction.name, expert])
            top = max(tops) if reduction.scope == "tensor" else tops[expert]
            shift = recodes.nvfp4_shift(top, program.recode.target, program.recode.power, folded)
            self.factors[reduction.name, expert] = (self.factors[reduction.name, expert][0], shift)

    def _tops(self, program: Program, expert: int, *, signs: bool) -> dict[int, float]:
        """The largest value, or with no `signs` magnitude, that a program reads of each part; NaN counts as nothing."""
        code = code_named(program.recode.source)
        found: dict[int, torch.Tensor] = {}
        for move, box, name in self._data(program.sources, program.moves):
            values = decode(code, self._source(move, box, name, expert))
            top = (values if signs else values.abs()).nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).amax()
            found[box.part] = torch.maximum(found[box.part], top) if box.part in found else top
        return {part: float(top) for part, top in found.items() if float(top) != -math.inf}

    def _refused(self, program: Program, tensor: str, box: _Box, index: int, expert: int, why: str) -> Exception:
        return refused(tensor, place(self.plan, program.output.split(".")[0], expert, box.part, *box.place(index)), why)
