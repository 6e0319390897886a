"""Jobs of weights in act-order, whose k are sorted by group on the way: a k stands anywhere in the source.

So a panel of as many outputs as fill a vector is sorted apart first, small enough for a processor's cache: there a
vector holds one k, and blocks take theirs from it in whatever order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutdsl.backends.cpu.axes import Carved, carve, combined, moving
from layoutdsl.backends.cpu.forms import LINE, STAGED, Job, Moving, Table
from layoutdsl.backends.cpu.making import Making, loops_of
from layoutdsl.backends.cpu.network import BITS, Block, Digit, blocks, smallest, taken
from layoutdsl.backends.cpu.operands import Unknown
from layoutdsl.backends.cpu.tables import NOTHING, by_target, in_bytes, on_lines, within
from layoutdsl.layout import Chain, Run, View, runs


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


def panels(making: Making, n: Run, k: Run) -> Iterator[_Panel]:
    """Ways to sort panels: a vector of one has the outputs that lie together at the source, and at the target."""
    inside = (BITS // making.bits).bit_length() - 1
    every = [loop for run in _every(making, inside) for loop in loops_of(1, run)]
    for granule in (BITS, BITS // 2, BITS // 4):
        rest = [*loops_of(0, n), *every]
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
        takes = [*((0, 2, digit.dst, 1 << at) for at, digit in enumerate(outputs)), *loops_of(1, k)]
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


def paneled(making: Making, panel: _Panel, n: Sequence[Carved], k: Sequence[Carved]) -> Job | None:
    """Panels, a row for each, and blocks along k that are taken out of them."""
    order, bits, inside = making.orders[1], making.bits, panel.block.network.inside
    assert order is not None
    steps = [(digit.dst, digit.src) for digit in panel.sorts.digits if digit.axis == 1]
    every = [carve(run, steps) for run in _every(making, inside)]
    second = making.beside(panel.block, (n, k))
    if second is None or any(carved is None or carved.rests for carved in every):
        return None
    known = [carved for carved in every if carved is not None]
    to = [making.written(panel.block, axis, side) for axis, side in enumerate((n, k))]
    rows, positions = making.read(panel.sorts, 0, n), making.read(panel.block, 1, k)
    sorts = [making.written(panel.sorts, 1, known), _unsorted(making, panel.sorts, known)]
    if rows is None or positions is None or any(column is None for column in (*to, *sorts)):
        return None
    piece = bits << panel.sorts.network.reads >> 3
    staged = piece % 8 == 0 and sorts[1].shape[1] == 1 and bool((np.diff(sorts[1][:, 0]) == piece).all())
    size_of = making.plan.input[order[0].tensor].codes * BITS // 8
    within(to, making.info, bits << panel.block.network.writes, 8)
    within([making.anywhere(0, rows), sorts[1]], making.source, bits << panel.sorts.network.reads, 8)
    if positions.min() < 0 or positions.max() * BITS // 8 >= size_of or sorts[0].max() + BITS // 8 > size_of:
        raise Unknown
    network, looks_up = panel.block.network, making.orders[0] is not None
    form = Moving(
        network, 0, making.vectors, making.program.recode.source, making.program.recode.target, operand=second.spread,
        looks_up=looks_up, sorts=panel.sorts.network, staged=staged,
    )  # fmt: skip
    tables = [Table(to[0], rows, second.tables[0]), Table(to[1], positions, second.tables[1])]
    sorted_k = (replace(order[0], digits=((1, 0, 1 << inside),), views=((0, 1, 0),)), 0)
    return replace(
        making.job(form, tables, 0, 1 << inside + len([digit for digit in panel.block.digits if digit.axis == 1])),
        width=len(to[1]), lines=network.line >= 0 and on_lines(tables), panel=Table(*sorts, NOTHING),
        scratch=size_of + staged * (STAGED + LINE) * rows.shape[1],
        orders=making.listed((making.orders[0], sorted_k)),
    )  # fmt: skip


def _unsorted(making: Making, block: Block, carved: Sequence[Carved]) -> np.ndarray | None:
    """Where panels are read along k, in bytes."""
    steps = [digit.src for at, digit in enumerate(block.digits) if digit.axis == 1 and at >= block.network.reads]
    return in_bytes(combined(by_target(carved)[0].src, steps), making.bits)
