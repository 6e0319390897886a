"""Which part of a tensor is drawn: some rows, some words of each.

window_of(sheet, None, range(8, 16), lines=24)        # words 8 to 15 of the first rows
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layoutdsl.errors import LayoutError
from layoutdsl.show.sheet import Cell, Sheet

MOST_CELLS = 4096
"""How many codes are drawn at most: more can be neither read nor hovered over."""

FEW_ROWS = 3
"""How many rows show the step from row to row."""


@dataclass(frozen=True)
class Window:
    """Rows of a tensor, and the words of each that are drawn."""

    rows: range
    words: range

    def is_whole(self, sheet: Sheet) -> bool:
        return len(self.rows) == sheet.rows and len(self.words) == sheet.words


def window_of(sheet: Sheet, rows: range | None, words: range | None, lines: int, per_line: int) -> Window:
    """The rows and words that are asked for; what is not asked for is chosen, `lines` lines of `per_line` words in all.

    Where warps read tiles that is one row, elsewhere the beginnings of a few.
    """
    few = 1 if sheet.words_of_a_lane else min(FEW_ROWS, lines)
    rows = _asked(sheet, rows, sheet.rows, "row") or range(min(few, sheet.rows))
    fit = max(1, lines // len(rows)) * per_line
    window = Window(rows, _asked(sheet, words, sheet.words, sheet.word) or range(min(fit, sheet.words)))
    cells = len(window.rows) * len(window.words) * sheet.per_word
    if cells > MOST_CELLS:
        raise LayoutError(
            f"{cells} codes of `{sheet.name}` are asked for, {MOST_CELLS} can be drawn",
            code="LP117",
            name="too-large-to-draw",
            help="a layout repeats; --rows and --words choose what is drawn",
        )
    return window


def _asked(sheet: Sheet, asked: range | None, count: int, what: str) -> range | None:
    if asked is None:
        return None
    if not asked or asked.stop > count:
        raise LayoutError(
            f"`{sheet.name}` has no {what}s {asked.start} to {asked.stop - 1}: they count from 0 to {count - 1}",
            code="LP118",
            name="outside-the-tensor",
            help=f"{'--rows' if what == 'row' else '--words'} FIRST:END draws those from FIRST to before END",
        )
    return asked


def lines_of(sheet: Sheet, window: Window, per_line: int) -> Iterator[list[Cell]]:
    """The codes of a window in lines of so many words; no line goes over the end of a row."""
    first, end = window.words.start, window.words.stop
    for row in window.rows:
        start = row * sheet.words
        cells = sheet.cells((start + first) * sheet.per_word, (start + end) * sheet.per_word)
        step = per_line * sheet.per_word
        yield from (cells[at : at + step] for at in range(0, len(cells), step))
