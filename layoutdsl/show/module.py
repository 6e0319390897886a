"""A module as text and as SVG: which matrix uses which axes, what ranks cut, and where padding goes.

    text_of(cut_of(load_spec("moe_gated"), {"e": 4, "i": 256, "h": 512}, tp=2))

The whole of each matrix stands on the left, what a rank makes of it on the right: its slice of every part, and behind
each part, or behind all of them, room for padding. How much depends on a kernel, so it has no numbers. A rank that
holds less than the widest one is padded to it; what several ranks hold is drawn once, with their names.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layoutdsl import model
from layoutdsl.errors import LayoutError
from layoutdsl.model import Module, ParamValue
from layoutdsl.resolve import Matrix, Ranks, Scope, Sizes, Stretch, bind, matrices
from layoutdsl.show import svg
from layoutdsl.show.picture import sizes_of
from layoutdsl.show.text import WIDTH, letter

MOST_RANKS = 8
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

    def shown(self, at: int, most: int) -> list[int]:
        """The ranks of which a drawing shows what they hold: one of each size, and the first two if all are alike."""
        first: dict[tuple[int, ...], int] = {}
        for rank, held in enumerate(self.held):
            first.setdefault((*(stretch.length for stretch in held[at].n), held[at].k.length), rank)
        found = sorted(first.values())
        return found[:most] if len(found) > 1 else list(range(min(2, self.tp)))

    @property
    def drawn_at(self) -> str:
        sizes = [f"{axis}={','.join(map(str, n)) if isinstance(n, tuple) else n}" for axis, n in self.sizes.items()]
        params = [f"{name}={value}" for name, value in self.params.items()]
        return f"drawn at {' '.join([*sizes, *params])}, for {self.tp} rank{'s' * (self.tp > 1)}"

    def facts(self) -> Iterator[str]:
        """The axes and what is done to them, one sentence each."""
        module, seen = self.module, self.module.visible
        yield "axes: " + "; ".join(
            f"{axis}, {what}" + (" (seen outside)" if axis in seen else "") for axis, what in module.axes.items()
        )
        ranks = {kind: template.fill(self.params) for kind, template in module.ranks.items()}
        names = {"tp": "tensor-parallel ranks cut", "ep": "expert-parallel ranks share"}
        said = "; ".join(f"{names[kind]} {axis}" for kind, axis in ranks.items()) or "no ranks"
        whole = dict.fromkeys(axes[0] for matrix in module.matrices.values() for axes in _products(matrix))
        yield said + f", never through one of {', '.join(whole)}" * bool(whole)
        for one, other in module.serves.items():
            yield f"each of {one} serves equally many of {other}; where ranks outnumber them, several share one"
        if module.tight is not None and module.tight.evaluate(self.params):
            yield from self._tight()

    def _tight(self) -> Iterator[str]:
        """Which matrices may be padded less than the next one reads."""
        for writes in self.whole:
            for reads in self.whole:
                i = reads.k.axis
                if writes.n[0].axis == i and not reads.k.seen:
                    yield f"{writes.name} may be padded less along {i} than {reads.name}, whose other inputs are zeros"

    def axes(self, matrix: Matrix) -> tuple[tuple[str, ...], str]:
        """Each part's outputs and the inputs, as products of the module's axes."""
        stated = self.module.matrices[matrix.name]
        n = stated.n.values() if isinstance(stated.n, dict) else [stated.n] * len(matrix.n)
        return tuple(map(" ".join, n)), " ".join(stated.k)

    def title(self, matrix: Matrix) -> str:
        n, k = self.axes(matrix)
        parts = f", parts {', '.join(matrix.parts)}" if matrix.parts else ""
        experts = f", for each of {matrix.experts[0]} experts" if matrix.experts else ""
        return f"n = {', '.join(dict.fromkeys(n))}, k = {k}{parts}{experts}"

    def padding(self, matrix: Matrix, at: int) -> str:
        each = "once behind all parts" if matrix.pad == "tail" else "behind each part" if matrix.parts else "at its end"
        n, k = self.axes(matrix)
        outputs = n[0] if len(set(n)) == 1 else "n"
        held = self.held[0][at].k
        behind = "in front and at its end" if held.cut and held.seen else "at its end"
        return f"a rank pads {outputs} {each} and {k} {behind}, where a kernel's tiles ask for it"


def _products(matrix: model.Matrix) -> Iterator[Sequence[str]]:
    """The products of axes that it uses."""
    yield from (axes for axes in _stated(matrix) if len(axes) > 1)


def _stated(matrix: model.Matrix) -> Iterator[Sequence[str]]:
    yield from matrix.n.values() if isinstance(matrix.n, dict) else [matrix.n]
    yield matrix.k


def cut_of(
    module: Module, sizes: Sizes | None = None, params: Mapping[str, ParamValue] | None = None, tp: int | None = None
) -> Cut:
    """A module at some sizes. Without any, those of the first line to try in which ranks cut something, for 2 ranks."""
    count = 2 if tp is None else tp
    if count > MOST_RANKS:
        raise LayoutError(
            f"{count} ranks are more than the {MOST_RANKS} that are drawn of a module",
            code="LP117",
            name="too-large-to-draw",
            help=f"--tp {MOST_RANKS} shows how it is cut",
        )
    entries = [dict(entry) for entry in module.try_] if not sizes and not params else [dict(module.try_[0])]
    cuts = [_cut(module, entry, sizes or {}, params or {}, count) for entry in entries]
    return next((cut for cut in cuts if any(map(cut.is_cut, range(len(cut.whole))))), cuts[0])


def _cut(module: Module, entry: Mapping[str, Any], sizes: Sizes, params: Mapping[str, ParamValue], tp: int) -> Cut:
    extents = sizes_of(module, entry, sizes)
    stated = {name: value for name, value in entry.items() if name not in module.axes}
    bound = bind(module, {**stated, **params})
    held = tuple(matrices(module, bound, extents, Ranks(tp, rank)) for rank in range(max(tp, 1)))
    return Cut(module, extents, bound, matrices(module, bound, extents, Ranks()), held)


def _ranged(stretch: Stretch) -> str:
    return f"{stretch.start} to {stretch.start + stretch.length - 1}" if stretch.length else "nothing"


@dataclass(frozen=True)
class Field:
    """A rectangle of one part of a matrix, and the ranks that hold it; none where all do."""

    n: Stretch
    k: Stretch
    ranks: tuple[int, ...]

    @property
    def said(self) -> str:
        """Who holds it: `all ranks`, `rank 1`, `ranks 0 and 1`."""
        if not self.ranks:
            return "all ranks"
        *others, last = map(str, self.ranks)
        return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _fields(cut: Cut, at: int, part: int) -> list[Field]:
    """One part of a matrix as the ranks share it."""
    if not cut.is_cut(at):
        return [Field(cut.whole[at].n[part], cut.whole[at].k, ())]
    found: dict[tuple[int, int, int, int], list[int]] = {}
    for rank, held in enumerate(cut.held):
        n, k = held[at].n[part], held[at].k
        if n.length and k.length:
            found.setdefault((n.start, n.length, k.start, k.length), []).append(rank)
    return [Field(cut.held[ranks[0]][at].n[part], cut.held[ranks[0]][at].k, tuple(ranks)) for ranks in found.values()]


# --- text -------------------------------------------------------------------------------------------------------------

WHOLE, HELD, PAD, TOLD = 32, 14, 2, 2


def text_of(cut: Cut) -> str:
    lines = [*textwrap.wrap(f"{cut.module.name}: {cut.module.doc}", WIDTH), cut.drawn_at]
    for fact in cut.facts():
        lines += textwrap.wrap(fact, WIDTH)
    for at, matrix in enumerate(cut.whole):
        lines += ["", f"{matrix.name}: {cut.title(matrix)}"]
        boxes = [_whole(cut, at), *(_held(cut, at, rank) for rank in cut.shown(at, TOLD))]
        lines += _beside(boxes)
        lines += textwrap.wrap(cut.padding(matrix, at), WIDTH)
    letters = [f"{letter(rank)} rank {rank}" for rank in range(cut.tp)] if cut.tp > 1 else []
    lines += ["", "; ".join([*letters, f"{EVERY} all ranks" if cut.tp > 1 else f"{EVERY} elements", ". padding"])]
    return "\n".join(line.rstrip() for line in lines)


def _whole(cut: Cut, at: int) -> list[str]:
    """A matrix with its parts; where several ranks hold the same, their letters stand in turn."""
    matrix, lines = cut.whole[at], list[str]()
    (names, k_name), k_cut = cut.axes(matrix), cut.held[0][at].k.cut
    for part in range(len(matrix.n)):
        name = matrix.parts[part] if matrix.parts else names[part]
        fields = _fields(cut, at, part)
        for first, field in enumerate(fields[:1] if k_cut else fields):
            letters = "".join(map(letter, field.ranks)) or EVERY
            fill = _across(fields) if k_cut else (letters * WHOLE)[:WHOLE]
            label = f"{name if not first else ''} {_ranged(field.n)}".strip()
            lines += [f"{label.rjust(18)} |{fill}|", f"{'':18} |{fill}|"]
    border = f"{'':18} +{'-' * WHOLE}+"
    return [f"{'':20}{k_name} {_ranged(matrix.k)}".ljust(len(border)), border, *lines, border]


def _across(fields: Sequence[Field]) -> str:
    """A line of a matrix whose n is whole: k as the ranks share it."""
    line = ""
    for field in fields:
        end = round(WHOLE * (field.k.start + field.k.length) / field.k.size)
        line += letter(field.ranks[0]) * (end - len(line))
    return line


def _held(cut: Cut, at: int, rank: int) -> list[str]:
    matrix = cut.held[rank][at]
    mark = letter(rank) if cut.is_cut(at) else EVERY
    k = round(HELD * matrix.k.length / matrix.k.widest)
    fill, empty = (mark * k).ljust(HELD + PAD, "."), "." * (HELD + PAD)
    lines: list[str] = []
    for stretch in matrix.n:
        full = 2 if stretch.length == stretch.widest else 1 if stretch.length else 0
        lines += [fill] * full + [empty] * (2 - full + (matrix.pad == "part"))
    lines += [empty] * (matrix.pad == "tail")
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

MARGIN, LABEL, BOX, SLICE, PART, ROOM, DRAWN = 24, 120, 260, 120, 76, 16, 4
LEAST = 16
"""The least height of one rank's field."""


def drawing_of(cut: Cut) -> str:
    """The file that `layoutdsl show --svg` writes of a module."""
    module, y = cut.module, float(MARGIN + 20)
    said = [cut.drawn_at, *(line for fact in cut.facts() for line in textwrap.wrap(fact, 130))]
    body = [svg.text(MARGIN, y - 6, module.name, "head")]
    for line in said:
        y += 20
        body.append(svg.text(MARGIN, y - 6, line, "said"))
    y += 8
    kinds = [(f"p{rank}", f"rank {rank}") for rank in range(cut.tp)] if cut.tp > 1 else []
    if cut.tp > 1 and any(field.said.startswith("ranks") for field in _all_fields(cut)):
        kinds.append(("band", "several ranks"))
    if any(not cut.is_cut(at) for at in range(len(cut.whole))):
        kinds.append(("band", "all ranks"))
    x = float(MARGIN)
    for kind, name in (*kinds, ("pad", "padding")):
        body += [svg.cell(kind, "", x, y, 14, 12), svg.text(x + 20, y + 10, name, "said")]
        x += 36 + 6.4 * len(name)
    y += 18
    said += map(cut.padding, cut.whole, range(len(cut.whole)))
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
                _draw_held(body, cut, at, rank, MARGIN + LABEL + BOX + 70 + place * (SLICE + ROOM + 40), y)
                for place, rank in enumerate(cut.shown(at, DRAWN))
            ),
        )
        y = bottom + 22
        body.append(svg.text(MARGIN, y, cut.padding(matrix, at), "said"))
    many = max(len(cut.shown(at, DRAWN)) for at in range(len(cut.whole)))
    width = max(LABEL + BOX + 70 + many * (SLICE + ROOM + 40), *(6.4 * len(line) for line in said)) + 2 * MARGIN
    about = "; ".join(
        f"{matrix.name}: {cut.title(matrix)}; {cut.padding(matrix, at)}" for at, matrix in enumerate(cut.whole)
    )
    return svg.document(f"{module.name}: {module.doc}", about, width, y + MARGIN, body)


def _all_fields(cut: Cut) -> Iterator[Field]:
    for at, matrix in enumerate(cut.whole):
        for part in range(len(matrix.n)):
            yield from _fields(cut, at, part)


def _heights(cut: Cut, at: int) -> list[float]:
    """How tall each part of a matrix is drawn: as its width is, but no less than that its fields can be read."""
    matrix = cut.whole[at]
    widest = max(stretch.size for stretch in matrix.n)
    rows = [len({field.n.start for field in _fields(cut, at, part)}) for part in range(len(matrix.n))]
    return [max(PART * stretch.size / widest, LEAST * count) for stretch, count in zip(matrix.n, rows)]


def _draw_whole(body: list[str], cut: Cut, at: int, top: float) -> float:
    """The matrix with its parts, each in the colours of the ranks that cut it; returns where it ends."""
    matrix, left, y = cut.whole[at], MARGIN + LABEL, top
    names, k_name = cut.axes(matrix)
    heights = _heights(cut, at)
    body.append('<g class="whole">')
    if matrix.experts:
        for behind in (8, 4):
            body.append(svg.cell("plain", "", left + behind, top - behind, BOX, sum(heights)))
    body.append(svg.text(left, top - 16, f"{k_name} {_ranged(matrix.k)}", "small left"))
    for part, tall in enumerate(heights):
        name, lines = matrix.parts[part] if matrix.parts else "", set[int]()
        for field in _fields(cut, at, part):
            n, k = field.n, field.k
            box = (
                left + BOX * k.start / k.size,
                y + tall * n.start / n.size,
                BOX * k.length / k.size,
                tall * n.length / n.size,
            )
            hover = f"{name}; " * bool(name) + f"{names[part]} {_ranged(n)}, {k_name} {_ranged(k)}; {field.said}"
            several = len(field.ranks) > 1
            kind = f"p{field.ranks[0]}" if len(field.ranks) == 1 else "band"
            inside = ": ".join(one for one in (name * (not lines), field.said * several) if one)
            body.append(svg.cell(kind, hover, *box, inside))
            if n.start not in lines:
                lines.add(n.start)
                body.append(svg.text(left - 8, box[1] + 12, f"{names[part]} {_ranged(n)}", "small right"))
        y += tall
    body += [svg.rect(left, top, BOX, y - top, "word"), "</g>"]
    return y


def _draw_held(body: list[str], cut: Cut, at: int, rank: int, left: float, top: float) -> float:
    """What one rank holds, with room for padding; returns where it ends."""
    matrix, y = cut.held[rank][at], top
    kind = f"p{rank}" if cut.is_cut(at) and cut.tp > 1 else "band"
    names, k_name = cut.axes(matrix)
    body.append(svg.text(left, top - 16, f"rank {rank} holds {matrix.n_length} x {matrix.k.length}", "small left"))
    across = SLICE * matrix.k.length / matrix.k.widest
    for part, (stretch, tall) in enumerate(zip(matrix.n, _heights(cut, at))):
        name = matrix.parts[part] if matrix.parts else ""
        hover = f"{name}; " * bool(name) + f"{names[part]} {_ranged(stretch)}, {k_name} {_ranged(matrix.k)}"
        room = max(LEAST, tall * stretch.widest / stretch.size)
        height = room * stretch.length / stretch.widest
        if height and across:
            body.append(svg.cell(kind, f"{hover}; rank {rank}", left, y, across, height, name))
            body.append(svg.cell("pad", f"padding of {k_name}", left + across, y, SLICE + ROOM - across, height))
        if (real := height if across else 0) < room:
            empty = f"padding of {names[part] if across else k_name}, as the widest rank has"
            body.append(svg.cell("pad", empty, left, y + real, SLICE + ROOM, room - real))
        y += room
        if matrix.pad == "part" or part == len(matrix.n) - 1:
            behind = f"padding of {names[part]}" + (f" behind {name}" if name and matrix.pad == "part" else "")
            body.append(svg.cell("pad", behind, left, y, SLICE + ROOM, ROOM))
            y += ROOM
    body.append(svg.rect(left, top, SLICE + ROOM, y - top, "word"))
    return y
