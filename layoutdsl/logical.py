"""A spec proven against its own logical form: tensors that keep every element (n, k) apart, row by row.

Reading a format into that form and writing it back exercises every digit, group, part and partial word; the laws of the
two plans say that the spec stores each element once and means what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from layoutdsl.compile import compile_plan
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.library import spec_of_data
from layoutdsl.model import Checkpoint, Format, Kernel, Module, ParamValue, Parts, Spec
from layoutdsl.resolve import Matrix, Side, Stored, Stretch, bind, tensors

VALUED = ("codes", "zero_point", "scale", "global_scale")
"""Roles of the tensors that a weight's value is made of."""

Entry = Mapping[str, "ParamValue | tuple[int, ...]"]
"""Sizes and parameters of one line of a spec's `try`."""


def prove_spec(spec: Spec, entry: Entry, specs: Sequence[str] = ()) -> None:
    """Prove a spec at one of its sizes to try; LayoutError names the law and the element that breaks it.

    Matrices are read and written. Where fused parts only lie another way, they are written: what they are worth has
    been shown, and each element is read where the laws have it written.
    """
    try:
        _prove(spec, entry, specs)
    except LayoutError as error:
        found = (replace(one, help=_AT_FAULT) if one.code == "LP200" else one for one in error.diagnostics)
        raise LayoutError.of(found) from None


_AT_FAULT = "at this size the spec loses, repeats or changes an element: look at what it states of this tensor"


def _prove(spec: Spec, entry: Entry, specs: Sequence[str]) -> None:
    _mistyped(spec, entry)
    if isinstance(spec, Module):
        sizes = {name: value for name, value in entry.items() if name in spec.axes}
        for axis, value in sizes.items():
            for one in value if isinstance(value, tuple) else (value,):
                _size(one, axis)
        params = {name: value for name, value in entry.items() if name not in spec.axes}
        group = {"source.group": 64, "target.group": 64}
        compile_plan("gptq", "marlin_int4_a16", spec, sizes, params={**params, **group}, specs=specs)  # pyright: ignore
        return
    assert isinstance(spec, Format)
    n, k = (_size(entry.get(axis, 0), axis) for axis in ("n", "k"))
    params = {name: value for name, value in entry.items() if name not in ("n", "k")}
    by_parts = _asks(spec, "parts")
    forms: dict[ParamValue, Checkpoint] = {}
    for module, sizes, parts, only in _settings(spec, n, k, by_parts):
        bound = bind(spec, {**params, **parts})  # pyright: ignore[reportArgumentType]
        way = bound["parts"] if by_parts else ""
        if way not in forms:
            tensors(Side(spec, bound, "whole"), _plain(n, k))
            forms[way] = logical_form(spec, bound)
        form = forms[way]
        own = {f"source.{name}": value for name, value in bound.items()}
        back = {f"target.{name}": value for name, value in bound.items()}
        if not only:
            compile_plan(spec, form, module, sizes, params=own, specs=specs)
        compile_plan(form, spec, module, sizes, params=back, only=only, specs=specs)


def _plain(n: int, k: int) -> Matrix:
    """One matrix `m` of one part."""
    return Matrix("m", (), (Stretch("n", n, 0, n, n),), Stretch("k", k, 0, k, k), "part", n, None, True)


def _mistyped(spec: Spec, entry: Entry) -> None:
    """Refuse a name that was likely meant to be an axis which has no size; else it would be an unknown parameter."""
    axes = tuple(spec.axes) if isinstance(spec, Module) else ("n", "k")
    filled = {*entry, *(spec.default if isinstance(spec, Module) else ())}
    for name in sorted(entry.keys() - {*axes, *spec.params, "parts"}):
        if near := did_you_mean(name, [axis for axis in axes if axis not in filled]):
            of = f"module `{spec.name}`" if isinstance(spec, Module) else f"`{spec.name}`"
            raise LayoutError(f"{of} has no axis `{name}`", code="LP111", name="sizes", help=near)


def _size(value: ParamValue | tuple[int, ...], axis: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise LayoutError(
        f"size `{axis}` is a whole number, found {_shown(value)}",
        code="LP111",
        name="sizes",
        help=f"write {{{axis}: 64}}",
    )


def _shown(value: object) -> str:
    return f'the text "{value:.40}"' if isinstance(value, str) else f"{value!r:.40}".lower()


def _settings(
    spec: Format, n: int, k: int, by_parts: bool
) -> Iterator[tuple[str, dict[str, int], dict[str, ParamValue], tuple[str, ...]]]:
    """Module, sizes, parameters and the matrices that are asked for: one plain matrix, and experts with two fused parts
    in each way that the format stores them, or with one part."""
    yield "linear", {"n": n, "k": k}, {}, ()
    sizes = {"e": 2, "i": n, "h": k} if isinstance(spec, Kernel) else {"e": 2, "i": k, "h": n}
    if spec.parts == Parts():  # the spec says nothing of fused parts
        yield "moe_plain", sizes, {}, ()
        return
    for at, stored in enumerate(spec.parts.stored):
        # The matrix of one part is the same in each way, unless the spec asks which it is.
        yield "moe_gated", sizes, {"parts": stored}, ("w13",) if at and not by_parts else ()


def _asks(spec: Format, param: str) -> bool:
    found = (one.names() for tensor in spec.tensors.values() for one in tensor.expressions())
    return any(name == param for names in found for name, _, _ in names)


def logical_form(spec: Format, params: Mapping[str, ParamValue]) -> Checkpoint:
    """The logical form of a format with bound parameters, itself a spec: same codes, same meaning, plain order."""
    # So long a k that every tensor which some k calls for is there; impossible sizes are found before, at the true k.
    held = tensors(Side(spec, dict(params), "whole"), _plain(64, 1 << 20))
    found = {t.name.removeprefix("m."): t for t in held}
    form = spec_of_data(
        {
            "version": "1",
            "checkpoint": "logical_form",  # formats of the same tensors have the same one
            "doc": "each element apart",
            "source": "itself",
            "params": {
                "group": {"type": "group", "default": -1},
                "dtype": ["float16", "bfloat16", "float32"],
                "act_order": {"type": "bool", "default": False},
            },
            "parts": {"stored": ["apart"], "orders": [["gate", "up"]]},
            "tensors": {name: _tensor(tensor) for name, tensor in found.items()},
            "value": " * ".join(name for name, tensor in found.items() if tensor.role in VALUED),
            "try": [{"n": 64, "k": 128}],
        }
    )
    assert isinstance(form, Checkpoint)
    return form


def _tensor(tensor: Stored) -> dict[str, Any]:
    """A tensor with every element apart; biases keep their n, orders their k, and one value for all stays one."""
    made: dict[str, Any] = {
        "role": tensor.role,
        "code": tensor.code.name,
        "scaled": tensor.scaled,
        "plus": tensor.plus,
        "reciprocal": tensor.reciprocal,
        "dtype": tensor.dtypes[0] if tensor.code.bits > 8 else "uint8",
        "order": _ORDERS.get(tensor.role, "n, k") if tensor.experts != "shared" else "(e n k)",
    }
    if tensor.code.bits == 4:
        made |= {"split": "k = kb k0:2", "order": "n, kb {k0}"}
    if tensor.role == "weight_shape":
        made["shape"] = [2]
    if tensor.derive:
        made["derive"] = tensor.derive
    return made


_ORDERS = {
    "bias": "n (k)",
    "act_order": "k (n)",
    "weight_shape": "(n k)",
    "input_scale": "(n k)",
    "global_scale": "(n k)",
}
