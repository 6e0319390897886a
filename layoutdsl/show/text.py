"""A picture as text: the digits, what each word holds, and where the elements of the matrix stand.

    row  word  lane    0    4    8   12   16   20   24   28      columns are the first bits of codes,
      0     0     0  0,0  0,8  8,0  8,8  0,1  0,9  8,1  8,9      what stands in them is n,k of an element

Lines keep to a hundred columns, unless the coordinates of a single word are longer.
"""

from __future__ import annotations

import string
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layoutdsl.resolve import Stretch
from layoutdsl.show.picture import Picture
from layoutdsl.show.sheet import Cell, Key, Sheet, coordinates, key_of, label, span
from layoutdsl.show.window import Window, lines_of, window_of

WIDTH = 100
LINES, FEW_LINES = 24, 6
GRID = 16

COLOURS = ("34", "32", "35", "36", "31", "94", "92", "95")
"""Of a terminal: those that are legible on white and on black."""

FAINT = "2"

Text = tuple[str, str]
"""What is printed, and the colour it has on a terminal."""


def text_of(picture: Picture, name: str | None, rows: range | None, words: range | None, colour: bool = False) -> str:
    """What `layoutdsl show` prints of a format: one tensor, or the codes and the beginnings of all others."""
    sections = [list(_head(picture))]
    for at, sheet in enumerate(picture.chosen(name)):
        brief = name is None and at > 0
        sections.append(list(Page(sheet, None if brief else rows, None if brief else words, brief, colour).lines()))
    return "\n\n".join("\n".join(line.rstrip() for line in section) for section in sections)


def _head(picture: Picture) -> Iterator[str]:
    yield from textwrap.wrap(f"{picture.spec.name}: {picture.spec.doc}", WIDTH)
    yield from textwrap.wrap(drawn_at(picture), WIDTH)


def drawn_at(picture: Picture) -> str:
    """The sizes, parameters and rank of a picture in a line."""
    sizes = [f"{axis}={','.join(map(str, size)) if isinstance(size, tuple) else size}" for axis, size in picture.sizes]
    params = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in picture.params]
    rank = f", rank {picture.ranks.rank} of {picture.ranks.tp}" if picture.is_rank else ""
    cut = f", for {picture.ranks.tp} ranks" if picture.ranks.tp > 1 and not picture.is_rank else ""
    return f"drawn at {' '.join([*sizes, *params])}{rank}{cut}"


def headline(sheet: Sheet) -> str:
    """A tensor in a line: its name, role, dtype, shape and order."""
    shape = ", ".join(map(str, sheet.stored.shape))
    packed = f"; {sheet.per_word} codes of {sheet.stored.code.bits} bits in a {sheet.word}" * (sheet.per_word > 1)
    return f"{sheet.name} ({sheet.role}): {sheet.stored.dtypes[0]} [{shape}], order {sheet.order}{packed}"


@dataclass(frozen=True)
class Page:
    """One tensor on paper; in `brief`, only the beginning of what is stored."""

    sheet: Sheet
    rows: range | None
    words: range | None
    brief: bool
    colour: bool

    def lines(self) -> Iterator[str]:
        sheet = self.sheet
        yield from textwrap.wrap(headline(sheet), WIDTH)
        if not sheet.is_drawn:
            yield "  it holds the numbers n and k themselves"
            return
        if not self.brief:
            yield from ("", *self._digits(), "", *self._axes(), "")
        yield from self._stored(max(1, 8 // sheet.per_word))

    def _digits(self) -> Iterator[str]:
        rows = [("digit", "is", "of", "one more is")]
        for digit in self.sheet.digits:
            rows.append((digit.name, digit.formula, str(digit.size), step(self.sheet, digit.stride)))
        widths = [max(map(len, column)) for column in zip(*rows)]
        for name, formula, size, far in rows:
            yield f"  {name.ljust(widths[0])}  {formula.ljust(widths[1])}  {size.rjust(widths[2])}  {far}"

    def _axes(self) -> Iterator[str]:
        """What n and k are: parts, ranks, groups, padding."""
        sheet, matrix = self.sheet, self.sheet.matrix
        for at in sheet.stored.parts:
            part = f" of {matrix.parts[at]}" if matrix.parts else ""
            yield from stretch_text(f"n{part}", matrix.n[at], [held.n[at] for held in sheet.ranks])
        groups = ""
        if sheet.group and sheet.groups > 1:
            groups = f" in {sheet.groups} groups of {sheet.group[1]}"
        yield from stretch_text("k", matrix.k, [held.k for held in sheet.ranks], groups)
        if matrix.pad == "tail" and len(matrix.n) > 1 and matrix.n_padded > matrix.n_length:
            yield f"  n of all parts, {matrix.n_length}, is padded to {matrix.n_padded}"
        if (first := sheet.first_pad()) is not None:
            row, word, _ = sheet.place(first)
            at = f"row {','.join(map(str, row))}, " if row else ""
            yield f"  padding is shown as `.`; the first stands in {at}{sheet.word} {word}"

    def _stored(self, per_line: int) -> Iterator[str]:
        """The table of words, as many in a line as there is room for, and after it where the elements stand."""
        sheet = self.sheet
        window = window_of(sheet, self.rows, self.words, FEW_LINES if self.brief else LINES, per_line)
        lines = list(lines_of(sheet, window, per_line))
        cells = [cell for line in lines for cell in line]
        key = key_of(sheet, cells)
        apart = [{key.of(sheet, cell) for cell in line if not cell.pad} for line in lines]
        table = self._words(lines, key, in_column=all(len(values) <= 1 for values in apart))
        if _width(table) > WIDTH and per_line > 1:
            yield from self._stored(per_line // 2)
            return
        if not self.brief:
            yield from textwrap.wrap(_caption(sheet, lines), WIDTH)
        yield from self._printed(table)
        yield from self._legend(key, table)
        yield from textwrap.wrap(left_out(sheet, window), WIDTH)
        if not self.brief:
            yield from self._grid(cells, key, GRID)

    def _words(self, lines: Sequence[list[Cell]], key: Key, in_column: bool) -> list[list[Text]]:
        """A line per row; in each column a code, in it the element. `in_column`: a line has one value of the key."""
        sheet, fixed = self.sheet, fixed_axis(self.sheet, lines)
        inside = [axis for axis in "nk" if axis != fixed]
        longest = max(lines, key=len)
        head = ["row"] * bool(sheet.stored.shape[1:]) + [sheet.word] + ["lane"] * bool(sheet.words_of_a_lane)
        head += [key.what] * (in_column and bool(key.what)) + ([fixed] if fixed else [])
        rows: list[list[Text]] = [[(cell, "") for cell in (*head, *_columns(sheet, longest))]]
        for line in lines:
            row, word, _ = sheet.place(line[0].address)
            real = next((cell for cell in line if not cell.pad), None)
            known = {"row": ",".join(map(str, row)), sheet.word: str(word), "lane": str(sheet.lane(line[0].address))}
            if real is not None:
                place = key.of(sheet, real)
                known |= {axis: span(coordinates(real, axis)) for axis in "nk"}
                known |= {key.what: "" if place is None else key.values[place]}
            codes = [self._code(cell, label(sheet, cell, inside), key, not in_column) for cell in line]
            blank = [("", "")] * (len(longest) - len(line))
            rows.append([*((known.get(name, "."), "") for name in head), *codes, *blank])
        return rows

    def _code(self, cell: Cell, text: str, key: Key, marked: bool) -> Text:
        place = key.of(self.sheet, cell)
        if place is None:
            return text, FAINT if cell.pad else ""
        return text + letter(place) * marked, COLOURS[place % len(COLOURS)]

    def _grid(self, cells: Sequence[Cell], key: Key, columns: int) -> Iterator[str]:
        """The matrix from the first element of the window on, with the words in which its elements stand."""
        sheet, found = self.sheet, corner(self.sheet, cells)
        if found is None:
            return
        grid = grid_of(sheet, *found, GRID, columns)
        rows: list[list[Text]] = [[("n \\ k", ""), *((str(cell.k[0]), "") for cell in grid.cells[0])]]
        marked = key.what in ("rank", "part", "group")
        for line, texts in zip(grid.cells, grid.texts):
            codes = [self._code(cell, text, key, marked) for cell, text in zip(line, texts)]
            rows.append([(str(line[0].n[0]), ""), *codes])
        if _width(rows) > WIDTH and columns > 4:
            yield from self._grid(cells, key, columns - 4)
            return
        yield from ("", grid.title, *self._printed(rows))
        yield from self._legend(key, rows)

    def _legend(self, key: Key, table: Sequence[Sequence[Text]]) -> Iterator[str]:
        """What the letters in a table mean."""
        marks = {text[-1] for row in table[1:] for text, _ in row if text}
        said = [f"{mark} {key.what} {value}" for at, value in enumerate(key.values) if (mark := letter(at)) in marks]
        yield from textwrap.wrap("; ".join(said), WIDTH)

    def _printed(self, rows: Sequence[Sequence[Text]]) -> Iterator[str]:
        widths = _widths(rows)
        for row in rows:
            cells = [
                " " * (width - len(text)) + (f"\x1b[{ink}m{text}\x1b[0m" if ink and self.colour else text)
                for (text, ink), width in zip(row, widths)
            ]
            yield "  " + "  ".join(cells)


def _widths(rows: Sequence[Sequence[Text]]) -> list[int]:
    return [max(len(text) for text, _ in column) for column in zip(*rows, strict=True)]


def _width(rows: Sequence[Sequence[Text]]) -> int:
    return sum(width + 2 for width in _widths(rows))


# --- words for a reader -----------------------------------------------------------------------------------------------


def letter(place: int) -> str:
    return string.ascii_uppercase[place % 26]


def fixed_axis(sheet: Sheet, lines: Sequence[Sequence[Cell]]) -> str | None:
    """The axis of which every line has one coordinate only, so that it need not be repeated in all its codes."""
    for axis in "nk":
        seen = [{coordinates(cell, axis) for cell in line if not cell.pad} for line in lines]
        if not sheet.shares(axis) and any(len(line) > 1 for line in lines) and all(len(one) <= 1 for one in seen):
            return axis
    return None


def corner(sheet: Sheet, cells: Sequence[Cell]) -> tuple[int, range, range] | None:
    """The part, and its n and k from the least that the cells hold to the end of the matrix; None where none is held
    or where elements share what is stored."""
    real = [cell for cell in cells if not cell.pad]
    if not real or any(digit.role == "shared" for digit in sheet.digits):
        return None
    part = real[0].parts[0]
    n, k = sheet.matrix.n[part], sheet.matrix.k
    n_first = min(cell.n[0] for cell in real if cell.parts[0] == part)
    return part, range(n_first, n.start + n.length), range(min(cell.k[0] for cell in real), k.start + k.length)


@dataclass(frozen=True)
class Grid:
    """A stretch of the matrix, row by row, with the words in which its elements stand."""

    title: str
    cells: list[list[Cell]]
    texts: list[list[str]]


def grid_of(sheet: Sheet, part: int, n: range, k: range, rows: int, columns: int) -> Grid:
    """The first rows and columns of a stretch of the matrix. Where all stand in one row of the tensor, that is said
    once."""
    cells = [[sheet.cell(part, at_n, at_k) for at_k in k[:columns]] for at_n in n[:rows]]
    places = [[sheet.place(cell.address) for cell in line] for line in cells]
    first = places[0][0][0]
    alone = all(row == first for line in places for row, _, _ in line)
    texts = [[str(word) if alone else f"{','.join(map(str, row))}:{word}" for row, word, _ in line] for line in places]
    of = f" of {sheet.matrix.parts[part]}" if sheet.matrix.parts else ""
    where = f" in row {','.join(map(str, first))}" if first else ""
    what = sheet.word + where if alone else f"row:{sheet.word}"
    return Grid(f"Matrix{of}: the {what} of each W[n, k]", cells, texts)


def step(sheet: Sheet, stride: int) -> str:
    """How far a digit's stride leads."""
    bits, words = stride * sheet.stored.code.bits, stride // sheet.per_word
    if stride == 0:
        return "the same stored value"
    if stride < sheet.per_word:
        return f"{bits} bits up"
    if sheet.stored.shape[1:] and words % sheet.words == 0:
        return f"{counted(words // sheet.words, 'row')} on"
    return f"{counted(words, sheet.word)} on"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def stretch_text(name: str, stretch: Stretch, held: Sequence[Stretch], more: str = "") -> Iterator[str]:
    """An axis in a line: how long it is, what each rank has, where it is padded."""
    if not stretch.length:
        said = f"nothing of {stretch.size}"
    elif stretch.length < stretch.size:
        said = f"{stretch.start} to {stretch.start + stretch.length - 1} of {stretch.size}"
    else:
        said = f"0 to {stretch.size - 1}"
    said += more
    if len({one.start for one in held}) > 1:
        lengths = sorted({one.length for one in held}, reverse=True)
        each = f"{', '.join(map(str, lengths[:-1]))} or {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
        said += f"; {each} element{'s' * (each != '1')} on each of {len(held)} ranks"
    if stretch.padded > stretch.length:
        said += f"; padded from {stretch.length} to {stretch.padded}"
        said += f", {stretch.front} of it in front" * (stretch.front > 0)
    yield from textwrap.wrap(f"{name}: {said}", WIDTH, initial_indent="  ", subsequent_indent="    ")


def left_out(sheet: Sheet, window: Window) -> str:
    """Which part of the tensor is shown, and how the rest follows from it."""
    if window.is_whole(sheet):
        return "This is all of it."
    rows, words = _ranged("row", window.rows, sheet.rows), _ranged(sheet.word, window.words, sheet.words)
    shown = f"Shown: {', '.join(one for one in (rows, words) if one)}."
    tops = sorted((d for d in sheet.digits if d.top and d.stride and d.size > 1), key=lambda digit: digit.stride)
    more = [f"{step(sheet, digit.stride)}, {digit.axis} is {digit.weight} more" for digit in tops]
    return f"{shown} It goes on alike: {'; '.join(more)}." if more else shown


def _ranged(what: str, window: range, count: int) -> str:
    if count == 1 and what == "row":
        return ""
    last = window.stop - 1
    shown = f"{what} {window.start}" if len(window) == 1 else f"{what}s {window.start} to {last}"
    return f"all {counted(count, what)}" if len(window) == count > 1 else f"{shown} of {count}"


def _columns(sheet: Sheet, line: Sequence[Cell]) -> Iterator[str]:
    first = sheet.place(line[0].address)[1]
    for cell in line:
        _, word, bit = sheet.place(cell.address)
        one, several = len(line) == sheet.per_word > 1, sheet.per_word > 1
        yield str(bit) if one else f"+{word - first}:{bit}" if several else f"+{word - first}"


def _caption(sheet: Sheet, lines: Sequence[Sequence[Cell]]) -> str:
    fixed, words = fixed_axis(sheet, lines), len(max(lines, key=len)) // sheet.per_word
    inside = [axis for axis in "nk" if axis != fixed and not sheet.shares(axis)]
    held = f"{','.join(inside)} of the element" if inside else "what shares it"
    if sheet.per_word == 1:
        return f"Stored: {counted(words, 'element')} a line, in each {held}"
    if words == 1:
        return f"Stored: a {sheet.word} a line, a column for the first bit of each code, in it {held}"
    return f"Stored: {words} {sheet.word}s a line, a column for each +{sheet.word}:bit, in it {held}"
