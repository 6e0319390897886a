"""Tensors of one matrix as a format's public definition has them, and what they are worth, by code that knows no spec.

Checkpoints are drawn by checkpoints.py and read by decoders/. What that leaves to the caller is here: the names under
which other libraries write the same tensors, their dtypes, input scales, and how fused parts are spread over tensors.
Kernel tensors are drawn here, in the shapes that decoders/marlin.py states, and read by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from checkpoints import (
    Awq,
    CtInt,
    Format,
    Fp8,
    Fp8Block,
    Gptq,
    Mxfp4,
    Mxfp8,
    Nvfp4,
    e4m3,
    floats,
    packed,
    rows_of,
    words,
)
from decoders import marlin
from decoders.numbers import FLOAT


class Tensor(NamedTuple):
    """An array as decoders have it, and the dtypes that a file may give it, the usual one first."""

    array: np.ndarray
    dtypes: tuple[str, ...]


class Drawn(NamedTuple):
    """A matrix in a file: tensors by name, what each part's weights are worth [n, k], its bias [n], and what single
    numbers beside them are worth, by role. `group`: inputs that share a scale, 0 for all."""

    spec: str
    params: dict[str, Any]
    parts: tuple[str, ...]
    widths: tuple[int, ...]
    k: int
    group: int
    tensors: dict[str, Tensor]
    weights: list[np.ndarray]
    biases: list[np.ndarray]
    others: dict[str, float]


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Plain(Format):
    """torch.nn.Linear's own weight; inputs first where it is transposed."""

    spec = "plain"
    defaults: ClassVar = {"dtype": "bfloat16"}

    def _draw(self, rng, widths, n, k):
        weight = floats(rng, (n, k), self.dtype)
        return {"weight": weight.T.copy() if self.transposed else weight}

    def _decode(self, tensors, n, k):
        weight = FLOAT[self.dtype](tensors["weight"])
        return weight.T if self.transposed else weight


CT = "compressed_tensors"


def names_of(form: Format) -> dict[str, str]:
    """checkpoints.py's name -> that of the file, where they differ."""
    if form.spec == "fp8" and form.scale_name == "weight_scale_inv":
        return {"weight_scale": "weight_scale_inv", "input_scale": "activation_scale"}
    if form.spec == "nvfp4" and form.writer == CT:
        return {"input_scale": "input_global_scale"}
    return {}


def dtypes_of(form: Format, name: str) -> tuple[str, ...]:
    known = {
        "qweight": "int32", "qzeros": "int32", "g_idx": "int32", "weight_zero_point": "int32",
        "weight_g_idx": "int32", "blocks": "uint8", "weight_scale_2": "float32", "weight_global_scale": "float32",
        "scales": form.dtype, "bias": form.dtype, "input_scale": form.input_dtype or "float32",
    }  # fmt: skip
    if name == "weight_shape":
        return "int64", "int32"
    if form.spec in ("mxfp4", "mxfp8") and name in ("weight_scale", "scales"):
        return "uint8", "float8_e8m0fnu"
    if name == "weight_packed":
        return ("int32" if form.spec == "ct_int" else "uint8",)
    if name == "weight":
        return ({"plain": form.dtype, "nvfp4": "uint8"}.get(form.spec, "float8_e4m3fn"),)
    if name == "weight_scale" or name == "weight_scale_inv":
        return ({"ct_int": form.dtype, "nvfp4": "float8_e4m3fn"}.get(form.spec, form.scale_dtype),)
    return (known[name],)


NAMES = [("",), ("gate", "up"), ("q", "k", "v"), ("q", "k", "v", "z"), tuple(f"p{at}" for at in range(8))]
FUSED = {len(names): names for names in NAMES}
"""The parts of a matrix by their number."""


def checkpoint(form: Format, stored: str, widths: tuple[int, ...], k: int) -> Drawn:
    """A matrix whose fused parts are stored apart, stacked or alternating."""
    rng, parts = np.random.default_rng(11), FUSED[len(widths)]
    apart = stored == "apart" and len(widths) > 1
    held = [(f"{part}.", (width,)) for part, width in zip(parts, widths)] if apart else [("", widths)]
    files = [form.draw(rng, own, k) for _, own in held]
    form.agree(rng, files)
    tensors: dict[str, Tensor] = {}
    weights: list[np.ndarray] = []
    biases: list[np.ndarray] = []
    others: dict[str, float] = {}
    for (prefix, own), file in zip(held, files):
        if form.input_scale and "input_scale" not in file:
            file["input_scale"] = floats(rng, (), "float32", signs=False)
        if form.input_dtype:
            file["input_scale"] = floats(rng, (), form.input_dtype, signs=False)
        for name, array in file.items():
            tensors[prefix + names_of(form).get(name, name)] = Tensor(np.asarray(array), dtypes_of(form, name))
        how = {"alternating": stored == "alternating" and len(own) > 1}
        weights += form.decode(file, own, k, **how)
        if form.bias:
            biases += rows_of(FLOAT[form.dtype](file["bias"]), own, how["alternating"])
        if form.input_scale and not prefix.startswith(parts[1:]):
            value = FLOAT[form.input_dtype or "float32"](file["input_scale"]).item()
            divides = names_of(form).get("input_scale") == "input_global_scale"
            others["input_scale"] = 1 / value if divides else value
    params = form.params | ({"parts": stored} if len(widths) > 1 and stored else {})
    return Drawn(form.spec, params, parts if len(parts) > 1 else (), widths, k, 0, tensors, weights, biases, others)


FORMS = {
    "awq": [
        Awq({"bias": True}), Awq({"group": 32, "dtype": "bfloat16", "bias": True}),
        Awq({"group": -1, "zero_points": True}),
    ],
    "ct_int": [
        CtInt({"bias": True}), CtInt({}), CtInt({"bits": 8, "group": 32, "dtype": "bfloat16", "bias": True}),
        CtInt({"zero_points": True, "group": 32}), CtInt({"zero_points": True, "bits": 8, "group": -1}),
        CtInt({"act_order": True, "group": 32, "shape_tensor": False}),
        CtInt({"act_order": True, "zero_points": True, "bits": 8, "group": 64}),
    ],
    "fp8": [
        Fp8({"bias": True}), Fp8({"scale": "tensor", "bias": True, "dtype": "float16", "input_scale": True}),
        Fp8({"scale": "part", "scale_dtype": "bfloat16"}), Fp8({"scale_name": "weight_scale_inv", "scale": "tensor"}),
        Fp8({"scale_name": "weight_scale_inv", "scale": "part", "bias": True}),
        Fp8({"scale_name": "weight_scale_inv", "scale_dtype": "float16"}),
        Fp8({"scale_name": "weight_scale_inv", "input_scale": True, "input_dtype": "float16"}),
        Fp8({"input_scale": True, "input_dtype": "bfloat16", "dtype": "float16", "scale": "part"}),
        Fp8({"input_scale": True, "input_dtype": "float32", "scale_dtype": "bfloat16"}),
    ],
    "fp8_block": [
        Fp8Block({"bias": True}), Fp8Block({"bias": True, "dtype": "float16", "scale_name": "weight_scale"}),
        Fp8Block({"group": 32, "block_n": 16, "scale_dtype": "bfloat16"}),
        Fp8Block({"group": 64, "block_n": 8, "scale_dtype": "float16", "input_scale": True}),
    ],
    "gptq": [
        Gptq({"bias": True}), Gptq({}), Gptq({"bits": 8, "group": 32, "qzeros": False}),
        Gptq({"dtype": "bfloat16", "bias": True}),
        Gptq({"zero_points": True, "group": -1}), Gptq({"zero_points": True, "zero_offset": 0, "group": 32}),
        Gptq({"zero_points": True, "qzeros": False, "bits": 8, "group": 32, "g_idx": False}),
        Gptq({"act_order": True, "zero_points": True, "group": 32}),
        Gptq({"act_order": True, "g_idx": False, "qzeros": False, "group": 32, "bits": 8}),
        Gptq({"bits": 8, "zero_offset": 0, "g_idx": False}),
    ],
    "mxfp4": [
        Mxfp4({"bias": True}), Mxfp4({"dtype": "float16", "bias": True}), Mxfp4({"writer": "gpt_oss"}),
        Mxfp4({"writer": "gpt_oss", "bias": True, "group": 32}),
    ],
    "mxfp8": [Mxfp8({"bias": True}), Mxfp8({}), Mxfp8({"bias": True, "dtype": "float16", "group": 32})],
    "nvfp4": [
        Nvfp4({"bias": True}), Nvfp4({"writer": CT, "bias": True, "dtype": "float16"}),
        Nvfp4({"global_scale": "part", "input_scale": True}), Nvfp4({"writer": CT, "input_scale": True, "group": 16}),
        Nvfp4({"writer": CT, "global_scale": "part"}),
    ],
    "plain": [
        Plain({"bias": True}), Plain({"transposed": True, "dtype": "float16"}),
        Plain({"dtype": "float32", "bias": True}),
    ],
}  # fmt: skip
"""Every value of every parameter, and those together that meet in one tensor."""

NOWHERE = {
    "fp8_block": [{"group": -1}, {"block_n": -1}],
    "mxfp4": [{"group": 16}, {"group": -1}],
    "mxfp8": [{"group": 64}, {"group": -1}],
    "nvfp4": [{"group": 32}, {"group": -1}],
    "awq": [{"zero_points": False}],
    "gptq": [{"bits": 3}],
    "ct_int": [{"bits": 2}],
}
"""Parameters with which there is no file: blocks have a size, and the groups of some formats are of one."""


ONE_GROUP = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
"""Inputs of a matrix of one group, where 128 would be several."""


def checkpoints(spec: str) -> Iterator[Drawn]:
    """The files that a checkpoint spec is held against: the last groups, words and blocks are short."""
    for at, form in enumerate(FORMS[spec]):
        gpt_oss = form.spec == "mxfp4" and form.writer == "gpt_oss"
        k = 96 if gpt_oss else 132
        yield checkpoint(form, "", (27,), k)
        if form.act_order:
            yield checkpoint(form, "apart", (16, 24), k)
            yield checkpoint(form, "stacked", (16, 24), k)
            continue
        yield checkpoint(form, "alternating", (8,) * (4 if at % 2 else 2), k)
        yield checkpoint(form, "stacked", (16, 24) if at % 2 else (12, 8, 16, 24), k)
        yield checkpoint(form, "apart", (12, 16, 8), k)
        if not at:
            yield checkpoint(form, "stacked", (8,) * 8, k)
    yield checkpoint(FORMS[spec][0], "", (16,), ONE_GROUP.get(spec, 128))
    by_itself = checkpoint(FORMS[spec][0], "apart", (16, 8), 100)
    yield by_itself._replace(params=dict(FORMS[spec][0].params))


# --- kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """What a kernel reads. `codes`: without and with zero points; `activation`: where it is not the parameters' dtype;
    `group`: where the caller says none; `dtypes`: of the parameters, the usual one first; what it accepts."""

    spec: str
    codes: tuple[str, ...]
    activation: str = ""
    scales: str = "float"
    group: int = 128
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    tiles: tuple[tuple[int, int], ...] = ((64, 128), (128, 64))
    groups: frozenset[int] = field(default=frozenset({-1, 32, 64, 128}))
    capability: int = 80

    @property
    def bits(self) -> int:
        return marlin.BITS[self.codes[0]]


def _mx(spec: str, codes: str, **other: Any) -> Kernel:
    return Kernel(spec, (codes,), scales="e8m0", group=32, dtypes=("bfloat16",), groups=frozenset({32}), **other)


KERNELS = {
    kernel.spec: kernel
    for kernel in (
        Kernel("marlin_int4_a16", ("u4b8", "u4")),
        Kernel("marlin_int4_a16_n128", ("u4b8", "u4"), tiles=((128, 64),)),
        Kernel("marlin_int8_a16", ("u8b128", "u8")),
        Kernel("marlin_int4_a8int8", ("u4b8", "u4"), "int8", "int16"),
        Kernel("marlin_int8_a8int8", ("u8b128",), "int8", "int16"),
        Kernel("marlin_int4_a8fp8", ("u4b8", "u4"), "float8_e4m3fn", capability=89),
        Kernel("marlin_fp8_a16", ("e4m3",), group=-1, groups=frozenset({-1, 128})),
        Kernel("own_fp8_a16", ("e4m3",), group=-1),
        _mx("marlin_mxfp8_a16", "e4m3"),
        _mx("marlin_mxfp4_a16", "e2m1"),
        _mx("marlin_mxfp4_a8fp8", "e2m1", activation="float8_e4m3fn", capability=89),
        Kernel("marlin_nvfp4_a16", ("e2m1",), scales="s0e5m3", group=16, groups=frozenset({16})),
    )
}
"""From the kernels' own conditions in vLLM 0.33: tiles (n, k), groups (-1: one), the least compute capability."""


def kernels(spec: str) -> Iterator[Drawn]:
    """The tensors that a kernel spec is held against, padded already."""
    of = KERNELS[spec]
    n = 128
    yield kernel(of, {}, (n,), 256)
    for at, dtype in enumerate(of.dtypes):
        for zero_points in (False, True)[: len(of.codes)]:
            for groups in sorted(of.groups):
                said: dict[str, Any] = {"dtype": dtype, "bias": (at + zero_points + groups) % 2 == 0}
                said |= {"group": groups} | ({"zero_points": zero_points} if len(of.codes) > 1 else {})
                yield kernel(of, said, (n,), 128)
    for stored, widths in (("stacked", (64, 64)), ("alternating", (32,) * 4), ("stacked", (96, 16, 16))):
        yield kernel(of, {"bias": True, "parts": stored}, widths, 128)
    yield kernel(of, {"parts": "stacked"}, (32,) * 8, 128)
    yield kernel(of, {"bias": True}, (64, 64), 128)
    if len(of.codes) > 1:
        for groups in (-1, 32):
            yield kernel(of, {"zero_points": True, "group": groups, "parts": "stacked"}, (64, 64), 128)


def kernel(of: Kernel, params: dict[str, Any], widths: tuple[int, ...], k: int) -> Drawn:
    rng, n = np.random.default_rng(11), sum(widths)
    group, dtype = params.get("group", of.group), params.get("dtype", of.dtypes[0])
    groups = 1 if group < 0 else max(k // group, 1)
    code = of.codes[bool(params.get("zero_points"))]
    tensors = {"weight": Tensor(_weight(rng, of, n, k), ("int32",)), "weight_scale": _scale(rng, of, groups, n, dtype)}
    if code in ("u4", "u8"):
        tensors["zero_point"] = Tensor(words(rng, groups, n * of.bits // 32), ("int32",))
    if of.scales == "int16" and groups > 1:
        tensors["input_global_scale"] = Tensor(np.asarray(floats(rng, (), "float32", signs=False)), ("float32",))
    if of.scales == "s0e5m3":
        tensors["global_scale"] = Tensor(floats(rng, (1,), "float32", signs=False), ("float32",))
    arrays = {name: tensor.array for name, tensor in tensors.items()}
    values = marlin.decode(arrays, n=n, k=k, code=code, activation=of.activation or dtype, dtype=dtype)
    if (least := _least(of, dtype)) is not None:
        lost = marlin.scale_bits(arrays["weight_scale"], n=n, activation_bits=16) < least
        values = np.where(np.repeat(lost, k // groups, axis=0).T, 0.0, values)
    alternating = params.get("parts") == "alternating"
    biases = []
    if params.get("bias"):
        tensors["bias"] = Tensor(floats(rng, n, dtype), (dtype,))
        stored = FLOAT[dtype](marlin.bias_bits(tensors["bias"].array, n=n))
        biases = rows_of(stored, widths, alternating)
    parts = FUSED[len(widths)] if len(widths) > 1 else ()
    held = 0 if group < 0 else group
    return Drawn(
        of.spec, params, parts, widths, k, held, tensors, rows_of(values, widths, alternating), list(biases), {}
    )


def _least(of: Kernel, dtype: str) -> int | None:
    """Scale bytes below read as 0, where there are such: a bfloat16 kernel shifts a byte into its exponent."""
    if of.scales == "e8m0" and not of.activation:
        return 1
    return 0x80 if of.scales == "s0e5m3" and dtype == "bfloat16" else None


def _weight(rng, of: Kernel, n: int, k: int) -> np.ndarray:
    if of.codes[0] != "e4m3":
        return words(rng, k // 16, n * of.bits // 2)
    return packed(e4m3(rng, (k // 16, n * 16)), 8)


def _scale(rng, of: Kernel, groups: int, n: int, dtype: str) -> Tensor:
    if of.scales == "e8m0":
        low, high = (6, 256) if of.activation else (0, 255)  # 6 is added to a checkpoint's byte; 255 is no number
        return Tensor(rng.integers(low, high, (groups, n)).astype(np.uint8), ("float8_e8m0fnu",))
    if of.scales == "s0e5m3":
        return Tensor(rng.integers(0, 0xF8, (groups, n)).astype(np.uint8), ("float8_e4m3fn",))
    if of.scales == "int16" and groups > 1:
        return Tensor(rng.integers(0, 1 << 16, (groups, n)).astype(np.uint16), (dtype,))
    return Tensor(floats(rng, (groups, n), dtype), (dtype,))
