"""The GEMM kernels on the host: weights as plans make them, results held against float64 products of the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from gemm_cases import Case, Product, draw
from host_kernels import Launcher, Schedule

from layoutdsl.backends.host.launch import schedules
from layoutdsl.gemm.instance import Instance

KINDS = {"float16": "f16", "bfloat16": "bf16"}
TENSORS = (
    *("a", "row_scales", "weight", "weight_scale", "zero_point", "global_scale", "bias"),
    *("columns", "c", "partials", "arrivals"),
)
SMALL = Instance("u4b8", "f16", "group", 64)


def instance(case: Case, name: str = "linear", **facts) -> Instance:
    """The kernel for a case's matrix."""
    groups, k = case.made[f"{name}.weight_scale"].shape[-2], case.padded(name)[1]
    scale = {"marlin_nvfp4_a16": "s0e5m3", "marlin_mxfp4_a16": "e8m0", "marlin_mxfp8_a16": "e8m0"}.get(case.job.kernel)
    scale, group = ("channel", 0) if groups == 1 else (scale or "group", k // groups)
    return replace(SMALL, code=case.job.source.code, kind=KINDS[case.job.dtype], scale=scale, group=group, **facts)


@dataclass(frozen=True)
class Routed:
    """Rows of c by expert: `tokens` and `experts` as kernels read them. More tiles are launched than `count` says."""

    tokens: torch.Tensor
    experts: torch.Tensor
    count: torch.Tensor
    router: torch.Tensor | None
    per_row: int

    @staticmethod
    def of(experts: np.ndarray, m: int, per_row: int, router: torch.Tensor | None = None) -> Routed:
        """From the expert of each row of c; -1 is one of another rank."""
        tokens, tiles = [], []
        for expert in np.unique(experts):
            rows = np.nonzero(experts == expert)[0]
            padding = -len(rows) % m
            tokens += [*rows, *[len(experts) + 3] * padding]
            tiles += [expert] * ((len(rows) + padding) // m)
        found = (tokens + [1 << 30] * m, [*tiles, 1 << 30], [len(tokens)])
        return Routed(*(torch.tensor(one, dtype=torch.int32) for one in found), router, per_row)


def multiplied(
    case: Case,
    of: Instance,
    x: torch.Tensor,
    *,
    name: str = "linear",
    routed: Routed | None = None,
    splits: int = 1,
    launcher: Launcher | None = None,
) -> torch.Tensor:
    """The kernel's [m, outputs] for a case's matrix. Rows of `x` have rubbish after their end."""
    launcher = launcher or Launcher()
    n, k = case.padded(name)
    outputs, front = case.columns(name), case.extent(name, "k").front
    columns = np.full(n, -1, np.int32)
    columns[outputs] = np.arange(len(outputs))
    rows = len(x) * routed.per_row if routed else len(x)
    tiles = len(routed.experts) if routed else -(-rows // of.m), n // of.n
    a = torch.full((len(x), -(-x.shape[1] // 8) * 8), float("nan"), dtype=x.dtype)
    a[:, : x.shape[1]] = x
    made = {"c": torch.empty((rows, len(outputs)), dtype=case.dtype)}
    if splits > 1:
        made["partials"] = torch.empty((*tiles, splits, of.m, of.n))
        made["arrivals"] = torch.zeros(tiles, dtype=torch.int32)
    given = {"a": a, "columns": torch.from_numpy(columns)}
    given |= {key.removeprefix(f"{name}."): tensor for key, tensor in case.made.items() if key.startswith(f"{name}.")}
    if routed:
        given |= {key: tensor for key, tensor in vars(routed).items() if isinstance(tensor, torch.Tensor)}
    for key, tensor in given.items():
        launcher.reads(key, tensor)
    for key, tensor in made.items():
        launcher.writes(key, tensor)
    places = {key: tensor.data_ptr() for key, tensor in (given | made).items()}
    arguments = [places.get(key, 0) for key in TENSORS]
    arguments += [rows, n, k, a.stride(0), front, x.shape[1], len(outputs), splits]
    if routed:
        arguments += [*(places.get(key, 0) for key in ("tokens", "experts", "count", "router")), routed.per_row]
    for _ in range(2):  # the second finds the counters of the first
        made["c"].fill_(-1.0)
        if splits > 1:
            made["partials"].fill_(float("nan"))
        launcher.launch(of, tiles[0] * tiles[1] * splits, arguments)
    assert splits == 1 or not made["arrivals"].any()
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
    *(
        (code, dtype, group)
        for code in ("u4b8", "u4", "u8b128", "u8")
        for dtype in KINDS
        for group in (-1, 32, 64, 128)
    ),
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


ODD = {
    "after": ({"n": 200, "k": 344}, {"group": 128}),
    "before": ({"n": 72, "k": 384}, {"group": 64, "split": "k", "tp": 4, "rank": 1}),  # the rank begins within a group
}


@pytest.mark.parametrize("tile", [{"n": 64, "k": 128}, {"n": 128, "k": 64}], ids=str)
@pytest.mark.parametrize("where", ODD)
def test_padding(where, tile):
    """Padded inputs are not read, padded outputs are not written."""
    sizes, options = ODD[where]
    case = draw("u4b8", "float16", "linear", sizes, params={"bias": True}, **options)
    extent, (n, k) = case.extent("linear", "k"), case.padded()
    assert n > sizes["n"] and k > extent.length and bool(extent.front) == (where == "before")
    x = case.x(5)
    case.product(x).check(multiplied(case, instance(case, **tile), x))


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_splits(splits):
    case = draw("u4b8", "bfloat16", "linear", {"n": 128, "k": 640}, group=128, params={"bias": True})
    x = case.x(17)
    of = instance(case, m=16, n=64, k=128, depth=4)
    seen = []
    beside = [Schedule("random", "mixed", 8, seed) for seed in range(6)]  # any split may come last
    for schedule in (Schedule(), Schedule("reverse", "late", 3), *beside):
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


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(
    ("code", "dtype", "group"), [("u4b8", "float16", 32), ("u4", "bfloat16", -1), ("nvfp4", "float16", None)]
)
def test_experts(code, dtype, group, splits):
    """Uneven and empty experts, some of another rank; gate and up padded apart."""
    params = {} if code == "u4" else {"bias": True}
    case = draw(code, dtype, "moe_gated", {"e": 8, "i": 72, "h": 256}, group=group, params=params)
    rng = np.random.default_rng(0)
    experts = rng.choice([-1, 0, 1, 2, 5, 7], 40, p=[0.1, 0.5, 0.2, 0.1, 0.05, 0.05])
    router = torch.from_numpy(rng.uniform(0, 1, 40)).float()
    for name, per_row, by in (("w13", 2, None), ("w2", 1, router)):
        tile = {"n": 64, "k": 128} if case.padded(name)[1] % 128 == 0 else {"n": 128, "k": 64}
        of = instance(case, name, m=16, rows="experts", **tile)
        x = case.x(40 // per_row, name)
        found = multiplied(case, of, x, name=name, routed=Routed.of(experts, of.m, per_row, by), splits=splits)
        for expert in range(8):
            rows = np.nonzero(experts == expert)[0]
            wanted = case.product(x[rows // per_row], name, expert)
            factor = 1 if by is None else by[rows].double().numpy()[:, None]
            Product(wanted.value * factor, wanted.error * factor + 2.0**-23 * np.abs(wanted.value)).check(found[rows])
        assert (found[experts == -1] == -1).all()


@pytest.mark.parametrize(
    ("code", "dtype", "group", "tile"),
    [
        ("u4b8", "float16", 64, {"m": 16, "n": 128, "k": 64, "depth": 4}),
        ("u4", "bfloat16", 32, {"m": 32, "n": 256, "k": 128, "depth": 2, "stages": 3}),
        ("u8b128", "bfloat16", 128, {"m": 16, "n": 64, "k": 128, "depth": 8}),
        ("e4m3", "float16", None, {"m": 64, "n": 128, "k": 64, "depth": 2}),
        ("nvfp4", "float16", None, {"m": 48, "n": 64, "k": 128, "depth": 4}),
        ("mxfp4", "bfloat16", None, {"m": 16, "n": 128, "k": 64, "depth": 2}),
    ],
    ids=str,
)
def test_counters(code, dtype, group, tile):
    """Each weight is read once for each tile of rows, 16 bytes a lane, whole sectors; no bank serves anybody twice."""
    case = draw(code, dtype, "linear", {"n": 256, "k": 512}, group=group)
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
    assert lines[copies["gemm/rows.cuh"]].bytes == launches * (256 // of.n) * x.nbytes
    assert all(traffic.conflicts == 0 for traffic in lines.values())
