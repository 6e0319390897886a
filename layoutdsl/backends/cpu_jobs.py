"""A plan as jobs for the kernels of the cpu backend: which grids of blocks make which output.

Each move is a product of runs along n and along k. The largest blocks that fit are taken first; what is left at the
edges is cut again, until elements that fit no block are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutdsl.backends.cpu_axes import Carved, carve, combined, moving, size, writers
from layoutdsl.backends.cpu_beside import Second, Unknown
from layoutdsl.backends.cpu_forms import Filling, Form, Job, Largest, Moving, Order, Single, Spread, Table
from layoutdsl.backends.cpu_network import Block, Digit, Loop, blocks, taken
from layoutdsl.backends.cpu_tables import (
    NOTHING,
    affine,
    by_target,
    in_bytes,
    in_units,
    looked_up,
    nearest,
    on_lines,
    parities_differ,
    within,
    word_of,
)  # fmt: skip
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Move, Operand, Plan, Program, TensorInfo
from layoutdsl.recodes import Recode

SMALL = 1 << 15
"""Codes, of all experts, that are not worth a kernel of vectors."""

TOGETHER, TILE = 512, 1 << 16
"""Bytes that rows write together, where they lie together; bytes of a tile."""

MOVED = ("copy", "fp8_nibbles", "plain_nibbles", "fold_sign")
"""Recodes of vectors."""

TOTAL = ("fp8_nibbles", "plain_nibbles", "fold_sign", "constant", "ramp", "shape", "largest")
"""Recodes that refuse no code."""

WORDS = (256, 64, 8)
"""Bits that are filled at once."""

SQUARE, ELEMENTS = 64, 1 << 13
"""Columns of a tile of elements where rows of the source become columns; elements of a tile."""

Orders = tuple["Order | None", "Order | None"]
"""What n and k are looked up in."""

Make = Callable[[Sequence[Carved], Sequence[Carved]], "Job | None"]
Choice = tuple[Sequence[Digit], Make]
"""Digits to split off runs, and what makes a job of all runs that have them; None where it cannot."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """The jobs of a plan, for each program: those that write, and those that compare elements with one that shares
    their target. largest: of each reduction. refuses: whether a program may refuse a code."""

    writes: tuple[tuple[Job, ...], ...]
    compares: tuple[tuple[Job, ...], ...]
    largest: tuple[tuple[Job, ...], ...]
    refuses: tuple[bool, ...]


def lower(plan: Plan) -> Lowered:
    """The jobs of a plan. Raises Unknown."""
    made = {program.output: _Lowering(plan, program) for program in plan.programs}
    stepwise = plan.habits.int16 == "stepwise"
    return Lowered(
        tuple(tuple(one.writes()) for one in made.values()),
        tuple(tuple(one.compares()) for one in made.values()),
        tuple(tuple(made[of.output].largest(of.kind == "largest" and stepwise)) for of in plan.reductions),
        tuple(one.refuses for one in made.values()),
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


def _parts(move: Move) -> Iterator[tuple[int, list[Run], Orders]]:
    """The runs along n by part, and what addresses are looked up in."""
    for part in dict.fromkeys(run.part for run in move.n):
        n = (move.gather_n, part) if move.gather_n is not None else None
        k = (move.gather_k, 0) if move.gather_k is not None else None
        yield part, [moving(run) for run in move.n if run.part == part], (n, k)


class _Lowering:
    """The jobs of one program."""

    def __init__(self, plan: Plan, program: Program):
        self.plan, self.program = plan, program
        self.info = plan.output[program.output]
        self.bits = code_named(self.info.code).bits
        self.recode = _named(program.recode)
        self.copies = plan.experts[2] or 1 if self.info.experts and not self.info.shared else 1
        self.second = Second(plan, program.operands[0]) if program.operands else None

    @property
    def refuses(self) -> bool:
        copies = self.recode == "copy" and not _not_finite(self.program.recode)
        shares = any(_shares(move) for move in self.program.moves)
        return shares or self.program.fill is not None or not (copies or self.recode in TOTAL)

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

    def compares(self) -> Iterator[Job]:
        for move in self.program.moves if self.recode != "constant" else ():
            if move.kind == "data" and _shares(move):
                yield from self._all(move, self._form("compare"))

    def largest(self, signs: bool) -> Iterator[Job]:
        for move in self.program.moves:
            if move.kind == "data":
                yield from self._all(move, Largest(self.program.recode.source, signs))

    def _all(self, move: Move, form: Single | Largest) -> Iterator[Job]:
        """All elements of a move one by one, those that share a target too."""
        ks = _carved(map(moving, move.k), ())[0]
        for part, ns, orders in _parts(move) if ks else ():
            job = self._single(form, part, orders, None, _carved(ns, ())[0], ks)
            assert job is not None
            yield job

    # data -------------------------------------------------------------------------------------------------------------

    def _data(self, move: Move) -> Iterator[Job]:
        ks = [run for run in map(writers, map(moving, move.k)) if run is not None]
        for part, found, orders in _parts(move):
            ns = [run for run in map(writers, found) if run is not None]
            yield from _grids(ns, ks, lambda n, k, at=(part, orders): self._choices(*at, n, k))

    def _choices(self, part: int, orders: Orders, ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
        loops = _loops(ns, ks)
        source = code_named(self._source(part).code)
        moves = self.recode in MOVED and source.bits == self.bits <= 64 and orders == (None, None)
        if moves and sum(map(size, ns)) * sum(map(size, ks)) * self.copies >= SMALL:
            for block in blocks(self.bits, loops):
                yield block.digits, lambda n, k, block=block: self._moving(part, block, n, k)
        pair = taken(list(loops), 1, "dst") if self.bits == 4 else None
        if pair is not None:
            yield (pair,), lambda n, k: self._single(self._form("write"), part, orders, pair, n, k)
        yield (), lambda n, k: self._single(self._form("write"), part, orders, None, n, k)

    def _moving(self, part: int, block: Block, n: Sequence[Carved], k: Sequence[Carved]) -> Job | None:
        """Blocks of vectors. The axis along which the source lies closer together is walked first."""
        network, digits, bits = block.network, block.digits, self.bits
        axes = [[at for at, digit in enumerate(digits) if digit.axis == axis] for axis in (0, 1)]
        beside, steps = [NOTHING, NOTHING], [0] * len(digits)
        for axis, carved in enumerate((n, k)) if self.second is not None else ():
            beside[axis] = self._addresses(axis, part, carved)
            own = affine(beside[axis])
            if own is None:
                return None
            for at, step in zip(axes[axis], own):
                steps[at] = step
        spread = self.second.spread(steps, network.inside, beside) if self.second is not None else None
        tables: list[Table] = []
        for numbers, carved, column in zip(axes, (n, k), beside):
            found = by_target(carved)[0]
            written = [at for at in network.written[network.writes :] if at in numbers]
            to = in_bytes(combined(found.dst, [digits[at].dst for at in written]), bits)
            of = in_bytes(combined(found.src, [digits[at].src for at in numbers if at >= network.reads]), bits)
            apart = [steps[at] for at in numbers if spread is not None and spread.leads_away(at, network.inside)]
            by = combined(column[:, 0], apart)
            if to is None or of is None:
                return None
            tables.append(Table(to, of, by if spread is None or spread.odd else by * spread.bits // 8))
        within([table.to for table in tables], self.info, bits << network.writes, 8)
        within([table.of for table in tables], self._source(part), bits << network.reads, 8)
        if spread is not None and not self._readable_words(spread, part, tables):
            return None
        down = 0 if nearest(tables[0].of) > nearest(tables[1].of) else 1
        refuses = _not_finite(self.program.recode) if self.recode == "copy" else ""
        height = min(max(TOGETHER // nearest(tables[down].to), 1), len(tables[down].to))
        width = max(TILE // (height * bits << len(digits) >> 3), 1)
        job = self._job(Moving(network, down, self.recode, refuses, spread), part, tables, down, 1 << len(digits))
        return replace(job, height=height, width=width, lines=network.line >= 0 and on_lines(tables))

    # elements ---------------------------------------------------------------------------------------------------------

    def _form(self, how: str) -> Single:
        return Single(
            how,
            self.recode,
            self.program.recode.source,
            self.program.recode.target,
            operand=self.second.operand.code if self.second is not None else "",
            stepwise=self.recode == "int16_scale" and self.plan.habits.int16 == "stepwise",
            counts=how == "write" and any(name == self.program.output for name, _ in self.plan.losses),
        )

    def _single(
        self, form: Single | Largest, part: int, orders: Orders, pair: Digit | None, n: Sequence[Carved],
        k: Sequence[Carved],
    ) -> Job | None:  # fmt: skip
        """One element after the other, or two that are a byte. Along which the target lies closer is walked first."""
        source = code_named(self._source(part).code).bits
        second = self.second.bits if self.second is not None else 8
        others: Orders = self.second.orders[part] if self.second is not None else (None, None)
        tables: list[Table] = []
        for axis, carved in enumerate((n, k)):
            found, _ = by_target(carved)
            by = self._addresses(axis, part, carved) if self.second is not None else NOTHING
            of = combined(found.src, [pair.src] if pair is not None and pair.axis == axis else [])
            to = in_bytes(found.dst[:, None], self.bits) if pair is not None else in_units(found.dst[:, None], self.bits)
            if to is None:
                return None
            of = of if orders[axis] is not None else in_units(of, source)
            tables.append(Table(to, of, by if others[axis] is not None else in_units(by, second)))
        unit = 8 if pair is not None else min(self.bits, 8)
        within([table.to for table in tables], self.info, max(unit, self.bits), unit)
        self._readable(self._source(part), [table.of for table in tables], orders, source)
        if self.second is not None:
            info = self.plan.input[self.second.operand.sources[part]]
            self._readable(info, [table.by for table in tables], others, second)
        down = 0 if nearest(tables[0].to) > nearest(tables[1].to) else 1
        found = [
            (*both[axis], bits) if both[axis] is not None else None
            for both, bits in ((orders, source), (others, second))
            for axis in (down, 1 - down)
        ]
        form = replace(form, looks_up=tuple(order is not None for order in found))
        alone = pair is None and self.bits == 4 and isinstance(form, Single) and form.how == "write"
        if pair is not None and isinstance(form, Single):
            form = replace(form, pair="rows" if pair.axis == down else "columns")
        job = self._job(form, part, tables, down, 1 if pair is None else 2)
        across = nearest(job.columns.of) > nearest(job.rows.of)
        width = SQUARE if across else ELEMENTS
        return replace(
            job, height=max(ELEMENTS // min(width, len(job.columns.to)), 1), width=width, orders=tuple(found),
            apart=alone, serial=alone and parities_differ(tables),
        )  # fmt: skip

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
            tables: list[Table] = []
            for carved in (n, k):
                to = by_target(carved)[0].dst[:, None]
                to = in_bytes(to, self.bits) if width > 4 else to
                if to is None:
                    return None
                tables.append(Table(to, NOTHING, NOTHING))
            within([table.to for table in tables], self.info, width, 8 if width > 4 else 4)
            down = 0 if nearest(tables[0].to) > nearest(tables[1].to) else 1
            rows, columns = tables[down], tables[1 - down]
            blocks_in = len(rows.to) * len(columns.to)
            return Job(
                Filling(width), rows, columns, blocks_in * (width // self.bits), blocks_in * max(width // 8, 1),
                recode=recode, value=word_of(code, self.bits), width=max(TILE * 8 // width, 1), apart=width == 4,
                serial=width == 4 and parities_differ(tables),
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
            yield replace(self._job(self._form("value"), -1, tables, 0, 1), width=ELEMENTS)

    # numbers ----------------------------------------------------------------------------------------------------------

    def _source(self, part: int) -> TensorInfo:
        return self.plan.input[self.program.sources[part]]

    def _addresses(self, axis: int, part: int, carved: Sequence[Carved]) -> np.ndarray:
        """Those of the operand, in codes, in the order of targets."""
        assert self.second is not None
        order = by_target(carved)[1]
        return np.concatenate([self.second.beside(axis, part, one) for one in carved])[order]

    def _readable_words(self, spread: Spread, part: int, tables: Sequence[Table]) -> bool:
        """Whether the words that an operand is read in do not go beyond its tensor."""
        assert self.second is not None
        info = self.plan.input[self.second.operand.sources[part]]
        last = sum(int(table.by.max()) for table in tables) * (4 if spread.odd else 8) // 8
        return last + spread.width // 8 <= info.codes * spread.bits // 8

    def _job(self, form: Form, part: int, tables: Sequence[Table], down: int, codes: int) -> Job:
        rows, columns = tables[down], tables[1 - down]
        codes *= len(rows.to) * len(columns.to)
        return Job(
            form, rows, columns, codes, max(codes * self.bits // 8, 1), part=part, recode=self.program.recode,
            value=self.second.operand.plus if self.second is not None else 0,
            source=self.program.sources[part] if part >= 0 or self.program.sources else "",
            operand=self.second.operand.sources[part] if self.second is not None else "",
        )  # fmt: skip

    def _readable(self, info: TensorInfo, columns: Sequence[np.ndarray], orders: Orders, bits: int) -> None:
        """Raises Unknown where an address is not in its tensor."""
        found = [
            column if order is None else looked_up(self.plan, order, column, bits)
            for column, order in zip(columns, orders)
        ]
        within(found, info, bits, min(bits, 8))


def _loops(ns: Sequence[Run], ks: Sequence[Run]) -> list[Loop]:
    """Those of the largest runs."""
    return [
        (axis, count, dst, src)
        for axis, runs in enumerate((ns, ks))
        for count, _, dst, src in max(runs, key=size).loops
    ]


def _only_target(run: Run) -> Run:
    """A run without its source."""
    return replace(run, src=0, loops=tuple((count, dx, dst, 0) for count, dx, dst, _ in run.loops if count > 1 and dst))


def _shares(move: Move) -> bool:
    """Whether some elements are compared with others that share their target."""
    return any(run.join or any(loop[2] == 0 for loop in moving(run).loops) for run in (*move.n, *move.k))


def _filling(program: Program, fill: Operand) -> Program:
    """Pads that repeat a source's value as a program of their own."""
    target = program.recode.target
    if any(_shares(move) for move in fill.moves):
        raise Unknown
    recode = Recode("offset", fill.code, target, fill.plus)
    return replace(
        program, sources=fill.sources, recode=recode, moves=fill.moves, operands=(), fill=None, reduction=""
    )


def _named(recode: Recode) -> str:
    """A recode's name; offsets of 0 are copies."""
    same = code_named(recode.source).bits == code_named(recode.target).bits
    return "copy" if recode.name == "offset" and recode.power == 0 and same else recode.name


def _not_finite(recode: Recode) -> str:
    """The source code where some of its codes are NaN or infinite."""
    code = code_named(recode.source)
    finite = code.name in ("e2m1", "e8m0z") or code.kind not in ("float", "power")
    return "" if finite else code.name
