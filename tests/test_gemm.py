"""The GEMM kernels on the host: weights as plans make them, results held against float64 products of the checkpoint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import Case, draw
from host_kernels import Launcher, Schedule

from layoutdsl.backends.host.launch import schedules
from layoutdsl.gemm.instance import Instance

KINDS = {"float16": "f16", "bfloat16": "bf16"}
SMALL = Instance("u4b8", "f16", "group", 64)


def instance(case: Case, **facts) -> Instance:
    """The kernel for a dense case of one matrix."""
    groups, k = len(case.made["linear.weight_scale"]), case.padded()[1]
    scale = {"marlin_nvfp4_a16": "s0e5m3", "marlin_mxfp4_a16": "e8m0", "marlin_mxfp8_a16": "e8m0"}.get(case.job.kernel)
    scale, group = ("channel", 0) if groups == 1 else (scale or "group", k // groups)
    return replace(SMALL, code=case.job.source.code, kind=KINDS[case.job.dtype], scale=scale, group=group, **facts)


def multiplied(case: Case, of: Instance, x: torch.Tensor, *, splits: int = 1, launcher: Launcher | None = None):
    """The kernel's [m, outputs] of a case's only matrix. Rows of `x` have rubbish after their end."""
    launcher = launcher or Launcher()
    n, k = case.padded()
    outputs, front = case.columns(), case.extent("linear", "k").front
    columns = np.full(n, -1, np.int32)
    columns[outputs] = np.arange(len(outputs))
    tiles = -(-len(x) // of.m), n // of.n
    a = torch.full((len(x), -(-x.shape[1] // 8) * 8), float("nan"), dtype=x.dtype)
    a[:, : x.shape[1]] = x
    made = {"c": torch.full((len(x), len(outputs)), float("nan"), dtype=case.dtype)}
    if splits > 1:
        made["partials"] = torch.full((*tiles, splits, of.m, of.n), float("nan"))
        made["arrivals"] = torch.zeros(tiles, dtype=torch.int32)
    given = {"a": a, "columns": torch.from_numpy(columns)}
    given |= {name.removeprefix("linear."): tensor for name, tensor in case.made.items()}
    for name, tensor in given.items():
        launcher.reads(name, tensor)
    for name, tensor in made.items():
        launcher.writes(name, tensor)
    order = (
        "a", "row_scales", "weight", "weight_scale", "zero_point", "global_scale", "bias", "columns", "c", "partials",
        "arrivals",
    )  # fmt: skip
    both = given | made
    places = [both[name].data_ptr() if name in both else 0 for name in order]
    numbers = [len(x), n, k, a.stride(0), front, x.shape[1], len(outputs), splits]
    for _ in range(2):  # the second finds the counters of the first
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


ODD = (
    ("gptq", {"n": 200, "k": 344}, {"group": 128}),  # columns and rows beyond the end
    ("front", {"n": 72, "k": 384}, {"group": 64, "split": "k", "tp": 4, "rank": 1}),  # a rank begins within a group
)


@pytest.mark.parametrize("tile", [{"n": 64, "k": 128}, {"n": 128, "k": 64}], ids=str)
@pytest.mark.parametrize(("sizes", "options"), [one[1:] for one in ODD], ids=[one[0] for one in ODD])
def test_padding(sizes, options, tile):
    """Padded inputs are not read, padded outputs are not written."""
    case = draw("u4b8", "float16", "linear", sizes, params={"bias": True}, **options)
    n, k = case.padded()
    extent = case.extent("linear", "k")
    assert extent.front or n > sizes["n"]
    if n % tile["n"] or k % tile["k"]:
        pytest.skip("another family")
    x = case.x(5)
    case.product(x).check(multiplied(case, instance(case, **tile), x))


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_splits(splits):
    case = draw("u4b8", "bfloat16", "linear", {"n": 128, "k": 640}, group=128, params={"bias": True})
    x = case.x(17)
    of = instance(case, m=16, n=64, k=128, depth=4)
    seen = []
    for schedule in (Schedule(), Schedule("reverse", "late", 3), Schedule("random", "mixed", 4, 1)):
        seen.append(multiplied(case, of, x, splits=splits, launcher=Launcher(schedule)))
        case.product(x).check(seen[-1])
    assert all(torch.equal(one, seen[0]) for one in seen)


@pytest.mark.parametrize("name, group", [("u4b8", 128), ("u8b128", 64), ("nvfp4", None)])
def test_every_schedule(name, group):
    case = draw(name, "float16", "linear", {"n": 64, "k": 512}, group=group)
    x, of = case.x(16), instance(case, n=64, k=64, depth=2)
    first = multiplied(case, of, x)
    case.product(x).check(first)
    for schedule in schedules(resident=2, seeds=2):
        assert torch.equal(multiplied(case, of, x, launcher=Launcher(schedule)), first), schedule
