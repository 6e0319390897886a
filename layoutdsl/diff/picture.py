"""A difference as SVG: for each tensor that moves its words before and after, side by side, with arrows.

Elements that move have a colour: those of one line before share it, so that it can be seen where they go. What stays is
light grey, what comes from a line that is not drawn is grey, padding is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from layoutdsl.diff.compare import Change, Difference
from layoutdsl.diff.facts import Fact
from layoutdsl.diff.hunk import Hunk, Line, codes_of_a_line, element
from layoutdsl.diff.text import examples, headline, verdict
from layoutdsl.show import svg
from layoutdsl.show.sheet import Cell, Sheet, hover

MARGIN, BETWEEN, GAP = 24, 56, 10
LETTER, SAID = 6.7, 6.4
ROW, HIGH = 24, 20
LINES, TENSORS, ARROWS = 12, 4, 8
FACTS = 8
LEGEND = "a box: n,k of what it holds; its colour: where that stood before; pale: it stays; grey: it comes from afar"
LONGEST = 120
"""Letters of a sentence that are shown in a line."""


def drawing_of(found: Difference) -> str:
    """The text of the file that `layoutdsl diff --svg` writes."""
    name = found.after.spec.name
    drawing = Drawing()
    drawing.say(name, "head", 20)
    drawing.say(f"{found.before.label} → {found.after.label}", "said", 22)
    drawing.say(verdict(found), "said", 20)
    for fact in found.stated[:FACTS]:
        drawing.fact(fact)
    for change in found.moved[:TENSORS]:
        drawing.tensor(change)
    if len(found.moved) > TENSORS:
        drawing.say(f"{len(found.moved) - TENSORS} more tensors move", "said", 24)
    about = "; ".join([verdict(found), *(headline(change) for change in found.changes)])
    size = drawing.right + MARGIN, drawing.y + MARGIN
    return svg.document(f"What moves in {name}", about, *size, drawing.items, svg.ARROWS)


class Drawing:
    """What is drawn so far, and how far down and to the right it reaches."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.y: float = MARGIN
        self.right: float = 360

    def say(self, words: str, kind: str, height: float) -> None:
        shown = words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
        self.y += height
        self.items.append(svg.text(MARGIN, self.y - 6, shown, kind))
        self.right = max(self.right, MARGIN + len(shown) * (9.5 if kind == "head" else SAID))

    def fact(self, fact: Fact) -> None:
        """What differs, with both sides; in a line of its own each, where they are long."""
        whole = f"{fact.said}: {fact.before} → {fact.after}"
        for said in [whole] if len(whole) <= LONGEST else [f"{fact.said}:", fact.before, f"→ {fact.after}"]:
            self.say(said, "said", 18)

    def tensor(self, change: Change) -> None:
        """One tensor: what differs in words, and both sides of its hunk."""
        assert change.before is not None and change.after is not None and change.moves.first is not None
        hunk = Hunk(change.before, change.after, change.moves.first, LINES)
        self.y += 12
        self.say(headline(change), "title", 22)
        for fact in change.facts:
            self.fact(fact)
        for said in examples(change):
            self.say(said, "said", 18)
        self.say(f"at {change.settings[0]}", "said", 18)
        lines = hunk.lines
        if lines:
            self._sides(hunk, lines)
            self.y += 8
            self.say(LEGEND, "said", 16)

    def _sides(self, hunk: Hunk, lines: Sequence[Line]) -> None:
        sheets, rows = (hunk.before, hunk.after), _rows(lines)
        texts = [element(sheet, cell) for sheet, row in zip(sheets, rows) for cells in row for cell in cells]
        names = [[_name(sheet, cells) for cells in row] for sheet, row in zip(sheets, rows)]
        wide = max(24, round(LETTER * max(map(len, texts))) + 8)
        gutter = LETTER * max(len(name) for side in names for name in side) + 12
        reach = wide * max(len(cells) for row in rows for cells in row)
        lefts = MARGIN + gutter, MARGIN + 2 * gutter + reach + BETWEEN
        hues = Hues(hunk, rows[0])
        self.y += 26
        self.items += [svg.text(left, self.y - 8, said, "title") for left, said in zip(lefts, ("before", "after"))]
        middles: list[dict[int, float]] = [{}, {}]
        bottom = self.y
        for side, (sheet, row) in enumerate(zip(sheets, rows)):
            y, end = self.y, None
            self.items.append(f'<g class="{("before", "after")[side]}">')
            for cells, name in zip(row, names[side]):
                at = cells[0].address // codes_of_a_line(sheet)
                y += GAP if end not in (None, at) else 0
                self.items.append(svg.text(lefts[side] - 6, y + HIGH / 2 + 4, name, "small right"))
                for x, cell in enumerate(cells):
                    box = lefts[side] + x * wide, y, wide, HIGH
                    self.items.append(svg.cell(hues.of(side, cell), hover(sheet, cell), *box, texts.pop(0)))
                self.items.append(svg.rect(lefts[side], y, wide * len(cells), HIGH, "word", 2))
                middles[side][at] = y + HIGH / 2
                y, end = y + ROW, at + 1
            self.items.append("</g>")
            bottom = max(bottom, y)
        for one, other in _arrows(hunk, rows[0], middles):
            self.items.append(svg.arrow(lefts[0] + reach + 3, one, lefts[1] - gutter, other))
        self.right, self.y = max(self.right, lefts[1] + reach), bottom


Row = tuple[Cell, ...]


def _rows(lines: Sequence[Line]) -> tuple[list[Row], list[Row]]:
    """The lines of each side."""
    return [line.before for line in lines if line.before], [line.after for line in lines if line.after]


class Hues:
    """The colours of elements: by the line in which they stood; by their place in it, where none leaves its line."""

    def __init__(self, hunk: Hunk, rows: Sequence[Row]) -> None:
        self.hunk = hunk
        self.each = codes_of_a_line(hunk.before)
        moving = [(cell, goal) for row in rows for cell in row if (goal := hunk.goal(cell)) is not None]
        by_place = all(cell.address // self.each == goal // codes_of_a_line(hunk.after) for cell, goal in moving)
        self.known = {
            cell.address: x % svg.HUES if by_place else at % svg.HUES
            for at, row in enumerate(rows)
            for x, cell in enumerate(row)
        }

    def of(self, side: int, cell: Cell) -> str:
        """The kind of a cell."""
        if cell.pad:
            return "pad"
        hunk, was = self.hunk, cell.address
        if side:
            was = hunk.before.address(cell.parts[0], cell.n[0], cell.k[0])
            if was * hunk.before.stored.code.bits == cell.address * hunk.after.stored.code.bits:
                return "plain"
        elif not hunk.moves(cell):
            return "plain"
        return f"p{self.known[was]}" if was in self.known else "band"


def _name(sheet: Sheet, cells: Sequence[Cell]) -> str:
    """What stands beside a line: its row, its word, its lane."""
    row, word, _ = sheet.place(cells[0].address)
    lane = sheet.lane(cells[0].address)
    said = [f"row {','.join(map(str, row))}"] if row else []
    said.append(f"{sheet.word} {word}")
    return ", ".join([*said, *([f"lane {lane}"] if lane is not None else [])])


def _arrows(hunk: Hunk, rows: Sequence[Row], middles: Sequence[dict[int, float]]) -> Iterator[tuple[float, float]]:
    """From the line that an element leaves to the one in which it stands: heights. One of each line, then a second."""
    found: list[list[tuple[float, float]]] = []
    for at, cells in zip(middles[0], rows):
        places = (goal for cell in cells if (goal := hunk.goal(cell)) is not None)
        goals = dict.fromkeys(goal // codes_of_a_line(hunk.after) for goal in places)
        found.append([(middles[0][at], middles[1][goal]) for goal in goals if goal != at and goal in middles[1]])
    turns = (pair for turn in zip_longest(*found) for pair in turn if pair is not None)
    yield from islice(turns, ARROWS)
