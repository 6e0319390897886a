"""A spec plus numbers: parameters, ranks, and where each tensor's elements stand.

This is the only stage that sees sizes from outside. It turns a module and its sizes into stretches (what one rank holds
of each axis) and matrices, and a format's tensors into chains over those matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layoutdsl.codes import CODE_OF_DTYPE, DTYPE_BITS, Code, code_named
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.grammar import Expr, GrammarError, Template, parse_names
from layoutdsl.layout import Chain, View
from layoutdsl.model import Format, Kernel, Module, Param, ParamValue, Spec, Tensor, Tile

MAX_EXTENT = 1 << 40
"""Largest extent of an axis; products of two stay far below what JSON and 64 bits hold."""

Scope = dict[str, ParamValue]


# --- parameters -------------------------------------------------------------------------------------------------------


def bind(spec: Spec, given: Mapping[str, ParamValue], inherited: Mapping[str, ParamValue] | None = None) -> Scope:
    """Values of all parameters of a spec: given, else inherited where allowed, else the default.

    A format also has the parameter `parts` (how fused parts are stored).
    """
    params = dict(spec.params)
    if isinstance(spec, Format):
        params["parts"] = Param(values=spec.parts.stored)
    for name in given:
        if name not in params:
            raise LayoutError(
                f"`{spec.name}` has no parameter `{name}`", code="LP101", name="unknown-parameter",
                help=did_you_mean(name, params) or f"its parameters: {', '.join(params) or 'none'}",
            )
    bound: Scope = {}
    for name, param in params.items():
        if name in given:
            bound[name] = _checked(spec.name, name, param, given[name])
        elif inherited and name in inherited and name != "parts":
            bound[name] = _inherited(spec.name, name, param, inherited[name])
        else:
            bound[name] = _default(param)
    return bound


def _inherited(spec: str, name: str, param: Param, value: ParamValue) -> ParamValue:
    try:
        return _checked(spec, name, param, value)
    except LayoutError as error:
        raise LayoutError(
            error.message + ", which the source has", code="LP102", name="parameter-value",
            help=f"{error.help}; `target.{name}=...` sets it for the target alone",
        ) from None


def _default(param: Param) -> ParamValue:
    if param.default is not None:
        return param.default
    if param.values:
        return param.values[0]
    return {"bool": False, "int": 0, "group": -1, "names": ""}.get(param.type, "")


def _checked(spec: str, name: str, param: Param, value: ParamValue) -> ParamValue:
    if param.type == "bool" and isinstance(value, bool):
        return value
    if param.type in ("int", "group") and isinstance(value, int) and not isinstance(value, bool):
        if 0 < value <= MAX_EXTENT or (param.type == "group" and value == -1):
            if not param.values or value in param.values:
                return value
    if param.type == "values" and any(value == allowed and type(value) is type(allowed) for allowed in param.values):
        return value
    if param.type == "names" and isinstance(value, str):
        try:
            parse_names(value)
            return value
        except GrammarError:
            pass
    allowed = ", ".join(str(allowed).lower() if isinstance(allowed, bool) else str(allowed) for allowed in param.values)
    expected = allowed or {"bool": "true or false", "int": "a positive number", "names": "names apart by commas"}.get(
        param.type, "a positive number, or -1 for one group over the whole axis"
    )
    shown = str(value).lower() if isinstance(value, bool) else value
    raise LayoutError(
        f"parameter `{name}` of `{spec}` cannot be {shown}", code="LP102", name="parameter-value",
        help=f"expected {expected}",
    )


# --- stretches and matrices -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranks:
    """Which slice of the module: tensor-parallel and expert-parallel counts and this rank's places in them."""

    tp: int = 1
    rank: int = 0
    ep: int = 1
    ep_rank: int = 0


@dataclass(frozen=True)
class Stretch:
    """What one rank holds of one axis (or of one part's axis): [start, start + length) of `size`, stored as `padded`."""

    axis: str
    size: int
    start: int
    length: int
    padded: int
    cut: bool = False


@dataclass(frozen=True)
class Matrix:
    """One matrix of the module on one rank. `n` has a stretch per part; `n_padded` is the padded extent of all parts."""

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


Sizes = Mapping[str, "int | tuple[int, ...]"]


def matrices(module: Module, params: Scope, sizes: Sizes, ranks: Ranks) -> tuple[Matrix, ...]:
    """The module's matrices on one rank, cut evenly, not yet padded."""
    _check_ranks(ranks)
    cut_by = {kind: template.fill(params) for kind, template in module.ranks.items()}
    for kind, axis in cut_by.items():
        if axis != "none" and axis not in module.axes:
            raise LayoutError(f"`{module.name}` lets {kind} ranks cut `{axis}`, which is none of its axes",
                              code="LD103", name="unknown-axis", help=did_you_mean(axis, module.axes))
    _check_sizes(module, sizes)
    if ranks.ep > 1 and "ep" not in cut_by:
        raise LayoutError(f"module `{module.name}` has no experts for {ranks.ep} expert-parallel ranks to share",
                          code="LP110", name="ranks", help="leave out --ep")
    experts = None
    if module.experts:
        cut = _cut(module.experts, _whole(module.experts, sizes), ranks.ep, ranks.ep_rank, "expert-parallel")
        experts = (cut.size, cut.start, cut.length)
    found: list[Matrix] = []
    for name, matrix in module.matrices.items():
        parts = matrix.parts
        if isinstance(parts, Template):
            parts = parse_names(parts.fill(params))
        widths = sizes[matrix.n]
        if isinstance(widths, tuple) and len(widths) != max(len(parts), 1):
            raise LayoutError(
                f"size `{matrix.n}` has {len(widths)} widths, `{name}` has {len(parts)} parts ({', '.join(parts)})",
                code="LP111", name="sizes", help=f"state one width per part, as in {matrix.n}=" + ",".join(["64"] * len(parts)),
            )
        if isinstance(widths, int):
            widths = (widths,) * max(len(parts), 1)
        tp = {axis: ranks.tp for kind, axis in cut_by.items() if kind == "tp"}
        n = tuple(
            _cut(matrix.n, width, tp.get(matrix.n, 1), ranks.rank, "tensor-parallel", part)
            for width, part in zip(widths, parts or ("",))
        )
        k = _cut(matrix.k, _whole(matrix.k, sizes), tp.get(matrix.k, 1), ranks.rank, "tensor-parallel")
        found.append(Matrix(
            name, tuple(parts), n, k, matrix.pad, sum(s.length for s in n), experts, not k.cut or ranks.rank == 0,
        ))
    return tuple(found)


def _check_ranks(ranks: Ranks) -> None:
    for count, rank, what in ((ranks.tp, ranks.rank, "tp"), (ranks.ep, ranks.ep_rank, "ep")):
        if count < 1 or not 0 <= rank < count:
            raise LayoutError(f"rank {rank} of {count} {what} ranks does not exist", code="LP110", name="ranks",
                              help=f"ranks count from 0 to {max(count, 1) - 1}")


def _check_sizes(module: Module, sizes: Sizes) -> None:
    for axis in sizes:
        if axis not in module.axes:
            raise LayoutError(f"module `{module.name}` has no axis `{axis}`", code="LP111", name="sizes",
                              help=did_you_mean(axis, module.axes) or f"its axes: {', '.join(module.axes)}")
    for axis, what in module.axes.items():
        if axis not in sizes:
            raise LayoutError(f"module `{module.name}` needs the size of axis `{axis}` ({what})", code="LP111",
                              name="sizes", help=f"add --size {axis}=...")
        values = sizes[axis]
        for value in values if isinstance(values, tuple) else (values,):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_EXTENT:
                raise LayoutError(f"size `{axis}` of module `{module.name}` cannot be {value}", code="LP111",
                                  name="sizes", help=f"expected a whole number from 1 to {MAX_EXTENT}")


def _whole(axis: str, sizes: Sizes) -> int:
    size = sizes[axis]
    if isinstance(size, tuple):
        if len(size) != 1:
            raise LayoutError(f"axis `{axis}` has one size, {len(size)} were given", code="LP111", name="sizes",
                              help=f"write --size {axis}={size[0]}")
        return size[0]
    return size


def _cut(axis: str, size: int, count: int, rank: int, kind: str, part: str = "") -> Stretch:
    if size % count:
        of = f" of part `{part}`" if part else ""
        fits = [c for c in range(count, 0, -1) if size % c == 0][0]
        raise LayoutError(
            f"axis `{axis}`{of} has {size} elements, which {count} {kind} ranks do not divide evenly",
            code="LP120", name="uneven-cut", help=f"{fits} ranks divide it",
        )
    length = size // count
    return Stretch(axis, size, rank * length if count > 1 else 0, length, length, count > 1)


# --- tensors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """One file tensor with numbers: where each element of the parts it holds stands.

    `n` and `k` hold a view per part (addresses in codes, inside one expert); `n_gaps` and `k_gaps` are the stretches of
    stored elements that hold no logical one: (view, first coordinate, count). `codes` counts the codes of one expert.
    """

    name: str
    role: str
    code: Code
    dtypes: tuple[str, ...]
    plus: int
    scaled: int
    reciprocal: bool
    derive: str | None
    parts: tuple[int, ...]
    n: tuple[View, ...]
    k: tuple[View, ...]
    n_gaps: tuple[tuple[View, int, int], ...]
    k_gap: tuple[int, int]
    k_unit: int | None
    codes: int
    shape: tuple[int, ...]
    experts: str

    def view(self, part: int) -> tuple[View, View]:
        at = self.parts.index(part)
        return self.n[at], self.k[at]


@dataclass(frozen=True)
class Side:
    """A format with bound parameters, and how its tensors hold the rank's slice.

    mode: whole (the full tensors of all ranks), local (this rank's slice), padded (this rank's, as a kernel wants it).
    """

    format: Format
    params: Scope
    mode: str

    def order(self, matrix: Matrix) -> tuple[int, ...]:
        """The module's parts in the order in which this format stores them."""
        if len(matrix.parts) < 2:
            return tuple(range(max(len(matrix.parts), 1)))
        for names in self.format.parts.orders:
            if set(matrix.parts) <= set(names):
                return tuple(sorted(range(len(matrix.parts)), key=lambda part: names.index(matrix.parts[part])))
        raise LayoutError(
            f"`{self.format.name}` does not say in which order the parts {', '.join(matrix.parts)} stand",
            code="LD404", name="part-order-unstated", help="add that order to `parts.orders` of the spec",
        )

    def scope(self, matrix: Matrix, group: int | None = None) -> dict[str, ParamValue]:
        """Names that a condition may use: the parameters, n, k and the number of groups of this very matrix."""
        n = matrix.n_padded if self.mode == "padded" else matrix.n_size if self.mode == "whole" else matrix.n_length
        k = {"padded": matrix.k.padded, "whole": matrix.k.size, "local": matrix.k.length}[self.mode]
        scope: dict[str, ParamValue] = dict(self.params)
        size = group if group is not None else int(scope.get("group", -1) or -1)
        scope.update(n=n, k=k, group=max(size, 0), groups=-(-k // size) if size > 0 else 1)
        return scope


_KNOWN: dict[tuple, tuple[Format, tuple[Stored, ...]]] = {}
_PADDED: dict[tuple, tuple[Kernel, tuple[Matrix, ...]]] = {}
_MOST_KNOWN = 4096


def forget() -> None:
    """Empty the memory of resolved tensors and paddings."""
    _KNOWN.clear()
    _PADDED.clear()


def tensors(side: Side, matrix: Matrix, group: int | None = None) -> tuple[Stored, ...]:
    """All file tensors of one matrix on one side. `group` overrides the parameter of that name (0: one group)."""
    key = (id(side.format), tuple(side.params.items()), side.mode, matrix, group)
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            forget()
        # The format is kept beside the result, so that its id cannot come to mean another one.
        _KNOWN[key] = side.format, _tensors(side, matrix, group)
    return _KNOWN[key][1]


def _tensors(side: Side, matrix: Matrix, group: int | None) -> tuple[Stored, ...]:
    scope = side.scope(matrix, group)
    order = side.order(matrix)
    apart = side.params["parts"] == "apart" and len(matrix.parts) > 1
    holdings = [(part,) for part in order] if apart else [order]
    found: list[Stored] = []
    for key, tensor in side.format.tensors.items():
        if tensor.when is not None and not _evaluate(tensor.when, scope, key):
            continue
        fields = _with_case(tensor, key, scope)
        for parts in holdings:
            found.append(_lay_out(side, matrix, key, fields, parts, scope, apart))
    return tuple(found)


def _evaluate(expr: Expr, scope: Mapping[str, ParamValue], where: str) -> int | str:
    try:
        return expr.evaluate(scope)
    except GrammarError as error:
        raise LayoutError(f"tensor `{where}`: {error.message}", code="LD104", name="bad-expression", help=error.help) from None


def _number(expr: Expr | None, scope: Mapping[str, ParamValue], where: str) -> int:
    if expr is None:
        return 0
    value = _evaluate(expr, scope, where)
    if isinstance(value, str):
        raise LayoutError(f"tensor `{where}`: `{value}` is a word, a number is needed", code="LD104", name="bad-expression")
    return value


def _fill(template: Template, scope: Mapping[str, ParamValue], where: str) -> str:
    try:
        return template.fill(scope)
    except GrammarError as error:
        raise LayoutError(f"tensor `{where}`: {error.message}", code="LD104", name="bad-expression", help=error.help) from None


def _with_case(tensor: Tensor, key: str, scope: Mapping[str, ParamValue]) -> Tensor:
    for case in tensor.cases:
        if _evaluate(case.when, scope, key):
            changes = {name: value for name, value in case if name != "when" and value is not None}
            return tensor.model_copy(update=changes)
    return tensor


@dataclass(frozen=True)
class _Axis:
    """An axis of one tensor with numbers: (digit name, weight, extent), least significant first."""

    digits: tuple[tuple[str, int, int], ...]

    @property
    def stored(self) -> int:
        """The extent with the last group, word or block whole."""
        return self.digits[-1][1] * self.digits[-1][2]

    def unit(self, shared: set[str]) -> int | None:
        """How many neighbours share one stored element; None: the whole axis."""
        unit = 1
        for name, _, extent in self.digits:
            if name not in shared:
                return unit
            unit *= extent
        return None


_Split = tuple[tuple[str, int], ...]
"""(digit name, size) of one axis, least significant first; size 0 takes all that is left."""


def _split(tensor: Tensor, axis: str, scope: Mapping[str, ParamValue], key: str) -> _Split:
    split = next((split for split in tensor.split or () if split.axis == axis), None)
    if split is None:
        return ((axis, 0),)
    digits: list[tuple[str, int]] = []
    for digit in reversed(split.digits[1:]):
        size = _number(digit.size, scope, key)
        if size < 0 or size > MAX_EXTENT:
            raise LayoutError(f"digit `{digit.name}` of tensor `{key}` has the size {size}", code="LD105", name="digit-size")
        digits.append((digit.name, size))
    return (*digits, (split.digits[0].name, 0))


def _axis(split: _Split, extent: int) -> _Axis:
    digits: list[tuple[str, int, int]] = []
    weight = 1
    for name, size in split:
        # Size 0 is the top digit, or one group: it takes all that is left and the digits above it vanish.
        size = size or max(-(-extent // weight), 1)
        digits.append((name, weight, size))
        weight *= size
    return _Axis(tuple(digits))


def _lay_out(
    side: Side, matrix: Matrix, key: str, tensor: Tensor, parts: tuple[int, ...], scope: Mapping[str, ParamValue], apart: bool
) -> Stored:
    code, dtypes = _code(tensor, scope, key)
    name = ".".join([matrix.name, *([matrix.parts[parts[0]]] if apart else []), tensor.name or key])
    shared = {item.name for item in tensor.order if item.role == "shared"}
    by_part = any(item.name == "p" for item in tensor.order)
    n_split, k_split = (_split(tensor, axis, scope, key) for axis in ("n", "k"))
    spread = _spread(side, matrix, _axis(n_split, 1).unit(shared), parts, by_part)
    k_offset, k_extent = _span(side, matrix.k, _axis(k_split, 1).unit(shared))
    k = _axis(k_split, k_extent)
    axes = [_axis(n_split, extent) for extent in spread.extents]
    chains: list[tuple[Chain, Chain, int]] = []
    codes, dims = 0, (1,)
    for n in axes:
        n_chain, k_chain, count, dims = _chains(tensor, n, k, key, code, dtypes)
        chains.append((n_chain, k_chain, codes))
        codes += count
    if by_part and len({chain[1] for chain in chains}) > 1:
        raise LayoutError(f"tensor `{key}` stores parts of unequal widths, so `p` must stand first in its order",
                          code="LD403", name="part-digit-inside")
    at = [chains[position if len(chains) > 1 else 0] for position in range(len(parts))]
    views = tuple(View(n_chain, offset, spread.step, base) for (n_chain, _, base), offset in zip(at, spread.offsets))
    unit = k.unit(shared)
    first = k.stored if unit is None else min(-(-(k_offset + matrix.k.length) // unit) * unit, k.stored)
    gaps = tuple(
        (View(at[position][0], 0, 1, at[position][2]), low, high - low)
        for position, low, high in spread.gaps(axes[0].unit(shared), [axis.stored for axis in axes]) if high > low
    )
    shape = _shape(tensor, dims, codes, code, dtypes, scope, key, by_part, len(parts))
    experts = "none" if matrix.experts is None else "shared" if "e" in shared else "each"
    return Stored(
        name, tensor.role, code, dtypes, _number(tensor.plus, scope, key), _number(tensor.scaled, scope, key),
        bool(tensor.reciprocal), tensor.derive, parts, views, tuple(View(chains[0][1], k_offset) for _ in parts), gaps,
        (first, k.stored - first), unit, codes if tensor.role != "weight_shape" else math.prod(shape), shape, experts,
    )


@dataclass(frozen=True)
class _Spread:
    """How the parts of one tensor lie along n: an offset per part and a common step, and the extents of its chains."""

    extents: tuple[int, ...]
    offsets: tuple[int, ...]
    step: int
    lengths: tuple[int, ...]

    def gaps(self, unit: int | None, stored: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(chain, first, end) of stored coordinates that belong to no part."""
        if unit is None:
            return
        ends = [offset + length for offset, length in zip(self.offsets, self.lengths)]
        borders = [*self.offsets[1:], stored[0]]
        if len(self.extents) > 1:
            borders = list(stored)
        elif self.step > 1:
            ends, borders = [sum(self.lengths)], [stored[0]]
        for at, (end, border) in enumerate(zip(ends, borders)):
            yield at if len(self.extents) > 1 else 0, min(-(-end // unit) * unit, border), border


def _spread(side: Side, matrix: Matrix, unit: int | None, parts: tuple[int, ...], by_part: bool) -> _Spread:
    stretches = [matrix.n[part] for part in parts]
    spans = [_span(side, stretch, unit) for stretch in stretches]
    lengths = tuple(stretch.length for stretch in stretches)
    alternating = side.params["parts"] == "alternating" and len(parts) > 1
    if by_part and len(parts) > 1:
        return _Spread(tuple(extent for _, extent in spans), tuple(offset for offset, _ in spans), 1, lengths)
    if len(parts) == 1:
        offset, extent = spans[0]
        if side.mode == "padded" and matrix.pad == "tail":
            extent = matrix.n_padded
        return _Spread((extent,), (offset,), 1, lengths)
    widths = [extent for _, extent in spans]
    if alternating:
        if len(set(widths)) > 1:
            raise LayoutError(f"parts of unequal widths {widths} cannot alternate in `{matrix.name}`", code="LP121",
                              name="unequal-parts", help="use parts=stacked or parts=apart")
        start = spans[0][0] * len(parts)
        return _Spread((sum(widths),), tuple(start + at for at in range(len(parts))), len(parts), lengths)
    if side.mode == "padded" and matrix.pad == "tail":
        widths = list(lengths)
    offsets, at = [], 0
    for (offset, _), width in zip(spans, widths):
        offsets.append(at + offset)
        at += width
    total = matrix.n_padded if side.mode == "padded" and matrix.pad == "tail" else at
    return _Spread((total,), tuple(offsets), 1, lengths)


def _span(side: Side, stretch: Stretch, unit: int | None) -> tuple[int, int]:
    """(coordinate of the rank's first element, extent) of an axis as one side stores it.

    A rank's own slice keeps its place inside a shared digit: half a group still has that group's one scale.
    """
    if side.mode == "whole":
        return stretch.start, stretch.size
    if side.mode == "padded":
        return 0, stretch.padded
    phase = stretch.start % unit if unit else 0
    return phase, phase + stretch.length


def _chains(
    tensor: Tensor, n: _Axis, k: _Axis, key: str, code: Code, dtypes: tuple[str, ...]
) -> tuple[Chain, Chain, int, tuple[int, ...]]:
    known = {name: ("n", weight, extent) for name, weight, extent in n.digits}
    known.update({name: ("k", weight, extent) for name, weight, extent in k.digits})
    strides: dict[str, int] = {}
    stride, word, dims = 1, 1, {}
    for item in reversed(tensor.order):
        if item.name in ("p", "e") or item.role == "one":
            if item.role != "shared":
                dims.setdefault(item.dim, 1)
            continue
        if item.name not in known:
            raise LayoutError(f"order of tensor `{key}` has `{item.name}`, which is no digit and no axis",
                              code="LD102", name="unknown-digit", help=did_you_mean(item.name, known))
        if item.role == "shared":
            strides[item.name] = 0
            continue
        extent = known[item.name][2]
        strides[item.name] = stride
        stride *= extent
        if item.role == "packed":
            word *= extent
        dims[item.dim] = dims.get(item.dim, 1) * (extent if item.role == "stored" else 1)
    missing = [name for name in known if name not in strides]
    if missing:
        raise LayoutError(f"order of tensor `{key}` leaves out `{missing[0]}`", code="LD101", name="digit-missing",
                          help=f"store it, or write ({missing[0]}) where its elements share one stored value")
    if tensor.role != "weight_shape" and word * code.bits != DTYPE_BITS[dtypes[0]]:
        raise LayoutError(
            f"tensor `{key}` packs {word} codes of {code.bits} bits in a {dtypes[0]} of {DTYPE_BITS[dtypes[0]]} bits",
            code="LD302", name="word-width", help="let the digits in braces fill the word",
        )
    chains = tuple(
        Chain(tuple((w, x if at + 1 < len(axis.digits) else 0, strides[d]) for at, (d, w, x) in enumerate(axis.digits)))
        for axis in (n, k)
    )
    return chains[0], chains[1], stride, tuple(dims[dim] for dim in sorted(dims))


def _code(tensor: Tensor, scope: Mapping[str, ParamValue], key: str) -> tuple[Code, tuple[str, ...]]:
    declared = tensor.dtype if isinstance(tensor.dtype, tuple) else (tensor.dtype,)
    dtypes = tuple(_fill(dtype, scope, key) for dtype in declared)
    for dtype in dtypes:
        if dtype not in DTYPE_BITS:
            raise LayoutError(f"tensor `{key}` has the unknown dtype `{dtype}`", code="LD311", name="unknown-dtype",
                              help=did_you_mean(dtype, DTYPE_BITS) or f"dtypes: {', '.join(DTYPE_BITS)}")
        if DTYPE_BITS[dtype] != DTYPE_BITS[dtypes[0]] and tensor.role != "weight_shape":
            raise LayoutError(f"tensor `{key}` has dtypes of different widths: {', '.join(dtypes)}", code="LD311", name="unknown-dtype")
    if tensor.code is not None:
        return code_named(_fill(tensor.code, scope, key)), dtypes
    if dtypes[0] not in CODE_OF_DTYPE:
        raise LayoutError(f"tensor `{key}` of dtype {dtypes[0]} states no code", code="LD310", name="unknown-code",
                          help="add `code:`, such as u4b8 or e8m0")
    return code_named(CODE_OF_DTYPE[dtypes[0]]), dtypes


def _shape(
    tensor: Tensor, dims: Sequence[int], codes: int, code: Code, dtypes: tuple[str, ...],
    scope: Mapping[str, ParamValue], key: str, by_part: bool, parts: int,
) -> tuple[int, ...]:
    elements = codes * code.bits // DTYPE_BITS[dtypes[0]]
    if tensor.shape is not None:
        shape = tuple(_number(dim, scope, key) for dim in tensor.shape)
        if tensor.role != "weight_shape" and math.prod(shape) != elements:
            raise LayoutError(f"tensor `{key}` reports the shape {list(shape)} for {elements} elements", code="LD303", name="shape")
        return shape
    shape = list(dims)
    if by_part and parts > 1:
        rest = math.prod(shape[1:])
        shape[0] = elements // rest
    return tuple(shape)


# --- padding ----------------------------------------------------------------------------------------------------------


def pad(kernel: Kernel, params: Scope, found: Sequence[Matrix], groups: Sequence[int]) -> tuple[Matrix, ...]:
    """The matrices padded to the kernel's tiles: of all choices of a tile family per matrix, the fewest stored bytes."""
    key = (id(kernel), tuple(params.items()), tuple(found), tuple(groups))
    if key not in _PADDED:
        if len(_PADDED) >= _MOST_KNOWN:
            forget()
        _PADDED[key] = kernel, _cheapest(kernel, params, found, groups)
    return _PADDED[key][1]


def _cheapest(kernel: Kernel, params: Scope, found: Sequence[Matrix], groups: Sequence[int]) -> tuple[Matrix, ...]:
    choices: dict[tuple[int, ...], tuple[Mapping[str, int], tuple[Tile, ...]]] = {}
    for tiles in _product([kernel.accepts.tiles] * len(found)):
        multiples: dict[str, int] = {}
        for matrix, tile, group in zip(found, tiles, groups):
            multiples[matrix.k.axis] = math.lcm(multiples.get(matrix.k.axis, 1), tile.k, max(group, 1))
            if matrix.pad == "part":
                share = tile.n // math.gcd(tile.n, len(matrix.n))
                multiples[matrix.n[0].axis] = math.lcm(multiples.get(matrix.n[0].axis, 1), share)
        extents = tuple(e for matrix, tile in zip(found, tiles) for e in _padded_extents(matrix, multiples, tile.n))
        choices.setdefault(extents, (multiples, tiles))
    # A choice that another one undercuts or equals in every extent cannot store less.
    least = [e for e in choices if not any(o != e and all(map(int.__le__, o, e)) for o in choices)]
    made = [tuple(padded_to(m, choices[e][0], tile.n) for m, tile in zip(found, choices[e][1])) for e in least]
    if len(made) == 1:
        return made[0]
    known: dict[tuple[Matrix, int], int] = {}

    def cost(padded: tuple[Matrix, ...]) -> tuple[int, int]:
        for key in zip(padded, groups):
            if key not in known:
                known[key] = stored_bytes(kernel, params, *key)
        return sum(known[key] for key in zip(padded, groups)), sum(matrix.n_padded + matrix.k.padded for matrix in padded)

    return min(made, key=cost)


def _padded_extents(matrix: Matrix, multiples: Mapping[str, int], n_tile: int) -> tuple[int, ...]:
    k = _up(matrix.k.length, multiples[matrix.k.axis])
    if matrix.pad == "tail":
        return k, _up(matrix.n_length, n_tile)
    return k, *(_up(s.length, multiples[s.axis]) for s in matrix.n)


def _product(choices: Sequence[Sequence]) -> Iterator[tuple]:
    if not choices:
        yield ()
        return
    for first in choices[0]:
        for rest in _product(choices[1:]):
            yield (first, *rest)


def padded_to(matrix: Matrix, multiples: Mapping[str, int], n_tile: int) -> Matrix:
    k = replace(matrix.k, padded=_up(matrix.k.length, multiples.get(matrix.k.axis, 1)))
    if matrix.pad == "tail":
        return replace(matrix, k=k, n_padded=_up(matrix.n_length, n_tile))
    n = tuple(replace(s, padded=_up(s.length, multiples.get(s.axis, 1))) for s in matrix.n)
    return replace(matrix, n=n, k=k, n_padded=sum(s.padded for s in n))


def with_extents(matrix: Matrix, known: Mapping[tuple[str, str, str], Any]) -> Matrix:
    """A matrix with the padded extents that a plan records: (matrix, role, part) -> Extent."""
    parts = matrix.parts or ("",)
    n = tuple(replace(s, padded=known[matrix.name, "n", part].padded) for s, part in zip(matrix.n, parts))
    k = replace(matrix.k, padded=known[matrix.name, "k", ""].padded)
    total = known[matrix.name, "n", "*"].padded if matrix.pad == "tail" and len(parts) > 1 else sum(s.padded for s in n)
    return replace(matrix, n=n, k=k, n_padded=total)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def stored_bytes(kernel: Kernel, params: Scope, matrix: Matrix, group: int) -> int:
    """Bytes of all tensors of one matrix as the kernel stores them, all experts of the rank together."""
    experts = matrix.experts[2] if matrix.experts else 1
    total = 0
    for tensor in tensors(Side(kernel, params, "padded"), matrix, group):
        total += tensor.codes * tensor.code.bits // 8 * (experts if tensor.experts == "each" else 1)
    return total


def group_of(kernel: Kernel, source: Side, matrix: Matrix, given: int | None) -> int:
    """The kernel's group along k of one matrix (0: one group): the one given, else the source's own.

    Raises LayoutError where the kernel does not take it, or a rank's groups would not lie inside the source's.
    """
    stored = int(source.params.get("group", -1))
    whole = stored < 0 or stored >= matrix.k.size
    inside = whole or (matrix.k.cut and stored % matrix.k.length == 0)
    accepted = kernel.accepts.groups
    group = given if given is not None else _own_group(accepted, stored, inside)
    taken(kernel, matrix, group)
    if inside:
        return max(group, 0)
    if group < 0 or stored % group:
        raise LayoutError(
            f"`{matrix.name}` has groups of {stored} along `{matrix.k.axis}`, which {'one group' if group < 0 else f'groups of {group}'} "
            f"of kernel `{kernel.name}` would join", code="LP124", name="groups-joined",
            help=f"the kernel's groups must divide {stored}; leave target.group out to keep them",
        )
    if matrix.k.start % group or (matrix.k.cut and matrix.k.length % group):
        raise _group_cut(matrix, group)
    return group


def taken(kernel: Kernel, matrix: Matrix, group: int) -> int:
    """The group, -1 as 0, if the kernel takes it; else LayoutError."""
    if group in kernel.accepts.groups:
        return max(group, 0)
    raise LayoutError(
        f"`{matrix.name}` has {'one group' if group < 0 else f'groups of {group}'} along `{matrix.k.axis}`, which kernel "
        f"`{kernel.name}` does not take", code="LP123", name="group-not-taken",
        help="it takes " + ", ".join("one group (-1)" if g == -1 else str(g) for g in kernel.accepts.groups),
    )


def _own_group(accepted: Sequence[int], stored: int, inside: bool) -> int:
    if inside and -1 in accepted:
        return -1
    return accepted[0] if inside and len(accepted) == 1 else stored


def _group_cut(matrix: Matrix, group: int) -> LayoutError:
    k = matrix.k
    fits = next(c for c in range(k.size // k.length, 0, -1) if k.size % c == 0 and (c == 1 or k.size // c % group == 0))
    return LayoutError(
        f"`{matrix.name}`: {k.size // k.length} tensor-parallel ranks cut axis `{k.axis}` of {k.size} elements through a "
        f"group of {group}: each holds {k.length}", code="LP122", name="group-cut",
        help=f"{fits} tensor-parallel rank{'s keep' if fits > 1 else ' keeps'} every group whole",
    )
