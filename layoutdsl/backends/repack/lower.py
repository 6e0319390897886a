"""What the cuda and the host backend launch: a plan's programs as calls of kernels.

A program's codes are a grid (axes.py). What lies in tiles of it is moved, filled or looked through by warps (tiles.py,
tile_kernels.py), the rest pair by pair (grid_kernels.py); a call does either for all experts at once. Kernels say
nothing of sizes: ranks, layers and shapes share them, numbers and addresses make calls of them. Addresses are named in
a call's arguments and found by run.py:

    status, lost                    where a refusal is marked; how many values of each expert became 0
    to, from, beside                the output, the source and the operand
    addresses                       the table of the sources' addresses: a row per source, of one per expert
    n_columns, k_columns, actions   the grid's tables
    n_sources, k_sources            the source addresses of the entries, gathered where an axis is
    keys                            what a reduction found
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from layoutdsl.backends.repack import axes
from layoutdsl.backends.repack import grid_kernels as cuda_grids
from layoutdsl.backends.repack import tile_kernels as cuda_tiles
from layoutdsl.backends.repack.axes import DATA, DST, KEPT, KIND, PART, SRC, Grid
from layoutdsl.backends.repack.codes import ZERO_POINTS, may_refuse
from layoutdsl.backends.repack.tiles import Tiles, recoded, row, source_order, tiled
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

IN_WORDS = ("copy", "fold_sign", *ZERO_POINTS)
"""Recodes of whole words, wherever their codes come from."""


@dataclass(frozen=True)
class Kernel:
    """`name` is unique by the text; `source` includes what it uses of kernels/; `shared`: bytes of dynamic memory."""

    name: str
    source: str
    threads: int
    shared: int


@dataclass(frozen=True, eq=False)
class Call:
    """One launch of `blocks` blocks, for all experts. `arguments`: numbers, and names of addresses; `sources`: the rows
    of their table, or the tensors of a tile; `grid`: what is gone through pair by pair."""

    kernel: Kernel
    blocks: int
    arguments: tuple[int | str, ...]
    experts: int
    output: str = ""
    reduction: str = ""
    sources: tuple[Source, ...] = ()
    grid: Grid | None = None


NONE = Kernel("", "", 0, 0)
"""Of a call that has none yet."""


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
    experts = (plan.experts[2] or 1) if info.experts else 1
    numbers = {"expected": 0, "first": 0, "other_row": 1, **dict(zip(("expected", "first"), check.expect))}
    sources = tuple((name, 0) for name in (check.tensor, check.other) if name)
    call, bits = Call(NONE, 0, (), experts, sources=sources), code_named(info.code).bits
    form = cuda_grids.Form(check.kind, "copy", info.code, info.code)
    for grid in axes.listed(check.moves):
        grid = replace(grid, n=grid.n.copy())
        grid.n[PART] = 0
        if check.kind == "equal" and 0 <= check.expect[0] < 1 << bits:
            tiles, grid = tiled(axes.by_source(grid), bits, grid.actions == DATA)
            for one in tiles:
                in_tiles = cuda_tiles.Form("equal", info.code, len(one.digits))
                yield _in_tiles(in_tiles, call, one, alignment, {"value": _word(check.expect[0], bits)})
        if np.any(grid.actions == DATA):
            yield _looking(form, replace(call, kernel=grid_kernel(form)), grid, numbers)


def _fill(plan: Plan, program: Program) -> Iterator[Program]:
    """Pads that repeat a source's value, as a program of their own."""
    if program.fill is not None:
        fill, code = program.fill, plan.output[program.output].code
        yield Program(program.output, fill.sources, Recode("offset", fill.code, code, fill.plus), fill.moves)


class _Lowering:
    """One program into tensors whose addresses are multiples of `alignment`."""

    def __init__(self, plan: Plan, program: Program, alignment: int):
        self.plan, self.program, self.info = plan, program, plan.output[program.output]
        self.recode, self.operand = program.recode, next(iter(program.operands), None)
        self.bits = code_named(self.info.code).bits
        self.copies = (plan.experts[2] or 1) if self.info.experts and not self.info.shared else 1
        self.shares = axes.shares(program.moves)
        self.step = self.info.codes * self.bits // 8  # from one expert's output to the next one's, in bytes
        self.alignment = math.gcd(alignment, self.step) if self.copies > 1 else alignment
        self.numbers = self._numbers()

    def _numbers(self) -> dict[str, int]:
        """What kernels need to know of the program."""
        a, b = code_named(self.recode.source), code_named(self.recode.target)
        bias = a.bias or (b.bias if self.recode.name == "fp8_nibbles" else 0)
        found = {
            "to_step": self.step,
            "power": self.recode.power,
            "plus": self.operand.plus if self.operand else bias,
            "beside_row": len(self.program.sources),
            "slot_step": 0,
        }
        reduction = next((one for one in self.plan.reductions if one.name == self.program.reduction), None)
        if reduction is None:
            return found
        scale = next(one.recode for one in self.plan.programs if one.output == reduction.output)
        return {
            **found,
            "slot_step": int(reduction.scope == "expert"),
            "scales_row": len(self.program.sources) + len(self.operand.sources if self.operand else ()),
            "parts": len(reduction.globals),
            "reciprocal": int(reduction.reciprocal),
            "scale_power": scale.power,
            "within": int(scale.target == "s0e5m3"),
        }

    def writes(self) -> Iterator[Call]:
        for grid in self._grids():
            tiles, grid = self._tiled(grid)
            yield from (self._tiles("move" if one.action == DATA else "fill", one) for one in tiles)
            yield from self._pieces(grid)

    def checks(self) -> Iterator[Call]:
        """Calls that find what is refused; where elements share places, `writes` and `compares` do."""
        if self.shares or not may_refuse(self.recode):
            return
        for grid in self._grids():
            tiles, grid = self._tiled(grid)
            yield from (self._tiles("check", one) for one in tiles if one.action == DATA)
            for n, k in zip(*np.nonzero(grid.actions == DATA)):
                left = replace(grid, n=grid.n[:, grid.n[KIND] == n], k=grid.k[:, grid.k[KIND] == k])
                if left.n.size and left.k.size:
                    yield self._look("check", left)

    def looks(self, use: str) -> Iterator[Call]:
        """Calls that look at every element."""
        return (self._look(use, grid) for grid in axes.listed(self.program.moves, self.operand))

    def _look(self, use: str, grid: Grid) -> Call:
        form = self._form(use, "")
        return _looking(form, self._call(form), grid, self.numbers)

    def _grids(self) -> Iterator[Grid]:
        for grid in axes.written(self.program.moves, self.operand):
            if self.recode.name == "constant":
                grid = replace(grid, actions=np.where(grid.actions == DATA, self.recode.power, grid.actions))
            yield grid

    def _tiled(self, grid: Grid) -> tuple[list[Tiles], Grid]:
        """Pads are whole words wherever they stand, data where whole words can be recoded."""
        a, b = self.recode.source, self.recode.target
        alike = self.recode.name in IN_WORDS or self.recode == Recode("offset", a, b)
        moves = alike and code_named(a).bits == self.bits and not (grid.gather_n or grid.gather_k)
        return tiled(grid, self.bits, (grid.actions >= 0) | moves & (grid.actions == DATA))

    # ---- pair by pair

    def _form(self, use: str, unit: str) -> cuda_grids.Form:
        recode, stepwise = self.recode.name, self.plan.habits.int16 == "stepwise"
        return cuda_grids.Form(
            use,
            "stepwise" if recode == "int16_scale" and stepwise else "copy" if recode == "constant" else recode,
            self.recode.source,
            self.recode.target,
            unit,
            beside=self.operand.code if self.operand and use != "largest" else "",
            counts=use == "write" and self.program.output in dict(self.plan.losses),
        )

    def _call(self, form: cuda_grids.Form) -> Call:
        reductions = (one for one in self.plan.reductions if one.name == self.program.reduction)
        sources = [
            *((name, 0) for name in self.program.sources),
            *((name, 0) for name in (self.operand.sources if self.operand else ())),
            *((name, at * 4) for one in reductions for name, at in one.globals),
        ]
        output, reduction = self.program.output, self.program.reduction
        return Call(grid_kernel(form), 0, (), self.copies, output, reduction, tuple(sources))

    def _pieces(self, grid: Grid) -> Iterator[Call]:
        """The calls that write a grid, a piece per thread."""
        most = (min(4, self.alignment) * 8 // self.bits).bit_length() - 1
        unit = axes.aligned(grid.n, grid.k, axes.digits(grid.n, grid.k, most))
        if self.bits == 4 and not unit:
            grid = axes.paired(grid)
            unit = axes.aligned(grid.n, grid.k, axes.digits(grid.n, grid.k, 1))
        for part in _rectangles(grid, unit.count("n"), unit.count("k")):
            order = axes.digits(part.n, part.k, len(unit) + LANES)
            kinds = part.actions[np.ix_(np.unique(part.n[KIND]), np.unique(part.k[KIND]))]
            form = replace(self._form("write", unit), mixed=bool(np.any(kinds != DATA)))
            numbers = {
                **self.numbers,
                "kinds": part.actions.shape[1],
                "bits": len(order) - len(unit),
                "mask": sum(1 << at for at, letter in enumerate(order[len(unit) :]) if letter == "n"),
                "k_first": int(_step(part.k[DST], order.count("k")) < _step(part.n[DST], order.count("n"))),
            }
            yield _placed(form, self._call(form), part, part.n.shape[1] * part.k.shape[1] >> len(unit), numbers)

    # ---- in tiles

    def _tiles(self, use: str, tiles: Tiles) -> Call:
        operand = self.operand if use == "move" else None
        beside = [digit.beside for digit in sorted(tiles.digits, key=lambda digit: digit.target)]
        form = cuda_tiles.Form(
            use,
            self.info.code if use == "fill" else self.recode.source,
            len(tiles.digits),
            order=source_order(tiles.digits) if use == "move" else (),
            recode=self.recode.name if use == "move" and self.recode.name in IN_WORDS else "copy",
            beside=operand.code if operand else "",
            apart=tuple(at for at, step in enumerate(beside) if step and operand),
            recoded=(recoded(tiles.digits, (32 // self.bits).bit_length() - 1) or "") if operand else "first",
        )
        names = [self.program.sources[tiles.part]] if use != "fill" else []
        names += [operand.sources[tiles.part]] if operand else []
        call = Call(NONE, 0, (), self.copies, self.program.output, sources=tuple((name, 0) for name in names))
        return _in_tiles(form, call, tiles, self.alignment, {**self.numbers, "value": _word(tiles.action, self.bits)})


def _in_tiles(
    form: cuda_tiles.Form, call: Call, tiles: Tiles, alignment: int, numbers: Mapping[str, int]
) -> Call:
    """The call with its kernel: how both sides' digits lie in memory, and all steps in bytes."""
    known, rows = dict(numbers), []
    for name, side in (("to", "target"), ("from", "source")):
        found = {f"{name}_{which}": getattr(getattr(tiles, which), side) * form.bits // 8 for which in _STEPS}
        steps = sorted(getattr(digit, side) for digit in tiles.digits)
        near = row(steps)
        groups: list[int] = []
        for at in range(near, len(steps)):
            if groups and steps[at] == 2 * steps[at - 1]:
                groups[-1] += 1
            else:
                found[f"{name}_row{len(groups)}"] = steps[at] * form.bits // 8
                groups.append(1)
        width = math.gcd(alignment, (form.bits << near) // 8, *found.values())
        rows.append(cuda_tiles.Rows(near, tuple(groups), width))
        known |= found
    if form.use in ("move", "fill"):
        form = replace(form, target=rows[0])
    if form.use != "fill":
        form = replace(form, source=rows[1])
    count = tiles.counts[0] * tiles.counts[1]
    blocks = -(-count // cuda_tiles.WARPS)
    known |= {"blocks_per_expert": blocks, "tiles": count, "fast": tiles.counts[0]}
    known |= {f"beside_{which}": getattr(tiles, which).beside for which in _STEPS}
    beside = [digit.beside for digit in sorted(tiles.digits, key=lambda digit: digit.target)]
    known |= {f"beside_digit{at}": step for at, step in enumerate(beside)}
    arguments = tuple(known.get(name, name) for name in cuda_tiles.parameters(form))
    return replace(call, kernel=tile_kernel(form), blocks=blocks * call.experts, arguments=arguments)


def _word(code: int, bits: int) -> int:
    """A word of one code."""
    return sum(code << at for at in range(0, 32, bits))


_STEPS = ("first", "fast", "slow")
"""Of tiles: where the first is, and the steps to others."""


def _looking(form: cuda_grids.Form, call: Call, grid: Grid, numbers: Mapping[str, int]) -> Call:
    """A call that goes through every pair, along the axis first whose sources are nearer to each other."""
    n, k = (_step(np.unique(axis[SRC]), 0) for axis in (grid.n, grid.k))
    return _placed(form, call, grid, grid.n.shape[1] * grid.k.shape[1], {**numbers, "k_first": int(k < n)})


def _placed(form: cuda_grids.Form, call: Call, grid: Grid, pieces: int, numbers: Mapping[str, int]) -> Call:
    """The call with its grid: blocks, and the numbers that say where its entries are."""
    blocks = -(-pieces // cuda_grids.THREADS)
    n, k = grid.n.shape[1], grid.k.shape[1]
    known = {
        **numbers, "experts": call.experts, "blocks_per_expert": blocks, "n_count": n, "k_count": k,
        "n_per_expert": n if grid.gather_n else 0, "k_per_expert": k if grid.gather_k else 0,
    }  # fmt: skip
    arguments = tuple(known.get(name, name) for name in cuda_grids.parameters(form))
    return replace(call, blocks=blocks * call.experts, arguments=arguments, grid=grid)


def _step(values: np.ndarray, taken: int) -> float:
    """How far the next digit of an axis goes, after so many."""
    at = 1 << taken
    return float(abs(values[at] - values[0])) if len(values) > at else math.inf


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
def grid_kernel(form: cuda_grids.Form) -> Kernel:
    name, text = cuda_grids.named_text(form)
    return Kernel(name, text, cuda_grids.THREADS, 0)


@cache
def tile_kernel(form: cuda_tiles.Form) -> Kernel:
    name, text = cuda_tiles.named_text(form)
    return Kernel(name, text, cuda_tiles.WARPS * 32, cuda_tiles.shared(form))
