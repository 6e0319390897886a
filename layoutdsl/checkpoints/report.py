"""What a conversion does or did, with equal layers folded into one line.

model.layers.{0..31}.self_attn.o_proj   marlin_int4_a16   4096 x 2048   4096 x 2048   ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.names import Unit
from layoutdsl.checkpoints.planning import Planner, number_of
from layoutdsl.checkpoints.progress import in_bytes
from layoutdsl.codes import DTYPE_BITS, code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Lost, Plan

if TYPE_CHECKING:
    from layoutdsl.checkpoints.run import Conversion

HEAD = ("unit", "kernel", "on a rank", "stored", "bytes", "padding")
NUMBERS = 2
"""How many of the last columns hold numbers, which stand to the right."""

AS_IT_IS = "as it is"
"""What stands in the place of a kernel for layers that are not quantized."""


@dataclass
class Row:
    """Units that have one plan per rank in common."""

    plans: tuple[Plan, ...]
    quantized: bool
    units: list[Unit] = field(default_factory=list)

    @property
    def name(self) -> str:
        return folded(self.units)

    @property
    def kernel(self) -> str:
        return self.plans[0].target.spec if self.quantized else AS_IT_IS

    @property
    def matrices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(extent.matrix for extent in self.plans[0].extents))

    def label(self, name: str) -> str:
        """The units' name, with the matrix of a tensor where they have several."""
        return f"{self.name} {name.partition('.')[0]}" if len(self.matrices) > 1 else self.name

    @property
    def bytes(self) -> int:
        return sum(map(size_of, self.plans)) * len(self.units)

    @property
    def padding(self) -> int:
        return sum(map(padding_of, self.plans)) * len(self.units)

    def lines(self) -> Iterator[tuple[str, ...]]:
        """The cells of the table, a line for each matrix."""
        for matrix in self.matrices:
            shapes = zip(*(_shapes(plan, matrix) for plan in self.plans), strict=True)
            before, after = (found[0] + ("" if len(set(found)) == 1 else " ...") for found in shapes)
            size = sum(size_of(plan, f"{matrix}.") for plan in self.plans) * len(self.units)
            padding = sum(padding_of(plan, f"{matrix}.") for plan in self.plans) * len(self.units)
            yield self.label(matrix), self.kernel, before, after, in_bytes(size), in_bytes(padding)


@dataclass
class Report:
    """The outcome of one conversion; `str` is what the command prints.

    peak: bytes in memory at once, above what the interpreter with torch takes; where: in which process, if not in ours.
    there: whether an earlier run has written the output of this one rank.
    lost: which values of which unit became 0, once it has run. verified: what `verify` says of it, where it was asked
    for.
    """

    source: str
    destination: str
    format: str
    chosen: bool
    ranks: str
    places: int
    count: int
    rows: list[Row]
    copied: tuple[str, ...]
    copied_bytes: int
    peak: int
    where: str = ""
    there: bool = False
    written: bool = False
    seconds: float = 0.0
    lost: dict[str, list[Lost]] = field(default_factory=dict)
    verified: str = ""

    @staticmethod
    def of(source: str, destination: str, conversion: Conversion) -> Report:
        """The report of a conversion that was planned and not yet run."""
        planner, copies = conversion.planner, conversion.work.copies
        return Report(
            source,
            destination,
            str(conversion.source),
            not planner.to,
            _ranks_text(planner),
            len(planner.experts),
            len(planner.ranks),
            rows_of(conversion.jobs()),
            tuple(entry.name for entry in copies),
            sum(entry.size for entry in copies),
            conversion.peak,
        )

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.kernel for row in self.rows if row.quantized))

    @property
    def bytes(self) -> int:
        """Bytes of all tensors written, over the ranks of this run."""
        return sum(row.bytes for row in self.rows) + self.copied_bytes * self.count

    @property
    def padding(self) -> int:
        """Those of them that hold nothing of the checkpoint."""
        return sum(row.padding for row in self.rows)

    def __str__(self) -> str:
        how = ": the first shipped kernel by name that takes the codes (--to names another)" if self.chosen else ""
        return "\n".join([
            f"{self.source}: {self.format}",
            f"{self.ranks}, to {', '.join(self.kernels)}{how}",
            "",
            *table([HEAD, *(cells for row in self.rows for cells in row.lines())], NUMBERS),
            "",
            *self._notes(),
            self._outcome(),
            f"{in_bytes(self.peak)} of memory at most{self.where} beside the interpreter and torch, "
            f"{self.seconds:.2f} s",
        ])  # fmt: skip

    def _outcome(self) -> str:
        if self.there:
            values = "" if self.verified else "; `verify` compares its values"
            return f"{self.ranks} is in {self.destination} already, by these plans{values}"
        verb = "wrote" if self.written else "would write"
        return f"{verb} {in_bytes(self.bytes)}, {in_bytes(self.padding)} of them padding, to {self.destination}"

    def _notes(self) -> Iterator[str]:
        if self.places:
            experts = next(row.plans[0].experts[0] for row in self.rows if row.plans[0].places)
            yield f"{self.places} places for {experts} experts, as the map of experts says"
        duties = (
            (str(duty).partition(": ")[2], row.label(duty.matrix))
            for row in self.rows
            for plan in row.plans
            for duty in plan.duties
        )
        for text, units in _grouped(duties):
            yield f"duty: {text}: {units}"
        losses = (
            (text.partition(": ")[2], row.label(name))
            for row in self.rows
            for plan in row.plans
            for name, text in plan.losses
        )
        for text, units in _grouped(losses):
            yield f"loss: {text}: {units}"
        yield from self._lost()
        if self.copied:
            yield f"copied whole to every rank: {len(self.copied)} tensors, {in_bytes(self.copied_bytes)}"
        if self.verified:
            yield self.verified

    def _lost(self) -> Iterator[str]:
        for row in self.rows:
            found: dict[str, list[Lost]] = {}
            for lost in (lost for unit in row.units for lost in self.lost.get(unit.name, ())):
                found.setdefault(lost.tensor, []).append(lost)
            for tensor, each in found.items():
                count, of = sum(lost.count for lost in each), sum(lost.of for lost in each)
                yield f"lost: {count:,} of {of:,} values of `{tensor}` became 0: {row.name}"


def rows_of(planned: Iterator[tuple[Job, tuple[Plan, ...]]]) -> list[Row]:
    """Units with the same plans, together."""
    rows: dict[tuple[str, int], Row] = {}
    for job, plans in planned:
        rows.setdefault((job.unit.key, id(plans)), Row(plans, job.quantized)).units.append(job.unit)
    return list(rows.values())


def folded(units: Sequence[Unit]) -> str:
    """`model.layers.{0..47}.mlp.down_proj`"""
    values: dict[str, list[int]] = {}
    for unit in units:
        for placeholder, value in unit.at:
            values.setdefault(placeholder, []).append(value)
    return units[0].folded({placeholder: ranges(found) for placeholder, found in values.items()})


def table(rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """Columns of text, the last `numbers` of them to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        for at in range(len(row) - numbers, len(row)):
            cells[at] = row[at].rjust(widths[at])
        yield "  ".join(cells).rstrip()


def _grouped(notes: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each text once, with all that it is said of."""
    found: dict[str, dict[str, None]] = {}
    for text, label in notes:
        found.setdefault(text, {})[label] = None
    yield from ((text, ", ".join(labels)) for text, labels in found.items())


def _ranks_text(planner: Planner) -> str:
    first = planner.ranks[0]
    numbers = [number_of(ranks) for ranks in planner.ranks]
    which = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {numbers[0]} to {numbers[-1]}"
    how = f" ({first.tp} tensor-parallel times {first.ep} expert-parallel)" if first.ep > 1 else ""
    return f"{which} of {first.tp * first.ep}{how}"


def size_of(plan: Plan, matrix: str = "") -> int:
    """Bytes of a plan's outputs, or of those of one matrix."""
    return sum(
        math.prod(info.full_shape) * DTYPE_BITS[info.dtypes[0]] // 8
        for info in plan.outputs
        if info.name.startswith(matrix)
    )


def padding_of(plan: Plan, matrix: str = "") -> int:
    """Bytes of a plan's outputs that hold no element of the checkpoint: what its pad moves and fills write."""
    bits = 0
    for program in plan.programs:
        if not program.output.startswith(matrix):
            continue
        info = plan.output[program.output]
        moves = [move for move in program.moves if move.kind == "pad"]
        moves += program.fill.moves if program.fill is not None else ()
        copies = info.experts if info.experts and not info.shared else 1
        bits += sum(_written(move.n) * _written(move.k) for move in moves) * code_named(info.code).bits * copies
    return bits // 8


def _written(runs: Sequence[Run]) -> int:
    """How many target elements runs write; loops that do not move in the target count elements that share one."""
    return sum(math.prod(loop[0] for loop in run.loops if loop[2]) for run in runs if not run.join)


def _shapes(plan: Plan, matrix: str) -> tuple[str, str]:
    """What a rank holds of a matrix, experts x n x k, before and after padding."""
    own = [extent for extent in plan.extents if extent.matrix == matrix]
    n = [extent for extent in own if extent.role == "n" and extent.part != "*"]
    whole = [extent for extent in own if extent.role == "n" and extent.part == "*"]
    k = next(extent for extent in own if extent.role == "k")
    before, after = sum(extent.length for extent in n), sum(extent.padded for extent in whole or n)
    experts = f"{plan.experts[2]} x " if plan.experts[0] else ""
    return f"{experts}{before} x {k.length}", f"{experts}{after} x {k.padded}"


def ranges(values: Sequence[int]) -> str:
    """`{0..3,5}`, or the number alone where there is one."""
    spans: list[list[int]] = []
    for value in sorted(set(values)):
        if spans and spans[-1][1] == value - 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    text = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in spans)
    return text if text.isdecimal() else "{" + text + "}"
