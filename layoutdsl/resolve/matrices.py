"""What one rank holds of a module: a stretch of every axis, and the matrices that use them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.grammar import Template, parse_names
from layoutdsl.model import Module
from layoutdsl.resolve.params import MAX_EXTENT, Scope


@dataclass(frozen=True)
class Ranks:
    """Which slice of the module: tensor-parallel and expert-parallel counts and this rank's places in them."""

    tp: int = 1
    rank: int = 0
    ep: int = 1
    ep_rank: int = 0


@dataclass(frozen=True)
class Stretch:
    """What one rank holds of an axis (or of one part's axis): [start, start + length) of `size`, stored as `padded`.

    `ranks` share the axis at multiples of `grain`; `widest` is the most that one of them holds.
    """

    axis: str
    size: int
    start: int
    length: int
    padded: int
    ranks: int = 1
    grain: int = 0

    @property
    def cut(self) -> bool:
        return self.ranks > 1

    @property
    def widest(self) -> int:
        return dealt(self.size, self.ranks, 0, self.grain)[1] if self.cut else self.length

    def all(self) -> Iterator[tuple[int, int]]:
        """(start, length) of every rank."""
        if not self.cut:
            yield self.start, self.length
            return
        for rank in range(self.ranks):
            yield dealt(self.size, self.ranks, rank, self.grain)


@dataclass(frozen=True)
class Matrix:
    """One matrix of the module on one rank. `n` has a stretch per part, `n_padded` is the extent of all, padded."""

    name: str
    parts: tuple[str, ...]
    n: tuple[Stretch, ...]
    k: Stretch
    pad: str
    n_padded: int
    experts: tuple[int, int, int] | None
    bias_here: bool

    @property
    def n_size(self) -> int:
        return sum(stretch.size for stretch in self.n)

    @property
    def n_length(self) -> int:
        return sum(stretch.length for stretch in self.n)

    @property
    def n_widest(self) -> int:
        """The most that one rank holds."""
        return sum(stretch.widest for stretch in self.n)


Sizes = Mapping[str, "int | tuple[int, ...]"]
Grains = Mapping[str, int]
"""Axis -> what ranks cut it at multiples of. Where an axis has none, ranks hold equal shares."""


def dealt(size: int, count: int, rank: int, grain: int) -> tuple[int, int]:
    """(start, length) of a rank's share: whole grains, as even as can be, the first ranks one more; the last grain may
    be short.

        >>> [dealt(100, 3, rank, 16) for rank in range(3)]    # 7 grains
        [(0, 48), (48, 32), (80, 20)]
    """
    if not grain:
        return rank * (size // count), size // count
    each, more = divmod(-(-size // grain), count)
    first = rank * each + min(rank, more)
    start, end = (min(at * grain, size) for at in (first, first + each + (rank < more)))
    return start, end - start


def matrices(
    module: Module, params: Scope, sizes: Sizes, ranks: Ranks, grains: Grains | None = None
) -> tuple[Matrix, ...]:
    """The module's matrices on one rank, not yet padded."""
    grains = grains or {}
    _check_ranks(ranks)
    cut_by = {kind: template.fill(params) for kind, template in module.ranks.items()}
    for kind, axis in cut_by.items():
        if axis != "none" and axis not in module.axes:
            raise LayoutError(
                f"`{module.name}` lets {kind} ranks cut `{axis}`, which is none of its axes",
                code="LD103",
                name="unknown-axis",
                help=did_you_mean(axis, module.axes),
            )
    _check_sizes(module, sizes)
    if ranks.ep > 1 and "ep" not in cut_by:
        raise LayoutError(
            f"module `{module.name}` has no experts for {ranks.ep} expert-parallel ranks to share",
            code="LP110",
            name="ranks",
            help="leave out --ep",
        )
    experts = None
    if module.experts:
        cut = _cut(module.experts, _whole(module.experts, sizes), ranks.ep, ranks.ep_rank, "expert-parallel", 1)
        experts = (cut.size, cut.start, cut.length)
    found: list[Matrix] = []
    for name, matrix in module.matrices.items():
        parts = matrix.parts
        if isinstance(parts, Template):
            parts = parse_names(parts.fill(params))
        widths = sizes[matrix.n]
        if isinstance(widths, tuple) and len(widths) != max(len(parts), 1):
            has = f"{len(parts)} parts ({', '.join(parts)})" if parts else "one part"
            raise LayoutError(
                f"size `{matrix.n}` has {len(widths)} widths, `{name}` has {has}",
                code="LP111",
                name="sizes",
                help=f"state one width per part, as in {matrix.n}=" + ",".join(["64"] * max(len(parts), 1)),
            )
        if isinstance(widths, int) and matrix.pad == "tail" and len(parts) > 1:
            raise LayoutError(
                f"size `{matrix.n}` is one number, but the parts of `{name}` ({', '.join(parts)}) may differ in width",
                code="LP111",
                name="sizes",
                help=f"state one width per part, as in {matrix.n}=" + ",".join([str(widths)] * len(parts)),
            )
        if isinstance(widths, int):
            widths = (widths,) * max(len(parts), 1)
        tp = {axis: ranks.tp for kind, axis in cut_by.items() if kind == "tp"}
        n = tuple(
            _cut(matrix.n, width, tp.get(matrix.n, 1), ranks.rank, "tensor-parallel", grains.get(matrix.n, 0), part)
            for width, part in zip(widths, parts or ("",))
        )
        k = _cut(
            matrix.k,
            _whole(matrix.k, sizes),
            tp.get(matrix.k, 1),
            ranks.rank,
            "tensor-parallel",
            grains.get(matrix.k, 0),
        )
        found.append(
            Matrix(
                name,
                tuple(parts),
                n,
                k,
                matrix.pad,
                sum(s.length for s in n),
                experts,
                not k.cut or ranks.rank == 0,
            )
        )
    return tuple(found)


def _check_ranks(ranks: Ranks) -> None:
    for count, rank, what in ((ranks.tp, ranks.rank, "tp"), (ranks.ep, ranks.ep_rank, "ep")):
        if count < 1 or not 0 <= rank < count:
            raise LayoutError(
                f"rank {rank} of {count} {what} ranks does not exist",
                code="LP110",
                name="ranks",
                help=f"ranks count from 0 to {max(count, 1) - 1}",
            )


def _check_sizes(module: Module, sizes: Sizes) -> None:
    for axis in sizes:
        if axis not in module.axes:
            raise LayoutError(
                f"module `{module.name}` has no axis `{axis}`",
                code="LP111",
                name="sizes",
                help=did_you_mean(axis, module.axes) or f"its axes: {', '.join(module.axes)}",
            )
    for axis, what in module.axes.items():
        if axis not in sizes:
            raise LayoutError(
                f"module `{module.name}` needs the size of axis `{axis}` ({what})",
                code="LP111",
                name="sizes",
                help=f"add --size {axis}=...",
            )
        values = sizes[axis]
        for value in values if isinstance(values, tuple) else (values,):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_EXTENT:
                raise LayoutError(
                    f"size `{axis}` of module `{module.name}` cannot be {value}",
                    code="LP111",
                    name="sizes",
                    help=f"expected a whole number from 1 to {MAX_EXTENT}",
                )


def _whole(axis: str, sizes: Sizes) -> int:
    size = sizes[axis]
    if isinstance(size, tuple):
        if len(size) != 1:
            raise LayoutError(
                f"axis `{axis}` has one size, {len(size)} were given",
                code="LP111",
                name="sizes",
                help=f"write --size {axis}={size[0]}",
            )
        return size[0]
    return size


def _cut(axis: str, size: int, count: int, rank: int, kind: str, grain: int, part: str = "") -> Stretch:
    if size % count and not grain:
        of = f" of part `{part}`" if part else ""
        low = [divisor for divisor in range(1, math.isqrt(size) + 1) if size % divisor == 0]
        fits = max(divisor for divisor in (*low, *(size // other for other in low)) if divisor <= count)
        raise LayoutError(
            f"axis `{axis}`{of} has {size} elements, which {count} {kind} ranks do not divide evenly",
            code="LP120",
            name="uneven-cut",
            help=f"{fits} ranks divide it",
        )
    if count > 1 and not dealt(size, count, count - 1, grain)[1]:
        least = f", dealt in {grain} at once" if grain > 1 else ""
        raise LayoutError(
            f"axis `{axis}` has {size} elements{least}, too few for {count} {kind} ranks",
            code="LP120",
            name="uneven-cut",
            help=f"{-(-size // max(grain, 1))} ranks can share it",
        )
    start, length = dealt(size, count, rank if count > 1 else 0, grain)
    return Stretch(axis, size, start, length, length, count, grain if count > 1 else 0)


def with_extents(matrix: Matrix, known: Mapping[tuple[str, str, str], Any]) -> Matrix:
    """A matrix with the padded extents that a plan records: (matrix, role, part) -> Extent."""
    parts = matrix.parts or ("",)
    n = tuple(replace(s, padded=known[matrix.name, "n", part].padded) for s, part in zip(matrix.n, parts))
    k = replace(matrix.k, padded=known[matrix.name, "k", ""].padded)
    total = known[matrix.name, "n", "*"].padded if matrix.pad == "tail" and len(parts) > 1 else sum(s.padded for s in n)
    return replace(matrix, n=n, k=k, n_padded=total)
