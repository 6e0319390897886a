"""Jobs of vectors whose codes change places: ways to take blocks of them out of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from layoutdsl.backends.cpu.axes import Carved, size
from layoutdsl.backends.cpu.forms import Job, Moving, Table
from layoutdsl.backends.cpu.making import MOVED, READ, Choice, Making, loops_of
from layoutdsl.backends.cpu.network import PIECE, Block, blocks
from layoutdsl.backends.cpu.panels import paneled, panels
from layoutdsl.backends.cpu.tables import nearest, on_lines, within
from layoutdsl.layout import Run

TILE = 1 << 16
"""Bytes of a tile, which is part of a row, or some short rows."""


def choices(making: Making, ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
    """Ways to take vectors out of runs, the best first. Runs that are looked up have their positions AWAY."""
    if not making.vectors or (making.second is not None and making.second.orders[making.part] != (None, None)):
        return
    n, k = max(ns, key=size), max(ks, key=size)
    if making.orders[1] is not None:
        for panel in panels(making, n, k):
            yield panel.digits, lambda n, k, panel=panel: paneled(making, panel, n, k)
        return
    least = PIECE if making.recode in MOVED or making.bits == 4 else making.bits
    for block in blocks(making.bits, [*loops_of(0, n), *loops_of(1, k)], least):
        yield block.digits, lambda n, k, block=block: _moved(making, block, n, k)


def _moved(making: Making, block: Block, n: Sequence[Carved], k: Sequence[Carved]) -> Job | None:
    """Blocks that are read where they stand. The axis along which the source lies closer together is walked first."""
    network = block.network
    second = making.beside(block, (n, k))
    sides = tuple(enumerate((n, k)))
    columns = [(making.written(block, axis, side), making.read(block, axis, side)) for axis, side in sides]
    if second is None or any(column is None for pair in columns for column in pair):
        return None
    tables = [Table(to, of, by) for (to, of), by in zip(columns, second.tables)]
    if making.writes:
        within([table.to for table in tables], making.info, making.bits << network.writes, 8)
    read = [making.anywhere(axis, table.of) for axis, table in enumerate(tables)]
    within(read, making.source, making.source_bits << network.reads, 8)
    down = 1 if making.orders[0] is not None or nearest(tables[0].of) <= nearest(tables[1].of) else 0
    form = Moving(
        network, down, making.vectors, making.program.recode.source, making.program.recode.target, making.refuses,
        making.counts and making.vectors in READ, second.spread, looks_up=making.orders[0] is not None,
    )  # fmt: skip
    job = making.job(form, tables, down, 1 << len(block.digits))
    lines = network.line >= 0 and on_lines(tables)
    width = max(TILE * 8 // (making.bits << len(block.digits)), 1)
    height = max(width // len(job.columns.to), 1)
    return replace(job, height=height, width=width, lines=lines, orders=making.listed((None, making.orders[0])))


