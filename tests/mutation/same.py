"""The proof that a changed spec means what the right one means.

Two formats are the same where all that they state beside their tensors is, and where their tensors resolve to the same
layouts: the same address of every element, code, dtype, shape and meaning, in every way in which fused parts are
stored, under all values of the parameters that tensors which differ speak of, at the sizes below. Two modules are the
same where they give every rank the same matrices, at all values of their parameters.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from layoutdsl.errors import LayoutError
from layoutdsl.grammar import Expr, Formula, Template
from layoutdsl.layout import Chain, View
from layoutdsl.model import Checkpoint, Format, Kernel, Module, Param, Spec
from layoutdsl.resolve import (
    Matrix,
    Ranks,
    Side,
    Stored,
    Stretch,
    bind,
    is_tight,
    matrices,
    tensors,
    widened,
    with_defaults,
)
from layoutdsl.resolve.params import MAX_EXTENT, _default

GROUPS = (-1, 32, 64, 128, 48)
EXTENTS = (128, 24)
"""Values of a parameter that may be any number."""


def difference(right: Spec, changed: Spec) -> str | None:
    """The first difference that is found between what two specs mean."""
    if type(right) is not type(changed) or right.name != changed.name:
        return "another spec"
    if isinstance(right, Module):
        assert isinstance(changed, Module)
        return next(_of_modules(right, changed), None)
    assert isinstance(right, Format) and isinstance(changed, Format)
    return next(_of_formats(right, changed), None)


def _of_formats(right: Format, changed: Format) -> Iterator[str]:
    for name, fact in _FACTS.items():
        if fact(right) != fact(changed):
            yield name
    if right.tensors.keys() != changed.tensors.keys():
        yield "other tensors"
    for key, tensor in right.tensors.items():
        if key in changed.tensors and tensor != changed.tensors[key]:
            alone = [spec.model_copy(update={"tensors": {key: spec.tensors[key]}}) for spec in (right, changed)]
            yield from _of_tensors(*alone)


# --- what stands beside the tensors -----------------------------------------------------------------------------------


def _params(spec: Spec) -> Any:
    """What each parameter may be, what it is by itself, and where a config states it."""
    params = spec.params.items()
    return {name: (_kind(param), _default(param), _config(param), param.map or {}) for name, param in params}


def _kind(param: Param) -> Any:
    return param.type, frozenset((type(value), value) for value in param.values)


def _config(param: Param) -> tuple[str, ...]:
    return (param.config,) if isinstance(param.config, str) else param.config or ()


def _stored(spec: Format) -> Any:
    return spec.parts.stored[0], frozenset(spec.parts.stored)


def _orders(spec: Format) -> dict[frozenset[str], tuple[str, ...]]:
    """In which order parts stand, for all sets of parts that some order names."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for order in spec.parts.orders:
        for size in range(2, len(order) + 1):
            for some in itertools.combinations(order, size):
                found.setdefault(frozenset(some), some)
    return found


def _accepts(spec: Format) -> Any:
    if not isinstance(spec, Kernel):
        return None
    return spec.accepts.tiles, frozenset(spec.accepts.groups), spec.accepts.capability


def _detect(spec: Format) -> Any:
    if not isinstance(spec, Checkpoint):
        return None
    return frozenset(frozenset((key, frozenset(wanted)) for key, wanted in one.items()) for one in spec.detect)


def _value(spec: Format) -> Counter[str]:
    """The factors of a product, in any order."""
    return Counter(map(_shown, spec.value.factors()))


def _shown(formula: Formula) -> str:
    return formula.args[0] if formula.op == "tensor" else f"({f' {formula.op} '.join(map(_shown, formula.args))})"


_FACTS = {
    "other parameters": _params,
    "parts stored otherwise": _stored,
    "another order of parts": _orders,
    "accepts other matrices": _accepts,
    "told by other entries": _detect,
    "another value": _value,
}

# --- tensors ----------------------------------------------------------------------------------------------------------


def _of_tensors(right: Format, changed: Format) -> Iterator[str]:
    spoken = {*names(list(right.tensors.values())), *names(list(changed.tensors.values()))} | {"group"}
    for given in settings(right, spoken):
        for matrix, mode, group in _matrices(right, given):
            found = [_laid_out(Side(spec, given, mode), matrix, group) for spec in (right, changed)]
            if found[0] != found[1]:
                options = " ".join(f"{key}={value}" for key, value in given.items() if key in spoken)
                size = f"{'+'.join(str(stretch.size) for stretch in matrix.n)} x {matrix.k.size}"
                yield f"another layout of {size}, {mode} ({options})"


def names(of: Any) -> Iterator[str]:
    """Every name that is spoken of anywhere in a part of a spec."""
    if isinstance(of, Expr | Template):
        yield from (name for name, _, _ in of.names())
    elif isinstance(of, BaseModel):
        yield from names([value for _, value in of])
    elif dataclasses.is_dataclass(of):
        yield from names([getattr(of, field.name) for field in dataclasses.fields(of)])
    elif isinstance(of, list | tuple):
        for one in of:
            yield from names(one)


def settings(spec: Spec, spoken: set[str]) -> Iterator[dict[str, Any]]:
    """All values together of the parameters that are spoken of; the others as they are by themselves."""
    bound = bind(spec, {})
    choices = {name: _choices(spec, param) for name, param in spec.params.items() if name in spoken}
    if isinstance(spec, Format):
        choices["parts"] = list(spec.parts.stored)
    for values in itertools.product(*choices.values()):
        yield bound | dict(zip(choices, values))


def _choices(spec: Spec, param: Param) -> list[Any]:
    if param.type == "bool":
        return [False, True]
    if param.values:
        return list(param.values)
    if param.type == "group":
        return list(spec.accepts.groups) if isinstance(spec, Kernel) else list(GROUPS)
    return [_default(param)] if param.type == "names" else list(EXTENTS)


def _laid_out(side: Side, matrix: Matrix, group: int | None) -> Any:
    try:
        return [_canonical(stored, matrix) for stored in tensors(side, matrix, group)]
    except LayoutError as error:
        return error.diagnostics[0].code


def _canonical(stored: Stored, matrix: Matrix) -> Stored:
    """With chains in the one form that all chains of the same addresses have; where all inputs share one element, it
    does not matter how many more could."""
    end = max(matrix.k.padded, *(view.offset + matrix.k.length for view in stored.k))
    one = stored.k_unit is None or stored.k_unit >= end
    return stored._replace(
        n=tuple(_view(view, MAX_EXTENT) for view in stored.n),
        k=tuple(_view(view, end) for view in stored.k),
        k_unit=None if one else stored.k_unit,
        k_end=end if one else stored.k_end,
        n_gaps=tuple((_view(view, MAX_EXTENT), first, count) for view, first, count in stored.n_gaps),
    )


def _view(view: View, end: int) -> View:
    """The view of the same addresses below `end` with the fewest digits."""
    digits: list[tuple[int, int, int]] = []
    for weight, extent, stride in view.chain.digits:
        if extent == 1 or weight >= end:
            continue
        extent = 0 if extent * weight >= end else extent
        if digits:
            below, size, step = digits[-1]
            if below * size == weight and step * size == stride:
                digits[-1] = below, size * extent, step
                continue
        digits.append((weight, extent, stride))
    while digits and not digits[-1][2]:
        digits.pop()
    return view._replace(chain=Chain(tuple(digits)))


SIZES = (
    ((27,), 132), ((8,), 16), ((24, 8), 32), ((64,), 96), ((16, 24), 100), ((32, 32), 256), ((8, 16, 40), 64),
    ((16,) * 4, 320), ((8,) * 8, 128), ((64 * 19,) * 3, 128 * 29),
)  # fmt: skip
"""Widths of the parts, and inputs.

Why these suffice: layouts are compared as digits with weights and strides, not address by address. A stride is the
product of the sizes of the digits behind it: of powers of two that the spec states, of the number of parts, and of the
extents of the top digits. With 3 parts of 19 tiles and 29 along k these have primes of their own, so that two products
which are equal there are the same product, and equal at all sizes. What remains are the cases: whether a digit is there
and which condition holds turns on one group or more, whole ones or not, one part or more, and each is here.
"""


def _matrices(spec: Format, given: Mapping[str, Any]) -> Iterator[tuple[Matrix, str, int | None]]:
    """Matrices in every form in which tensors hold them: whole, a rank's slice, padded for a kernel."""
    tried = [((int(entry["n"]),), int(entry["k"])) for entry in spec.try_ if "n" in entry]
    for widths, k in dict.fromkeys((*tried, *SIZES)):
        if given["parts"] == "alternating" and len(set(widths)) > 1:
            continue
        parts = tuple(f"p{at}" for at in range(len(widths))) if len(widths) > 1 else ()
        for experts in (None, (4, 0, 4)):
            whole = Matrix("m", parts, _stretches(widths), Stretch("k", k, 0, k, k), "part", sum(widths), experts, True)
            if not isinstance(spec, Kernel):
                yield whole, "whole", None
                n = tuple(Stretch("n", 2 * width, width, width, width) for width in widths)
                yield whole._replace(n=n, k=Stretch("k", 2 * k, k, k, k)), "local", None
                continue
            for tile in spec.accepts.tiles:
                for group in dict.fromkeys((None, *(max(group, 0) for group in spec.accepts.groups))):
                    for front in (0, 32):
                        to = -(-(k + front) // max(tile.k, group or 1, 128)) * max(tile.k, group or 1, 128)
                        yield widened(whole, [tile.n] * len(widths), tile.n * len(widths), to, front), "padded", group


def _stretches(widths: tuple[int, ...]) -> tuple[Stretch, ...]:
    return tuple(Stretch("n", width, 0, width, width) for width in widths)


# --- modules ----------------------------------------------------------------------------------------------------------

RANKS = tuple(Ranks(tp, rank, ep, ep - 1) for tp in (1, 2, 4) for rank in range(tp) for ep in (1, 2))


def _of_modules(right: Module, changed: Module) -> Iterator[str]:
    if (right.params.keys(), right.activation) != (changed.params.keys(), changed.activation):
        yield "other parameters or another activation"
    if _params(right) != _params(changed):
        yield "other parameters"
    for given in settings(right, set(right.params)):
        if is_tight(right, given) != is_tight(changed, given):
            yield "tight otherwise"
        for sizes in _module_sizes(right):
            for ranks in RANKS:
                found = [_held(spec, given, sizes, ranks) for spec in (right, changed)]
                if found[0] != found[1]:
                    yield f"other matrices at {sizes}, rank {ranks.rank} of {ranks.tp}"


def _module_sizes(spec: Module) -> Iterator[dict[str, Any]]:
    """The sizes to try, twice these, and those with axes left out."""
    for entry in spec.try_:
        sizes = {axis: size for axis, size in entry.items() if axis in spec.axes}
        yield sizes
        yield {axis: _twice(size) for axis, size in sizes.items()}
        yield from ({axis: size for axis, size in sizes.items() if axis != left} for left in sizes)


def _twice(size: Any) -> Any:
    return tuple(map(_twice, size)) if isinstance(size, tuple) else 2 * size


def _held(spec: Module, given: Mapping[str, Any], sizes: Mapping[str, Any], ranks: Ranks) -> Any:
    """The matrices of a rank; parts are known by their names: how they stand, each format says for itself."""
    try:
        found = matrices(spec, dict(given), with_defaults(spec, sizes), ranks)
    except LayoutError as error:
        return error.diagnostics[0].code
    return [matrix._replace(parts=tuple(sorted(matrix.parts)), n=tuple(sorted(zip(matrix.parts, matrix.n)) or matrix.n))
            for matrix in found]  # fmt: skip
