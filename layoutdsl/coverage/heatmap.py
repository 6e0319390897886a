"""A coverage as a picture: a row for each family, a column for each number of ranks, the colour of a cell its padding.

A hollow cell is refused, a hatched one belongs to no file that anyone writes. Resting on a cell says more.
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.checkpoints.progress import in_bytes
from layoutdsl.coverage.needs import Row
from layoutdsl.coverage.report import column, last_line, percent
from layoutdsl.coverage.table import Cell, Coverage, Line
from layoutdsl.show import svg

STEPS = (
    (0.0005, "none", "#cfeeda", "#14502f"),
    (0.02, "up to 2 %", "#e4f3c8", "#3a4d16"),
    (0.05, "5 %", "#faf0b6", "#5b4d0c"),
    (0.10, "10 %", "#fddca6", "#70440f"),
    (0.20, "20 %", "#fcc098", "#803417"),
    (0.50, "50 %", "#f3a19a", "#8a2a33"),
    (float("inf"), "more", "#e58bb0", "#86235c"),
)
"""Bytes of padding over all others, up to which; what the legend says; the colour in light and in dark."""

MARGIN, ROW, GAP = 24, 17, 26
LETTER = 6.05
"""How wide a letter of a name is."""

KEYS = 54
"""Where the keys of the legend begin, behind its first word."""

WORD = 6.2
"""How wide a letter of the lines above is, at most."""

NAMES = (24, 44)
"""Letters of a name that are shown: side by side with others, and in a panel of its own."""

PANEL = 26
"""So many rows stand below each other before there are panels side by side."""

MOST_PANELS = 3


def heat_map(found: Coverage) -> str:
    """The file that `layoutdsl coverage --svg` writes."""
    picture = _Picture(found)
    title = f"{found.asked.source}, to {', '.join(found.kernels)}: {last_line(found)}"
    return svg.document(title, found.asked.title, picture.width, picture.height, picture.body())


class _Picture:
    """Where everything stands."""

    def __init__(self, found: Coverage):
        self.found = found
        self.panels = max(1, min(MOST_PANELS, -(-len(found.lines) // PANEL)))
        self.each = -(-len(found.lines) // self.panels)
        self.letters = min(max(len(line.row.name) for line in found.lines), NAMES[self.panels == 1])
        self.name = max(self.letters * LETTER + 14, 60)
        self.cell = max(30.0, 9 + LETTER * max(len(head) for head in self._heads()))
        self.panel = self.name + self.cell * len(found.counts)
        self.said = (f"{found.asked.source}, to {', '.join(found.kernels)}", found.asked.title)
        self.top = MARGIN + 92
        panels = self.panels * self.panel + (self.panels - 1) * GAP
        self.width = 2 * MARGIN + max(panels, self._legend_width(), *(WORD * len(said) for said in self.said))
        self.height = self.top + 22 + self.each * ROW + MARGIN

    def _heads(self) -> list[str]:
        return [column(count, self.found.counts).removeprefix("tp ") for count in self.found.counts]

    def body(self) -> Iterator[str]:
        found = self.found
        yield f"<style>\n{_ramp()}\n</style>"
        yield svg.text(MARGIN, MARGIN + 14, last_line(found), "head")
        for at, said in enumerate(self.said):
            yield svg.text(MARGIN, MARGIN + 34 + 17 * at, said, "said")
        yield from self._legend(MARGIN + 63)
        for at in range(self.panels):
            yield from self._panel(MARGIN + at * (self.panel + GAP), found.lines[at * self.each : (at + 1) * self.each])

    def _keys(self) -> list[tuple[str, str]]:
        """What the legend explains: the class of a cell, and its meaning."""
        keys = [(f"h{at}", label) for at, (_, label, _, _) in enumerate(STEPS)]
        keys += [("none", "refused")] if self.found.accepted < self.found.of else []
        return keys + ([("pad", "no such files")] if len(self.found.counted) < len(self.found.lines) else [])

    def _legend_width(self) -> float:
        return KEYS + sum(_key_width(label) for _, label in self._keys())

    def _legend(self, y: float) -> Iterator[str]:
        x = float(MARGIN)
        yield svg.text(x, y + 11, "padding", "small left")
        x += KEYS
        for kind, label in self._keys():
            yield svg.cell(kind, "", x, y, 18, 13)
            yield svg.text(x + 24, y + 11, label, "small left")
            x += _key_width(label)

    def _panel(self, x: float, lines: tuple[Line, ...]) -> Iterator[str]:
        if not lines:
            return
        top = self.top + 16
        yield svg.text(x + self.name - 8, self.top + 10, "ranks", "small right")
        for at, head in enumerate(self._heads()):
            yield svg.text(x + self.name + (at + 0.5) * self.cell, self.top + 10, head, "small")
        for row, line in enumerate(lines):
            y = top + row * ROW
            yield svg.text(x + self.name - 8, y + 12, self._short(line.row.name), "small right")
            for at in range(len(self.found.counts)):
                yield self._cell(x + self.name + at * self.cell, y, line, at)

    def _short(self, name: str) -> str:
        """A name that fits: what tells units apart is their end, families their beginning."""
        if len(name) <= self.letters:
            return name
        return name[: self.letters - 1] + "…" if self.found.asked.kind == "family" else "…" + name[1 - self.letters :]

    def _cell(self, x: float, y: float, line: Line, at: int) -> str:
        count, width = self.found.counts[at], self.cell - 2
        where = f"{line.row.name}, {column(count, self.found.counts)}"
        if line.apart:
            return svg.cell("pad", f"{where}: {line.apart}", x, y, width, ROW - 2)
        cell = line.cells[at]
        if not cell.accepted:
            return svg.cell("none", f"{where}: {cell.refused[0].message}", x, y, width, ROW - 2)
        overhead = 100 * cell.overhead
        said = f"{overhead:.0f}" if overhead >= 0.5 else ""
        return svg.cell(_kind(cell), f"{where}: {_words(cell, line.row)}", x, y, width, ROW - 2, said)


def _key_width(label: str) -> float:
    return 24 + LETTER * len(label) + 16


def _words(cell: Cell, row: Row) -> str:
    return f"{cell.choice}, {percent(cell.overhead)} of padding, {in_bytes(cell.widest * row.count)} on a rank"


def _kind(cell: Cell) -> str:
    return next(f"h{at}" for at, (most, *_) in enumerate(STEPS) if cell.overhead <= most)


def _ramp() -> str:
    """The steps as classes, each colour twice, as svg.py gives its own."""
    light = "".join(f"--h{at}:{colour};" for at, (_, _, colour, _) in enumerate(STEPS))
    dark = "".join(f"--h{at}:{colour};" for at, (_, _, _, colour) in enumerate(STEPS))
    rules = [f":root{{{light}}}", f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"]
    rules += [f".h{at} rect{{fill:{light};fill:var(--h{at});stroke:none}}" for at, (_, _, light, _) in enumerate(STEPS)]
    rules += [f".h{at} text{{font-size:10px}}" for at in range(len(STEPS))]
    return "\n".join([*rules, ".none rect{fill:none;stroke:#59636e;stroke:var(--muted)}"])
