"""What the cuda and the host backend launch: a plan's programs as calls of kernels.

A call goes over one grid of codes (axes.py), for all experts at once. Kernels are shared by ranks, layers and shapes;
numbers, tables and addresses make a call of them. An address is named in the arguments, and found by cuda_run.py:

    status                             where a refusal is marked
    to, lost                           the output, and its count of values that became 0
    addresses                          the table of the sources' addresses: a row per source, of one per expert
    n_columns, k_columns, actions      the grid's tables
    n_sources, k_sources               the source addresses of the entries, gathered where an axis is
    keys                               what a reduction found
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from layoutdsl.backends.axes import DATA, DST, KEPT, KIND, PART, SRC, Grid, aligned, digits, listed, paired, shares, written
from layoutdsl.backends import cuda_tiles
from layoutdsl.backends.cuda_codes import ZERO_POINTS, may_refuse
from layoutdsl.backends.cuda_grids import THREADS, Form, named_text, parameters
from layoutdsl.backends.tiles import Tiles, row, source_order, tiled
from layoutdsl.codes import code_named
from layoutdsl.plan import Check, Plan, Program
from layoutdsl.recodes import Recode

LANES = 5
"""Bits of a thread's number in its warp, which say what piece of the target it has."""

PIECES = 1 << 30
"""Most pieces of one expert in a call."""

ALIGNED = 16
"""Bytes of the widest load and store: tensors of their own are at multiples of these."""

Source = tuple[str, int]
"""(input, first byte)"""


@dataclass(frozen=True)
class Kernel:
    """`name` is unique by the text; `source` includes what it uses of kernels/; `shared`: bytes of dynamic memory."""

    name: str
    source: str
    threads: int
    shared: int


@dataclass(frozen=True, eq=False)
class Call:
    """One launch of `blocks` blocks. `arguments`: numbers, and names of addresses; `sources`: the rows of their table."""

    kernel: Kernel
    blocks: int
    arguments: tuple[int | str, ...]
    experts: int
    output: str = ""
    reduction: str = ""
    sources: tuple[Source, ...] = ()
    grid: Grid | None = None


@dataclass(frozen=True, eq=False)
class Lowered:
    """One program. `checks` find what is refused and write nothing, `writes` find it as well; `compares` hold elements
    that share a place against what has been written there."""

    checks: tuple[Call, ...] = ()
    writes: tuple[Call, ...] = ()
    compares: tuple[Call, ...] = ()


@cache
def lowered(plan: Plan, index: int, alignment: int) -> Lowered:
    """The program of that index, on tensors whose addresses are multiples of `alignment`."""
    program = plan.programs[index]
    if program.recode.name == "shape":
        return Lowered()
    parts = [_Lowering(plan, part, alignment) for part in (program, *_fill(plan, program))]
    return Lowered(
        tuple(call for part in parts for call in part.checks()),
        tuple(call for part in reversed(parts) for call in part.writes()),
        tuple(parts[0].looks("compare")) if parts[0].shares else (),
    )


@cache
def reductions(plan: Plan) -> tuple[Call, ...]:
    """The calls that find what recodes need to know before."""
    programs = {program.output: program for program in plan.programs}
    found = [_Lowering(plan, programs[reduction.output], 1) for reduction in plan.reductions]
    return tuple(call for part in found for call in part.looks("largest"))


@cache
def checks(plan: Plan) -> tuple[Call, ...]:
    """The calls that look at what must hold in the data, but for stored shapes."""
    return tuple(call for check in plan.checks if check.kind != "shape" for call in _checked(plan, check))


def _checked(plan: Plan, check: Check) -> Iterator[Call]:
    info = plan.input[check.tensor]
    numbers = {"expected": 0, "first": 0, "other_row": 1, **dict(zip(("expected", "first"), check.expect))}
    sources = ((check.tensor, 0), *([(check.other, 0)] if check.other else []))
    form = Form(check.kind, "copy", info.code, info.code)
    for grid in listed(check.moves):
        n = grid.n.copy()
        n[PART] = 0
        call = Call(kernel(form), 0, (), (plan.experts[2] or 1) if info.experts else 1, sources=sources)
        yield from _looking(form, call, replace(grid, n=n), numbers)


def _fill(plan: Plan, program: Program) -> Iterator[Program]:
    """Pads that repeat a source's value, as a program of their own."""
    if program.fill is None:
        return
    fill, code = program.fill, plan.output[program.output].code
    recode = Recode("offset", fill.code, code, fill.plus)
    yield Program(program.output, fill.sources, recode, fill.moves)


class _Lowering:
    def __init__(self, plan: Plan, program: Program, alignment: int):
        self.plan, self.program, self.info = plan, program, plan.output[program.output]
        self.recode, self.operand = program.recode, next(iter(program.operands), None)
        self.copies = (plan.experts[2] or 1) if self.info.experts and not self.info.shared else 1
        self.shares = shares(program.moves)
        self.expert = self.info.codes * code_named(self.info.code).bits // 8
        self.alignment = math.gcd(alignment, self.expert) if self.copies > 1 else alignment
        self.reduction = next((one for one in plan.reductions if one.name == program.reduction), None)
        over = self.reduction.output if self.reduction else program.output
        self.scale = next(one.recode for one in plan.programs if one.output == over)

    def writes(self) -> Iterator[Call]:
        for grid in self._grids():
            tiles, grid = self._tiled(grid)
            yield from (self._tiles("move" if one.action == DATA else "fill", one) for one in tiles)
            yield from self._pieces(grid)

    def checks(self) -> Iterator[Call]:
        """Calls that find what is refused."""
        if not may_refuse(self.recode):
            return
        if self.shares:
            yield from self.looks("check")
            return
        for grid in self._grids():
            tiles, grid = self._tiled(grid)
            yield from (self._tiles("check", one) for one in tiles if one.action == DATA)
            for n, k in zip(*np.nonzero(grid.actions == DATA)):
                left = replace(grid, n=grid.n[:, grid.n[KIND] == n], k=grid.k[:, grid.k[KIND] == k])
                if left.n.size and left.k.size:
                    yield from self._look("check", left)

    def looks(self, use: str) -> Iterator[Call]:
        """Calls that look at every element."""
        for grid in listed(self.program.moves, self.operand):
            yield from self._look(use, grid)

    def _look(self, use: str, grid: Grid) -> Iterator[Call]:
        form = self._form(use, "")
        yield from _looking(form, self._call(form, grid, 0, {}), grid, self._numbers())

    def _grids(self) -> Iterator[Grid]:
        for grid in written(self.program.moves, self.operand):
            constant = self.recode.name == "constant"
            yield replace(grid, actions=np.where(grid.actions == DATA, self.recode.power, grid.actions)) if constant else grid

    def _tiled(self, grid: Grid) -> tuple[list[Tiles], Grid]:
        """Pads are whole words wherever they stand, data where whole words can be recoded."""
        a, b = code_named(self.recode.source), code_named(self.recode.target)
        plain = self.recode.name in ("copy", "fold_sign", *ZERO_POINTS) or self.recode == Recode("offset", a.name, b.name)
        data = a.bits == b.bits and plain and not (grid.gather_n or grid.gather_k)
        return tiled(grid, code_named(self.info.code).bits, (grid.actions >= 0) | data & (grid.actions == DATA))

    def _pieces(self, grid: Grid) -> Iterator[Call]:
        """The calls that write a grid piece by piece."""
        bits = code_named(self.info.code).bits
        most = (min(4, self.alignment) * 8 // bits).bit_length() - 1
        unit = aligned(grid.n, grid.k, digits(grid.n, grid.k, most))
        if bits == 4 and not unit:
            grid = paired(grid)
            unit = aligned(grid.n, grid.k, digits(grid.n, grid.k, 1))
        for part in _rectangles(grid, unit.count("n"), unit.count("k")):
            order = digits(part.n, part.k, len(unit) + LANES)[len(unit) :]
            numbers = {
                "kinds": part.actions.shape[1], "bits": len(order),
                "mask": sum(1 << at for at, letter in enumerate(order) if letter == "n"),
                "k_first": int(_step(part.k[DST], unit + order, "k") < _step(part.n[DST], unit + order, "n")),
            }  # fmt: skip
            pieces = part.n.shape[1] * part.k.shape[1] >> len(unit)
            kinds = part.actions[np.ix_(np.unique(part.n[KIND]), np.unique(part.k[KIND]))]
            form = replace(self._form("write", unit), mixed=bool(np.any(kinds != DATA)))
            yield self._call(form, part, pieces, numbers)

    def _tiles(self, use: str, tiles: Tiles) -> Call:
        to, from_ = (self._rows(tiles, side) for side in ("target", "source"))
        order = tuple(sorted(tiles.digits, key=lambda digit: digit.target))
        moves = use == "move"
        operand = self.operand if moves else None
        form = cuda_tiles.Form(
            use, self.info.code if use == "fill" else self.recode.source, len(tiles.digits),
            cuda_tiles.Rows(0) if use == "check" else to[0], cuda_tiles.Rows(0) if use == "fill" else from_[0],
            source_order(tiles.digits) if moves else (),
            self.recode.name if moves and self.recode.name in ("fold_sign", *ZERO_POINTS) else "copy",
            operand.code if operand else "", tuple(at for at, digit in enumerate(order) if digit.beside and operand),
        )  # fmt: skip
        count = tiles.counts[0] * tiles.counts[1]
        blocks = -(-count // cuda_tiles.WARPS)
        numbers = {**self._numbers(), "blocks_per_expert": blocks, "tiles": count, "fast": tiles.counts[0]}
        numbers |= {f"to_{which}": step for which, step in to[1].items()}
        numbers |= {f"from_{which}": step for which, step in from_[1].items()}
        numbers |= {f"beside_{which}": getattr(tiles, which).beside for which in ("first", "fast", "slow")}
        numbers |= {f"beside_digit{at}": digit.beside for at, digit in enumerate(order)}
        bits = code_named(self.info.code).bits
        numbers["value"] = sum(tiles.action << at for at in range(0, 32, bits)) if use == "fill" else 0
        names = [self.program.sources[tiles.part]] if use != "fill" else []
        names += [operand.sources[tiles.part]] if operand else []
        arguments = tuple(numbers.get(name, name) for name in cuda_tiles.parameters(form))
        sources = tuple((name, 0) for name in names)
        return Call(tile_kernel(form), blocks * self.copies, arguments, self.copies, self.program.output, sources=sources)

    def _rows(self, tiles: Tiles, side: str) -> tuple[cuda_tiles.Rows, dict[str, int]]:
        """How one side's digits lie in memory, and its steps in bytes."""
        bits = code_named(self.info.code).bits
        steps = sorted(getattr(digit, side) for digit in tiles.digits)
        near = row(steps)
        found = {which: getattr(getattr(tiles, which), side) * bits // 8 for which in ("first", "fast", "slow")}
        groups: list[int] = []
        for at in range(near, len(steps)):
            if groups and steps[at] == 2 * steps[at - 1]:
                groups[-1] += 1
            else:
                found[f"row{len(groups)}"] = steps[at] * bits // 8
                groups.append(1)
        width = math.gcd(self.alignment, (bits << near) // 8, *found.values())
        return cuda_tiles.Rows(near, tuple(groups), width), found

    def _form(self, use: str, unit: str) -> Form:
        recode, stepwise = self.recode.name, self.plan.habits.int16 == "stepwise"
        return Form(
            use,
            "stepwise" if recode == "int16_scale" and stepwise else "copy" if recode == "constant" else recode,
            self.recode.source,
            self.recode.target,
            unit,
            beside=self.operand.code if self.operand and use != "largest" else "",
            counts=use == "write" and self.program.output in dict(self.plan.losses),
        )

    def _call(self, form: Form, grid: Grid, pieces: int, numbers: Mapping[str, int]) -> Call:
        scales = self.reduction.globals if self.reduction else ()
        sources = [
            *((name, 0) for name in self.program.sources),
            *((name, 0) for name in (self.operand.sources if self.operand else ())),
            *((name, at * 4) for name, at in scales),
        ]
        made = Call(kernel(form), 0, (), self.copies, self.program.output, self.program.reduction, tuple(sources))
        return _placed(form, made, grid, pieces, {**self._numbers(), **numbers})

    def _numbers(self) -> dict[str, int]:
        """What the program's recode needs to know."""
        a, b = code_named(self.recode.source), code_named(self.recode.target)
        beside = len(self.program.sources)
        scales = self.reduction.globals if self.reduction else ()
        return {
            "power": self.recode.power, "to_step": self.expert, "beside_row": beside,
            "plus": self.operand.plus if self.operand else a.bias or (b.bias if self.recode.name == "fp8_nibbles" else 0),
            "slot_step": int(self.reduction is not None and self.reduction.scope == "expert"),
            "scales_row": beside + len(self.operand.sources if self.operand else ()), "parts": len(scales),
            "reciprocal": int(self.reduction is not None and self.reduction.reciprocal),
            "scale_power": self.scale.power, "within": int(self.scale.target == "s0e5m3"),
        }  # fmt: skip


def _looking(form: Form, call: Call, grid: Grid, numbers: Mapping[str, int]) -> Iterator[Call]:
    k_first = int(_step(np.unique(grid.k[SRC]), "", "k") < _step(np.unique(grid.n[SRC]), "", "n"))
    yield _placed(form, call, grid, grid.n.shape[1] * grid.k.shape[1], {**numbers, "k_first": k_first})


def _placed(form: Form, call: Call, grid: Grid, pieces: int, numbers: Mapping[str, int]) -> Call:
    """The call with its grid: blocks, and the numbers that say where its entries are."""
    blocks = -(-pieces // THREADS)
    known = {
        **numbers, "experts": call.experts, "blocks_per_expert": blocks,
        "n_count": grid.n.shape[1], "k_count": grid.k.shape[1],
        "n_per_expert": grid.n.shape[1] if grid.gather_n else 0, "k_per_expert": grid.k.shape[1] if grid.gather_k else 0,
    }  # fmt: skip
    arguments = tuple(known.get(name, name) for name in parameters(form))
    return replace(call, blocks=blocks * call.experts, arguments=arguments, grid=grid)


def _step(values: np.ndarray, taken: str, letter: str) -> float:
    """How far the next digit of an axis goes."""
    at = 1 << taken.count(letter)
    return float(abs(values[at] - values[0])) if len(values) > at else np.inf


def _rectangles(grid: Grid, n_bits: int, k_bits: int) -> Iterator[Grid]:
    """The grid without what it keeps, as whole pieces; of PIECES at most."""
    live = grid.actions != KEPT
    n_blocks, k_blocks = grid.n.reshape(6, -1, 1 << n_bits), grid.k.reshape(6, -1, 1 << k_bits)
    wanted, which = np.unique(live[n_blocks[KIND]].any(axis=1), axis=0, return_inverse=True)
    for at, kinds in enumerate(wanted):
        k = k_blocks[:, kinds[k_blocks[KIND]].any(axis=1)]
        if not k.size:
            continue
        n = n_blocks[:, which.reshape(-1) == at]
        for part in np.array_split(n, -(-n.shape[1] * k.shape[1] // PIECES), axis=1):
            yield replace(grid, n=part.reshape(6, -1), k=k.reshape(6, -1))


@cache
def kernel(form: Form) -> Kernel:
    name, text = named_text(form)
    return Kernel(name, text, THREADS, 0)


@cache
def tile_kernel(form: cuda_tiles.Form) -> Kernel:
    name, text = cuda_tiles.named_text(form)
    return Kernel(name, text, cuda_tiles.WARPS * 32, cuda_tiles.shared(form))
