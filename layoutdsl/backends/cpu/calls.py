"""Jobs as the calls that make them: one of each form, with the table of its jobs.

Everything here is known before tensors are: a plan's calls are made once and kept. What a run adds are places, the
addresses of tensors, orders and tables of codes, expert by expert.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from layoutdsl.backends.cpu.forms import Form, Job, Moving
from layoutdsl.backends.cpu.kernels import kernel
from layoutdsl.backends.cpu.machine import Kernel
from layoutdsl.backends.cpu.turns import (
    ACROSS,
    BY,
    COLUMNS,
    COLUMNS_BESIDE,
    COLUMNS_BY,
    COLUMNS_OF,
    COLUMNS_ORDER,
    COLUMNS_TO,
    END,
    HEIGHT,
    MODE,
    OF,
    PANEL,
    PANEL_OF,
    PANEL_TO,
    ROWS,
    ROWS_BESIDE,
    ROWS_BY,
    ROWS_OF,
    ROWS_ORDER,
    ROWS_TO,
    SCRATCH,
    TILES,
    TO,
    VALUE,
    WIDE,
    WIDTH,
    WITH,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Call:
    """A kernel and its jobs: `table` has their numbers, `copies` says how many experts each makes, `outputs` which
    tensor. serial: its turns have to follow each other."""

    form: Form
    jobs: tuple[Job, ...]
    outputs: tuple[str, ...]
    copies: tuple[int, ...]
    table: np.ndarray
    serial: bool = False

    @cached_property
    def kernel(self) -> Kernel:
        return kernel(self.form)

    @cached_property
    def sizes(self) -> list[int]:
        return [job.bytes * copies for job, copies in zip(self.jobs, self.copies)]

    @cached_property
    def ends(self) -> list[int]:
        """The number of the first turn behind each job."""
        return self.table[:, END].tolist()

    @cached_property
    def scratch(self) -> int:
        """Bytes that a thread needs apart."""
        return int(self.table[:, SCRATCH].max())

    def turns(self, at: int) -> slice:
        """Those of a job, expert after expert."""
        return slice(self.ends[at - 1] if at else 0, self.ends[at])

    def cut(self, pieces: int) -> list[tuple[int, int]]:
        """All turns in so many pieces of about as many bytes each, or fewer."""
        found = self._cut.get(pieces)
        if found is None:
            done = np.cumsum([0, *self.sizes])
            shares = np.linspace(0, done[-1], pieces + 1)
            borders = np.interp(shares, done, [0, *self.ends]).round().astype(int).tolist()
            found = self._cut[pieces] = [(first, last) for first, last in zip(borders, borders[1:]) if first < last]
        return found

    def told(self, modes: tuple[int, ...]) -> np.ndarray:
        """The table, with what each job is to do. It is kept: not to be written to."""
        found = self._told.get(modes)
        if found is None:
            found = self.table.copy()
            found[:, MODE] = modes
            self._told[modes] = found
        return found

    @cached_property
    def _cut(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    @cached_property
    def _told(self) -> dict[tuple[int, ...], np.ndarray]:
        return {}


@dataclass(eq=False)
class Layout:
    """Where the list of places has what: for each thing an entry per expert."""

    copies: int
    places: dict[Hashable, int] = field(default_factory=dict)

    def at(self, thing: Hashable) -> int:
        return self.places.setdefault(thing, len(self.places) * self.copies)

    def filled(self, things: dict[Hashable, Sequence[int] | np.ndarray]) -> np.ndarray:
        """The list; a thing that all experts share has one entry, repeated."""
        found = np.zeros((len(self.places) + 1, self.copies), dtype=np.int64)
        for thing, at in self.places.items():
            found[at // self.copies] = things.get(thing, 0)
        return found.reshape(-1)


Made = tuple[str, int, Job]
"""An output, how many copies of it there are, and a job that makes some of one."""


def calls(layout: Layout, made: Iterable[Made]) -> tuple[Call, ...]:
    """Calls for some jobs, of which those with bytes that are also other jobs' come last, one by one."""
    by_form: dict[Hashable, list[Made]] = {}
    alone: list[list[Made]] = []
    for one in made:
        if one[2].apart:
            alone.append([one])
        else:
            by_form.setdefault(one[2].form, []).append(one)
    return tuple(_call(layout, some) for some in (*by_form.values(), *alone))


def _call(layout: Layout, made: Sequence[Made]) -> Call:
    table = np.zeros((len(made), WIDE), dtype=np.int64)
    end = 0
    for row, (output, copies, job) in zip(table, made):
        height, width = min(job.height, len(job.rows.to)), min(job.width, len(job.columns.to))
        across = -(-len(job.columns.to) // width)
        tiles = across * -(-len(job.rows.to) // height)
        end += tiles * copies
        row[[END, TILES, ACROSS]] = end, tiles, across
        row[[ROWS, COLUMNS, HEIGHT, WIDTH]] = len(job.rows.to), len(job.columns.to), height, width
        for column, values in (
            (ROWS_TO, job.rows.to), (COLUMNS_TO, job.columns.to), (ROWS_OF, job.rows.of),
            (COLUMNS_OF, job.columns.of), (ROWS_BY, job.rows.by), (COLUMNS_BY, job.columns.by),
        ):  # fmt: skip
            row[column] = values.ctypes.data
        row[[TO, OF, BY]] = layout.at(("to", output)), layout.at(("of", job.source)), layout.at(("of", job.operand))
        ruled = isinstance(job.form, Moving) and job.form.recode == "rule"
        row[WITH] = layout.at(("with", output, job.part, job.recode, ruled))
        for column, order in zip((ROWS_ORDER, COLUMNS_ORDER, ROWS_BESIDE, COLUMNS_BESIDE), job.orders):
            row[column] = layout.at(("order", order)) if order is not None else 0
        row[VALUE] = job.value
        if job.panel is not None:
            panel = job.panel
            row[[PANEL, PANEL_TO, PANEL_OF]] = len(panel.to), panel.to.ctypes.data, panel.of.ctypes.data
            row[SCRATCH] = job.scratch
    outputs, copies, jobs = zip(*made)
    return Call(jobs[0].form, jobs, outputs, copies, table, any(job.serial for job in jobs))
