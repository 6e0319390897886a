"""What a conversion did, with equal layers folded into one line.

    model.layers.{0..31}.self_attn.o_proj   marlin_int4_a16   4096 x 2048   4096 x 2048   ...
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.convert.names import Unit
from layoutdsl.layout import Run
from layoutdsl.plan import Plan


@dataclass
class Row:
    """Units that have one plan per rank in common."""

    plans: tuple[Plan, ...]
    units: list[Unit] = field(default_factory=list)
    seconds: float = 0.0

    @cached_property
    def size(self) -> int:
        """Bytes of one unit on all ranks together."""
        return sum(size_of(plan) for plan in self.plans)

    @cached_property
    def padding(self) -> int:
        return sum(padding_of(plan) for plan in self.plans)

    @property
    def name(self) -> str:
        values: dict[str, list[int]] = {}
        for unit in self.units:
            for placeholder, value in unit.at:
                values.setdefault(placeholder, []).append(value)
        return self.units[0].folded({key: _ranges(found) for key, found in values.items()})

    def cells(self) -> tuple[str, ...]:
        before, after = zip(*map(_shapes, self.plans), strict=True)
        count = len(self.units)
        return (self.name, self.plans[0].target.spec, _one(before), _one(after), _bytes(self.size * count),
                _bytes(self.padding * count), f"{self.seconds:.2f} s")


@dataclass
class Checked:
    """What the way back was compared with: tensors and weights equal to the source, byte for byte; and what was not."""

    tensors: int = 0
    values: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"checked: back through the inverse plans, {self.values:,} weights in {self.tensors:,} tensors equal the source byte for byte"
        return "\n".join([text, *(f"  not compared: {name}: {why}" for name, why in self.left_out.items())])


@dataclass
class Report:
    """The outcome of one conversion; `str` is what the command prints."""

    source: str
    destination: str
    format: str
    ranks: tuple[int, ...]
    tp: int
    chosen: str
    rows: list[Row]
    copied: int
    copied_bytes: int
    unquantized: tuple[str, ...]
    dry_run: bool
    peak: int = 0
    seconds: float = 0.0
    checked: Checked | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors written, over all ranks of this run."""
        return sum(row.size * len(row.units) for row in self.rows) + self.copied_bytes * len(self.ranks)

    def __str__(self) -> str:
        shown = str(self.ranks[0]) if len(self.ranks) == 1 else f"0 to {self.ranks[-1]}"
        head = ("unit", "kernel", "on a rank", "stored", "bytes", "padding", "time")
        table = [head, *(row.cells() for row in self.rows)]
        widths = [max(len(row[at]) for row in table) for at in range(len(head))]
        lines = [f"{self.source}: {self.format}", f"rank {shown} of {self.tp}; {self.chosen}", ""]
        for row in table:
            left = [cell.ljust(width) for cell, width in zip(row[:4], widths[:4], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[4:], widths[4:], strict=True)]
            lines.append("  ".join(left + right))
        lines += ["", *self._notes()]
        padding = sum(row.padding * len(row.units) for row in self.rows)
        verb = "would write" if self.dry_run else "wrote"
        lines.append(f"{verb} {_bytes(self.bytes)} ({_bytes(padding)} of them padding) to {self.destination} in {self.seconds:.2f} s")
        return "\n".join(lines)

    def _notes(self) -> Iterable[str]:
        for row in self.rows:
            for duty in dict.fromkeys(_without_matrix(str(duty)) for plan in self.plans_of(row) for duty in plan.duties):
                yield f"duty: {row.name}: {duty}"
            for loss in dict.fromkeys(text for plan in self.plans_of(row) for _, text in plan.losses):
                yield f"loss: {row.name}: {loss}"
        if self.copied:
            yield f"copied whole to every rank: {self.copied} tensors, {_bytes(self.copied_bytes)}"
        if self.unquantized:
            yield f"not quantized, copied as they are: {', '.join(self.unquantized[:8])}" + (" ..." if len(self.unquantized) > 8 else "")
        if self.checked is not None:
            yield str(self.checked)
        if self.dry_run:
            yield f"at most {_bytes(self.peak)} of tensors in memory at once"

    def plans_of(self, row: Row) -> Sequence[Plan]:
        return row.plans


def size_of(plan: Plan) -> int:
    """Bytes of a plan's outputs."""
    return sum(math.prod(info.full_shape) * DTYPE_BITS[info.dtypes[0]] // 8 for info in plan.outputs)


def padding_of(plan: Plan) -> int:
    """Bytes of a plan's outputs that hold no element of the checkpoint: what its pad moves and fills write."""
    from layoutdsl.codes import code_named

    bits = 0
    for program in plan.programs:
        info = plan.output[program.output]
        moves = [move for move in program.moves if move.kind == "pad"] + list(program.fill.moves if program.fill else ())
        count = sum(_written(move.n) * _written(move.k) for move in moves)
        bits += count * code_named(info.code).bits * (info.experts if info.experts and not info.shared else 1)
    return bits // 8


def _written(runs: Sequence[Run]) -> int:
    return sum(math.prod(loop[0] for loop in run.loops if loop[2]) for run in runs if not run.join)


def _shapes(plan: Plan) -> tuple[str, str]:
    """What a rank holds of a matrix, n x k, before and after padding."""
    n = [extent for extent in plan.extents if extent.role == "n" and extent.part != "*"]
    whole = [extent for extent in plan.extents if extent.role == "n" and extent.part == "*"]
    k = next(extent for extent in plan.extents if extent.role == "k")
    return (f"{sum(extent.length for extent in n)} x {k.length}",
            f"{sum(extent.padded for extent in whole or n)} x {k.padded}")


def _one(shapes: Sequence[str]) -> str:
    return shapes[0] if len(set(shapes)) == 1 else f"{shapes[0]} ..."


def _without_matrix(text: str) -> str:
    return text.partition(": ")[2] or text


def _ranges(values: Sequence[int]) -> str:
    """`{0..3,5}`, or the number alone where there is one."""
    spans: list[list[int]] = []
    for value in sorted(set(values)):
        if spans and spans[-1][1] == value - 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    texts = [str(low) if low == high else f"{low}..{high}" for low, high in spans]
    return texts[0] if len(texts) == 1 and spans[0][0] == spans[0][1] else "{" + ",".join(texts) + "}"


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

    def step(self, size: int, name: str) -> None:
        self.done += size
        if not self.shown:
            return
        spent = max(time.perf_counter() - self.start, 1e-9)
        rest = (self.total - self.done) * spent / max(self.done, 1)
        share = 100 * self.done // max(self.total, 1)
        line = f"{share:3d} %  {_bytes(self.done)} of {_bytes(self.total)}  {_bytes(self.done / spent)}/s  {rest:.0f} s left  {name}"
        sys.stderr.write(f"\r\x1b[K{line[:118]}")
        sys.stderr.flush()

    def close(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
