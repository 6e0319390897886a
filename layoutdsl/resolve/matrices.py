"""What one rank holds of a module: a stretch of every axis, and the matrices that use them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from layoutdsl import model
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.grammar import GrammarError, Template, parse_names
from layoutdsl.model import Module
from layoutdsl.resolve.cuts import Cut, dealt
from layoutdsl.resolve.memory import once
from layoutdsl.resolve.params import MAX_EXTENT, Scope, evaluated, filled


@dataclass(frozen=True)
class Ranks:
    """Which slice of the module: tensor-parallel and expert-parallel counts and this rank's places in them."""

    tp: int = 1
    rank: int = 0
    ep: int = 1
    ep_rank: int = 0


class Stretch(NamedTuple):
    """What one rank holds of an axis (or of one part's axis): [start, start + length) of `size`, stored as `padded`,
    of which the first `front` hold nothing. `seen`: the axis is visible outside the module."""

    axis: str
    size: int
    start: int
    length: int
    padded: int
    front: int = 0
    seen: bool = False
    shared: Cut | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """All but what it is called and how ranks share it."""
        return self[1:6]

    @property
    def cut(self) -> bool:
        return self.shared is not None

    @property
    def widest(self) -> int:
        """The most that one rank holds."""
        return self.shared.widest if self.shared else self.length

    @property
    def rest(self) -> int:
        """What is stored beyond the widest rank's elements."""
        return self.padded - self.front - self.widest

    def held(self, ranks: int) -> int:
        """How many of `ranks` tensor-parallel ranks hold each element."""
        return self.shared.held if self.shared else ranks

    def all(self) -> tuple[tuple[int, int], ...]:
        """(start, length) of every rank, each once."""
        return self.shared.all() if self.shared else ((self.start, self.length),)


class Matrix(NamedTuple):
    """One matrix of the module on one rank. `n` has a stretch per part, `n_padded` is the extent of all, padded.

    Parts that are padded once, at the tail of all, are each stored as wide as the widest rank's.
    """

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


def with_defaults(module: Module, sizes: Sizes) -> dict[str, int | tuple[int, ...]]:
    """Sizes of all axes: an axis without one has that of another, where the module says so."""
    found = dict(sizes)
    for axis, other in module.default.items():
        if axis not in found and other in found:
            found[axis] = found[other]
    return found


def is_tight(module: Module, params: Scope) -> bool:
    """Whether one matrix may be padded less along an inner axis than the next one reads."""
    return module.tight is not None and bool(evaluated(module.tight, params, f"`tight` of `{module.name}`"))


def held_matrices(module: Module, params: Scope, only: Sequence[str] = ()) -> dict[str, model.Matrix]:
    """The matrices that the module has with these parameters, or `only` some of them."""
    found = {
        name: matrix
        for name, matrix in module.matrices.items()
        if matrix.when is None or evaluated(matrix.when, params, f"`when` of `{name}`")
    }
    for name in only:
        if name not in found:
            raise LayoutError(
                f"module `{module.name}` has no matrix `{name}`",
                code="LP113",
                name="unknown-matrix",
                help=did_you_mean(name, found) or f"its matrices: {', '.join(found)}",
            )
    return {name: matrix for name, matrix in found.items() if not only or name in only}


def part_names(names: Template, params: Scope) -> tuple[str, ...]:
    """The parts that a module's parameters name."""
    text = filled(names, params, "`parts`")
    try:
        return parse_names(text)
    except GrammarError as error:
        raise LayoutError(f"`parts`: {error.message}", code="LD104", name="bad-expression", help=error.help) from None


def matrices(
    module: Module,
    params: Scope,
    sizes: Sizes,
    ranks: Ranks,
    grains: Grains | None = None,
    *,
    only: Sequence[str] = (),
    places: int = 0,
) -> tuple[Matrix, ...]:
    """The module's matrices on one rank, not yet padded. places: how many ranks share for experts, where some experts
    have several."""
    key = tuple(params.items()), tuple(sizes.items()), ranks, tuple((grains or {}).items()), tuple(only), places
    return once("matrices", module, key, lambda: _matrices(module, params, sizes, ranks, grains or {}, only, places))


def _matrices(
    module: Module, params: Scope, sizes: Sizes, ranks: Ranks, grains: Grains, only: Sequence[str], places: int
) -> tuple[Matrix, ...]:
    sizes = with_defaults(module, sizes)
    _check_ranks(ranks)
    cut_by = {kind: filled(template, params, f"`ranks` of `{module.name}`") for kind, template in module.ranks.items()}
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
    held = held_matrices(module, params, only)
    if not held:
        stated = ", ".join(f"`{name}={str(value).lower()}`" for name, value in params.items())
        raise LayoutError(
            f"module `{module.name}` has no matrix" + (f" with {stated}" if stated else ""),
            code="LP113",
            name="unknown-matrix",
            help="the condition `when` of one matrix must hold, or one must have none",
        )
    resolver = _Resolver(module, params, sizes, ranks, grains, cut_by.get("tp", "none"), held)
    experts = _experts(module, sizes, ranks, places)
    return tuple(resolver.matrix(name, matrix, experts) for name, matrix in held.items())


def _experts(module: Module, sizes: Sizes, ranks: Ranks, places: int) -> tuple[int, int, int] | None:
    if not module.experts:
        return None
    total = _whole(module.experts, sizes)
    count = places or total
    if count < ranks.ep:
        raise LayoutError(
            f"axis `{module.experts}` has {count} {'places for experts' if places else 'experts'}, too few for "
            f"{ranks.ep} expert-parallel ranks",
            code="LP120",
            name="uneven-cut",
            help=f"{count} ranks can share them",
        )
    return (total, *dealt(count, ranks.ep, ranks.ep_rank, 1))


class _Resolver:
    """Cuts matrices for one rank."""

    def __init__(
        self,
        module: Module,
        params: Scope,
        sizes: Sizes,
        ranks: Ranks,
        grains: Grains,
        tp: str,
        held: Mapping[str, model.Matrix],
    ):
        self.module, self.params, self.sizes = module, params, sizes
        self.ranks, self.grains, self.tp = ranks, grains, tp
        absent = [matrix for name, matrix in module.matrices.items() if name not in held]
        self.seen = {*module.visible, *(axes[0] for matrix in absent for axes in _products(matrix))}

    def matrix(self, name: str, matrix: model.Matrix, experts: tuple[int, int, int] | None) -> Matrix:
        n = self._outputs(name, matrix)
        k = self._stretch(name, matrix.k, self._size(matrix.k))
        pad = matrix.pad if len(n) > 1 else "part"
        parts = self._parts(name, matrix)
        total = sum(stretch.padded for stretch in n)
        return Matrix(name, parts, n, k, pad, total, experts, not k.cut or self.ranks.rank == 0)

    def _parts(self, name: str, matrix: model.Matrix) -> tuple[str, ...]:
        if isinstance(matrix.n, dict):
            return tuple(matrix.n)
        if isinstance(matrix.parts, Template):
            return part_names(matrix.parts, self.params)
        return tuple(matrix.parts)

    def _outputs(self, name: str, matrix: model.Matrix) -> tuple[Stretch, ...]:
        if isinstance(matrix.n, dict):
            return tuple(self._stretch(name, axes, self._size(axes), part) for part, axes in matrix.n.items())
        parts = self._parts(name, matrix)
        widths = self.sizes[matrix.n[0]] if len(matrix.n) == 1 else self._size(matrix.n)
        if isinstance(widths, tuple) and len(widths) != max(len(parts), 1):
            has = f"{len(parts)} parts ({', '.join(parts)})" if parts else "one part"
            raise LayoutError(
                f"size `{matrix.n[0]}` has {len(widths)} widths, `{name}` has {has}",
                code="LP111",
                name="sizes",
                help=f"state one width per part, as in {matrix.n[0]}=" + ",".join(["64"] * max(len(parts), 1)),
            )
        if isinstance(widths, int) and matrix.pad == "tail" and len(parts) > 1:
            raise LayoutError(
                f"size `{matrix.n[0]}` is one number, but the parts of `{name}` ({', '.join(parts)}) may differ in "
                "width",
                code="LP111",
                name="sizes",
                help=f"state one width per part, as in {matrix.n[0]}=" + ",".join([str(widths)] * len(parts)),
            )
        if isinstance(widths, int):
            widths = (widths,) * max(len(parts), 1)
        return tuple(self._stretch(name, matrix.n, width, part) for width, part in zip(widths, parts or ("",)))

    def _size(self, axes: Sequence[str]) -> int:
        size = math.prod(_whole(axis, self.sizes) for axis in axes)
        if size > MAX_EXTENT:
            raise LayoutError(
                f"the product of the axes {', '.join(f'`{axis}`' for axis in axes[:8])} is beyond {MAX_EXTENT}",
                code="LP111",
                name="sizes",
                help="give smaller sizes",
            )
        return size

    def _stretch(self, name: str, axes: Sequence[str], size: int, part: str = "") -> Stretch:
        axis, seen = axes[0], axes[0] in self.seen
        cut = self._cut(axes, size)
        if cut is None:
            return Stretch(axis, size, 0, size, size, seen=seen)
        if not cut.grain and not cut.groups and size % cut.ranks:
            raise _uneven(f"{name}.{part}" if part else name, axis, size, cut.ranks)
        start, length = cut.share(self.ranks.rank)
        return Stretch(axis, size, start, length, length, seen=seen, shared=cut)

    def _cut(self, axes: Sequence[str], size: int) -> Cut | None:
        """How ranks share an axis: what is counted in things that stay whole is dealt, one thing at a time."""
        axis, count = axes[0], self.ranks.tp
        serving, served = next(((a, b) for a, b in self.module.serves.items() if axis in (a, b)), ("", ""))
        if count == 1 or self.tp not in (axis, served):
            return None
        each = math.prod(_whole(other, self.sizes) for other in axes[1:])
        grain = self.grains.get(axis, 1 if len(axes) > 1 else 0) * each
        if not serving:
            return Cut(count, size, grain)
        groups, things = _whole(serving, self.sizes), _whole(served, self.sizes)
        if things % groups:
            raise LayoutError(
                f"`{self.module.name}` has {things} {self.module.axes[served]} for {groups} "
                f"{self.module.axes[serving]}, which do not serve equally many",
                code="LP112",
                name="groups",
                help=f"`{served}` must be a multiple of `{serving}`",
            )
        return Cut(count, size, grain or each, groups, things // groups, copied=axis == serving)


def _products(matrix: model.Matrix) -> Iterator[Sequence[str]]:
    yield from matrix.n.values() if isinstance(matrix.n, dict) else [matrix.n]
    yield matrix.k


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
                help=f"write --size {axis}={size[0] if size else '...'}",
            )
        return size[0]
    return size


def _uneven(matrix: str, axis: str, size: int, count: int) -> LayoutError:
    low = [divisor for divisor in range(1, math.isqrt(size) + 1) if size % divisor == 0]
    fits = max(divisor for divisor in (*low, *(size // other for other in low)) if divisor <= count)
    return LayoutError(
        f"`{matrix}`: axis `{axis}` has {size} elements, which {count} tensor-parallel ranks do not divide evenly",
        code="LP120",
        name="uneven-cut",
        help=f"{fits} ranks divide it",
    )


def with_extents(matrix: Matrix, known: Mapping[tuple[str, str, str], Any]) -> Matrix:
    """A matrix with the padded extents that a plan records: (matrix, role, part) -> Extent."""
    parts = matrix.parts or ("",)
    n = tuple(s._replace(padded=known[matrix.name, "n", part].padded) for s, part in zip(matrix.n, parts))
    k = matrix.k._replace(padded=known[matrix.name, "k", ""].padded, front=known[matrix.name, "k", ""].front)
    total = known[matrix.name, "n", "*"].padded if matrix.pad == "tail" else sum(s.padded for s in n)
    return matrix._replace(n=n, k=k, n_padded=total)
