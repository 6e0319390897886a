"""What a conversion did, with equal layers folded into one line.

model.layers.{0..31}.self_attn.o_proj   marlin_int4_a16   4096 x 2048   4096 x 2048   ...
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from layoutdsl.codes import DTYPE_BITS, code_named
from layoutdsl.checkpoints.binding import Work
from layoutdsl.checkpoints.names import Unit
from layoutdsl.checkpoints.planning import Planner
from layoutdsl.layout import Run
from layoutdsl.plan import Plan

HEAD = ("unit", "kernel", "on a rank", "stored", "bytes", "padding", "time")
NUMBERS = 3
"""How many of the last columns hold numbers, which stand to the right."""


@dataclass
class Row:
    """Units that have one plan per rank in common, and what they came to so far."""

    plans: tuple[Plan, ...]
    units: list[Unit] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        values: dict[str, list[int]] = {}
        for unit in self.units:
            for placeholder, value in unit.at:
                values.setdefault(placeholder, []).append(value)
        return self.units[0].folded({placeholder: _ranges(found) for placeholder, found in values.items()})

    @property
    def bytes(self) -> int:
        return sum(map(size_of, self.plans)) * len(self.units)

    @property
    def padding(self) -> int:
        return sum(map(padding_of, self.plans)) * len(self.units)

    def cells(self) -> tuple[str, ...]:
        shapes = zip(*map(_shapes, self.plans), strict=True)
        before, after = (found[0] + ("" if len(set(found)) == 1 else " ...") for found in shapes)
        kernel = self.plans[0].target.spec
        return self.name, kernel, before, after, _bytes(self.bytes), _bytes(self.padding), f"{self.seconds:.2f} s"


@dataclass
class Checked:
    """What the way back was compared with: tensors and weights equal to the source, byte for byte; and what was not."""

    tensors: int = 0
    values: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        yield (
            f"checked: {self.values:,} weights in {self.tensors:,} tensors, read again and converted back, "
            "equal the source byte for byte"
        )
        for name, why in self.left_out.items():
            yield f"not compared: {name}: {why}"


@dataclass
class Report:
    """The outcome of one conversion; `str` is what the command prints.

    peak: bytes of source and result that are in memory at once, beside what the backend needs. checked: None where no
    check was asked for.
    """

    source: str
    destination: str
    format: str
    kernels: tuple[str, ...]
    chosen: bool
    tp: int
    ranks: tuple[int, ...]
    rows: list[Row]
    copied: tuple[str, ...]
    copied_bytes: int
    unquantized: tuple[str, ...]
    peak: int
    written: bool = False
    seconds: float = 0.0
    checked: Checked | None = None

    @staticmethod
    def of(
        source: str, destination: str, fmt: str, work: Work, planner: Planner, plans: Sequence[tuple[Plan, ...]]
    ) -> Report:
        """The report of a conversion that was planned and not yet run."""
        rows: dict[tuple[str, int], Row] = {}
        peaks = [entry.size for entry in work.copies]
        for job, ranks in zip(work.jobs, plans, strict=True):
            rows.setdefault((job.unit.key, id(ranks)), Row(ranks)).units.append(job.unit)
            peaks.append(job.size + max(map(size_of, ranks)))
        return Report(
            source,
            destination,
            fmt,
            tuple(dict.fromkeys(row.plans[0].target.spec for row in rows.values())),
            planner.to is None,
            planner.tp,
            planner.ranks,
            list(rows.values()),
            tuple(entry.name for entry in work.copies),
            sum(entry.size for entry in work.copies),
            work.unquantized,
            max(peaks),
        )

    def row_of(self) -> dict[str, Row]:
        """Unit -> its row."""
        return {unit.name: row for row in self.rows for unit in row.units}

    @property
    def bytes(self) -> int:
        """Bytes of all tensors written, over the ranks of this run."""
        return sum(row.bytes for row in self.rows) + self.copied_bytes * len(self.ranks)

    @property
    def padding(self) -> int:
        """Those of them that hold nothing of the checkpoint."""
        return sum(row.padding for row in self.rows)

    def __str__(self) -> str:
        ranks = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {self.ranks[0]} to {self.ranks[-1]}"
        how = ", the first shipped kernel by name that takes these codes (--to names another)" if self.chosen else ""
        verb = "wrote" if self.written else "would write"
        return "\n".join([
            f"{self.source}: {self.format}",
            f"{ranks} of {self.tp}, to {', '.join(self.kernels)}{how}",
            "",
            *self._table(),
            "",
            *self._notes(),
            f"{verb} {_bytes(self.bytes)}, {_bytes(self.padding)} of them padding, to {self.destination}; "
            f"{_bytes(self.peak)} of source and result in memory at most, {self.seconds:.2f} s",
        ])  # fmt: skip

    def _table(self) -> Iterator[str]:
        table = [HEAD, *(row.cells() for row in self.rows)]
        widths = [max(len(row[at]) for row in table) for at in range(len(HEAD))]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            for at in range(len(HEAD) - NUMBERS, len(HEAD)):
                cells[at] = row[at].rjust(widths[at])
            yield "  ".join(cells)

    def _notes(self) -> Iterator[str]:
        for row in self.rows:
            for duty in dict.fromkeys(str(duty).partition(": ")[2] for plan in row.plans for duty in plan.duties):
                yield f"duty: {row.name}: {duty}"
            for loss in dict.fromkeys(text for plan in row.plans for _, text in plan.losses):
                yield f"loss: {row.name}: {loss}"
        yield f"copied whole to every rank: {len(self.copied)} tensors, {_bytes(self.copied_bytes)}"
        if self.unquantized:
            more = f" and {len(self.unquantized) - 8} more" if len(self.unquantized) > 8 else ""
            yield f"not quantized, among those copied: {', '.join(self.unquantized[:8])}{more}"
        if self.checked is not None:
            yield from self.checked.lines()


def size_of(plan: Plan) -> int:
    """Bytes of a plan's outputs."""
    return sum(math.prod(info.full_shape) * DTYPE_BITS[info.dtypes[0]] // 8 for info in plan.outputs)


def padding_of(plan: Plan) -> int:
    """Bytes of a plan's outputs that hold no element of the checkpoint: what its pad moves and fills write."""
    bits = 0
    for program in plan.programs:
        info = plan.output[program.output]
        moves = [move for move in program.moves if move.kind == "pad"]
        moves += program.fill.moves if program.fill is not None else ()
        copies = info.experts if info.experts and not info.shared else 1
        bits += sum(_written(move.n) * _written(move.k) for move in moves) * code_named(info.code).bits * copies
    return bits // 8


def _written(runs: Sequence[Run]) -> int:
    """How many target elements runs write; loops that do not move in the target count elements that share one."""
    return sum(math.prod(loop[0] for loop in run.loops if loop[2]) for run in runs if not run.join)


def _shapes(plan: Plan) -> tuple[str, str]:
    """What a rank holds of a matrix, n x k, before and after padding."""
    n = [extent for extent in plan.extents if extent.role == "n" and extent.part != "*"]
    whole = [extent for extent in plan.extents if extent.role == "n" and extent.part == "*"]
    k = next(extent for extent in plan.extents if extent.role == "k")
    before, after = sum(extent.length for extent in n), sum(extent.padded for extent in whole or n)
    return f"{before} x {k.length}", f"{after} x {k.padded}"


def _ranges(values: Sequence[int]) -> str:
    """`{0..3,5}`, or the number alone where there is one."""
    spans: list[list[int]] = []
    for value in sorted(set(values)):
        if spans and spans[-1][1] == value - 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    text = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in spans)
    return text if text.isdecimal() else "{" + text + "}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Progress:
    """One line on stderr with share, bytes, rate and the unit at hand; silent where stderr is no terminal."""

    def __init__(self, total: int):
        self.total, self.done, self.start = total, 0, time.perf_counter()
        self.shown = sys.stderr.isatty()

    def add(self, size: int) -> None:
        """So many more bytes of the source are done with."""
        self.done += size

    def at(self, name: str) -> None:
        """This is what is worked on now."""
        if not self.shown:
            return
        rate = self.done / max(time.perf_counter() - self.start, 1e-9)
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate else "starting"
        share = 100 * self.done // max(self.total, 1)
        size_text = f"{_bytes(self.done)} of {_bytes(self.total)}"
        line = f"{share:3d} %  {size_text}  {_bytes(rate)}/s  {left}  {name}"
        sys.stderr.write(f"\r\x1b[K{line[:118]}")
        sys.stderr.flush()

    def close(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
