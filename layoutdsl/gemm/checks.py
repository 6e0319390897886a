"""What a GEMM takes, said in words where it is given something else: before anything is launched.

Kernels check nothing: what is let through here stays inside its tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.gemm.facts import KINDS, Facts
from layoutdsl.gemm.quantize import quantizer
from layoutdsl.gemm.table import FAMILIES

NAMED = {"n4b8": "u4b8", "n4": "u4"}
"""Codes that differ from those of kernels only in how a kernel for FP8 activations reads them."""

GROUPS = {
    ("u4b8", "float"): (0, 32, 64, 128),
    ("u4", "float"): (0, 32, 64, 128),
    ("u8b128", "float"): (0, 32, 64, 128),
    ("u8", "float"): (0, 32, 64, 128),
    ("e4m3", "float"): (0, 32, 64, 128),
    ("e4m3", "e8m0z"): (32,),
    ("e2m1", "e8m0z"): (32,),
    ("e2m1", "s0e5m3"): (16,),
}
"""(code, kind of its scales) -> groups along k that kernels read; 0: one group. What is not here has no kernel."""

EIGHT = {
    ("u4b8", "s8"): (0, 32, 64, 128),
    ("u4", "s8"): (0, 32, 64, 128),
    ("u8b128", "s8"): (0, 32, 64, 128),
    ("n4b8", "e4m3"): (0, 32, 64, 128),
    ("n4", "e4m3"): (0, 32, 64, 128),
    ("e2m1", "e4m3"): (32,),
}
"""(code, 8-bit activations) -> the same."""

MAKES = {"s8": "int8", "e4m3": "float8_e4m3fn"}
"""8-bit activations, and the dtype that rows are quantized to, each with a scale of its own."""

BYTES = {"e8m0z": torch.float8_e8m0fnu, "s0e5m3": torch.float8_e4m3fn, "s0e5m3b": torch.float8_e4m3fn}
"""Scales of one byte, and the dtype that they are stored as."""

FIRST = {"f16": 80, "bf16": 80, "s8": 80, "e4m3": 89}
"""What is multiplied, and the compute capability, times ten, of the first GPUs whose tensor cores multiply it."""

OLDEST = min(FIRST.values())
"""That of the oldest GPU that any kernel runs on."""

MOST = 2**31 - 1
"""Rows, and blocks of a grid."""

WIDEST = 2**24
"""n and k are below it: kernels count the bytes of a row of weights in 32 bits."""


@dataclass(frozen=True)
class Stored:
    """The tensors of one matrix, or of all experts' matrices, as a plan makes them."""

    weight: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Those that are there, by name."""
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None:
                yield field.name, tensor


def all_fits(x: torch.Tensor, stored: Stored, facts: Facts) -> None:
    """LayoutError where a GEMM cannot be launched for these."""
    facts_fit(facts)
    device_fits(x.device, facts.kind)
    x_fits(x, facts)
    stored_fits(stored, facts, x.device)


# --- a matrix ---------------------------------------------------------------------------------------------------------


def scale_of(facts: Facts) -> tuple[str, int]:
    """Which scales kernels read, and the inputs that share one; 0 with one for all inputs."""
    if facts.scale == "e8m0z":
        return "e8m0", facts.group
    if facts.scale in BYTES:
        return "s0e5m3", facts.group
    return ("group", facts.group) if facts.groups > 1 else ("channel", 0)


@cache
def facts_fit(facts: Facts) -> None:
    """LayoutError where there is no kernel for such a matrix."""
    groups = _groups(facts)
    if facts.group not in groups:
        named = ", ".join(str(group) if group else "one for all inputs" for group in groups)
        raise _no_kernel(f"groups of {facts.group} inputs of {facts.code}", f"groups are {named}")
    if not any(facts.n > 0 and facts.n % n == 0 and facts.k > 0 and facts.k % k == 0 for n, k in FAMILIES):
        families = " or ".join(f"n is a multiple of {n}, k of {k}" for n, k in FAMILIES)
        raise _no_kernel(f"a matrix stored {facts.n} x {facts.k}", families)
    if max(facts.n, facts.k) >= WIDEST or (facts.group and facts.k % facts.group):
        raise _no_kernel(f"{facts.n} x {facts.k} in groups of {facts.group}", "k is whole groups, both are below 2^24")
    if min(facts.front, facts.valid) < 0 or facts.front >= facts.k or facts.front + facts.valid > facts.k:
        raise _no_kernel(f"{facts.valid} inputs behind {facts.front} of {facts.k}", "they stand among the stored ones")
    if facts.kind in MAKES:
        quantizer(facts.dtype, MAKES[facts.kind], facts.k)
    end = 0
    for one in sorted(facts.columns, key=lambda one: one.start):
        if min(one.start, one.length) < 0 or one.start + one.length > facts.n:
            raise _no_kernel(f"outputs at {one} of {facts.n}", "they stand among the stored ones")
        if one.length and one.start < end:
            raise _no_kernel(f"outputs at {one} and at others that overlap", "each stored one is given once")
        end = max(end, one.start + one.length)


def _groups(facts: Facts) -> tuple[int, ...]:
    """Those that the matrix could have; LayoutError where no kernel is for its code, scales and activations."""
    of = "float" if facts.scale in ("float16", "bfloat16") else facts.scale.removesuffix("b")
    if facts.dtype not in KINDS:
        raise _no_kernel(f"activations of {facts.dtype}", f"they are {' or '.join(KINDS)}")
    wide = facts.kind in KINDS.values()
    if wide:
        found = GROUPS.get((facts.code, of))
        if KINDS[facts.dtype] != facts.kind or (of == "float" and facts.scale != facts.dtype):
            raise _no_kernel(
                f"{facts.kind} activations with scales of {facts.scale} and results of {facts.dtype}",
                "all of them have one dtype",
            )
        if of == "e8m0z" and facts.kind != "bf16":
            raise _no_kernel(f"powers of two as scales with {facts.kind} activations", "take bfloat16")
    else:
        scales = {"s8": "int16" if facts.groups > 1 else facts.dtype, "e4m3": facts.dtype}
        wanted = "e8m0z" if facts.code == "e2m1" else scales.get(facts.kind)
        found = EIGHT.get((facts.code, facts.kind)) if facts.scale == wanted else None
    if found is None:
        table = GROUPS if wide else EIGHT
        codes = dict.fromkeys(code for code, kind in table if wide or facts.kind == kind)
        raise _no_kernel(
            f"weights of {facts.code} with scales of {facts.scale} and {facts.kind} activations",
            f"with {facts.kind} they are of {', '.join(codes) or 'none'}",
        )
    return found


def _no_kernel(what: str, help: str) -> LayoutError:
    return LayoutError(f"no kernel takes {what}", code="LP344", name="no-kernel", help=help)


# --- a machine --------------------------------------------------------------------------------------------------------


def one_device(x: torch.Tensor, *others: torch.Tensor | None) -> None:
    """LayoutError where some stand elsewhere than x. For torch takes one without data as leave to compute nothing: what
    it then gives on the device of x is memory that nobody wrote."""
    for other in others:
        if other is not None and other.device != x.device:
            raise LayoutError(
                f"x stands on {x.device}, others of its GEMM on {other.device}",
                code="LP343",
                name="no-such-device",
                help="move all to one device; a module made on `meta` has no data before .to_empty(device=) and a load",
            )


@cache
def device_fits(device: torch.device, kind: str) -> None:
    """LayoutError where kernels do not run there."""
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise LayoutError(
            f"x stands on {device}, GEMMs run on a GPU",
            code="LP343",
            name="no-such-device",
            help="move the module and x with .cuda(); on the CPU they run for checks, slowly",
        )
    major, minor = torch.cuda.get_device_capability(device)
    gpu_fits(10 * major + minor, kind)


def gpu_fits(capability: int, kind: str) -> None:
    """LayoutError for GPUs, of that compute capability times ten, that are too old."""
    if capability < OLDEST:
        raise LayoutError(
            f"this GPU is sm_{capability}, GEMMs need sm_{OLDEST} or newer: older ones have no asynchronous copies and "
            "no tensor cores for bfloat16",
            code="LP343",
            name="no-such-device",
            help="dequantize the weights for it, or give the plan's tensors to another engine's kernels",
        )
    if capability < FIRST[kind]:
        raise LayoutError(
            f"activations of {MAKES[kind]} need sm_{FIRST[kind]} or newer: tensor cores of sm_{capability} do not "
            "multiply them",
            code="LP347",
            name="activations-not-multiplied",
            help="a kernel spec with int8 or 16-bit activations, for instance marlin_int4_a8int8 or marlin_int4_a16",
        )


def grid_fits(blocks: int, rows: int) -> None:
    """LayoutError for more blocks than a launch has."""
    if blocks > MOST:
        raise LayoutError(
            f"{rows} rows take {blocks} blocks, a launch has at most {MOST}",
            code="LP342",
            name="wrong-input",
            help="give fewer rows at once",
        )


# --- tensors ----------------------------------------------------------------------------------------------------------


def is_dense(x: Any) -> bool:
    """Whether that is a tensor, and an ordinary one."""
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_nested


def no_gradient(*tensors: torch.Tensor | None) -> None:
    """LayoutError where one wants a gradient, which quantized weights do not give."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        raise LayoutError(
            "an input requires a gradient, GEMMs on quantized weights have no backward",
            code="LP355",
            name="no-backward",
            help="call it under torch.no_grad() or torch.inference_mode()",
        )


def x_fits(x: torch.Tensor, facts: Facts) -> None:
    """LayoutError where x is not [rows, valid] of the matrix' dtype."""
    wrong = None
    if not is_dense(x) or x.is_neg() or x.is_conj():
        wrong = "no plain dense tensor"
    elif x.dtype != getattr(torch, facts.dtype):
        wrong = f"{_name(x.dtype)}, expected {facts.dtype}"
    elif x.ndim != 2 or x.shape[1] != facts.valid:
        wrong = f"of shape {list(x.shape)}, expected [rows, {facts.valid}]"
    elif len(x) > MOST:
        wrong = f"{len(x)} rows, at most {MOST} are taken at once"
    if wrong is not None:
        raise LayoutError(
            f"x is {wrong}",
            code="LP342",
            name="wrong-input",
            help="the dtype is the plan's parameter `dtype`, the inputs are those of this rank",
        )


def stored_fits(stored: Stored, facts: Facts, device: torch.device, experts: int = 1) -> None:
    """LayoutError where a tensor is not what the matrix has, or experts of them."""
    for name, (dtype, size) in _wanted(facts).items():
        tensor = getattr(stored, name)
        if tensor is None:
            if name == "bias":
                continue
            raise _wrong(name, f"is missing: expected {_name(dtype)} of {size * experts} elements")
        if tensor.device != device:
            raise _wrong(name, f"stands on {tensor.device}, x on {device}")
        if tensor.dtype != dtype:
            raise _wrong(name, f"is {_name(tensor.dtype)}, expected {_name(dtype)}")
        copies = 1 if name == "global_scale" and facts.scale == "int16" else experts  # which all experts share
        if tensor.numel() != size * copies:
            raise _wrong(name, f"has the shape {list(tensor.shape)}, expected {size * copies} elements")
        if not tensor.is_contiguous():
            raise _wrong(name, "is not contiguous", "store its .contiguous()")
        if tensor.data_ptr() % 16:
            raise _wrong(name, "does not begin at a multiple of 16 bytes", "it is part of another: store its .clone()")
    for name, _ in stored.items():
        if name not in _wanted(facts):
            raise _wrong(name, f"is given, and weights of {facts.code} with scales of {facts.scale} have none")


@cache
def _wanted(facts: Facts) -> dict[str, tuple[torch.dtype, int]]:
    """name -> dtype and elements of one expert."""
    dtype, cells = getattr(torch, facts.dtype), facts.groups * facts.n
    found = {
        "weight": (torch.int32, facts.n * facts.k * facts.bits // 32),
        "scale": (BYTES.get(facts.scale, dtype), cells),
        "bias": (dtype, facts.n),
    }
    if facts.code in ("u4", "u8", "n4"):
        found["zero_point"] = (torch.int32, cells * facts.bits // 32)
    if facts.scale.startswith("s0e5m3") or facts.scale == "int16":
        found["global_scale"] = (torch.float32, 1)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _wrong(name: str, what: str, help: str = "take it from the plan: load_checkpoint, or Plan.run") -> LayoutError:
    return LayoutError(f"`{name}` {what}", code="LP349", name="wrong-tensor", help=help)
