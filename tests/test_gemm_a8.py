"""The GEMM kernels with 8-bit activations on the host: weights as plans make them, activations quantized by the kernel
that does it, results held against float64 products of the checkpoint and of these activations.

The bound is that of 16-bit activations, though e4m3 has a wider one on GPUs: the host rounds each sum to float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import Case, Product, draw
from host_kernels import Launcher, Schedule
from test_gemm import Routed
from test_gemm import multiplied as multiplied_codes

from layoutdsl.backends.host.launch import schedules
from layoutdsl.gemm.instance import Instance
from layoutdsl.gemm.quantize import quantizer

TYPES = {"int8": ("s8", torch.int8), "float8_e4m3fn": ("e4m3", torch.float8_e4m3fn)}
RESULTS = {"float16": "f16", "bfloat16": "bf16"}


def instance(case: Case, name: str = "linear", **facts) -> Instance:
    """The kernel for a case's matrix."""
    stored, k = case.made[f"{name}.weight_scale"], case.padded(name)[1]
    groups = stored.shape[-2]
    scale = "e8m0" if stored.element_size() == 1 else "channel" if groups == 1 else "group"
    group = 0 if scale == "channel" else k // groups
    kind = TYPES[case.activation][0]
    return Instance(case.job.source.code, kind, scale, group, result=RESULTS[case.job.dtype], **facts)


def quantized(case: Case, x: torch.Tensor, name: str = "linear") -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [m, inputs of the kernel] and scales [m] of 16-bit x [m, inputs of this rank]."""
    of, extent = quantizer(case.job.dtype, case.activation, case.padded(name)[1]), case.extent(name, "k")
    codes = torch.empty((len(x), of.columns), dtype=TYPES[case.activation][1])
    scales = torch.empty(len(x), dtype=torch.float32)
    launcher = Launcher()
    launcher.reads("x", x)
    launcher.writes("codes", codes)
    launcher.writes("scales", scales)
    places = [tensor.data_ptr() for tensor in (codes, scales, x)]
    launcher.launch(of, len(x), of.arguments(*places, stride=2 * x.stride(0), front=extent.front, valid=x.shape[1]))
    return codes, scales


def multiplied(case: Case, of: Instance, x: torch.Tensor, **options) -> torch.Tensor:
    codes, scales = quantized(case, x)
    return multiplied_codes(case, of, codes, row_scales=scales, **options)


FORMS = [
    (f"{code}_{kind}", dtype, group)
    for code, kind in (("u4b8", "s8"), ("u4", "s8"), ("u8b128", "s8"), ("u4b8", "e4m3"), ("u4", "e4m3"))
    for dtype in RESULTS
    for group in (-1, 32, 64, 128)
] + [("mxfp4_e4m3", "bfloat16", None)]


def drawn(name: str, dtype: str, group: int | None, n: int, k: int, **options) -> Case:
    params = {} if name.startswith("u4_") else {"bias": True}  # awq has none
    return draw(name, dtype, "linear", {"n": n, "k": k}, group=group, params=params, **options)


@pytest.mark.parametrize(("name", "dtype", "group"), FORMS, ids=str)
def test_forms(name, dtype, group):
    """Each code with each kind of activations, scales and results; a warp has a part of a group in a stage, one, or
    several."""
    case = drawn(name, dtype, group, 128, 256)
    for tile in ({"m": 16, "n": 128, "k": 64, "depth": 2}, {"m": 32, "n": 64, "k": 128, "depth": 1}):
        for rows in (5, 33):
            x = case.x(rows)
            case.product(x).check(multiplied(case, instance(case, **tile), x))


TILES = (
    {"m": 16, "n": 128, "k": 64, "depth": 1},
    {"m": 16, "n": 64, "k": 128, "depth": 4},
    {"m": 32, "n": 256, "k": 64, "depth": 2},
    {"m": 48, "n": 128, "k": 128, "depth": 2},
    {"m": 64, "n": 64, "k": 128, "depth": 4, "stages": 3},
)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile.values())))
@pytest.mark.parametrize(("name", "group"), [("u4_s8", 64), ("u8b128_s8", -1), ("u4_e4m3", 128), ("mxfp4_e4m3", None)])
def test_tiles(name, group, tile):
    case = drawn(name, "bfloat16", group, 256, 256)
    for rows in (1, 5, 16, 33):
        x = case.x(rows)
        case.product(x).check(multiplied(case, instance(case, **tile), x))


ODD = {
    "after": (200, 344, {}),
    "before": (72, 384, {"split": "k", "tp": 4, "rank": 1}),  # the rank begins within a group
}


@pytest.mark.parametrize("tile", [{"n": 64, "k": 128, "depth": 4}, {"n": 128, "k": 64, "depth": 2}], ids=str)
@pytest.mark.parametrize("where", ODD)
@pytest.mark.parametrize("name", ["u4b8_s8", "u4b8_e4m3"])
def test_padding(name, where, tile):
    """Codes of padded inputs are zeros that the quantizer wrote; padded outputs are not written."""
    n, k, options = ODD[where]
    case = drawn(name, "float16", 64, n, k, **options)
    extent = case.extent("linear", "k")
    assert case.padded()[0] > n and case.padded()[1] > extent.length and bool(extent.front) == (where == "before")
    x = case.x(5)
    case.product(x).check(multiplied(case, instance(case, **tile), x))


@pytest.mark.parametrize("splits", [2, 3, 5])
@pytest.mark.parametrize(("name", "group"), [("u4b8_s8", 128), ("u4b8_s8", -1), ("u4_e4m3", 32)])
def test_splits(name, group, splits):
    case = drawn(name, "bfloat16", group, 128, 640)
    x, of = case.x(17), instance(case, n=64, k=128, depth=4)
    seen = []
    for schedule in (Schedule(), Schedule("reverse", "late", 3), Schedule("random", "mixed", 4, 1)):
        seen.append(multiplied(case, of, x, splits=splits, launcher=Launcher(schedule)))
        case.product(x).check(seen[-1])
    assert all(torch.equal(one, seen[0]) for one in seen)


@pytest.mark.parametrize(("name", "group"), [("u4_s8", 128), ("u4_e4m3", 64)])
def test_every_schedule(name, group):
    case = drawn(name, "float16", group, 64, 512)
    x, of = case.x(16), instance(case, n=64, k=64, depth=2)
    first = multiplied(case, of, x)
    case.product(x).check(first)
    for schedule in schedules(resident=2, seeds=2):
        assert torch.equal(multiplied(case, of, x, launcher=Launcher(schedule)), first), schedule


@pytest.mark.parametrize(("name", "dtype", "group"), [("u4b8_s8", "float16", 32), ("u4_e4m3", "bfloat16", -1)])
def test_experts(name, dtype, group):
    """Uneven and empty experts, some of another rank; rows of a are shared, and so is the scale of int16 scales."""
    case = draw(name, dtype, "moe_gated", {"e": 8, "i": 72, "h": 256}, group=group)
    rng = np.random.default_rng(0)
    experts = rng.choice([-1, 0, 1, 2, 5, 7], 40, p=[0.1, 0.5, 0.2, 0.1, 0.05, 0.05])
    router = torch.from_numpy(rng.uniform(0, 1, 40)).float()
    for matrix, per_row, by in (("w13", 2, None), ("w2", 1, router)):
        tile = {"n": 64, "k": 128} if case.padded(matrix)[1] % 128 == 0 else {"n": 128, "k": 64, "depth": 2}
        of = instance(case, matrix, m=16, rows="experts", **tile)
        x = case.x(40 // per_row, matrix)
        codes, scales = quantized(case, x, matrix)
        routed = Routed.of(experts, of.m, per_row, by)
        found = multiplied_codes(case, of, codes, row_scales=scales, name=matrix, routed=routed, splits=2)
        for expert in range(8):
            rows = np.nonzero(experts == expert)[0]
            if len(rows) == 0:
                continue
            due = case.product(x[rows // per_row], matrix, expert)
            factor = 1 if by is None else by[rows].double().numpy()[:, None]
            Product(due.value * factor, due.error * factor + 2.0**-23 * np.abs(due.value)).check(found[rows])
        assert (found[experts == -1] == -1).all()


@pytest.mark.parametrize("tile", [{"n": 64, "k": 128, "depth": 4}, {"n": 128, "k": 64, "depth": 2}], ids=str)
def test_padded_powers(tile):
    """The scale byte of padded groups is 0, which is the value 0."""
    case = drawn("mxfp4_e4m3", "bfloat16", None, 72, 224)
    assert (case.made["linear.weight_scale"].view(torch.uint8) == 0).any()
    x = case.x(5)
    case.product(x).check(multiplied(case, instance(case, **tile), x))


def test_rows_of_zeros_and_of_what_is_not_finite():
    """Zeros give the bias; an infinity or a NaN makes its own row NaN and no other one."""
    case = drawn("u4b8_s8", "float16", 64, 128, 256)
    x = case.x(4)
    x[1], x[2, 7], x[3, 9] = 0, float("inf"), float("nan")
    found = multiplied(case, instance(case, n=64, k=128), x)
    assert found[:2].isfinite().all() and found[2:].isnan().all()
    bias = case.bias()
    assert np.array_equal(found[1].double().numpy(), bias)


def test_powers_at_the_ends():
    """MXFP4's scales from 2^-127 on. Beyond 2^110 sums may leave float32 before the activations' scales are applied."""
    case = draw("mxfp4_e4m3", "bfloat16", "linear", {"n": 64, "k": 128})
    case.arrays["linear.weight_scale"][0][:] = np.repeat([0, 1, 127 + 109, 127 + 110], 16)[:, None]
    x = case.x(3)
    due = case.product(x)
    assert np.abs(due.value[:, :32]).max() < 2.0**-115 and np.abs(due.value).max() > 2.0**110
    due.check(multiplied(case, instance(case, n=64, k=128), x))


@pytest.mark.parametrize(
    ("name", "dtype", "group", "tile"),
    [
        ("u4b8_s8", "float16", 64, {"m": 16, "n": 128, "k": 64, "depth": 2}),
        ("u4_s8", "bfloat16", 32, {"m": 32, "n": 256, "k": 128, "depth": 2, "stages": 3}),
        ("u8b128_s8", "bfloat16", 128, {"m": 16, "n": 64, "k": 128, "depth": 4}),
        ("u8b128_s8", "float16", -1, {"m": 64, "n": 128, "k": 64, "depth": 2}),
        ("u4b8_e4m3", "float16", 128, {"m": 48, "n": 64, "k": 128, "depth": 4}),
        ("mxfp4_e4m3", "bfloat16", None, {"m": 16, "n": 128, "k": 64, "depth": 2}),
    ],
    ids=str,
)
def test_counters(name, dtype, group, tile):
    """Each weight is read once for each tile of rows, 16 bytes a lane, whole sectors; no bank serves anybody twice."""
    case = drawn(name, dtype, group, 256, 512)
    launcher, of, x = Launcher(), instance(case, **tile), case.x(65)
    multiplied(case, of, x, launcher=launcher)
    lines = dict(launcher.counters[of.name].lines)
    stores = {(line.file, line.line) for line in lines if (line.space, line.way) == ("shared", "store")}
    copies = {line.file: line for line in lines if line.space == "global" and (line.file, line.line) in stores}
    assert set(copies) == {"gemm/rows.cuh", "gemm/weights.cuh", *(["gemm/scales.cuh"] if of.scale != "channel" else [])}
    for line in copies.values():
        assert line.width == 16 and lines[line].bytes == 32 * lines[line].sectors
    launches, tiles = 2, -(-len(x) // of.m)
    assert lines[copies["gemm/weights.cuh"]].bytes == launches * tiles * case.made["linear.weight"].nbytes
    assert lines[copies["gemm/rows.cuh"]].bytes == launches * (256 // of.n) * len(x) * 512
    assert all(traffic.conflicts == 0 for traffic in lines.values())


def test_names_and_texts_differ():
    of = Instance("u4b8", "s8", "group", 128, depth=2, result="f16")
    assert len({one.name for one in (of, replace(of, result="bf16"), replace(of, kind="e4m3"))}) == 3
