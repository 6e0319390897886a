"""Where each element of a format's tensors stands, for one matrix of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from layoutdsl.codes import CODE_OF_DTYPE, DTYPE_BITS, Code, code_named, meant
from layoutdsl.errors import LayoutError, Place, did_you_mean
from layoutdsl.grammar import Expr, Template
from layoutdsl.layout import Chain, View
from layoutdsl.model import Format, ParamValue, Tensor
from layoutdsl.resolve.matrices import Matrix, Stretch
from layoutdsl.resolve.memory import once
from layoutdsl.resolve.params import MAX_EXTENT, Scope, evaluated, filled


class Stored(NamedTuple):
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
    k_gaps: tuple[tuple[int, int], ...]
    k_end: int
    k_unit: int | None
    codes: int
    shape: tuple[int, ...]
    experts: str

    def view(self, part: int) -> tuple[View, View]:
        at = self.parts.index(part)
        return self.n[at], self.k[at]


class Side(NamedTuple):
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
            code="LD404",
            name="part-order-unstated",
            help="add that order to `parts.orders` of the spec",
            place=Place(("parts", "orders")),
        )

    def scope(self, matrix: Matrix, group: int | None = None) -> dict[str, ParamValue]:
        """Names that a condition may use: the parameters, n, k and the number of groups of this very matrix."""
        n = matrix.n_padded if self.mode == "padded" else matrix.n_size if self.mode == "whole" else matrix.n_length
        k = {"padded": matrix.k.padded, "whole": matrix.k.size, "local": matrix.k.length}[self.mode]
        scope: dict[str, ParamValue] = dict(self.params)
        size = group if group is not None else int(scope.get("group", -1) or -1)
        scope.update(n=n, k=k, group=max(size, 0), groups=-(-k // size) if size > 0 else 1)
        return scope


def tensors(side: Side, matrix: Matrix, group: int | None = None) -> tuple[Stored, ...]:
    """All file tensors of one matrix on one side. `group` overrides the parameter of that name (0: one group)."""
    key = tuple(side.params.items()), side.mode, matrix, group
    return once("tensors", side.format, key, lambda: _tensors(side, matrix, group))


def _is_whole(matrix: Matrix) -> bool:
    """Whether the rank holds all of it."""
    return all(stretch.length == stretch.size for stretch in (*matrix.n, matrix.k))


def _tensors(side: Side, matrix: Matrix, group: int | None) -> tuple[Stored, ...]:
    if side.mode == "whole" and _is_whole(matrix):  # as the only rank has it, but for what is stored beside it
        local = tensors(side._replace(mode="local"), matrix, group)
        return tuple(one._replace(k_gaps=()) if one.k_gaps else one for one in local)
    scope = side.scope(matrix, group)
    order = side.order(matrix)
    apart = side.params["parts"] == "apart" and len(matrix.parts) > 1
    holdings = [(part,) for part in order] if apart else [order]
    found: list[Stored] = []
    for key, fields in _held(side.format, scope):
        alike: dict[tuple[Stretch, ...], Stored] = {}
        for parts in holdings:
            held = tuple(matrix.n[part] for part in parts)
            name = ".".join([matrix.name, *([matrix.parts[parts[0]]] if apart else []), fields.name or key])
            if held in alike:
                found.append(alike[held]._replace(name=name, parts=parts))
                continue
            found.append(_lay_out(side, matrix, key, fields, parts, scope, name))
            alike[held] = found[-1]
    return tuple(found)


def _number(expr: Expr | None, scope: Mapping[str, ParamValue], where: str) -> int:
    if expr is None:
        return 0
    value = evaluated(expr, scope, f"tensor `{where}`")
    if isinstance(value, str):
        raise LayoutError(
            f"tensor `{where}`: `{value}` is a word, a number is needed", code="LD104", name="bad-expression"
        )
    if abs(value) > MAX_EXTENT:
        raise LayoutError(f"tensor `{where}`: {value} is beyond 2^40", code="LD104", name="bad-expression")
    return value


def _held(format: Format, scope: Scope) -> tuple[tuple[str, Tensor], ...]:
    """The tensors that a format has with these values, each with the case that counts."""
    conditions = (one for tensor in format.tensors.values() for one in tensor.conditions())
    asked = once("conditions", format, (), lambda: _names(conditions))
    values = tuple(map(scope.get, asked))
    return once("held", format, values, lambda: tuple(_chosen(format, scope)))


def _chosen(format: Format, scope: Scope) -> Iterator[tuple[str, Tensor]]:
    for key, tensor in format.tensors.items():
        where = f"tensor `{key}`"
        if tensor.when is None or evaluated(tensor.when, scope, where):
            case = next((at for at, case in enumerate(tensor.cases) if evaluated(case.when, scope, where)), None)
            yield key, tensor if case is None else once("case", tensor, (case,), partial(_laid_over, tensor, case))


def _laid_over(tensor: Tensor, case: int) -> Tensor:
    changes = {name: value for name, value in tensor.cases[case] if name != "when" and value is not None}
    return tensor.model_copy(update=changes)


def _names(expressions: Iterable[Expr | Template]) -> tuple[str, ...]:
    """The names whose values they ask for."""
    return tuple({name: None for one in expressions for name, _, _ in one.names()})


class _Axis(NamedTuple):
    """An axis of one tensor with numbers: (digit name, weight, extent), least significant first."""

    digits: tuple[tuple[str, int, int], ...]

    @property
    def stored(self) -> int:
        """The extent with the last group, word or block whole."""
        return self.digits[-1][1] * self.digits[-1][2]

    def unit(self, shared: frozenset[str]) -> int | None:
        """How many neighbours share one stored element; None: the whole axis."""
        return next((weight for name, weight, _ in self.digits if name not in shared), None)

    def chain(self, strides: Mapping[str, int]) -> Chain:
        """The axis in memory, given each digit's place; the top digit never wraps."""
        digits = [(weight, extent, strides[name]) for name, weight, extent in self.digits]
        weight, _, stride = digits[-1]
        digits[-1] = weight, 0, stride
        return Chain(tuple(digits))


_Split = tuple[tuple[str, int], ...]
"""(digit name, size) of one axis, least significant first; size 0 takes all that is left."""


def _split(tensor: Tensor, axis: str, scope: Mapping[str, ParamValue], key: str) -> _Split:
    split = next((split for split in tensor.split or () if split.axis == axis), None)
    if split is None:
        return ((axis, 0),)
    digits: list[tuple[str, int]] = []
    for digit in reversed(split.digits[1:]):
        size = _number(digit.size, scope, key)
        if size < 0 or size > MAX_EXTENT or (size == 0 and not _counts_groups(digit.size)):
            raise LayoutError(
                f"digit `{digit.name}` of tensor `{key}` has the size {size}",
                code="LD105",
                name="digit-size",
                help="a digit counts one element at least; only a group may be 0, which is one over the whole axis",
                place=Place(("tensors", key, "split"), (digit.start, digit.end)),
            )
        digits.append((digit.name, size))
    return (*digits, (split.digits[0].name, 0))


def _counts_groups(size: Expr | None) -> bool:
    return size is not None and any(name in ("group", "groups") for name, _, _ in size.names())


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
    side: Side,
    matrix: Matrix,
    key: str,
    tensor: Tensor,
    parts: tuple[int, ...],
    scope: Mapping[str, ParamValue],
    name: str,
) -> Stored:
    """The tensor that holds these parts: over the same numbers laid out once, whatever matrix and axes are called."""
    values = tuple(map(scope.get, once("names", tensor, (), lambda: _names(tensor.expressions()))))
    facts = once("facts", tensor, values, lambda: _facts(tensor, scope, key))
    together = (side.params["parts"], matrix.pad, matrix.n_padded) if len(parts) > 1 else None
    numbers = tuple(matrix.n[part].numbers for part in parts), matrix.k.numbers
    known = values, side.mode, together, numbers, matrix.experts and matrix.experts[0]
    found = once("places", tensor, known, lambda: _place(side, matrix, key, tensor, facts, parts, scope, name))
    return found if (found.name, found.parts) == (name, parts) else found._replace(name=name, parts=parts)


class _Facts(NamedTuple):
    """What a tensor is, whatever the matrix: its code, how its axes are split, which digits its elements share."""

    code: Code
    dtypes: tuple[str, ...]
    n: _Split
    k: _Split
    shared: frozenset[str]
    by_part: bool

    def unit(self, split: _Split) -> int | None:
        """How many neighbours along an axis share one stored element, however long it is; None: all of them."""
        return _axis(split, 1).unit(self.shared)


def _facts(tensor: Tensor, scope: Scope, key: str) -> _Facts:
    code, dtypes = _code(tensor, scope, key)
    n, k = (_split(tensor, axis, scope, key) for axis in ("n", "k"))
    shared = frozenset(item.name for item in tensor.order if item.role == "shared")
    return _Facts(code, dtypes, n, k, shared, any(item.name == "p" for item in tensor.order))


def _place(
    side: Side,
    matrix: Matrix,
    key: str,
    tensor: Tensor,
    facts: _Facts,
    parts: tuple[int, ...],
    scope: Mapping[str, ParamValue],
    name: str,
) -> Stored:
    code, dtypes, n_split, k_split, shared, by_part = facts
    spread = _spread(side, matrix, facts.unit(n_split), parts, by_part)
    k_offset, k_extent = _span(side, matrix.k, facts.unit(k_split))
    k = _axis(k_split, k_extent)
    axes = [_axis(n_split, extent) for extent in spread.extents]
    chains: list[tuple[Chain, Chain, int]] = []
    codes, dims = 0, (1,)
    for n in axes:
        n_chain, k_chain, count, dims = _chains(tensor, n, k, key, code, dtypes)
        chains.append((n_chain, k_chain, codes))
        codes += count
    if by_part and len({chain[1] for chain in chains}) > 1:
        raise LayoutError(
            f"tensor `{key}` stores parts of unequal widths, so `p` must stand first in its order",
            code="LD403",
            name="part-digit-inside",
            place=Place(("tensors", key, "order")),
        )
    at = [chains[position if len(chains) > 1 else 0] for position in range(len(parts))]
    views = tuple(View(n_chain, offset, spread.step, base) for (n_chain, _, base), offset in zip(at, spread.offsets))
    unit = k.unit(shared)
    gaps = tuple(
        (View(at[position][0], 0, 1, at[position][2]), low, high - low)
        for position, low, high in spread.gaps(axes[0].unit(shared), [axis.stored for axis in axes])
        if high > low
    )
    if codes * code.bits * (matrix.experts[0] if matrix.experts else 1) >= 1 << 63:
        raise LayoutError(
            f"tensor `{key}` of `{matrix.name}` has {codes} elements for each expert, more than 64 bits can address",
            code="LP111",
            name="sizes",
            help="give smaller sizes",
        )
    shape = _shape(tensor, dims, codes, code, dtypes, scope, key, by_part, len(parts))
    experts = "none" if matrix.experts is None else "shared" if "e" in shared else "each"
    return Stored(
        name,
        tensor.role,
        code,
        dtypes,
        _number(tensor.plus, scope, key),
        _number(tensor.scaled, scope, key),
        bool(tensor.reciprocal),
        tensor.derive,
        parts,
        views,
        tuple(View(chains[0][1], k_offset) for _ in parts),
        gaps,
        _k_gaps(matrix.k.length, k_offset, unit, k.stored) if side.mode != "whole" else (),
        k.stored,
        unit,
        codes if tensor.role != "weight_shape" else math.prod(shape),
        shape,
        experts,
    )


def _k_gaps(length: int, offset: int, unit: int | None, stored: int) -> tuple[tuple[int, int], ...]:
    """(first, count) of stored k that no logical one shares: in front of `offset`, and behind."""
    if not length:
        return ((0, stored),) if stored else ()
    if unit is None:
        return ()
    front, behind = offset // unit * unit, min(-(-(offset + length) // unit) * unit, stored)
    return tuple((first, count) for first, count in ((0, front), (behind, stored - behind)) if count > 0)


class _Spread(NamedTuple):
    """How the parts of one tensor lie along n: an offset per part and a common step, and the extents of its chains."""

    extents: tuple[int, ...]
    offsets: tuple[int, ...]
    step: int
    lengths: tuple[int, ...]

    def gaps(self, unit: int | None, stored: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(chain, first, end) of stored coordinates that belong to no part."""
        if unit is None:
            apart = len(self.extents) > 1
            empty = [at for at, length in enumerate(self.lengths) if not length]
            if apart or len(empty) == len(self.lengths):
                yield from ((at, 0, stored[at]) for at in (empty if apart else empty[:1]))
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
    tail = side.mode == "padded" and matrix.pad == "tail"
    if len(parts) == 1:
        offset, extent = spans[0]
        return _Spread((extent,), (offset,), 1, lengths)
    widths = [extent for _, extent in spans]
    if alternating:
        if len(set(widths)) > 1:
            raise LayoutError(
                f"parts of unequal widths {widths} cannot alternate in `{matrix.name}`",
                code="LP121",
                name="unequal-parts",
                help="use parts=stacked or parts=apart",
            )
        start = spans[0][0] * len(parts)
        total = matrix.n_padded if tail else sum(widths)
        return _Spread((total,), tuple(start + at for at in range(len(parts))), len(parts), lengths)
    offsets, at = [], 0
    for (offset, _), width in zip(spans, widths):
        offsets.append(at + offset)
        at += width
    return _Spread((matrix.n_padded if tail else at,), tuple(offsets), 1, lengths)


def _span(side: Side, stretch: Stretch, unit: int | None) -> tuple[int, int]:
    """(coordinate of the rank's first element, extent) of an axis as one side stores it.

    A rank's own slice keeps its place inside a shared digit: half a group still has that group's one scale.
    """
    if side.mode == "whole":
        return stretch.start, stretch.size
    if side.mode == "padded":
        return stretch.front, stretch.padded
    phase = stretch.start % unit if unit and stretch.length else 0
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
            raise LayoutError(
                f"order of tensor `{key}` has `{item.name}`, which is no digit and no axis",
                code="LD102",
                name="unknown-digit",
                help=did_you_mean(item.name, known),
            )
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
        raise LayoutError(
            f"order of tensor `{key}` leaves out `{missing[0]}`",
            code="LD101",
            name="digit-missing",
            help=f"store it, or write ({missing[0]}) where its elements share one stored value",
        )
    if tensor.role != "weight_shape" and word * code.bits != DTYPE_BITS[dtypes[0]]:
        width = DTYPE_BITS[dtypes[0]]
        holds = f"which holds {width // code.bits}" if width % code.bits == 0 else "which they never fill"
        raise LayoutError(
            f"tensor `{key}` packs {word} codes of {code.bits} bits in a {dtypes[0]} of {width} bits, {holds}",
            code="LD302",
            name="word-width",
            help="state `code:`, or let the digits in braces fill the word",
            place=Place(("tensors", key, "order")),
        )
    return n.chain(strides), k.chain(strides), stride, tuple([dims[dim] for dim in sorted(dims)])


def _code(tensor: Tensor, scope: Mapping[str, ParamValue], key: str) -> tuple[Code, tuple[str, ...]]:
    declared = tensor.dtype if isinstance(tensor.dtype, tuple) else (tensor.dtype,)
    dtypes = tuple(filled(dtype, scope, f"tensor `{key}`") for dtype in declared)
    for dtype in dtypes:
        if dtype not in DTYPE_BITS:
            raise LayoutError(
                f"tensor `{key}` has the unknown dtype `{dtype}`",
                code="LD311",
                name="unknown-dtype",
                place=Place(("tensors", key, "dtype")),
                help=meant(dtype, DTYPE_BITS) or f"dtypes: {', '.join(DTYPE_BITS)}",
            )
        if DTYPE_BITS[dtype] != DTYPE_BITS[dtypes[0]] and tensor.role != "weight_shape":
            raise LayoutError(
                f"tensor `{key}` has dtypes of different widths: {', '.join(dtypes)}",
                code="LD311",
                name="unknown-dtype",
                place=Place(("tensors", key, "dtype")),
            )
    if tensor.code is not None:
        return _code_named(filled(tensor.code, scope, f"tensor `{key}`"), key), dtypes
    if dtypes[0] not in CODE_OF_DTYPE:
        raise LayoutError(
            f"tensor `{key}` of dtype {dtypes[0]} states no code",
            code="LD310",
            name="unknown-code",
            help="add `code:`, such as u4b8 or e8m0",
            place=Place(("tensors", key, "dtype")),
        )
    return code_named(CODE_OF_DTYPE[dtypes[0]]), dtypes


def _code_named(name: str, key: str) -> Code:
    try:
        return code_named(name)
    except LayoutError as error:
        found = error.diagnostics[0]
        raise LayoutError(
            f"{found.message}, in tensor `{key}`",
            code=found.code,
            name=found.name,
            help=found.help,
            place=Place(("tensors", key, "code")),
        ) from None


def _shape(
    tensor: Tensor,
    dims: Sequence[int],
    codes: int,
    code: Code,
    dtypes: tuple[str, ...],
    scope: Mapping[str, ParamValue],
    key: str,
    by_part: bool,
    parts: int,
) -> tuple[int, ...]:
    elements = codes * code.bits // DTYPE_BITS[dtypes[0]]
    if tensor.shape is not None:
        shape = tuple(_number(dim, scope, key) for dim in tensor.shape)
        if tensor.role != "weight_shape" and math.prod(shape) != elements:
            raise LayoutError(
                f"tensor `{key}` reports the shape {list(shape)} for {elements} elements",
                code="LD303",
                name="shape",
                place=Place(("tensors", key, "shape")),
            )
        return shape
    shape = list(dims)
    if by_part and parts > 1:
        rest = math.prod(shape[1:])
        shape[0] = elements // rest
    return tuple(shape)
