"""A picture as SVG: the digits, what each word holds, where the elements of the matrix stand, and the whole matrix.

    drawing_of(picture_of(load_spec("gptq"), {"n": 8, "k": 16}), None)        # the text of a file

Colours tell ranks, parts or groups apart where there are several, else the lanes or the words; padding is hatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby

from layoutdsl.errors import LayoutError
from layoutdsl.show import svg
from layoutdsl.show.picture import Picture
from layoutdsl.show.sheet import Cell, Digit, Key, Sheet, coordinates, hover, key_of, label, span
from layoutdsl.show.text import corner, drawn_at, fixed_axis, grid_of, left_out, step
from layoutdsl.show.window import FEW_ROWS, Window, lines_of, window_of

MARGIN, WIDE, GUTTER, GAP = 24, 900, 72, 8
LETTER = 6.7
"""How wide a letter of the text in cells is."""

LINES, FEW_LINES = 6, 1
GRID_CELLS, LANE_CELLS = 128, 256
"""Elements of the matrix that are drawn: where warps read tiles, one of each lane at least."""

MAP = (300, 190)


def drawing_of(picture: Picture, name: str | None, rows: range | None = None, words: range | None = None) -> str:
    """The file that `layoutdsl show --svg` writes: one tensor, or the codes and the beginnings of all others."""
    sheets = picture.chosen(name)
    drawn = [sheet for sheet in sheets if sheet.is_drawn]
    if not drawn:
        raise LayoutError(
            f"`{sheets[0].name}` holds the numbers n and k themselves, so there is nothing to draw",
            code="LP116",
            name="no-such-tensor",
            help="leave out --tensor to draw the codes",
        )
    sheet, *others = drawn
    body = Body()
    body.say(picture.spec.name, "head", 20)
    body.say(drawn_at(picture), "said", 22)
    Plate(body, sheet).draw(rows, words)
    for other in others:
        Plate(body, other).draw_briefly()
    shape = " x ".join(map(str, sheet.stored.shape))
    about = f"Where each element stands in {sheet.name}, {sheet.stored.dtypes[0]} {shape}, {drawn_at(picture)}"
    title = f"{picture.spec.name}: {sheet.name}"
    return svg.document(title, about, body.right + MARGIN, body.y + MARGIN - 6, body.items)


@dataclass
class Body:
    """What is drawn so far, and how far down and to the right it reaches."""

    items: list[str] = field(default_factory=list[str])
    y: float = MARGIN
    right: float = 0

    def say(self, words: str, kind: str, height: float) -> None:
        self.y += height
        self.add(MARGIN + len(words) * (9.5 if kind == "head" else 6.4), svg.text(MARGIN, self.y - 6, words, kind))

    def add(self, right: float, *items: str) -> None:
        self.items += items
        self.right = max(self.right, right)


@dataclass
class Plate:
    """One tensor as it is drawn."""

    body: Body
    sheet: Sheet
    key: Key = field(default_factory=Key)

    def draw(self, rows: range | None, words: range | None) -> None:
        sheet, body = self.sheet, self.body
        self._title()
        self._digits()
        window, lines = self._laid(rows, words, LINES if sheet.words_of_a_lane else FEW_ROWS)
        cells = [cell for line in lines for cell in line]
        self.key = key_of(sheet, cells, "lane", "word")
        self._legend()
        body.y += 6
        body.say(f"Stored: {self._what(lines)}", "title", 22)
        self._stored(lines)
        body.say(left_out(sheet, window), "said", 24)
        below = body.y + 12
        right = self._grid(cells, below)
        if right is not None:
            Map(sheet, self.key, right + 48, below).draw(body, cells)

    def draw_briefly(self) -> None:
        sheet, body = self.sheet, self.body
        body.y += 14
        self._title()
        _, lines = self._laid(None, None, FEW_LINES)
        self.key = key_of(sheet, [cell for line in lines for cell in line], "word")
        self._stored(lines)

    def _title(self) -> None:
        sheet, body = self.sheet, self.body
        shape = ", ".join(map(str, sheet.stored.shape))
        body.y += 26
        name = svg.text(MARGIN, body.y - 6, sheet.name, "title")
        x = MARGIN + 14 + 8.2 * len(sheet.name)
        said = f"{sheet.role}, {sheet.stored.dtypes[0]} [{shape}], {sheet.order}"
        body.add(x + 6.4 * len(said), name, svg.text(x, body.y - 6, said, "said"))

    def _digits(self) -> None:
        """A box per digit in their order, those of a word framed."""
        sheet, body, x = self.sheet, self.body, float(MARGIN)
        body.y += 6
        for packed, digits in groupby(sheet.digits, lambda digit: digit.role == "packed"):
            start = x
            for digit in digits:
                lines = (
                    f"{digit.name}:{digit.size}",
                    digit.formula,
                    step(sheet, digit.stride) if digit.stride else "shared",
                )
                width = round(LETTER * max(map(len, lines))) + 14
                kind = "band" if packed else "plain"
                box = svg.cell(kind, _digit_hover(sheet, digit), x, body.y, width, 50, *lines[:2], "")
                far = svg.text(x + width / 2, body.y + 43, lines[2], "small")
                body.add(x + width, box, far)
                x += width + 4
            if packed:
                body.add(x, svg.rect(start - 2, body.y - 2, x - start, 54, "word", 3))
                x += 4
        body.y += 56

    def _legend(self) -> None:
        sheet, body, x = self.sheet, self.body, float(MARGIN)
        entries = list(_meanings(sheet, self.key))
        if sheet.first_pad() is not None:
            entries.append(("pad", "padding"))
        if not entries:
            return
        body.y += 24
        for kind, said in entries:
            body.add(x + 14, svg.cell(kind, "", x, body.y - 15, 14, 12))
            x += 18
            if said:
                body.add(x + 6.4 * len(said), svg.text(x + 2, body.y - 5, said, "said"))
                x += 6.4 * len(said) + 16

    # what is stored

    def _laid(
        self, rows: range | None, words: range | None, most: int, per_line: int = 0
    ) -> tuple[Window, list[list[Cell]]]:
        """The window, and its codes in the longest lines that are not too wide; a lane's words stay together."""
        per_line = per_line or self.sheet.words_of_a_lane or 32
        window = window_of(self.sheet, rows, words, most, per_line)
        lines = list(lines_of(self.sheet, window, per_line))
        if per_line > 1 and self._line_width(lines) > WIDE - GUTTER:
            return self._laid(rows, words, most, per_line // 2)
        return window, lines

    def _line_width(self, lines: Sequence[Sequence[Cell]]) -> float:
        longest = max(map(len, lines))
        return longest * self._cell_width(lines) + GAP * (longest // self.sheet.per_word) * (self.sheet.per_word > 1)

    def _inside(self, lines: Sequence[Sequence[Cell]]) -> tuple[str | None, list[str]]:
        """The axis that a word, or a line of plain elements, has one coordinate of; the axes that each cell names."""
        sheet = self.sheet
        fixed = fixed_axis(
            sheet, lines if sheet.per_word == 1 else [word for line in lines for word in _words(sheet, line)]
        )
        return fixed, [axis for axis in "nk" if axis != fixed and not sheet.shares(axis)]

    def _what(self, lines: Sequence[Sequence[Cell]]) -> str:
        inside = " above ".join(self._inside(lines)[1]) or "what shares it"
        if self.sheet.per_word == 1:
            return f"in a box {inside}"
        return f"a frame per {self.sheet.word}, lowest bits on the left, in its boxes {inside}"

    def _cell_width(self, lines: Sequence[Sequence[Cell]]) -> float:
        _, inside = self._inside(lines)
        texts = [text for line in lines for cell in line for text in self._texts(cell, inside)]
        return max(22, round(LETTER * max(map(len, texts), default=1)) + 8)

    def _texts(self, cell: Cell, inside: Sequence[str]) -> list[str]:
        """The coordinates of a cell, n above k."""
        return [] if cell.pad else [span(coordinates(cell, axis)) for axis in inside] or [label(self.sheet, cell)]

    def _stored(self, lines: Sequence[Sequence[Cell]]) -> None:
        sheet, body, single = self.sheet, self.body, self.sheet.per_word == 1
        fixed, inside = self._inside(lines)
        width, height = self._cell_width(lines), 18 if len(inside) < 2 else 30
        many = len({sheet.place(line[0].address)[0] for line in lines}) > 1
        of_line = fixed_axis(sheet, lines)
        body.add(0, '<g class="stored">')
        for line in lines:
            body.y += 6 if single else 20
            self._gutter(line, of_line, inside, height, many)
            x = float(MARGIN + GUTTER)
            for word in _words(sheet, line):
                if not single:
                    said = _word_name(sheet, word, None if of_line else fixed, width * len(word) + GAP)
                    body.add(0, svg.text(x + 1, body.y - 4, said, "small left"))
                for at, cell in enumerate(word):
                    box = (x + at * width, body.y, width, height)
                    body.add(0, svg.cell(self._kind(cell), hover(sheet, cell), *box, *self._texts(cell, inside)))
                if not single:
                    body.add(0, svg.rect(x, body.y, width * len(word), height, "word", 2))
                x += width * len(word) + (0 if single else GAP)
            body.add(x)
            body.y += height
        body.add(0, "</g>")
        body.y += 4

    def _gutter(
        self, line: Sequence[Cell], fixed: str | None, inside: Sequence[str], height: float, many: bool
    ) -> None:
        """What all of a line have in common, to the left of it."""
        sheet, body = self.sheet, self.body
        row, word, _ = sheet.place(line[0].address)
        said = [f"row {','.join(map(str, row))}"] if row else []
        if (lane := sheet.lane(line[0].address)) is not None:
            said = [*said[:many], f"lane {lane}"]
        elif word and sheet.per_word == 1:
            said.append(f"from {word}")
        real = next((cell for cell in line if not cell.pad), None)
        if fixed and real is not None:
            said.append(f"{fixed} {span(coordinates(real, fixed))}")
        middle = body.y + height / 2 + 4
        if len(said) > 1 and len(" · ".join(said)) * 6 > GUTTER - 16:
            middle -= 6
        else:
            said = [" · ".join(said)]
        names = inside if len(inside) > 1 else ()
        body.add(0, *(svg.text(MARGIN, middle + 12 * at, one, "small left") for at, one in enumerate(said)))
        body.add(
            0,
            *(
                svg.text(MARGIN + GUTTER - 6, body.y + height / 2 - 2 + 12 * at, axis, "small right")
                for at, axis in enumerate(names)
            ),
        )

    def _kind(self, cell: Cell) -> str:
        if cell.pad:
            return "pad"
        value = self.key.value(self.sheet, cell)
        return _kind_of(self.sheet, self.key, value) if value else "plain"

    # where the elements are

    def _grid(self, cells: Sequence[Cell], top: float) -> float | None:
        """The matrix from the window's first element on: a cell per element, in it its word. Returns where it ends on
        the right; None where there is nothing to draw."""
        sheet, body, found = self.sheet, self.body, corner(self.sheet, cells)
        if found is None:
            return None
        columns = min(32, max(16, sheet.tile["k"]), len(found[2]))
        most = LANE_CELLS if sheet.words_of_a_lane else GRID_CELLS
        grid = grid_of(sheet, *found, max(1, most // columns), columns)
        width = max(22, round(LETTER * max(len(text) for line in grid.texts for text in line)) + 6)
        body.y = top
        body.say(grid.title, "title", 22)
        body.y += 22
        left = MARGIN + 40
        body.add(0, '<g class="matrix">', svg.text(MARGIN + 32, body.y - 6, "n \\ k", "small right"))
        for at, cell in enumerate(grid.cells[0]):
            body.add(0, svg.text(left + (at + 0.5) * width, body.y - 6, str(cell.k[0]), "small"))
        for line, texts in zip(grid.cells, grid.texts):
            body.add(0, svg.text(left - 8, body.y + 13, str(line[0].n[0]), "small right"))
            for at, (cell, text) in enumerate(zip(line, texts)):
                box = (left + at * width, body.y, width, 18)
                body.add(0, svg.cell(self._kind(cell), hover(sheet, cell), *box, text))
            body.y += 18
        right = left + columns * width
        body.add(right, "</g>")
        return right


@dataclass
class Map:
    """The whole matrix in small."""

    sheet: Sheet
    key: Key
    x: float
    y: float

    def draw(self, body: Body, cells: Sequence[Cell]) -> None:
        sheet, matrix, (width, height) = self.sheet, self.sheet.matrix, MAP
        k_end = max(matrix.k.padded, matrix.k.length)
        n_end = max(matrix.n_padded, sum(stretch.padded for stretch in matrix.n))
        left, top = self.x + 62, self.y + 44
        across, down, front = width / k_end, height / n_end, matrix.k.front
        body.add(left + width, svg.text(self.x, self.y + 16, "The whole matrix", "title"))
        body.add(
            0,
            svg.text(left, top - 6, f"k {matrix.k.start}", "small left"),
            svg.text(left + width, top - 6, f"{matrix.k.start + matrix.k.length - 1}", "small right"),
            svg.cell("pad", f"padded to n {n_end}, k {k_end}", left, top, width, height),
        )
        at, tops = 0, dict[int, float]()
        for part, stretch in enumerate(matrix.n):
            tops[part] = top + at * down
            name = f"{matrix.parts[part]} {stretch.start}" if matrix.parts else f"n {stretch.start}"
            last = tops[part] + stretch.length * down
            body.add(0, svg.text(left - 6, tops[part] + 10, name, "small right"))
            if last - tops[part] > 24:
                body.add(0, svg.text(left - 6, last - 1, f"{stretch.start + stretch.length - 1}", "small right"))
            for kind, said, n, n_count, k, k_count in self._fields(part):
                box = (left + (front + k) * across, tops[part] + n * down, k_count * across, n_count * down)
                body.add(0, svg.cell(kind, said, *box))
            at += stretch.length if matrix.pad == "tail" else stretch.padded
        for said, k, k_count in self._bands():
            if k_count * across > LETTER * len(said) + 6:
                middle = left + (front + k + k_count / 2) * across
                body.add(0, svg.text(middle, top + height + 14, said, "small"))
        if real := [cell for cell in cells if not cell.pad]:
            part = real[0].parts[0]
            n = sorted({cell.n[0] - matrix.n[part].start for cell in real if cell.parts[0] == part})
            k = sorted({cell.k[0] - matrix.k.start for cell in real if cell.parts[0] == part})
            x, y = left + (front + k[0]) * across, tops[part] + n[0] * down
            wide, high = (max(4, (at[-1] + 1 - at[0]) * scale) for at, scale in ((k, across), (n, down)))
            body.add(
                0,
                svg.rect(x, y, wide, high, "mark"),
                svg.rect(left, top + height + 24, 14, 10, "mark"),
                svg.text(left + 20, top + height + 33, f"around the {sheet.word}s above", "said"),
            )
        body.y = max(body.y, top + height + 40)

    def _fields(self, part: int) -> Iterator[tuple[str, str, int, int, int, int]]:
        """(kind, hover text, first n, count, first k, count) of the fields of one part: per rank, and per group."""
        sheet, matrix = self.sheet, self.sheet.matrix
        name = matrix.parts[part] if matrix.parts else ""
        for rank, held in enumerate(sheet.ranks or (matrix,)):
            n, k = held.n[part], held.k
            if not (n.length and k.length):
                continue
            for first, count in self._pieces(k.start - matrix.k.start, k.length):
                said = [f"rank {rank}"] * bool(sheet.ranks) + [name] * bool(name)
                group = sheet.group_of(matrix.k.start + first)
                said += [f"group {group}"] * (group is not None)
                said.append(f"n {n.start} to {n.start + n.length - 1}")
                said.append(f"k {matrix.k.start + first} to {matrix.k.start + first + count - 1}")
                value = {"rank": str(rank), "part": name, "group": str(group)}.get(self.key.what, "")
                if self.key.what == "group" and sheet.group and count > sheet.group[1]:
                    value = ""  # too many groups to be told apart here
                band = "band" if (group or 0) % 2 else "plain"
                kind = _kind_of(sheet, self.key, value) if value else band
                yield kind, "; ".join(said), n.start - matrix.n[part].start, n.length, first, count
            if len({(one.n[part].start, one.k.start) for one in sheet.ranks}) <= 1:
                return  # all ranks hold the same

    def _pieces(self, start: int, length: int) -> Iterator[tuple[int, int]]:
        """A stretch of k cut into its groups, as far as they can be told apart."""
        sheet, at = self.sheet, start
        size = sheet.group[1] if sheet.group else 0
        if not sheet.group or self.sheet.matrix.k.length > 64 * size:
            yield start, length
            return
        while at < start + length:
            end = min(at + size - (sheet.group[0] + at) % size, start + length)
            yield at, end - at
            at = end

    def _bands(self) -> Iterator[tuple[str, int, int]]:
        """The groups along k: name, first input, count."""
        for first, count in self._pieces(0, self.sheet.matrix.k.length):
            group = self.sheet.group_of(self.sheet.matrix.k.start + first)
            if group is not None and count < self.sheet.matrix.k.length:
                yield f"group {group}", first, count


def _meanings(sheet: Sheet, key: Key) -> Iterator[tuple[str, str]]:
    """The colours with what they mean: each rank, part or group, or that they follow one another in turn."""
    groups = max(sheet.groups, 1)
    names = {
        "rank": [f"rank {rank}" for rank in range(len(sheet.ranks))],
        "part": [sheet.matrix.parts[part] for part in sheet.stored.parts] if sheet.matrix.parts else [],
        "group": [f"group {group}" for group in range(groups)],
    }.get(key.what, [])
    if key.what and not 0 < len(names) <= svg.HUES:
        what = sheet.word if key.what == "word" else key.what
        lane = f" of {sheet.words_of_a_lane} words, as a warp of 32 reads a tile" if key.what == "lane" else ""
        names = [*[""] * (svg.HUES - 1), f"one {what}{lane}, then the next; eight colours in turn"]
    yield from ((f"p{hue}", name) for hue, name in enumerate(names))
    if key.what == "rank":
        yield "band", "several ranks"


def _kind_of(sheet: Sheet, key: Key, value: str) -> str:
    """The colour of a value, which its neighbours do not share; grey for what belongs to several."""
    if key.what == "part":
        return f"p{sheet.stored.parts.index(sheet.matrix.parts.index(value)) % svg.HUES}"
    if " to " in value:
        return "band"
    return f"p{reduce(lambda hue, number: 3 * hue + number, map(int, value.split())) % svg.HUES}"


def _words(sheet: Sheet, line: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
    yield from (line[at : at + sheet.per_word] for at in range(0, len(line), sheet.per_word))


def _word_name(sheet: Sheet, word: Sequence[Cell], fixed: str | None, width: float) -> str:
    """What stands over a word: its number, and the coordinate that all its codes have in common."""
    _, at, _ = sheet.place(word[0].address)
    real = next((cell for cell in word if not cell.pad), None)
    said = f"{sheet.word} {at}"
    said += f" · {fixed} {span(coordinates(real, fixed))}" if fixed and real is not None else ""
    return said if 6.2 * len(said) < width else str(at)


def _digit_hover(sheet: Sheet, digit: Digit) -> str:
    return f"digit {digit.name} = {digit.formula}, {digit.size} values; one more is {step(sheet, digit.stride)}"
