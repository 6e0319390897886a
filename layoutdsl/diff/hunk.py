"""The stored words in which two versions of a tensor differ: the first, and those to which their elements go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from layoutdsl.show.sheet import Cell, Sheet, coordinates, span

BATCH, BATCHES = 32, 16
"""Lines that are read at once, and how often: who looks for a change longer than that finds none to draw."""


@dataclass(frozen=True)
class Line:
    """The codes of some neighbouring words before and after; empty on the side that has no such words."""

    at: int
    before: tuple[Cell, ...]
    after: tuple[Cell, ...]

    @property
    def is_changed(self) -> bool:
        return any(not alike(one, other) for one, other in zip(self.before, self.after)) or not self.is_paired

    @property
    def is_paired(self) -> bool:
        return len(self.before) == len(self.after)


@dataclass(frozen=True)
class Hunk:
    """What is drawn of a tensor that moves. Where both versions have words of the same codes, a line is the same place
    in both; else lines are those of one version alone."""

    before: Sheet
    after: Sheet
    first: int
    most: int

    @property
    def is_aligned(self) -> bool:
        one, other = self.before, self.after
        return (one.stored.code.bits, one.per_word) == (other.stored.code.bits, other.per_word)

    @cached_property
    def lines(self) -> list[Line]:
        """At most `most` lines in their order; of those, half are where the others' elements go."""
        if not self.is_aligned:
            return [*self._alone(0, self.most // 2), *self._alone(1, self.most // 2)]
        found = {line.at: line for line in self._changed(self.most // 2)}
        for at in dict.fromkeys(place for line in found.values() for place in self._goals(line)):
            if len(found) < self.most and at not in found:
                found[at] = self._line(at, 1)[0]
        return [found[at] for at in sorted(found)]

    def _alone(self, side: int, count: int) -> list[Line]:
        sheet = (self.before, self.after)[side]
        each = codes_of_a_line(sheet)
        cells = sheet.cells(0, min(count * each, sheet.stored.codes))
        pieces = [tuple(cells[at : at + each]) for at in range(0, len(cells), each)]
        return [Line(at, *((piece, ()), ((), piece))[side]) for at, piece in enumerate(pieces)]

    def _changed(self, count: int) -> Iterator[Line]:
        start = self.first // codes_of_a_line(self.before)
        for batch in range(BATCHES):
            for line in self._line(start + batch * BATCH, BATCH):
                if line.is_changed:
                    yield line
                    count -= 1
                if not count:
                    return

    def _line(self, at: int, count: int) -> list[Line]:
        """So many lines from one on."""
        pairs = zip(_read(self.before, at, count), _read(self.after, at, count))
        return [Line(at + x, *pair) for x, pair in enumerate(pairs) if any(pair)]

    def _goals(self, line: Line) -> Iterator[int]:
        """The lines in which the elements of a line stand afterwards."""
        for cell in line.before:
            if (goal := self.goal(cell)) is not None:
                yield goal // codes_of_a_line(self.after)

    def goal(self, cell: Cell) -> int | None:
        """Where what stands in a cell before stands afterwards; None for padding."""
        return None if cell.pad else self.after.address(cell.parts[0], cell.n[0], cell.k[0])

    def moves(self, cell: Cell) -> bool:
        """Whether what stands in a cell before stands elsewhere afterwards."""
        goal = self.goal(cell)
        bits = self.before.stored.code.bits, self.after.stored.code.bits
        return goal is not None and goal * bits[1] != cell.address * bits[0]


def _read(sheet: Sheet, at: int, count: int) -> list[tuple[Cell, ...]]:
    """The codes of so many lines; those beyond the end of the tensor have none."""
    each, end = codes_of_a_line(sheet), sheet.stored.codes
    cells = sheet.cells(min(at * each, end), min((at + count) * each, end))
    return [tuple(cells[x : x + each]) for x in range(0, count * each, each)]


def codes_of_a_line(sheet: Sheet) -> int:
    """A word a line, or eight codes where words are shorter."""
    return max(sheet.per_word, 8)


def alike(one: Cell, other: Cell) -> bool:
    """Whether the same stands in two cells."""
    return (one.parts, one.n, one.k, bool(one.pad)) == (other.parts, other.n, other.k, bool(other.pad))


def element(sheet: Sheet, cell: Cell) -> str:
    """What stands in a cell: n and k of the element, after its part where there are several, `.` for padding."""
    if cell.pad:
        return "."
    part = f"{sheet.matrix.parts[cell.parts[0]]}:" if len(cell.parts) == 1 < len(sheet.matrix.parts) else ""
    return part + (",".join(span(coordinates(cell, axis)) for axis in "nk" if not sheet.shares(axis)) or "all")


def place(sheet: Sheet, address: int, of_row: tuple[int, ...] | None = None) -> str:
    """Where a code stands: `row 0, word 4, bits 0-3, lane 1`; the row is left out where it is known to be `of_row`."""
    row, word, bit = sheet.place(address)
    said = [f"row {','.join(map(str, row))}"] if row and row != of_row else []
    said.append(f"{sheet.word} {word}")
    said += [f"bits {bit}-{bit + sheet.stored.code.bits - 1}"] if sheet.per_word > 1 else []
    lane = sheet.lane(address)
    return ", ".join([*said, *([f"lane {lane}"] if lane is not None else [])])
