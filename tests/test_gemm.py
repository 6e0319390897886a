"""The GEMM kernels on the host: weights as plans make them, results held against float64 products of the checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import Case, draw
from host_kernels import Launcher, Schedule

from layoutdsl.gemm.instance import Instance

KINDS = {"float16": "f16", "bfloat16": "bf16"}
SMALL = Instance("u4b8", "f16", "group", 64)


def instance(case: Case, **facts) -> Instance:
    """The kernel for a dense case of one matrix."""
    groups, k = len(case.made["linear.weight_scale"]), case.padded()[1]
    scale = {"marlin_nvfp4_a16": "s0e5m3", "marlin_mxfp4_a16": "e8m0", "marlin_mxfp8_a16": "e8m0"}.get(case.job.kernel)
    scale, group = ("channel", 0) if groups == 1 else (scale or "group", k // groups)
    return replace(SMALL, code=case.job.source.code, kind=KINDS[case.job.dtype], scale=scale, group=group, **facts)


def multiplied(case: Case, of: Instance, x: torch.Tensor, *, splits: int = 1, schedule=None, launcher=None):
    """The kernel's [m, outputs] of a case's only matrix."""
    launcher = launcher or Launcher(schedule or Schedule())
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
    names = ("weight", "weight_scale", "zero_point", "global_scale", "bias")
    given = {"a": x, **{name: case.made.get(f"linear.{name}") for name in names}, "columns": torch.from_numpy(columns)}
    for name, tensor in given.items():
        if tensor is not None:
            launcher.reads(name, tensor)
    for name, tensor in made.items():
        if tensor is not None:
            launcher.writes(name, tensor)
    places = [0 if tensor is None else tensor.data_ptr() for tensor in (*given.values(), *made.values())]
    numbers = [len(x), n, k, x.stride(0), extent.front, x.shape[1], len(outputs), splits]
    launcher.launch(of, tiles[0] * tiles[1] * splits, [*places, *numbers])
    return made["c"]


TILES = (
    {"m": 16, "n": 128, "k": 64, "depth": 4},
    {"m": 16, "n": 64, "k": 128, "depth": 4},
    {"m": 32, "n": 64, "k": 128, "depth": 8},
    {"m": 48, "n": 256, "k": 64, "depth": 2},
    {"m": 64, "n": 128, "k": 128, "depth": 1, "stages": 3},
)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("group", [64, -1])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile.values())))
def test_tiles(tile, group, dtype):
    case = draw("u4b8", dtype, "linear", {"n": 256, "k": 256}, group=group)
    of = instance(case, **tile)
    for rows in (1, tile["m"], tile["m"] + 1):
        x = case.x(rows)
        case.product(x).check(multiplied(case, of, x))


CODES = (
    *((code, dtype, group) for code in ("u4b8", "u4", "u8b128") for dtype in KINDS for group in (-1, 32, 64, 128)),
    *(("e4m3", dtype, None) for dtype in KINDS),
    *(("e4m3_blocks", dtype, group) for dtype in KINDS for group in (32, 64, 128)),
    *(("nvfp4", dtype, None) for dtype in KINDS),
    *((name, "bfloat16", None) for name in ("mxfp8", "mxfp4", "gpt_oss")),
)


@pytest.mark.parametrize(("name", "dtype", "group"), CODES, ids=str)
def test_codes(name, dtype, group):
    """Each code with each kind of scales, a bias, and two tiles of inputs: longer and no longer than a group."""
    case = draw(name, dtype, "linear", {"n": 128, "k": 256}, group=group, params={"bias": True})
    for tile in ({"m": 16, "n": 128, "k": 64, "depth": 2}, {"m": 32, "n": 64, "k": 128, "depth": 4}):
        for rows in (5, 33):
            x = case.x(rows)
            case.product(x).check(multiplied(case, instance(case, **tile), x))
