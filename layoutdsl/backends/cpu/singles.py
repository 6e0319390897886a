"""Jobs that take one element after the other, or the two of a byte; words of a constant; codes that are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from layoutdsl.backends.cpu.axes import Carved, carve, combined, moving, writers
from layoutdsl.backends.cpu.forms import Filling, Job, Largest, Single, Table
from layoutdsl.backends.cpu.making import AWAY, Making, Orders
from layoutdsl.backends.cpu.network import BITS, Digit
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
from layoutdsl.plan import Move
from layoutdsl.recodes import Recode

SQUARE, ELEMENTS, FILLED = 64, 1 << 13, 1 << 16
"""Columns of a tile of elements where rows of the source become columns; elements of a tile; bytes of one that is
filled."""


def single(
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
        ([table.by for table in tables], others, making.operand, second),
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
    job = making.job(form, tables, down, BITS // making.source_bits if whole else 1 if pair is None else 2)
    width = SQUARE if nearest(job.columns.of) > nearest(job.rows.of) else ELEMENTS
    return replace(
        job, height=max(ELEMENTS // min(width, len(job.columns.to)), 1), width=width, orders=listed, apart=alone,
        serial=alone and parities_differ(tables),
    )  # fmt: skip


def filled(
    making: Making, width: int, code: int, recode: Recode | None, sides: Sequence[Sequence[Carved]]
) -> Job | None:
    """Words of so many bits of one code."""
    columns = [by_target(carved)[0].dst[:, None] for carved in sides]
    scaled = [in_bytes(column, making.bits) if width > 4 else column for column in columns]
    tables = [Table(to, NOTHING, NOTHING) for to in scaled if to is not None]
    if len(tables) < 2:
        return None
    within([table.to for table in tables], making.info, width, 8 if width > 4 else 4)
    return replace(
        making.job(Filling(width), tables, _down(tables), width // making.bits), recode=recode,
        value=word_of(code, making.bits), width=max(FILLED * 8 // width, 1), apart=width == 4,
        serial=width == 4 and parities_differ(tables),
    )  # fmt: skip


def counted(making: Making, form: Single, move: Move) -> Iterator[Job]:
    """The source's address is the code: the index of the group that a coordinate is in."""
    power = making.program.recode.power
    tables: list[Table] = []
    for runs in (move.n, move.k):
        carved = [carve(run, ()) for run in map(writers, map(moving, runs)) if run is not None]
        found, _ = by_target([one for one in carved if one is not None])
        groups = found.src // power if power else np.zeros_like(found.src)
        tables.append(Table(in_units(found.dst[:, None], making.bits), groups[:, None], NOTHING))
    if all(len(table.to) for table in tables):
        within([table.to for table in tables], making.info, making.bits, 8)
        yield replace(making.job(form, tables, 0, 1), width=ELEMENTS)


def _down(tables: Sequence[Table]) -> int:
    """The axis of the rows: along the other one the target lies closer together."""
    return 0 if nearest(tables[0].to) > nearest(tables[1].to) else 1
