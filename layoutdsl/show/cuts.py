"""How ranks share a module, as SVG: for each matrix and axis a bar per rank, read off the compiled plans of all ranks.

    plans = [compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, tp=8, rank=rank) for rank in range(8)]
    drawing_of("Uneven", [Scene("", plans)])

A bar stands where its rank's elements stand in the whole axis, whose groups (or heads) are drawn above: so the borders
of the kernel's groups can be seen to fall on those of the checkpoint's, and padding to stand in front or behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from layoutdsl.codes import code_named
from layoutdsl.library import load_spec
from layoutdsl.model import Module
from layoutdsl.plan import Extent, Plan, params_of
from layoutdsl.show import svg

MARGIN, LABEL, WIDE, GAP, APART = 24, 138, 620, 16, 28
BAR, ROW, HEAD = 16, 21, 18
LETTER, SAID = 6.7, 6
CLOSEST = 8
"""Borders nearer to each other than this are not drawn."""


@dataclass(frozen=True)
class Scene:
    """The plans of all ranks of one conversion, what is said above them, and which axes of which matrices are drawn, as
    in `w2 k`: all that are cut or padded, where none is named. `specs`: folders in which the module is looked for."""

    said: str
    plans: Sequence[Plan]
    axes: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()

    @property
    def panels(self) -> list[Panel]:
        found = [Panel(self.plans, name, role, self.specs) for name in self.names for role in "nk"]
        if self.axes:
            return [panel for axis in self.axes for panel in found if axis == f"{panel.matrix} {panel.role}"]
        return [panel for panel in found if panel.is_changed]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(extent.matrix for extent in self.plans[0].extents))


@dataclass(frozen=True)
class Panel:
    """One axis of one matrix on all ranks."""

    plans: Sequence[Plan]
    matrix: str
    role: str
    specs: tuple[str, ...]

    @cached_property
    def parts(self) -> dict[str, list[Extent]]:
        """What each rank holds of each part; parts that are stored apart and alike are one, named together."""
        found: dict[str, list[Extent]] = {}
        for plan in self.plans:
            for extent in plan.extents:
                if (extent.matrix, extent.role) == (self.matrix, self.role) and extent.part != "*":
                    found.setdefault(extent.part, []).append(extent)
        alike = {tuple(_place(extent) for extent in one) for one in found.values()}
        if len(found) > 1 and len(alike) == 1 and self.total is None:
            return {" and ".join(found): next(iter(found.values()))}
        return found

    @property
    def total(self) -> int | None:
        """What is stored of all parts, where these are padded once behind the last."""
        return next((e.padded for e in self.plans[0].extents if self._is_mine(e) and e.part == "*"), None)

    def _is_mine(self, extent: Extent) -> bool:
        return (extent.matrix, extent.role) == (self.matrix, self.role)

    @property
    def extents(self) -> list[Extent]:
        return [extent for one in self.parts.values() for extent in one]

    @property
    def is_changed(self) -> bool:
        return self.tail > 0 or any(_place(e) != (0, e.size, 0, e.size) for e in self.extents)

    @property
    def tail(self) -> int:
        """What is stored behind the last part."""
        return (self.total or 0) - sum(one[0].padded for one in self.parts.values()) if self.total else 0

    @cached_property
    def rows(self) -> list[tuple[str, int]]:
        """(what a row is called, a rank that it shows): one for all ranks, where these hold the same."""
        first = [_place(one[0]) for one in self.parts.values()]
        ranks = range(len(self.plans))
        if all([_place(one[rank]) for one in self.parts.values()] == first for rank in ranks):
            return [("all ranks" if len(self.plans) > 1 else "stored", 0)]
        return [(f"rank {rank}", rank) for rank in ranks]

    @cached_property
    def group(self) -> int:
        """Inputs in a group of the checkpoint along k; 0: one group."""
        stored = int(params_of(self.plans[0].source).get("group", -1))
        return stored if self.role == "k" and 0 < stored < self.extents[0].size else 0

    @property
    def kernel_group(self) -> int:
        return dict(self.plans[0].groups).get(self.matrix, 0) if self.role == "k" else 0

    @property
    def tile(self) -> int:
        """Elements of a tile of the kernel along this axis, in each part; 0 where tiles go across parts."""
        n, k = next(((n, k) for name, n, k in self.plans[0].tiles if name == self.matrix), (0, 0))
        many = len({e.part for e in self.plans[0].extents if self._is_mine(e) and e.part != "*"})
        return k if self.role == "k" else n // math.gcd(n, many) if self.total is None else 0

    @cached_property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Part -> the module's axes whose product this axis is."""
        module = load_spec(self.plans[0].module.spec, specs=self.specs, kind="module")
        assert isinstance(module, Module)
        matrix = module.matrices[self.matrix]
        axes = matrix.k if self.role == "k" else matrix.n
        return {part: tuple(axes[part] if isinstance(axes, dict) else axes) for part in self.parts}

    def whole(self, part: str) -> int:
        """Elements of what ranks never cut, such as a head; 0 where every element may be."""
        sizes = dict(self.plans[0].sizes)
        factors = [size for axis in self.axes[part][1:] if isinstance(size := sizes[axis], int)]
        return math.prod(factors) if factors else 0

    # in words

    @property
    def title(self) -> str:
        return f"{self.matrix}: {self.role} = {', '.join(dict.fromkeys(map(' '.join, self.axes.values())))}"

    @property
    def about(self) -> str:
        kind = "inputs" if self.role == "k" else "outputs"
        said = [f"{one[0].size:,} {kind}" + f" of {part}" * bool(part) for part, one in self.parts.items()]
        what = [", ".join([said[0], *(one.replace(f" {kind}", "") for one in said[1:])])]
        if len(self.parts) < self.stored_parts:
            what = [what[0].replace(" of ", " each of ")]
        if self.role == "k":
            what += self._groups
        if self.tile:
            what.append(f"the kernel's tiles: {self.tile}")
        return "; ".join(what)

    @property
    def _groups(self) -> list[str]:
        group, alone = self.kernel_group, " on each rank" * self.is_cut
        if self.group == group:
            return [f"groups of {group} in the checkpoint and in the kernel" if group else "one group"]
        ours = f"of {group} in the kernel" if group else "one in the kernel" + alone
        return [f"groups of {self.group} in the checkpoint" if self.group else "one group in the checkpoint", ours]

    @property
    def is_cut(self) -> bool:
        return any(extent.length < extent.size for extent in self.extents)

    @property
    def stored_parts(self) -> int:
        return len([e for e in self.plans[0].extents if self._is_mine(e) and e.part != "*"])

    def span(self, rank: int) -> str:
        """Where a rank's elements stand in the whole, if there is one part to tell of."""
        if len(self.parts) > 1:
            return ""
        (extent,) = (one[rank] for one in self.parts.values())
        return f"{extent.start}-{extent.start + extent.length - 1}" if extent.length else "nothing"

    def sum(self, rank: int) -> str:
        """What a rank stores, piece by piece: `32 pad + 288 = 320`."""
        found: list[str] = []
        for part, one in self.parts.items():
            extent = one[rank]
            name = f"{part} " if len(self.parts) > 1 else ""
            rest = extent.padded - extent.front - extent.length
            found += [f"{extent.front} pad"] * (extent.front > 0)
            found += [f"{name}{extent.length:,}"] * (extent.length > 0) + [f"{rest} pad"] * (rest > 0)
        found += [f"{self.tail} pad"] * (self.tail > 0)
        stored = self.total or sum(one[rank].padded for one in self.parts.values())
        return " + ".join(found) + f" = {stored:,}" * (len(found) > 1)


def _place(extent: Extent) -> tuple[int, int, int, int]:
    return extent.start, extent.length, extent.front, extent.padded


def stored_bytes(plan: Plan) -> int:
    """Bytes of all tensors that a plan writes."""
    return sum(
        info.codes * code_named(info.code).bits // 8 * (1 if info.shared or not info.experts else info.experts)
        for info in plan.outputs
    )


# --- the picture ------------------------------------------------------------------------------------------------------


def drawing_of(title: str, scenes: Sequence[Scene]) -> str:
    """The text of a file: the panels of each scene, one below the other."""
    body = [svg.text(MARGIN, MARGIN + 14, title, "head")]
    panels = [panel for scene in scenes for panel in scene.panels]
    y = _legend(body, panels, MARGIN + 30)
    for scene in scenes:
        if scene.said:
            y += 34
            body.append(svg.text(MARGIN, y, scene.said, "title"))
        for panel in scene.panels:
            y = _Bars(panel, body).draw(y + 30)
    sums = [panel.sum(rank) for panel in panels for _, rank in panel.rows]
    right = max(GAP + LETTER * max(map(len, sums)), *(SAID * len(panel.about) + 120 - WIDE - LABEL for panel in panels))
    return svg.document(title, "; ".join(_facts(scenes)), 2 * MARGIN + LABEL + WIDE + right, y + MARGIN - 4, body)


def _facts(scenes: Sequence[Scene]) -> Iterator[str]:
    for scene in scenes:
        yield from [scene.said] * bool(scene.said)
        for panel in scene.panels:
            yield f"{panel.title}: {panel.about}"
            yield from (f"{name} {panel.span(rank)}: {panel.sum(rank)}" for name, rank in panel.rows)


def _legend(body: list[str], panels: Sequence[Panel], y: float) -> float:
    alone = all(len(panel.plans) > 1 == len(panel.rows) for panel in panels)
    entries = [("band" if alone else "p0", "what a rank holds, below its place in the whole")]
    if any(panel.tail or any(e.padded > e.length for e in panel.extents) for panel in panels):
        entries.append(("pad", "padding"))
    if borders := dict.fromkeys(name for panel in panels if (name := _Bars(panel, []).borders[0])):
        entries.append(("plain", f"border of a kernel's {' or '.join(borders)}"))
    x = float(MARGIN)
    for kind, said in entries:
        body += [svg.cell(kind, "", x, y, 18, 12), svg.text(x + 25, y + 10, said, "said")]
        if kind == "plain":
            body.append(svg.line(x + 9, y, x + 9, y + 12, "word"))
        x += 44 + SAID * len(said)
    return y + 12


@dataclass
class _Bars:
    """One panel as it is drawn."""

    panel: Panel
    body: list[str]

    def draw(self, y: float) -> float:
        """Draw it below y; returns where it ends."""
        panel, body = self.panel, self.body
        body.append(svg.text(MARGIN, y, panel.title, "title"))
        body.append(svg.text(MARGIN + 14 + 7.6 * len(panel.title), y, panel.about, "said"))
        several = len(panel.parts) > 1
        top = y + 24 + 14 * several
        first = top + max(len(self._headings(part)) for part in panel.parts) * HEAD + 4
        end = first + ROW * len(panel.rows) - ROW + BAR
        for part, left in zip(panel.parts, self._lefts):
            self._head(part, left, top, end)
            if several:
                body.append(svg.text(left, top - 18, part, "left"))
        for at, (name, _) in enumerate(self._headings(next(iter(panel.parts)))):
            body.append(svg.text(MARGIN + LABEL - 8, top + at * HEAD + 12, name, "small right"))
        for at, (name, rank) in enumerate(panel.rows):
            y = first + at * ROW
            body.append(svg.text(MARGIN, y + 12, name, "left"))
            body.append(svg.text(MARGIN + LABEL - 8, y + 12, panel.span(rank), "small right"))
            for part, left in zip(panel.parts, self._lefts):
                self._bar(part, left, y, rank, name)
            if panel.tail:
                self._pad("behind all parts", panel.tail, self._lefts[-1], y)
            body.append(svg.text(MARGIN + LABEL + WIDE + GAP, y + 12, panel.sum(rank), "left"))
        return end

    # where things stand

    @cached_property
    def _ends(self) -> list[int]:
        """How far each part's axis reaches, padding of the last ranks included."""
        return [max(max(e.size, e.start - e.front + e.padded) for e in one) for one in self.panel.parts.values()]

    @cached_property
    def _scale(self) -> float:
        gaps = APART * (len(self._ends) - 1 + (self.panel.tail > 0))
        return (WIDE - gaps) / (sum(self._ends) + self.panel.tail)

    @cached_property
    def _lefts(self) -> list[float]:
        """Where each part begins, and what stands behind the last."""
        found = [float(MARGIN + LABEL)]
        for end in self._ends:
            found.append(found[-1] + end * self._scale + APART)
        return found

    @property
    def borders(self) -> tuple[str, int]:
        """What is marked in the bars, and how far apart: groups where they can be told apart, tiles of a whole axis."""
        panel = self.panel
        steps = [("group", panel.kernel_group), ("tile", 0 if panel.is_cut else panel.tile)]
        return next((one for one in steps if one[1] * self._scale >= CLOSEST), ("", 0))

    # what stands there

    def _headings(self, part: str) -> list[tuple[str, int]]:
        """(name, elements) of what the whole axis consists of: things that stay whole, groups of the checkpoint."""
        whole = self.panel.whole(part)
        found = [("heads", whole)] if whole else []
        if self.panel.group:
            return [*found, ("groups", self.panel.group)]
        return found or [("whole", self._size(part))]

    def _size(self, part: str) -> int:
        return self.panel.parts[part][0].size

    def _head(self, part: str, left: float, top: float, bottom: float) -> None:
        """The whole axis: its heads and its groups, with numbers, and where their borders meet the bars."""
        size, headings, scale = self._size(part), self._headings(part), self._scale
        for at, (name, each) in enumerate(headings):
            y, one = top + at * HEAD, name.removesuffix("s")
            if each * scale < CLOSEST:
                said = f"{-(-size // each)} {name} of {each}"
                self.body.append(svg.cell("plain", f"0 to {size - 1}", left, y, size * scale, HEAD - 2, said))
                continue
            for number, first in enumerate(range(0, size, each)):
                count = min(each, size - first)
                hover = f"{one} {number}: {first} to {first + count - 1}" if each < size else f"0 to {size - 1}"
                said = str(number) if each < size else part
                said = said if LETTER * len(str(size // each)) + 4 < each * scale else ""
                kind = "band" if number % 2 else "plain"
                self.body.append(svg.cell(kind, hover, left + first * scale, y, count * scale, HEAD - 2, said))
        each = headings[-1][1]
        self._numbers(size, each, left, top - 4)
        for border in range(each, size, each) if each * scale >= CLOSEST else ():
            x = left + border * scale
            self.body.append(svg.line(x, top + len(headings) * HEAD - 2, x, bottom))

    def _numbers(self, size: int, each: int, left: float, y: float) -> None:
        """The first, the last, and every so many between."""
        room = LETTER * (len(str(size)) + 1.5) / self._scale
        step = each * math.ceil(room / each)
        shown = [at for at in range(0, size, step) if size - at >= room]
        self.body += [svg.text(left + at * self._scale, y, str(at), "small") for at in [*shown, size]]

    def _bar(self, part: str, left: float, y: float, rank: int, name: str) -> None:
        scale, extent = self._scale, self.panel.parts[part][rank]
        start, last = extent.start - extent.front, extent.start + extent.length - 1
        self._pad("in front", extent.front, left + start * scale, y)
        if extent.length:
            kind = "band" if name == "all ranks" else f"p{rank % svg.HUES}"
            hover = "; ".join([name, *[part] * bool(part), f"{extent.axis} {extent.start} to {last}"])
            box = (left + extent.start * scale, y, extent.length * scale, BAR)
            self.body.append(svg.cell(kind, hover, *box))
        rest = extent.padded - extent.front - extent.length
        self._pad("behind", rest, left + (last + 1) * scale, y)
        _, step = self.borders
        for border in range(step, extent.padded, step) if step else ():
            x = left + (start + border) * scale
            self.body.append(svg.line(x, y, x, y + BAR, "word"))

    def _pad(self, where: str, count: int, x: float, y: float) -> None:
        if count:
            self.body.append(svg.cell("pad", f"padding {where}, {count}", x, y, count * self._scale, BAR))
