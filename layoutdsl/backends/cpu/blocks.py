"""Jobs of vectors whose codes change places: ways to take blocks of them out of runs, and their tables.

Weights in act-order have their k sorted by group on the way, and a k stands anywhere in the source. So a panel of as
many outputs as fill a vector is sorted apart first, small enough for a processor's cache: there a vector holds one k,
and blocks take theirs from it in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutdsl.backends.cpu.axes import Carved, carve, combined, moving, size
from layoutdsl.backends.cpu.beside import Second, Unknown
from layoutdsl.backends.cpu.forms import Form, Job, Moving, Order, Spread, Table
from layoutdsl.backends.cpu.network import BITS, PIECE, Block, Digit, Loop, blocks, smallest, taken
from layoutdsl.backends.cpu.tables import NOTHING, affine, by_target, in_bytes, looked_up, nearest, on_lines, within
from layoutdsl.codes import code_named
from layoutdsl.layout import Chain, Run, View, runs
from layoutdsl.plan import Lookup, Plan, Program, TensorInfo

TILE = 1 << 16
"""Bytes of a tile, which is part of a row."""

MOVED = ("copy", "fp8_nibbles", "plain_nibbles", "fold_sign")
"""Recodes of vectors, between codes of the same width."""

RULED = ("rescale", "reciprocal", "offset", "nvfp4_scale")
"""Recodes that know nothing but the code: those of 8 bits follow a rule."""

AWAY = 1 << 40
"""What positions in an order count as: none lies beside another."""

Orders = tuple["Order | None", "Order | None"]
"""What n and k are looked up in."""

Make = Callable[[Sequence[Carved], Sequence[Carved]], "Job | None"]
Choice = tuple[Sequence[Digit], Make]
"""Digits to split off runs, and what makes a job of all runs that have them; None where it cannot."""


@dataclass(frozen=True, eq=False)
class Making:
    """What is made of one part of a program."""

    plan: Plan
    program: Program
    recode: str
    second: Second | None
    part: int
    orders: Orders
    writes: bool = True
    """Whether it is written, not looked at alone."""

    @property
    def info(self) -> TensorInfo:
        return self.plan.output[self.program.output]

    @property
    def source(self) -> TensorInfo:
        return self.plan.input[self.program.sources[self.part]]

    @property
    def bits(self) -> int:
        return code_named(self.info.code).bits

    @property
    def beside(self) -> TensorInfo | None:
        """The operand's tensor."""
        return self.plan.input[self.second.operand.sources[self.part]] if self.second is not None else None

    @property
    def source_bits(self) -> int:
        return code_named(self.source.code).bits

    @property
    def refuses(self) -> bool:
        """Whether codes are copied some of which are NaN or infinite."""
        code = code_named(self.program.recode.source)
        finite = code.name in ("e2m1", "e8m0z") or code.kind not in ("float", "power")
        return self.recode == "copy" and not finite

    @property
    def counts(self) -> bool:
        """Whether values may become 0 that are counted."""
        return any(name == self.program.output for name, _ in self.plan.losses)

    @property
    def vectors(self) -> str:
        """How vectors are recoded; empty where they are not."""
        a, b = (code_named(name) for name in (self.program.recode.source, self.program.recode.target))
        known = b.kind == "power" or (b.kind == "float" and b.sign)
        if self.recode in MOVED:
            return self.recode if a.bits == b.bits <= 64 else ""
        if self.second is not None or (self.program.reduction and self.recode == "nvfp4_global"):
            return ""
        if self.recode in RULED and a.bits == 8:
            return "rule"
        if self.recode in ("rescale", "reciprocal") and a.bits in (16, 32) and a.kind == "float" and known:
            return self.recode
        steps = self.plan.habits.int16 == "stepwise"
        return ("int16_steps" if steps else "int16_scale") if self.recode == "int16_scale" else ""

    def job(self, form: Form, tables: Sequence[Table], down: int, codes: int) -> Job:
        """A grid of blocks of so many codes, whose rows are those of one axis."""
        rows, columns = tables[down], tables[1 - down]
        codes *= len(rows.to) * len(columns.to)
        return Job(
            form, rows, columns, codes, max(codes * self.bits // 8, 1), part=self.part, recode=self.program.recode,
            source=self.program.sources[self.part] if self.program.sources else "",
            operand=self.second.operand.sources[self.part] if self.second is not None else "",
            value=self.second.operand.plus if self.second is not None else 0,
        )  # fmt: skip

    def addresses(self, axis: int, carved: Sequence[Carved]) -> np.ndarray:
        """Those of the operand, in codes, in the order of targets."""
        assert self.second is not None
        order = by_target(carved)[1]
        return np.concatenate([self.second.beside(axis, self.part, one) for one in carved])[order]


def choices(making: Making, ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
    """Ways to take vectors out of runs, the best first. Runs that are looked up have their positions AWAY."""
    beside = making.second is not None and making.second.orders[making.part] != (None, None)
    if not making.vectors or beside:
        return
    n, k = max(ns, key=size), max(ks, key=size)
    if making.orders[1] is not None:
        for panel in _panels(making, n, k):
            yield panel.digits, lambda n, k, panel=panel: _paneled(making, panel, n, k)
        return
    least = PIECE if making.recode in MOVED else making.bits
    for block in blocks(making.bits, [*_loops(0, n), *_loops(1, k)], least):
        yield block.digits, lambda n, k, block=block: _moved(making, block, n, k)


def _loops(axis: int, run: Run) -> list[Loop]:
    return [(axis, count, dst, src) for count, _, dst, src in run.loops]


def _moved(making: Making, block: Block, n: Sequence[Carved], k: Sequence[Carved]) -> Job | None:
    """Blocks that are read where they stand. The axis along which the source lies closer together is walked first."""
    network = block.network
    second = _beside(making, block, (n, k))
    columns = [
        (_written(making, block, axis, side), _read(making, block, axis, side)) for axis, side in enumerate((n, k))
    ]
    if second is None or any(column is None for pair in columns for column in pair):
        return None
    tables = [Table(to, of, by) for (to, of), by in zip(columns, second.tables)]
    if making.writes:
        within([table.to for table in tables], making.info, making.bits << network.writes, 8)
    read = [_anywhere(making, axis, table.of) for axis, table in enumerate(tables)]
    within(read, making.source, making.source_bits << network.reads, 8)
    down = 1 if making.orders[0] is not None or nearest(tables[0].of) <= nearest(tables[1].of) else 0
    form = Moving(
        network, down, making.vectors, making.program.recode.source, making.program.recode.target, making.refuses,
        making.counts, second.spread, looks_up=making.orders[0] is not None,
    )  # fmt: skip
    job = making.job(form, tables, down, 1 << len(block.digits))
    lines = network.line >= 0 and on_lines(tables)
    width = max(TILE * 8 // (making.bits << len(block.digits)), 1)
    return replace(job, width=width, lines=lines, orders=_listed(making, (None, making.orders[0])))


def _written(making: Making, block: Block, axis: int, carved: Sequence[Carved]) -> np.ndarray | None:
    """Where blocks write their granules, in bytes."""
    network, digits = block.network, block.digits
    steps = [digits[at].dst for at in network.written[network.writes :] if digits[at].axis == axis]
    return in_bytes(combined(by_target(carved)[0].dst, steps), making.bits)


def _read(making: Making, block: Block, axis: int, carved: Sequence[Carved]) -> np.ndarray | None:
    """Where blocks read their granules, in bytes; positions where they are looked up."""
    network, digits = block.network, block.digits
    steps = [digit.src for at, digit in enumerate(digits) if digit.axis == axis and at >= network.reads]
    found = combined(by_target(carved)[0].src, steps)
    return found // AWAY if making.orders[axis] is not None else in_bytes(found, making.source_bits)


def _anywhere(making: Making, axis: int, column: np.ndarray) -> np.ndarray:
    """All addresses in bytes that a column may lead to."""
    order = making.orders[axis]
    if order is None:
        return column
    found = in_bytes(looked_up(making.plan, order, column), making.source_bits)
    if found is None:
        raise Unknown
    return found


def _listed(making: Making, orders: Sequence[Order | None]) -> tuple[tuple[Lookup, int, int] | None, ...]:
    """The orders of rows and columns, to be listed in bytes."""
    return (*((*order, making.source_bits) if order is not None else None for order in orders), None, None)


# operands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Second:
    """How what stands beside blocks is read, and where: along n and along k."""

    spread: Spread | None
    tables: tuple[np.ndarray, np.ndarray]


def _beside(making: Making, block: Block, carved: Sequence[Sequence[Carved]]) -> _Second | None:
    """None where what stands beside vectors is not at the same steps in all of them."""
    second, inside = making.second, block.network.inside
    if second is None:
        return _Second(None, (NOTHING, NOTHING))
    columns = [making.addresses(axis, side) for axis, side in enumerate(carved)]
    steps = [0] * len(block.digits)
    for axis, column in enumerate(columns):
        own = affine(column)
        if own is None:
            return None
        for at, step in zip((at for at, digit in enumerate(block.digits) if digit.axis == axis), own):
            steps[at] = step
    spread = second.spread(steps, inside, columns)
    away = [[steps[at] for at, digit in enumerate(block.digits) if digit.axis == axis and spread.leads_away(at, inside)]
            for axis in (0, 1)]  # fmt: skip
    tables = [combined(column[:, 0], own) for column, own in zip(columns, away)]
    last = sum(int(table.max()) for table in tables) * second.bits // 8
    info = making.plan.input[second.operand.sources[making.part]]
    if last + spread.width // 8 > info.codes * second.bits // 8:
        return None  # what is read at once would go beyond the tensor
    n, k = tables if spread.odd else (table * second.bits // 8 for table in tables)
    return _Second(spread, (n, k))


# act-order ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Panel:
    """How a panel is sorted, and how blocks are taken out of it; `outputs` are the digits along n of its vectors, with
    their steps in the source."""

    sorts: Block
    block: Block
    outputs: tuple[Digit, ...]

    @property
    def digits(self) -> tuple[Digit, ...]:
        return (*self.outputs, *(digit for digit in self.block.digits if digit.axis == 1))


def _panels(making: Making, n: Run, k: Run) -> Iterator[_Panel]:
    """Ways to sort panels: a vector of one has the outputs that lie together at the source, and at the target."""
    inside = (BITS // making.bits).bit_length() - 1
    every = [loop for run in _every(making, inside) for loop in _loops(1, run)]
    for granule in (BITS, BITS // 2, BITS // 4):
        rest = [*_loops(0, n), *every]
        found = [taken(rest, 1 << at, "src") for at in range((granule // making.bits).bit_length() - 1)]
        found += [taken(rest, 1 << at, "dst") for at in range(inside)]
        outputs = [digit for digit in found if digit is not None and digit.axis == 0]
        rest = [loop for loop in rest if loop[0] == 0]
        while len(outputs) < inside and (more := smallest(rest)) is not None:
            outputs.append(more)
        if len(outputs) != inside:
            continue
        outputs = _placed(outputs)
        sorts = [*((0, 2, 1 << at, digit.src) for at, digit in enumerate(outputs)), *every]
        takes = [*((0, 2, digit.dst, 1 << at) for at, digit in enumerate(outputs)), *_loops(1, k)]
        first = next((block for block in blocks(making.bits, sorts) if block.network.writes == inside), None)
        then = next((block for block in blocks(making.bits, takes) if block.network.reads == inside), None)
        if first is not None and then is not None:
            yield _Panel(first, then, tuple(outputs))


def _placed(digits: Sequence[Digit]) -> list[Digit]:
    """The digits of a vector of a panel, those that the target has in a granule where it has them."""
    places = {digit.dst.bit_length() - 1: digit for digit in digits if digit.dst < 1 << len(digits)}
    others = iter([digit for digit in digits if digit not in places.values()])
    return [places[at] if at in places else next(others) for at in range(len(digits))]


def _every(making: Making, inside: int) -> list[Run]:
    """All k of the source, one vector of a panel after the other."""
    order = making.orders[1]
    assert order is not None
    lookup, part = order
    offset, step, base = lookup.views[part]
    panel = View(Chain(((1, 0, 1 << inside),)))
    source = View(Chain(lookup.digits), offset, step, base)
    return [moving(run) for run in runs(making.plan.input[lookup.tensor].codes, panel, source)]


def _paneled(making: Making, panel: _Panel, n: Sequence[Carved], k: Sequence[Carved]) -> Job | None:
    """Panels, a row for each, and blocks along k that are taken out of them."""
    order, bits, inside = making.orders[1], making.bits, panel.block.network.inside
    assert order is not None
    steps = [(digit.dst, digit.src) for digit in panel.sorts.digits if digit.axis == 1]
    every = [carve(run, steps) for run in _every(making, inside)]
    second = _beside(making, panel.block, (n, k))
    if second is None or any(carved is None or carved.rests for carved in every):
        return None
    known = [carved for carved in every if carved is not None]
    to = [_written(making, panel.block, axis, side) for axis, side in enumerate((n, k))]
    rows, positions = _read(making, panel.sorts, 0, n), _read(making, panel.block, 1, k)
    sorts = [_written(making, panel.sorts, 1, known), _unsorted(making, panel.sorts, known)]
    if rows is None or positions is None or any(column is None for column in (*to, *sorts)):
        return None
    size_of = making.plan.input[order[0].tensor].codes * BITS // 8
    within(to, making.info, bits << panel.block.network.writes, 8)
    within([_anywhere(making, 0, rows), sorts[1]], making.source, bits << panel.sorts.network.reads, 8)
    if positions.min() < 0 or positions.max() * BITS // 8 >= size_of or sorts[0].max() + BITS // 8 > size_of:
        raise Unknown
    network, looks_up = panel.block.network, making.orders[0] is not None
    form = Moving(
        network, 0, making.vectors, making.program.recode.source, making.program.recode.target, operand=second.spread,
        looks_up=looks_up, sorts=panel.sorts.network,
    )  # fmt: skip
    tables = [Table(to[0], rows, second.tables[0]), Table(to[1], positions, second.tables[1])]
    listed = (replace(order[0], digits=((1, 0, 1 << inside),), views=((0, 1, 0),)), 0)
    return replace(
        making.job(form, tables, 0, 1 << inside + len([digit for digit in panel.block.digits if digit.axis == 1])),
        width=len(to[1]), lines=network.line >= 0 and on_lines(tables), panel=Table(*sorts, NOTHING), scratch=size_of,
        orders=_listed(making, (making.orders[0], listed)),
    )  # fmt: skip


def _unsorted(making: Making, block: Block, carved: Sequence[Carved]) -> np.ndarray | None:
    """Where panels are read along k, in bytes."""
    steps = [digit.src for at, digit in enumerate(block.digits) if digit.axis == 1 and at >= block.network.reads]
    return in_bytes(combined(by_target(carved)[0].src, steps), making.bits)
