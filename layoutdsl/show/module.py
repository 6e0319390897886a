"""A module as text and as SVG: which matrix uses which axes, what ranks cut, and where padding goes.

    text_of(cut_of(load_spec("moe_gated"), {"e": 4, "i": 256, "h": 512}, tp=2))

The whole of each matrix stands on the left, what a rank makes of it on the right: its slice of every part, and behind
each part, or behind all of them, room for padding. How much depends on a kernel, so it has no numbers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layoutdsl.errors import LayoutError
from layoutdsl.model import Module, ParamValue
from layoutdsl.resolve import Matrix, Ranks, Scope, Sizes, Stretch, bind, matrices
from layoutdsl.show import svg
from layoutdsl.show.text import WIDTH, letter

MOST_RANKS = 8
SHOWN_RANKS = 2
EVERY = "="
"""What all ranks hold."""


@dataclass(frozen=True)
class Cut:
    """A module's matrices, whole and as each rank holds them."""

    module: Module
    sizes: Sizes
    params: Scope
    whole: tuple[Matrix, ...]
    held: tuple[tuple[Matrix, ...], ...]

    @property
    def tp(self) -> int:
        return len(self.held)

    def is_cut(self, at: int) -> bool:
        return any(stretch.cut for stretch in (*self.held[0][at].n, self.held[0][at].k))

    @property
    def drawn_at(self) -> str:
        sizes = [f"{axis}={','.join(map(str, n)) if isinstance(n, tuple) else n}" for axis, n in self.sizes.items()]
        params = [f"{name}={value}" for name, value in self.params.items()]
        return f"drawn at {' '.join([*sizes, *params])}, for {self.tp} rank{'s' * (self.tp > 1)}"

    def facts(self) -> Iterator[str]:
        """The axes and what is done to them, one sentence each."""
        seen = self.module.visible
        yield "axes: " + "; ".join(
            f"{axis}, {what}" + (" (seen outside)" if axis in seen else "") for axis, what in self.module.axes.items()
        )
        ranks = {kind: template.fill(self.params) for kind, template in self.module.ranks.items()}
        names = {"tp": "tensor-parallel ranks cut", "ep": "expert-parallel ranks share"}
        yield "; ".join(f"{names[kind]} {axis}" for kind, axis in ranks.items()) or "no ranks"

    def title(self, matrix: Matrix) -> str:
        parts = f", parts {', '.join(matrix.parts)}" if matrix.parts else ""
        experts = f", for each of {matrix.experts[0]} experts" if matrix.experts else ""
        return f"n = {matrix.n[0].axis}, k = {matrix.k.axis}{parts}{experts}"

    def padding(self, matrix: Matrix) -> str:
        each = "once behind all parts" if matrix.pad == "tail" else "behind each part" if matrix.parts else "at its end"
        return (
            f"a rank pads {matrix.n[0].axis} {each} and {matrix.k.axis} at its end, where a kernel's tiles ask for it"
        )


def cut_of(
    module: Module, sizes: Sizes | None = None, params: Mapping[str, ParamValue] | None = None, tp: int | None = None
) -> Cut:
    """A module at some sizes. Without any, those of the first line to try in which ranks cut something, for 2 ranks."""
    count = 2 if tp is None else tp
    if count > MOST_RANKS:
        raise LayoutError(
            f"{count} ranks are more than the {MOST_RANKS} that are drawn of a module",
            code="LP113",
            name="too-large-to-draw",
            help="all ranks hold slices of one size: --tp 2 shows what is cut",
        )
    entries = [dict(entry) for entry in module.try_] if not sizes and not params else [dict(module.try_[0])]
    cuts = [_cut(module, entry, sizes or {}, params or {}, count) for entry in entries]
    return next((cut for cut in cuts if any(map(cut.is_cut, range(len(cut.whole))))), cuts[0])


def _cut(module: Module, entry: dict[str, Any], sizes: Sizes, params: Mapping[str, ParamValue], tp: int) -> Cut:
    extents = {**{axis: entry.pop(axis) for axis in module.axes if axis in entry}, **sizes}
    bound = bind(module, {**entry, **params})
    held = tuple(matrices(module, bound, extents, Ranks(tp, rank)) for rank in range(max(tp, 1)))
    return Cut(module, extents, bound, matrices(module, bound, extents, Ranks()), held)


def _ranged(stretch: Stretch) -> str:
    return f"{stretch.start} to {stretch.start + stretch.length - 1}"


# --- text -------------------------------------------------------------------------------------------------------------

WHOLE, HELD, PAD = 32, 14, 2


def text_of(cut: Cut) -> str:
    lines = [*textwrap.wrap(f"{cut.module.name}: {cut.module.doc}", WIDTH), cut.drawn_at]
    for fact in cut.facts():
        lines += textwrap.wrap(fact, WIDTH)
    for at, matrix in enumerate(cut.whole):
        lines += ["", f"{matrix.name}: {cut.title(matrix)}"]
        boxes = [_whole(cut, at), *(_held(cut, at, rank) for rank in range(min(SHOWN_RANKS, cut.tp)))]
        lines += _beside(boxes)
        lines += textwrap.wrap(cut.padding(matrix), WIDTH)
    letters = [f"{letter(rank)} rank {rank}" for rank in range(cut.tp)] if cut.tp > 1 else []
    lines += ["", "; ".join([*letters, f"{EVERY} all ranks" if cut.tp > 1 else f"{EVERY} elements", ". padding"])]
    return "\n".join(line.rstrip() for line in lines)


def _whole(cut: Cut, at: int) -> list[str]:
    matrix, lines = cut.whole[at], list[str]()
    for part, stretch in enumerate(matrix.n):
        name = matrix.parts[part] if matrix.parts else stretch.axis
        held = [one[at].n[part] for one in cut.held] if cut.held[0][at].n[part].cut else [stretch]
        for rank, one in enumerate(held):
            fill = letter(rank) * WHOLE if one.cut else _across(cut, at)
            label = f"{name if not rank else ''} {_ranged(one)}".strip()
            lines += [f"{label.rjust(18)} |{fill}|", f"{'':18} |{fill}|"]
    border = f"{'':18} +{'-' * WHOLE}+"
    return [f"{'':20}{matrix.k.axis} {_ranged(matrix.k)}".ljust(len(border)), border, *lines, border]


def _across(cut: Cut, at: int) -> str:
    """A line of a matrix whose n is whole: k as the ranks share it."""
    if not cut.held[0][at].k.cut:
        return EVERY * WHOLE
    return "".join(letter(column * cut.tp // WHOLE) for column in range(WHOLE))


def _held(cut: Cut, at: int, rank: int) -> list[str]:
    matrix = cut.held[rank][at]
    fill = (letter(rank) if cut.is_cut(at) else EVERY) * HELD + "." * PAD
    lines: list[str] = []
    for _ in matrix.n:
        lines += [fill, fill] + ["." * len(fill)] * (matrix.pad == "part")
    lines += ["." * len(fill)] * (matrix.pad == "tail")
    border = f"+{'-' * (HELD + PAD)}+"
    head = f" rank {rank}: {matrix.n_length} x {matrix.k.length}"
    return [head, border, *(f"|{line}|" for line in lines), border]


def _beside(boxes: list[list[str]]) -> Iterator[str]:
    height = max(map(len, boxes))
    widths = [max(map(len, box)) for box in boxes]
    filled = [[*box, *[""] * (height - len(box))] for box in boxes]
    for row in zip(*filled):
        yield "   ".join(line.ljust(width) for line, width in zip(row, widths))


# --- SVG --------------------------------------------------------------------------------------------------------------

MARGIN, LABEL, BOX, SLICE, PART, ROOM = 24, 120, 260, 120, 76, 16


def drawing_of(cut: Cut) -> str:
    """The file that `layoutdsl show --svg` writes of a module."""
    module, y = cut.module, float(MARGIN + 20)
    body = [svg.text(MARGIN, y - 6, module.name, "head")]
    for said in (cut.drawn_at, *cut.facts()):
        y += 20
        body.append(svg.text(MARGIN, y - 6, said, "said"))
    y += 8
    kinds = [(f"p{rank}", f"rank {rank}") for rank in range(cut.tp)] if cut.tp > 1 else []
    if any(not cut.is_cut(at) for at in range(len(cut.whole))):
        kinds.append(("band", "all ranks"))
    x = float(MARGIN)
    for kind, said in (*kinds, ("pad", "padding")):
        body += [svg.cell(kind, "", x, y, 14, 12), svg.text(x + 20, y + 10, said, "said")]
        x += 36 + 6.4 * len(said)
    y += 18
    for at, matrix in enumerate(cut.whole):
        y += 30
        body += [
            svg.text(MARGIN, y, matrix.name, "title"),
            svg.text(MARGIN + 14 + 8.2 * len(matrix.name), y, cut.title(matrix), "said"),
        ]
        y += 44
        bottom = max(
            _draw_whole(body, cut, at, y),
            *(
                _draw_held(body, cut, at, rank, MARGIN + LABEL + BOX + 70 + rank * (SLICE + ROOM + 40), y)
                for rank in range(min(SHOWN_RANKS, cut.tp))
            ),
        )
        y = bottom + 22
        body.append(svg.text(MARGIN, y, cut.padding(matrix), "said"))
    texts = [cut.drawn_at, *cut.facts(), *map(cut.padding, cut.whole)]
    width = max(LABEL + BOX + 70 + SHOWN_RANKS * (SLICE + ROOM + 40), *(6.4 * len(said) for said in texts)) + 2 * MARGIN
    about = "; ".join(f"{matrix.name}: {cut.title(matrix)}; {cut.padding(matrix)}" for matrix in cut.whole)
    return svg.document(f"{module.name}: {module.doc}", about, width, y + MARGIN, body)


def _draw_whole(body: list[str], cut: Cut, at: int, top: float) -> float:
    """The matrix with its parts, each in the colours of the ranks that cut it; returns where it ends."""
    matrix, left, y = cut.whole[at], MARGIN + LABEL, top
    body.append('<g class="whole">')
    if matrix.experts:
        for behind in (8, 4):
            body.append(svg.cell("plain", "", left + behind, top - behind, BOX, PART * len(matrix.n)))
    body.append(svg.text(left, top - 16, f"{matrix.k.axis} {_ranged(matrix.k)}", "small left"))
    for part, stretch in enumerate(matrix.n):
        name = matrix.parts[part] if matrix.parts else ""
        pieces = [(rank, held[at].n[part], held[at].k) for rank, held in enumerate(cut.held)]
        pieces = pieces if cut.is_cut(at) else [(-1, stretch, matrix.k)]
        for rank, n, k in pieces:
            box = (
                left + BOX * k.start / k.size,
                y + PART * n.start / n.size,
                BOX * k.length / k.size,
                PART * n.length / n.size,
            )
            said = f"{name}; " * bool(name) + f"{n.axis} {_ranged(n)}, {k.axis} {_ranged(k)}"
            said += f"; rank {rank}" if rank >= 0 and cut.tp > 1 else "; all ranks"
            body.append(svg.cell(f"p{rank}" if rank >= 0 else "band", said, *box, name if not rank or rank < 0 else ""))
            if n.cut or rank <= 0:
                body.append(svg.text(left - 8, box[1] + 12, f"{n.axis} {_ranged(n)}", "small right"))
        y += PART
    body += [svg.rect(left, top, BOX, y - top, "word"), "</g>"]
    return y


def _draw_held(body: list[str], cut: Cut, at: int, rank: int, left: float, top: float) -> float:
    """What one rank holds, with room for padding; returns where it ends."""
    matrix, y = cut.held[rank][at], top
    kind = f"p{rank}" if cut.is_cut(at) and cut.tp > 1 else "band"
    body.append(svg.text(left, top - 16, f"rank {rank} holds {matrix.n_length} x {matrix.k.length}", "small left"))
    for part, stretch in enumerate(matrix.n):
        name = matrix.parts[part] if matrix.parts else ""
        said = f"{name}; " * bool(name) + f"{stretch.axis} {_ranged(stretch)}, {matrix.k.axis} {_ranged(matrix.k)}"
        height = PART * stretch.length / stretch.size if stretch.cut else PART
        body += [
            svg.cell(kind, f"{said}; rank {rank}", left, y, SLICE, height, name),
            svg.cell("pad", f"padding of {matrix.k.axis}", left + SLICE, y, ROOM, height),
        ]
        y += height
        if matrix.pad == "part" or part == len(matrix.n) - 1:
            behind = f"padding of {stretch.axis}" + (f" behind {name}" if name and matrix.pad == "part" else "")
            body.append(svg.cell("pad", behind, left, y, SLICE + ROOM, ROOM))
            y += ROOM
    body.append(svg.rect(left, top, SLICE + ROOM, y - top, "word"))
    return y
