"""What a command prints at a terminal, as a picture: in the command's colours, lines as long as there is room.

    picture("A finding", ["$ layoutdsl lint x.yaml", "\\x1b[1;31mLD406 ...\\x1b[0m"], columns=110)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from layoutdsl.show import svg

LINE, COLUMN, EDGE = 16, 6.7, 20

INKS = {"1": "bold", "31": "red", "32": "green", "34": "blue"}
"""Escape codes that our commands print -> how the picture calls them."""

COLOURS = {"red": ("#cf222e", "#ff7b72"), "green": ("#116329", "#56d364"), "blue": ("#0550ae", "#79c0ff")}
"""Name -> (light, dark)."""

_CODE = re.compile(r"\x1b\[([0-9;]*)m")

Letter = tuple[str, str]
"""A letter and its kinds, apart by blanks."""


def picture(title: str, lines: Sequence[str], columns: int = 0) -> str:
    """The text of a file; lines of more than `columns` go on in the next, where that is not 0."""
    rows = [row for line in lines for row in _folded(list(_letters(line)), columns)]
    drawn = [_drawn(row, EDGE + LINE * (at + 0.5)) for at, row in enumerate(rows)]
    plain = "\n".join("".join(letter for letter, _ in row) for row in rows)
    width = 2 * EDGE + COLUMN * max(map(len, rows))
    rules = _rules() if "\x1b" in "".join(lines) else ""
    return svg.document(title, plain, width, 2 * EDGE + LINE * len(rows), drawn, rules)


def _rules() -> str:
    light = "".join(f".{name}{{fill:{both[0]}}}" for name, both in COLOURS.items())
    dark = "".join(f".{name}{{fill:{both[1]}}}" for name, both in COLOURS.items())
    return f".bold{{font-weight:700}}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _letters(line: str) -> Iterator[Letter]:
    kind, at = "", 0
    for code in _CODE.finditer(line):
        yield from ((letter, kind) for letter in line[at : code.start()])
        kind, at = " ".join(INKS[one] for one in code[1].split(";") if one in INKS), code.end()
    yield from ((letter, kind) for letter in line[at:])


def _folded(row: list[Letter], columns: int) -> Iterator[list[Letter]]:
    """A line in pieces, each cut at its last blank as long as there is one."""
    while columns and len(row) > columns:
        cut = next((at for at in range(columns, columns // 2, -1) if row[at][0] == " "), columns)
        yield row[:cut]
        row = row[cut + (row[cut][0] == " ") :]
    yield row


def _drawn(row: Sequence[Letter], y: float) -> str:
    """A line of text, its blanks kept."""
    pieces: list[tuple[str, str]] = []
    for letter, kind in row:
        if pieces and pieces[-1][1] == kind:
            pieces[-1] = pieces[-1][0] + letter, kind
        else:
            pieces.append((letter, kind))
    said = "".join(
        f'<tspan class="{kind}">{_kept(text)}</tspan>' if kind else _kept(text) for text, kind in pieces
    )
    return f'<text class="left" x="{EDGE}" y="{y:g}">{said}</text>'


def _kept(text: str) -> str:
    return escape(text.replace(" ", "\u00a0"))
