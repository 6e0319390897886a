"""A spec proven against its own logical form: tensors that keep every element (n, k) apart, row by row.

Reading a format into that form and writing it back exercises every digit, group, part and partial word; the laws of the
two plans say that the spec stores each element once and means what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.compile import compile_plan
from layoutdsl.library import spec_of
from layoutdsl.model import Checkpoint, Format, Kernel, Module, ParamValue, Spec
from layoutdsl.resolve import Matrix, Side, Stored, Stretch, bind, tensors

Entry = Mapping[str, "ParamValue | tuple[int, ...]"]
"""Sizes and parameters of one line of a spec's `try`."""


def prove_spec(spec: Spec, entry: Entry, specs: Sequence[str] = ()) -> None:
    """Prove a spec at one of its sizes to try; LayoutError names the law and the element that breaks it."""
    if isinstance(spec, Module):
        sizes = {name: value for name, value in entry.items() if name in spec.axes}
        params = {name: value for name, value in entry.items() if name not in spec.axes}
        group = {"source.group": 64, "target.group": 64}
        compile_plan("gptq", "marlin_int4_a16", spec, sizes, params={**params, **group}, specs=specs)  # pyright: ignore
        return
    assert isinstance(spec, Format)
    n, k = int(entry.get("n", 0)), int(entry.get("k", 0))  # pyright: ignore[reportArgumentType]
    params = {name: value for name, value in entry.items() if name not in ("n", "k")}
    for module, sizes, parts in _settings(spec, n, k):
        bound = bind(spec, {**params, **parts})  # pyright: ignore[reportArgumentType]
        form = logical_form(spec, bound)
        own = {f"source.{name}": value for name, value in bound.items()}
        back = {f"target.{name}": value for name, value in bound.items()}
        compile_plan(spec, form, module, sizes, params=own, specs=specs)
        compile_plan(form, spec, module, sizes, params=back, specs=specs)


def _settings(spec: Format, n: int, k: int) -> list[tuple[str, dict[str, int], dict[str, ParamValue]]]:
    """One plain matrix, and experts with two fused parts in each way that the format stores parts."""
    found: list[tuple[str, dict[str, int], dict[str, ParamValue]]] = [("linear", {"n": n, "k": k}, {})]
    sizes = {"e": 2, "i": n, "h": k} if isinstance(spec, Kernel) else {"e": 2, "i": k, "h": n}
    return [*found, *(("moe_gated", sizes, {"parts": stored}) for stored in spec.parts.stored)]


def logical_form(spec: Format, params: Mapping[str, ParamValue]) -> Checkpoint:
    """The logical form of a format with bound parameters, itself a spec: same codes, same meaning, plain order."""
    stretch = Stretch("n", 64, 0, 64, 64)
    many = Matrix("m", (), (stretch,), Stretch("k", 1 << 20, 0, 1 << 20, 1 << 20), "part", 64, None, True)
    found = tensors(Side(spec, dict(params), "whole"), many)
    lines = [
        'version: "1"',
        f"checkpoint: logical_{spec.name}",
        f"doc: the logical form of {spec.name}",
        "source: itself",
        "params:",
        "  group: {type: group, default: -1}",
        "  dtype: [float16, bfloat16]",
        "  act_order: {type: bool, default: false}",
        "parts: {stored: [apart], orders: [[gate, up]]}",
        "tensors:",
    ]
    lines += [line for tensor in found for line in _tensor(tensor)]
    factors = [
        tensor.name.removeprefix("m.")
        for tensor in found
        if tensor.role in ("codes", "zero_point", "scale", "global_scale")
    ]
    lines += [f'value: "{" * ".join(factors)}"', "try: [{n: 64, k: 128}]"]
    form = spec_of("\n".join(lines), f"logical form of {spec.name}")
    assert isinstance(form, Checkpoint)
    return form


def _tensor(tensor: Stored) -> list[str]:
    """A tensor with every element apart; biases keep their n, orders their k, and one value for all stays one."""
    split = ""
    order = {
        "bias": "n (k)",
        "act_order": "k (n)",
        "weight_shape": "(n k)",
        "input_scale": "(n k)",
        "global_scale": "(n k)",
    }.get(tensor.role, "n, k")
    dtype = next(
        dtype
        for dtype in ("uint8", tensor.dtypes[0])
        if DTYPE_BITS[dtype] >= tensor.code.bits or tensor.role == "weight_shape"
    )
    if tensor.code.bits == 4:
        split, order = 'split: "k = kb k0:2", ', "n, kb {k0}"
    dtype = tensor.dtypes[0] if tensor.role in ("weight_shape", "act_order") else dtype
    if tensor.experts == "shared":
        order = "(e n k)"
    shape = "shape: [2], " if tensor.role == "weight_shape" else ""
    flags = f"scaled: {tensor.scaled}, plus: {tensor.plus}, reciprocal: {str(tensor.reciprocal).lower()}"
    if tensor.derive:
        flags += f", derive: {tensor.derive}"
    return [
        f"  {tensor.name.removeprefix('m.')}: {{role: {tensor.role}, dtype: {dtype}, code: {tensor.code.name}, "
        f'{split}order: "{order}", {shape}{flags}}}'
    ]
