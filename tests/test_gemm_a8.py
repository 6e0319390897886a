"""The GEMM kernels with 8-bit activations on the host: weights as plans make them, activations quantized by the kernel
that does it, results held against float64 products of the checkpoint and of these activations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gemm_cases import Case, draw
from host_kernels import Launcher, Schedule

from layoutdsl.gemm.instance import Instance
from layoutdsl.gemm.quantize import quantizer

TYPES = {"int8": ("s8", torch.int8), "float8_e4m3fn": ("e4m3", torch.float8_e4m3fn)}
RESULTS = {"float16": "f16", "bfloat16": "bf16"}


def instance(case: Case, **facts) -> Instance:
    """The kernel for a dense case of one matrix."""
    scale = case.made["linear.weight_scale"]
    group = case.job.source.group
    several = scale.element_size() == 1 or scale.shape[0] > 1
    return Instance(
        case.job.source.code,
        TYPES[case.activation][0],
        "e8m0" if scale.element_size() == 1 else "group" if several else "channel",
        group if several else 0,
        result=RESULTS[case.job.dtype],
        **facts,
    )


def quantized(case: Case, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [m, k as the kernel has it] and scales [m] of 16-bit x [m, columns of this rank]."""
    of, held = quantizer(case.job.dtype, case.activation, case.padded()[1]), case.extent("linear", "k")
    codes = torch.empty((len(x), of.columns), dtype=TYPES[case.activation][1])
    scales = torch.empty(len(x), dtype=torch.float32)
    launcher = Launcher()
    launcher.reads("x", x)
    launcher.writes("codes", codes)
    launcher.writes("scales", scales)
    places = [tensor.data_ptr() for tensor in (codes, scales, x)]
    launcher.launch(of, len(x), of.arguments(*places, stride=2 * x.stride(0), front=held.front, valid=x.shape[1]))
    return codes, scales


def multiplied(case: Case, of: Instance, x: torch.Tensor, *, splits=1, schedule=None, launcher=None):
    """The kernel's [m, outputs] of 16-bit x, and what it must be."""
    launcher = launcher or Launcher(schedule or Schedule())
    codes, scales = quantized(case, x)
    n, k = case.padded()
    outputs, extent = case.columns(), case.extent("linear", "k")
    columns = np.full(n, -1, np.int32)
    columns[outputs] = np.arange(len(outputs))
    tiles = -(-len(x) // of.m), n // of.n
    made = {
        "c": torch.full((len(x), len(outputs)), float("nan"), dtype=case.dtype),
        "partials": torch.full((*tiles, splits, of.m, of.n), float("nan")) if splits > 1 else None,
        "arrivals": torch.zeros(tiles, dtype=torch.int32) if splits > 1 else None,
    }
    names = ("weight", "weight_scale", "zero_point", "input_global_scale", "bias")
    given = {
        "a": codes, "row_scales": scales, **{name: case.made.get(f"linear.{name}") for name in names},
        "columns": torch.from_numpy(columns),
    }  # fmt: skip
    for name, tensor in given.items():
        if tensor is not None:
            launcher.reads(name, tensor)
    for name, tensor in made.items():
        if tensor is not None:
            launcher.writes(name, tensor)
    places = [0 if tensor is None else tensor.data_ptr() for tensor in (*given.values(), *made.values())]
    numbers = [len(x), n, k, codes.stride(0), 0, k, len(outputs), splits]
    launcher.launch(of, tiles[0] * tiles[1] * splits, [*places, *numbers])
    assert made["arrivals"] is None or not made["arrivals"].any()
    held = codes[:, extent.front : extent.front + extent.length]
    return made["c"], case.product(held, scales=scales)


FORMS = [
    ("u4b8_s8", -1), ("u4b8_s8", 32), ("u4b8_s8", 64), ("u4b8_s8", 128),
    ("u4_s8", -1), ("u4_s8", 32), ("u4_s8", 64), ("u4_s8", 128),
    ("u8b128_s8", -1), ("u8b128_s8", 32), ("u8b128_s8", 64), ("u8b128_s8", 128),
    ("u4b8_e4m3", -1), ("u4b8_e4m3", 32), ("u4b8_e4m3", 64), ("u4b8_e4m3", 128),
    ("u4_e4m3", -1), ("u4_e4m3", 32), ("u4_e4m3", 64), ("u4_e4m3", 128),
    ("mxfp4_e4m3", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "group"), FORMS)
def test_forms(name, group):
    """Every code, activation and group, with both types of result, where there are two."""
    for dtype in ("bfloat16",) if name == "mxfp4_e4m3" else RESULTS:
        case = draw(name, dtype, "linear", {"n": 256, "k": 256}, group=group)
        for rows, facts in ((5, {"depth": 2}), (16, {"m": 32, "n": 64, "k": 128})):
            found, wanted = multiplied(case, instance(case, **facts), case.x(rows))
            wanted.check(found)
