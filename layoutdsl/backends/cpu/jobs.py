"""A plan as jobs for the kernels of the cpu backend: which grids of blocks make which output.

Each move is a product of runs along n and along k. The largest blocks that fit are taken first; what is left at the
edges is cut again, until elements that fit no block are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutdsl.backends.cpu import blocks as cpu_blocks
from layoutdsl.backends.cpu.axes import Carved, carve, combined, moving, size, writers
from layoutdsl.backends.cpu.beside import Second, Unknown
from layoutdsl.backends.cpu.blocks import AWAY, Choice, Making, Orders
from layoutdsl.backends.cpu.forms import Filling, Job, Largest, Single, Table
from layoutdsl.backends.cpu.network import BITS, Digit, Loop, taken
from layoutdsl.backends.cpu.tables import (
    NOTHING,
    by_target,
    in_bytes,
    in_units,
    looked_up,
    nearest,
    parities_differ,
    within,
    word_of,
)  # fmt: skip
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Move, Operand, Plan, Program
from layoutdsl.recodes import Recode

SMALL = 1 << 15
"""Codes, of all experts, that are not worth a kernel of vectors."""

TOTAL = ("fp8_nibbles", "plain_nibbles", "fold_sign", "constant", "ramp", "shape", "largest")
"""Recodes that refuse no code."""

WORDS = (256, 64, 8)
"""Bits that are filled at once."""

SQUARE, ELEMENTS, FILLED = 64, 1 << 13, 1 << 16
"""Columns of a tile of elements where rows of the source become columns; elements of a tile; bytes of one that is
filled."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """The jobs of a plan, for each program: those that write, those that look whether a code is refused, and those that
    compare elements with one that shares their target. largest: of each reduction."""

    writes: tuple[tuple[Job, ...], ...]
    looks: tuple[tuple[Job, ...], ...]
    compares: tuple[tuple[Job, ...], ...]
    largest: tuple[tuple[Job, ...], ...]


def lower(plan: Plan) -> Lowered:
    """The jobs of a plan. Raises Unknown."""
    made = {program.output: _Lowering(plan, program) for program in plan.programs}
    stepwise = plan.habits.int16 == "stepwise"
    return Lowered(
        tuple(tuple(one.writes()) for one in made.values()),
        tuple(tuple(one.looks()) for one in made.values()),
        tuple(tuple(one.compares()) for one in made.values()),
        tuple(tuple(made[of.output].largest(of.kind == "largest" and stepwise)) for of in plan.reductions),
    )


def _grids(ns: Sequence[Run], ks: Sequence[Run], choices: Callable[..., Iterator[Choice]]) -> Iterator[Job]:
    """Jobs that make the product of runs: the best choice for the largest of them, then what that leaves."""
    left = [(list(ns), list(ks))]
    while left:
        ns, ks = left.pop()
        if not ns or not ks:
            continue
        for digits, make in choices(ns, ks):
            n, n_rests = _carved(ns, [digit for digit in digits if digit.axis == 0])
            k, k_rests = _carved(ks, [digit for digit in digits if digit.axis == 1])
            job = make(n, k) if n and k else None
            if job is not None:
                yield job
                left += [(n_rests, ks), ([one.kept for one in n], k_rests)]
                break
        else:
            raise Unknown


def _carved(runs: Iterable[Run], digits: Sequence[Digit]) -> tuple[list[Carved], list[Run]]:
    """What runs have of some digits, and what is left of them."""
    found: list[Carved] = []
    rests: list[Run] = []
    for run in runs:
        made = carve(run, [(digit.dst, digit.src) for digit in digits])
        found += [made] if made is not None else []
        rests += made.rests if made is not None else [run]
    return found, rests


class _Lowering:
    """The jobs of one program."""

    def __init__(self, plan: Plan, program: Program):
        self.plan, self.program = plan, program
        self.info = plan.output[program.output]
        self.bits = code_named(self.info.code).bits
        same = code_named(program.recode.source).bits == code_named(program.recode.target).bits
        unchanged = program.recode.name == "offset" and program.recode.power == 0 and same
        self.recode = "copy" if unchanged else program.recode.name
        self.copies = plan.experts[2] or 1 if self.info.experts and not self.info.shared else 1
        self.second = Second(plan, program.operands[0]) if program.operands else None

    def writes(self) -> Iterator[Job]:
        if self.program.fill is not None:
            yield from _Lowering(self.plan, _filling(self.program, self.program.fill)).writes()
        for move in self.program.moves:
            if move.kind == "pad":
                yield from self._constant(move, move.pad, None)
            elif self.recode in ("constant", "largest"):
                yield from self._constant(move, self.program.recode.power, self.program.recode)
            elif move.kind == "value":
                yield from self._ramp(move)
            else:
                yield from self._data(move)

    def looks(self) -> Iterator[Job]:
        """All source codes, each once, in their order in memory; for no program that compares, or that refuses none."""
        if any(_shares(move) for move in self.program.moves):
            return
        if self.program.fill is not None:
            yield from _Lowering(self.plan, _filling(self.program, self.program.fill)).looks()
        if self.recode in TOTAL or (self.recode == "copy" and not self._making(-1, (None, None)).refuses):
            return
        for move in self.program.moves:
            for making, *both in self._parts(move) if move.kind == "data" else ():
                alone = making.second is None and making.orders == (None, None)
                ns, ks = ([_only_source(run) for run in runs] if alone else runs for runs in both)
                making = replace(making, writes=False)
                yield from _grids(ns, ks, lambda n, k, making=making: self._choices(making, n, k))

    def compares(self) -> Iterator[Job]:
        for move in self.program.moves if self.recode != "constant" else ():
            if move.kind == "data" and _shares(move):
                for making, ns, ks in self._parts(move):
                    if ns and ks:
                        job = _single(making, self._form("compare"), None, _carved(ns, ())[0], _carved(ks, ())[0])
                        assert job is not None
                        yield job

    def largest(self, signs: bool) -> Iterator[Job]:
        source = self.program.recode.source
        for move in self.program.moves:
            for making, *both in self._parts(move) if move.kind == "data" else ():
                alone = making.orders == (None, None)
                ns, ks = ([_only_source(run) for run in runs] if alone else runs for runs in both)
                making = replace(making, writes=False, second=None)

                def choices(ns: Sequence[Run], ks: Sequence[Run], making: Making = making) -> Iterator[Choice]:
                    rest, inside = _loops(ns, ks), (BITS // making.source_bits).bit_length() - 1
                    digits = [taken(rest, 1 << at, "src") for at in range(inside)]
                    if None not in digits and making.orders == (None, None):
                        form = Largest(source, signs, vectors=True)
                        yield [one for one in digits if one], lambda n, k: _single(making, form, None, n, k)
                    yield (), lambda n, k: _single(making, Largest(source, signs), None, n, k)

                yield from _grids(ns, ks, choices)

    def _parts(self, move: Move) -> Iterator[tuple[Making, list[Run], list[Run]]]:
        """By part the runs along n and along k, their positions AWAY where they are looked up."""
        for part in dict.fromkeys(run.part for run in move.n):
            n = (move.gather_n, part) if move.gather_n is not None else None
            k = (move.gather_k, 0) if move.gather_k is not None else None
            ns = [_moving(run, n) for run in move.n if run.part == part]
            yield self._making(part, (n, k)), ns, [_moving(run, k) for run in move.k]

    def _making(self, part: int, orders: Orders) -> Making:
        return Making(self.plan, self.program, self.recode, self.second, part, orders)

    # data -------------------------------------------------------------------------------------------------------------

    def _data(self, move: Move) -> Iterator[Job]:
        for making, *both in self._parts(move):
            ns, ks = ([run for run in map(writers, runs) if run is not None] for runs in both)
            yield from _grids(ns, ks, lambda n, k, making=making: self._choices(making, n, k))

    def _choices(self, making: Making, ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
        if sum(map(size, ns)) * sum(map(size, ks)) * self.copies >= SMALL:
            yield from cpu_blocks.choices(making, ns, ks)
        pair = taken(_loops(ns, ks), 1, "dst") if self.bits == 4 else None
        if pair is not None:
            yield (pair,), lambda n, k: _single(making, self._form("write"), pair, n, k)
        yield (), lambda n, k: _single(making, self._form("write"), None, n, k)

    def _form(self, how: str) -> Single:
        return Single(
            how,
            self.recode,
            self.program.recode.source,
            self.program.recode.target,
            operand=self.second.operand.code if self.second is not None else "",
            stepwise=self.recode == "int16_scale" and self.plan.habits.int16 == "stepwise",
            counts=how == "write" and self._making(-1, (None, None)).counts,
        )

    # what has no source -----------------------------------------------------------------------------------------------

    def _constant(self, move: Move, code: int, recode: Recode | None) -> Iterator[Job]:
        """Words of one code, which a recode makes if one is given."""
        ns, ks = ([_only_target(run) for run in runs if not run.join] for runs in (move.n, move.k))

        def choices(ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
            for width in (*(word for word in WORDS if word > self.bits), self.bits):
                rest = _loops(ns, ks)
                digits = [taken(rest, 1 << at, "dst") for at in range((width // self.bits).bit_length() - 1)]
                if None not in digits:
                    yield [digit for digit in digits if digit], lambda n, k, width=width: fill(width, n, k)

        def fill(width: int, n: Sequence[Carved], k: Sequence[Carved]) -> Job | None:
            columns = [by_target(carved)[0].dst[:, None] for carved in (n, k)]
            scaled = [in_bytes(column, self.bits) if width > 4 else column for column in columns]
            tables = [Table(to, NOTHING, NOTHING) for to in scaled if to is not None]
            if len(tables) < 2:
                return None
            within([table.to for table in tables], self.info, width, 8 if width > 4 else 4)
            job = self._making(-1, (None, None)).job(Filling(width), tables, _down(tables), width // self.bits)
            return replace(
                job, recode=recode, value=word_of(code, self.bits), width=max(FILLED * 8 // width, 1),
                apart=width == 4, serial=width == 4 and parities_differ(tables),
            )  # fmt: skip

        yield from _grids(ns, ks, choices)

    def _ramp(self, move: Move) -> Iterator[Job]:
        """The source's address is the code: the index of the group that a coordinate is in."""
        power = self.program.recode.power
        tables: list[Table] = []
        for runs in (move.n, move.k):
            found, _ = by_target(_carved([run for run in map(writers, map(moving, runs)) if run is not None], ())[0])
            groups = found.src // power if power else np.zeros_like(found.src)
            tables.append(Table(in_units(found.dst[:, None], self.bits), groups[:, None], NOTHING))
        if all(len(table.to) for table in tables):
            within([table.to for table in tables], self.info, self.bits, 8)
            yield replace(self._making(-1, (None, None)).job(self._form("value"), tables, 0, 1), width=ELEMENTS)


def _single(
    making: Making, form: Single | Largest, pair: Digit | None, n: Sequence[Carved], k: Sequence[Carved]
) -> Job | None:
    """One element after the other, or two that are a byte. Along which the target lies closer is walked first."""
    second = making.second.bits if making.second is not None else 8
    others: Orders = making.second.orders[making.part] if making.second is not None else (None, None)
    tables: list[Table] = []
    for axis, carved in enumerate((n, k)):
        found, _ = by_target(carved)
        of = combined(found.src, [pair.src] if pair is not None and pair.axis == axis else [])
        of = of // AWAY if making.orders[axis] is not None else in_units(of, making.source_bits)
        by = making.addresses(axis, carved) if making.second is not None else NOTHING
        by = by if others[axis] is not None else in_units(by, second)
        to = found.dst[:, None]
        to = in_bytes(to, making.bits) if pair is not None else in_units(to, making.bits)
        if to is None:
            return None
        tables.append(Table(to, of, by))
    if making.writes:
        unit = 8 if pair is not None else min(making.bits, 8)
        within([table.to for table in tables], making.info, max(unit, making.bits), unit)
    whole = isinstance(form, Largest) and form.vectors
    for columns, orders, info, bits in (
        ([table.of for table in tables], making.orders, making.source, making.source_bits),
        ([table.by for table in tables], others, making.beside, second),
    ):
        if info is not None:
            read = [
                column if order is None else in_units(looked_up(making.plan, order, column), bits)
                for column, order in zip(columns, orders)
            ]
            within(read, info, BITS if whole else bits, min(bits, 8))
    down = _down(tables)
    listed = tuple(
        (*both[axis], bits if bits >= 8 else 0) if both[axis] is not None else None
        for both, bits in ((making.orders, making.source_bits), (others, second))
        for axis in (down, 1 - down)
    )
    form = replace(form, looks_up=tuple(order is not None for order in listed))
    alone = pair is None and making.bits == 4 and isinstance(form, Single) and form.how == "write" and making.writes
    if pair is not None and isinstance(form, Single):
        form = replace(form, pair="rows" if pair.axis == down else "columns")
    job = making.job(form, tables, down, 1 if pair is None else 2)
    width = SQUARE if nearest(job.columns.of) > nearest(job.rows.of) else ELEMENTS
    return replace(
        job, height=max(ELEMENTS // min(width, len(job.columns.to)), 1), width=width, orders=listed, apart=alone,
        serial=alone and parities_differ(tables),
    )  # fmt: skip


def _down(tables: Sequence[Table]) -> int:
    """The axis of the rows: along the other one the target lies closer together."""
    return 0 if nearest(tables[0].to) > nearest(tables[1].to) else 1


def _loops(ns: Sequence[Run], ks: Sequence[Run]) -> list[Loop]:
    """Those of the largest runs."""
    n, k = max(ns, key=size), max(ks, key=size)
    return [(axis, count, dst, src) for axis, run in ((0, n), (1, k)) for count, _, dst, src in run.loops]


def _moving(run: Run, order: object) -> Run:
    """A run without loops that only count, its positions AWAY where it is looked up."""
    run, by = moving(run), AWAY if order is not None else 1
    return replace(run, src=run.src * by, loops=tuple((count, dx, dst, src * by) for count, dx, dst, src in run.loops))


def _only_target(run: Run) -> Run:
    """A run without its source."""
    return replace(run, src=0, loops=tuple((count, dx, dst, 0) for count, dx, dst, _ in run.loops if count > 1 and dst))


def _only_source(run: Run) -> Run:
    """A run of all its source's codes, each once, which are its target too."""
    return replace(run, dst=run.src, loops=tuple((count, dx, src, src) for count, dx, _, src in run.loops if src))


def _shares(move: Move) -> bool:
    """Whether some elements are compared with others that share their target."""
    return any(run.join or any(loop[2] == 0 for loop in moving(run).loops) for run in (*move.n, *move.k))


def _filling(program: Program, fill: Operand) -> Program:
    """Pads that repeat a source's value as a program of their own."""
    if any(_shares(move) for move in fill.moves):
        raise Unknown
    recode = Recode("offset", fill.code, program.recode.target, fill.plus)
    return replace(
        program, sources=fill.sources, recode=recode, moves=fill.moves, operands=(), fill=None, reduction=""
    )
