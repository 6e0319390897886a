"""What the tests of GEMMs compare with: a checkpoint drawn, converted by a plan, and its products in float64.

    case = draw("u4b8", "float16", "linear", {"n": 200, "k": 384}, group=64, split="k", tp=2, rank=1)
    case.made                  the plan's outputs, as the torch backend makes them
    x = case.x(rows=5)         activations as the caller has them
    case.product(x).check(y)   y is this rank's x @ weight.T + bias, within the bound of `error`
    experts(case, x, ids, router, "silu").check(y)      and a whole mixture of experts

The reference is the checkpoint as tests/decoders read it, which share nothing with the compiler; where a plan declares
that a recode rounds, the rounded values. Scales are drawn so that no sum leaves the range of float16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import erf
from typing import Any

import conversions
import numpy as np
import torch
from checkpoints import Awq, CtInt, Format, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp4Small, Mxfp8, Nvfp4, bits
from conversions import INNER, Job, Matrix
from decoders.numbers import FLOAT, e4m3fn

from layoutdsl import Plan
from layoutdsl.plan import Extent

SOURCES: dict[str, tuple[type[Format], dict[str, Any], str]] = {
    "u4b8": (Gptq, {"bits": 4, "qzeros": False, "g_idx": False}, "marlin_int4_a16"),
    "u4": (Awq, {}, "marlin_int4_a16"),
    "u8b128": (Gptq, {"bits": 8, "qzeros": False, "g_idx": False}, "marlin_int8_a16"),
    "u8": (CtInt, {"bits": 8, "zero_points": True}, "marlin_int8_a16"),
    "e4m3": (Fp8, {}, "marlin_fp8_a16"),
    "e4m3_blocks": (Fp8Block, {}, "own_fp8_a16"),
    "mxfp8": (Mxfp8, {}, "marlin_mxfp8_a16"),
    "nvfp4": (Nvfp4, {}, "marlin_nvfp4_a16"),
    "mxfp4": (Mxfp4, {}, "marlin_mxfp4_a16"),
    "gpt_oss": (Mxfp4, {"writer": "gpt_oss"}, "marlin_mxfp4_a16"),
    "u4b8_s8": (Gptq, {"bits": 4, "qzeros": False, "g_idx": False}, "marlin_int4_a8int8"),
    "u4_s8": (Awq, {}, "marlin_int4_a8int8"),
    "u8b128_s8": (Gptq, {"bits": 8, "qzeros": False, "g_idx": False}, "marlin_int8_a8int8"),
    "u4b8_e4m3": (Gptq, {"bits": 4, "qzeros": False, "g_idx": False}, "marlin_int4_a8fp8"),
    "u4_e4m3": (Awq, {}, "marlin_int4_a8fp8"),
    "mxfp4_e4m3": (Mxfp4Small, {}, "marlin_mxfp4_a8fp8"),
}
"""name -> checkpoint format, its parameters, kernel: every code with every type of activation. In names with `_s8` and
`_e4m3` that is the type of the activations; all others have the 16-bit type of the case."""

HELD = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}
"""Half a unit in the last place of 1, and half the least number."""

SUMS, SUMS_OF_E4M3 = 2.0**-23, 2.0**-13
"""How far off, relative to itself, a sum may be; and a GPU's sum of products of 8-bit floats. See `error`."""


def draw(
    name: str,
    dtype: str,
    module: str,
    sizes: Mapping[str, Any],
    *,
    seed: int = 0,
    group: int | None = None,
    **options: Any,
) -> Case:
    """A case of SOURCES. `params` are further parameters, of the checkpoint without a prefix, else as compile_plan has
    them; all other options are those of conversions.Job."""
    make, fixed, kernel = SOURCES[name]
    params = fixed | {"dtype": dtype} | options.pop("params", {})
    beside = {key: params.pop(key) for key in list(params) if "." in key}
    if group is not None:
        (beside if make is Fp8Block else params).update({"target.group" if make is Fp8Block else "group": group})
    kernel = options.pop("kernel", kernel)
    return Case(Job(make(params), kernel, module, dict(sizes), params=beside, dtype=dtype, **options), seed)


def tamed(tensors: dict[str, list], source: Format) -> dict[str, list]:
    """The same checkpoint with smaller scales."""
    lower = 7 if source.code == "e4m3" else 6 if source.code in ("u8", "u8b128") else 3

    def tame(name: str, array: np.ndarray) -> np.ndarray:
        last = name.rsplit(".", 1)[-1]
        if source.spec in ("mxfp4", "mxfp8") and last in ("weight_scale", "scales"):
            return (110 + array % 8 + (8 if source.code == "e2m1" else 0)).astype(np.uint8)
        if source.spec == "nvfp4" and (last == "weight_scale_2" or "global" in last):
            return np.ldexp(array, 4 if source.writer == "compressed_tensors" else -4).astype(np.float32)
        if source.spec == "nvfp4" or last != source.scale:
            return array
        dtype = source._dtype_of(array)
        return bits(np.ldexp(FLOAT[dtype](array), -lower), dtype)

    return {name: [tame(name, np.asarray(array)) for array in arrays] for name, arrays in tensors.items()}


@dataclass(frozen=True)
class Product:
    """What a GEMM must give: float64 [m, n], the columns as the caller has them; and how far off it may be."""

    value: np.ndarray
    error: np.ndarray

    def check(self, found: torch.Tensor | np.ndarray) -> None:
        """AssertionError where an element is further off."""
        found = found.double().numpy() if isinstance(found, torch.Tensor) else np.asarray(found, np.float64)
        assert found.shape == self.value.shape, f"{found.shape} is not {self.value.shape}"
        off = np.abs(found - self.value)
        if not (off <= self.error).all():
            worst = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off / self.error)), off.shape)
            wrong = int((~(off <= self.error)).sum())
            raise AssertionError(
                f"{wrong} of {off.size} are wrong, the worst at {tuple(map(int, worst))}: "
                f"{found[worst]!r}, expected {self.value[worst]!r} within {self.error[worst]!r}"
            )


@dataclass(frozen=True)
class Case:
    """A conversion with its checkpoint. Matrices are named as in the plan; `at` counts this rank's experts."""

    job: Job
    seed: int = 0

    @cached_property
    def plan(self) -> Plan:
        return self.job.plan

    @cached_property
    def arrays(self) -> dict[str, list]:
        """The checkpoint as decoders take it: plan's name -> an array per expert."""
        return tamed(self.job.draw(np.random.default_rng(self.seed)), self.job.source)

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """The checkpoint as plans take it."""
        only = self.job.only
        read = {name: made for name, made in self.arrays.items() if not only or name.startswith(tuple(only))}
        return conversions.given(self.plan, read)

    @cached_property
    def made(self) -> dict[str, torch.Tensor]:
        """The plan's outputs."""
        return self.plan.run(self.tensors)

    def matrix(self, name: str) -> Matrix:
        (found,) = (matrix for matrix in self.job.matrices if matrix.name == name)
        return found

    def extent(self, name: str, role: str, part: str = "") -> Extent:
        (found,) = (e for e in self.plan.extents if (e.matrix, e.role, e.part) == (name, role, part))
        return found

    # what the checkpoint holds ----------------------------------------------------------------------------------------

    def parts(self, name: str, at: int = 0) -> list[np.ndarray]:
        """float64 [n, k] of each part of this rank's slice; with act-order, inputs stand as the kernel takes them."""
        if f"{name}.input_global_scale" not in self.made:
            return self._slice(name, at, conversions._rounded(self.job))
        widths = [self.extent(name, "n", part).length for part in self.matrix(name).parts]
        k = self.extent(name, "k")
        read = self.read(name, at)[self.columns(name)][:, k.front : k.front + k.length]
        return np.split(read, np.cumsum(widths)[:-1])

    def _slice(self, name: str, at: int, decode: Any) -> list[np.ndarray]:
        """This rank's slice of each part of what a decoder makes of an expert's tensors."""
        job, matrix, expert, k = self.job, self.matrix(name), self.job.held[at], self.extent(name, "k")
        rows = slice(None)
        if job.module in INNER and name == INNER[job.module][0] and job.source.act_order:
            rows = job.order(self.arrays, job.matrices[1], expert)  # the second matrix takes its inputs in this order
        own = job.order(self.arrays, matrix, expert)
        columns = (np.arange(matrix.k) if own is None else own)[k.start : k.start + k.length]
        found = []
        for part, whole in zip(matrix.parts, job.values(self.arrays, matrix, expert, decode)):
            n = self.extent(name, "n", part)
            found.append(whole[rows][n.start : n.start + n.length][:, columns])
        return found

    def weight(self, name: str = "linear", at: int = 0) -> np.ndarray:
        """float64 [n, k] of this rank's slice, the parts in the order of `columns`."""
        return np.concatenate(self.parts(name, at))

    def bias(self, name: str = "linear", at: int = 0) -> np.ndarray:
        """float64 [n], zeros where there is none or where another rank adds it."""
        matrix, n = self.matrix(name), len(self.columns(name))
        if not self.job.source.bias or (matrix.cut == "k" and self.job.rank):
            return np.zeros(n)
        values = [part[:, :1] for part in self._slice(name, at, conversions._bias(self.job.source))]
        return conversions.nearest(np.concatenate(values)[:, 0] if n else np.zeros(0), self.job.dtype)

    def order(self, name: str = "linear", at: int = 0) -> np.ndarray | None:
        """Which of the caller's inputs, those of all ranks, the kernel's first, second ... of this rank is; None: they
        are this rank's own."""
        matrix = self.matrix(name)
        if not self.job.source.act_order or (self.job.module in INNER and name == INNER[self.job.module][1]):
            return None
        k = self.extent(name, "k")
        return self.job.order(self.arrays, matrix, self.job.held[at])[k.start : k.start + k.length]

    # what the kernel reads --------------------------------------------------------------------------------------------

    def padded(self, name: str = "linear") -> tuple[int, int]:
        """The stored extents, n and k."""
        return conversions.padded(self.plan, self.matrix(name))

    def columns(self, name: str = "linear") -> np.ndarray:
        """The stored output that holds the caller's output 0, 1 and so on, part after part."""
        matrix = self.matrix(name)
        widths = [self.extent(name, "n", part).length for part in matrix.parts]
        return np.concatenate(conversions.rows(self.job, self.plan, matrix, widths))

    def read(self, name: str = "linear", at: int = 0) -> np.ndarray:
        """The padded float64 [n, k] that the outputs hold, by the kernel's decoder."""
        made = {key: conversions.array(tensor) for key, tensor in self.made.items()}
        return conversions.stored(self.job, self.plan, made, self.matrix(name), at)

    @property
    def activation(self) -> str:
        return conversions.KERNELS[self.job.kernel][0] or self.job.dtype

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.job.dtype)

    def rounds(self, name: str = "linear") -> bool:
        """Whether weights are rounded to 16 bits once on their way into the tensor core: their scale is applied
        before, and its product with a code has more digits than the type. Scales of FP4 and powers of two have not."""
        scale = self.made[f"{name}.weight_scale"]
        several = scale.shape[-2] > 1
        return several and scale.element_size() == 2 and self.activation == self.job.dtype

    # products ---------------------------------------------------------------------------------------------------------

    def x(self, rows: int, name: str = "linear", seed: int = 1) -> torch.Tensor:
        """Activations [rows, k] between -1 and 1: of all ranks where the plan gathers them, else of this rank."""
        matrix = self.matrix(name)
        k = matrix.k if self.order(name) is not None else self.extent(name, "k").length
        drawn = np.random.default_rng(seed).uniform(-1, 1, (rows, k))
        return torch.from_numpy(drawn).to(self.dtype)

    def product(
        self,
        x: torch.Tensor,
        name: str = "linear",
        at: int = 0,
        *,
        scales: torch.Tensor | None = None,
        unit: float = SUMS,
    ) -> Product:
        """This rank's x @ weight.T + bias. `x` are 16-bit floats, which the kernel may make 8-bit ones of; or its
        8-bit codes, with the `scales` [m] of their rows."""
        order = self.order(name, at)
        own = x if order is None else x[:, order]
        a = self.multiplied(own) if scales is None else own.double().numpy() * scales.double().numpy()[:, None]
        return product(a, self.weight(name, at), self.bias(name, at), self.job.dtype, self.rounds(name), unit=unit)

    def multiplied(self, x: torch.Tensor) -> np.ndarray:
        """float64 of what the kernel multiplies of 16-bit rows: they themselves, or codes times the scale of a row."""
        if self.activation == self.job.dtype:
            return x.double().numpy()
        codes, scales = quantized(x, self.activation)
        values = codes.view("i1") if self.activation == "int8" else e4m3fn(codes)
        return values * scales.astype(np.float64)[:, None]


def product(
    a: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    dtype: str,
    rounds: bool,
    *,
    moved: np.ndarray | float = 0.0,
    unit: float = SUMS,
) -> Product:
    """a @ weight.T + bias in float64, with the error that a kernel of that output type may make whose inputs are up to
    `moved` [m, k] off a."""
    value, near, size = a @ weight.T + bias, np.abs(a) + moved, np.abs(weight).T
    terms, inputs = near @ size + np.abs(bias), near.sum(axis=1, keepdims=True)
    return Product(value, error(value, (near - np.abs(a)) @ size, terms, inputs, a.shape[1], dtype, rounds, unit=unit))


def error(
    value: np.ndarray,
    moved: np.ndarray,
    terms: np.ndarray,
    inputs: np.ndarray,
    k: int,
    dtype: str,
    rounds: bool,
    *,
    unit: float = SUMS,
) -> np.ndarray:
    """How far a kernel's 16-bit output may be from y = sum_k a_k w_k + b, whose float64 value is `value`.

    Let u be half a unit in the last place of 1 in the output's type (2^-11 for float16, 2^-8 for bfloat16), t half its
    least number, and |a_k| + o_k the most that the kernel's own input may be, o_k off a_k (0 where inputs are given).
    T = sum_k (|a_k| + o_k) |w_k| + |b| (`terms`) and A = sum_k (|a_k| + o_k) (`inputs`).

    1. Inputs: sum_k o_k |w_k| (`moved`).
    2. Weights (`rounds`): where a scale is applied before the multiplication, the tensor core gets w' = w rounded once
       to 16 bits: |w' - w| <= u |w| + t, also where codes lack an exponent that their scale carries, since the product
       has it again. Over the sum: u T + t A.
    3. Sums: products of two 16-bit numbers are exact in float32. They are added in float32 in any order, in at most
       d = k + 16 steps: products, the parts of warps and of blocks that split k, scales, the bias. A step is off by at
       most `unit` of what it gives, and the weights add up to at most T (1 + u), so that all steps are off by at most
       ((1 + unit)^d - 1) T (1 + u), below (d unit + (d unit)^2) T (1 + u) while d unit < 1. Tensor cores may cut off
       rather than round, so `unit` is 2^-23 (SUMS); with 8-bit floats some keep 13 bits of a sum, so on a GPU it is
       2^-13 there (SUMS_OF_E4M3).
    4. Output: rounding what comes out to the type costs at most u (|y| + what the first three are off) + t.
    """
    u, t = HELD[dtype]
    weights = u * terms + t * inputs if rounds else 0.0
    steps = (k + 16) * unit
    sums = (steps + steps * steps) * (1 + u) * terms
    off = moved + weights + sums
    return off + u * (np.abs(value) + off) + t


# --- 8-bit activations ------------------------------------------------------------------------------------------------

TOPS = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The largest code of 8-bit activations."""

LEAST = 2.0**-100
"""A row's largest magnitude counts as this where it is less."""


def quantized(x: torch.Tensor, code: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes [m, k], as bytes, and float32 scales [m] of 16-bit rows, as kernels/gemm/quantize.cuh defines them."""
    top, values = np.float32(TOPS[code]), x.float().numpy()
    finite = np.isfinite(values).all(axis=1)
    values = np.where(finite[:, None], values, 0)
    largest = np.abs(values).max(axis=1, initial=np.float32(LEAST))
    scaled = values * (top / largest)[:, None]
    if code == "int8":
        codes = np.rint(scaled).astype("i1").view("u1")
    else:
        codes = torch.from_numpy(scaled).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return codes, np.where(finite, largest / top, np.float32(np.nan))


def requantized(of: Product, code: str) -> Product:
    """What a kernel multiplies of 16-bit rows that are up to `of.error` off: codes q times the scale s of their row.

    The kernel's row is h, and |h| is at most r = |value| + error, so that s = max |h| / top is at most max r / top. A
    code is h / s rounded to nearest: q s is off h by at most half a step times s, where a step of int8 is 1, and one of
    e4m3 2^-3 of the number, or 2^-9, the least there is. That s, its inverse and h / s are float32 numbers adds at most
    2^-22 r. h is off by `error` already: |q s - value| <= error + half a step s + 2^-22 r.
    """
    most = np.abs(of.value) + of.error
    scale = most.max(axis=1, keepdims=True, initial=LEAST) / TOPS[code] * (1 + 2.0**-23)
    half = scale / 2 if code == "int8" else np.maximum(most * 2.0**-4, scale * 2.0**-10)
    return Product(of.value, of.error + half + most * 2.0**-22)


# --- experts ----------------------------------------------------------------------------------------------------------

SLOPE = 1.13
"""No activation below, but for relu2, is steeper along gate."""

EVALUATED = 2.0**-18
"""How far off, relative to itself, a value of an activation may be that is computed in float32."""


def silu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return gate / (1 + np.exp(-gate)) * up


def gelu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return 0.5 * gate * (1 + _ERF(gate * np.sqrt(0.5))) * up


def gelu_tanh(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up


def swiglu_oai(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """gpt-oss: both are clamped, gate from above alone."""
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def relu2(up: np.ndarray) -> np.ndarray:
    return np.maximum(up, 0) ** 2


_ERF = np.vectorize(erf, otypes=[np.float64])

ACTIVATIONS = {one.__name__: one for one in (silu, gelu, gelu_tanh, swiglu_oai, relu2)}


def activated(parts: list[Product], activation: str, dtype: str) -> Product:
    """The activation of gate and up, or of up alone, rounded to 16 bits; errors go through it by its slopes."""
    value = ACTIVATIONS[activation](*(part.value for part in parts))
    if activation == "relu2":
        (up,) = parts
        off = (2 * np.abs(up.value) + up.error) * up.error
    else:
        gate, up = parts
        alone = np.abs(ACTIVATIONS[activation](gate.value, np.full_like(up.value, 1.0)))  # no less than its slope in up
        beside = np.minimum(np.abs(up.value), 7) + 1 if activation == "swiglu_oai" else np.abs(up.value)
        off = SLOPE * gate.error * (beside + up.error) + alone * up.error
    return rounded(value, off + EVALUATED * np.abs(value), dtype)


def rounded(value: np.ndarray, off: np.ndarray, dtype: str) -> Product:
    """What is off by so much already, rounded to 16 bits."""
    u, t = HELD[dtype]
    return Product(value, off + u * (np.abs(value) + off) + t)


def experts(
    case: Case,
    x: torch.Tensor,
    ids: np.ndarray,
    router: np.ndarray,
    activation: str,
    *,
    places: Mapping[int, int] | None = None,
    hidden: torch.Tensor | None = None,
    unit: float = SUMS,
) -> Product:
    """This rank's part of a mixture of experts: the sum over a token's experts of router x w2(act(w13 x)).

    x [m, h]; ids and router [m, top_k], experts as the router counts them; places: which of this rank's experts each of
    them is, those of other ranks are left out (None: the rank has all, in their order). What a kernel keeps between its
    GEMMs has 16 bits, and so has each expert's output before they are added in float32.

    With 8-bit activations w13 multiplies exactly what the kernel makes of x. What it makes of the inner activations is
    not known, since these may be off: `requantized` says how far it is off then, and so the bound is as wide as 8 bits
    are coarse. `hidden` [m top_k, inputs of w2], the 16-bit inner activations that a kernel has made, takes that away:
    they are held against the reference, and w2 multiplies exactly what the kernel makes of them.
    """
    matrix, (tokens, top_k) = case.matrix("w13"), ids.shape
    n = len(case.columns("w2"))
    total, magnitude, off = (np.zeros((tokens, n)) for _ in range(3))
    for expert in np.unique(ids):
        at = int(expert) if places is None else places.get(int(expert), -1)
        if at < 0:
            continue
        rows, choice = np.nonzero(ids == expert)
        first = case.product(x[rows], "w13", at, unit=unit)
        widths = np.cumsum([case.extent("w13", "n", part).length for part in matrix.parts])[:-1]
        parts = [Product(*pair) for pair in zip(np.split(first.value, widths, 1), np.split(first.error, widths, 1))]
        inner = activated(parts, activation, case.job.dtype)
        if hidden is not None:
            made = hidden[rows * top_k + choice]
            inner.check(made)
            inner = Product(case.multiplied(made), np.zeros(made.shape))
        elif case.activation != case.job.dtype:
            inner = requantized(inner, case.activation)
        second = product(
            inner.value, case.weight("w2", at), case.bias("w2", at), case.job.dtype, case.rounds("w2"),
            moved=inner.error, unit=unit,
        )  # fmt: skip
        by = router[rows, choice][:, None]
        one = rounded(second.value * by, second.error * np.abs(by), case.job.dtype)
        np.add.at(total, rows, one.value)
        np.add.at(magnitude, rows, np.abs(one.value))
        np.add.at(off, rows, one.error)
    return rounded(total, off + top_k * 2.0**-23 * (magnitude + off), case.job.dtype)
