"""A difference as SVG: for each tensor that moves its words before and after, side by side, with arrows.

Elements that move have a colour: those of one line before share it, so that it can be seen where they go. What stays is
grey; what comes from a line that is not drawn has a band's colour; padding is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdsl.diff.compare import Change, Difference
from layoutdsl.diff.hunk import Hunk, Line, codes_of_a_line, element
from layoutdsl.diff.text import examples, headline, verdict
from layoutdsl.show import svg
from layoutdsl.show.sheet import Cell, Sheet, hover

MARGIN, BETWEEN, GAP = 24, 96, 6
LETTER, SAID = 6.7, 6.4
ROW, HIGH = 24, 20
LINES, TENSORS, ARROWS = 12, 4, 6
LONGEST = 120
"""Letters of a sentence that are shown in a line."""


def drawing_of(found: Difference) -> str:
    """The text of the file that `layoutdsl diff --svg` writes."""
    name = found.after.spec.name
    drawing = Drawing()
    drawing.say(name, "head", 20)
    drawing.say(f"{found.before.label} → {found.after.label}", "said", 22)
    drawing.say(verdict(found), "said", 20)
    for change in found.moved[:TENSORS]:
        drawing.tensor(change)
    if len(found.moved) > TENSORS:
        drawing.say(f"{len(found.moved) - TENSORS} more tensors move", "said", 24)
    about = "; ".join([verdict(found), *(headline(change) for change in found.changes)])
    return svg.document(f"What moves in {name}", about, drawing.right + MARGIN, drawing.y + MARGIN, drawing.items)


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

    def tensor(self, change: Change) -> None:
        """One tensor: what differs in words, and both sides of its hunk."""
        assert change.before is not None and change.after is not None and change.moves.first is not None
        hunk = Hunk(change.before, change.after, change.moves.first, LINES)
        self.y += 12
        self.say(headline(change), "title", 22)
        for fact in change.facts:
            self.say(f"{fact.said}: {fact.before} → {fact.after}", "said", 18)
        for said in examples(change):
            self.say(said, "said", 18)
        self.say(f"at {change.settings[0]}", "said", 18)
        lines = hunk.lines
        if lines:
            self._sides(hunk, lines)

    def _sides(self, hunk: Hunk, lines: Sequence[Line]) -> None:
        before, after = hunk.before, hunk.after
        texts = [element(sheet, cell) for line in lines for sheet, side in ((before, line.before), (after, line.after))
                 for cell in side]  # fmt: skip
        wide = max(24, round(LETTER * max(map(len, texts))) + 8)
        gutter = LETTER * max(len(_name(sheet, side)) for line in lines
                              for sheet, side in ((before, line.before), (after, line.after)) if side) + 12  # fmt: skip
        hues = {line.at: at % svg.HUES for at, line in enumerate(lines)}
        sources = {goal: line.at for line in lines for cell in line.before if hunk.moves(cell)
                   if (goal := hunk.goal(cell)) is not None}  # fmt: skip
        longest = max(len(side) for line in lines for side in (line.before, line.after))
        lefts = MARGIN + gutter, MARGIN + 2 * gutter + longest * wide + BETWEEN
        self.y += 26
        for left, said in zip(lefts, ("before", "after")):
            self.items.append(svg.text(left, self.y - 8, said, "title"))
        rows = ((line.before for line in lines if line.before), (line.after for line in lines if line.after))
        boxes: list[dict[int, tuple[float, float]]] = [{}, {}]
        bottom = self.y
        for side, sheet in enumerate((before, after)):
            y, end = self.y, None
            self.items.append(f'<g class="{("before", "after")[side]}">')
            for cells in rows[side]:
                at = cells[0].address // codes_of_a_line(sheet)
                y += 10 if end not in (None, at) else 0
                self.items.append(svg.text(lefts[side] - 6, y + HIGH / 2 + 4, _name(sheet, cells), "small right"))
                for x, cell in enumerate(cells):
                    box = lefts[side] + x * wide, y, wide, HIGH
                    kind = self._kind(hunk, side, cell, hues, sources)
                    self.items.append(svg.cell(kind, hover(sheet, cell), *box, element(sheet, cell)))
                    boxes[side][cell.address] = box[0], y
                self.items.append(svg.rect(lefts[side], y, wide * len(cells), HIGH, "word", 2))
                y, end = y + ROW, at + 1
            self.items.append("</g>")
            bottom = max(bottom, y)
        self.items += [svg.arrow(x + wide, y + HIGH / 2, to_x, to_y + HIGH / 2)
                       for (x, y), (to_x, to_y) in _arrows(hunk, lines, boxes)]  # fmt: skip
        self.right, self.y = max(self.right, lefts[1] + longest * wide), bottom

    def _kind(self, hunk: Hunk, side: int, cell: Cell, hues: dict[int, int], sources: dict[int, int]) -> str:
        """The colour of a cell: that of the line in which its element stood, where it moves."""
        if cell.pad:
            return "pad"
        if side == 0:
            return f"p{hues[cell.address // codes_of_a_line(hunk.before)]}" if hunk.moves(cell) else "plain"
        if cell.address in sources:
            return f"p{hues[sources[cell.address]]}"
        was = hunk.before.address(cell.parts[0], cell.n[0], cell.k[0]) * hunk.before.stored.code.bits
        return "plain" if was == cell.address * hunk.after.stored.code.bits else "band"


def _name(sheet: Sheet, cells: Sequence[Cell]) -> str:
    """What stands beside a line: its row, its word, its lane."""
    row, word, _ = sheet.place(cells[0].address)
    lane = sheet.lane(cells[0].address)
    said = [f"row {','.join(map(str, row))}"] if row else []
    said.append(f"{sheet.word} {word}")
    return ", ".join([*said, *([f"lane {lane}"] if lane is not None else [])])


def _arrows(
    hunk: Hunk, lines: Sequence[Line], boxes: Sequence[dict[int, tuple[float, float]]]
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """From the box of an element before to that after: the last of each line that moves to a line that is drawn."""
    count = 0
    for line in lines:
        for cell in reversed(line.before):
            goal = hunk.goal(cell)
            if hunk.moves(cell) and goal in boxes[1] and count < ARROWS:
                assert goal is not None
                yield boxes[0][cell.address], boxes[1][goal]
                count += 1
                break
