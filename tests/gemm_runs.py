"""GEMM kernels launched on the host for a case: with 16-bit activations, and with those that the quantizer makes.

    made = multiplied(case, kernel, x)               a dense kernel
    made = by_experts(case, "w13", kernel, ids, x)   one GEMM of a mixture
    made.wanted.check(made.found)
    made.counters                                    of the GEMM alone
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gemm_cases import Case, Product, rounded
from gemm_mixtures import Mixture, address
from host_kernels import Launcher, Schedule

from layoutdsl.backends.host.counters import Counters
from layoutdsl.gemm.instance import Instance
from layoutdsl.gemm.quantize import quantizer

CODES = {"int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Made:
    found: torch.Tensor
    wanted: Product
    counters: Counters


def quantized(case: Case, x: torch.Tensor, width: int, front: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [m, width] of 16-bit rows, `front` zeros before them, and a scale for each row."""
    of = quantizer(case.job.dtype, case.activation, width)
    codes = torch.empty((len(x), of.columns), dtype=CODES[case.activation])
    scales = torch.empty(len(x), dtype=torch.float32)
    launcher = Launcher()
    launcher.reads("x", x)
    launcher.writes("codes", codes)
    launcher.writes("scales", scales)
    places = [tensor.data_ptr() for tensor in (codes, scales, x)]
    launcher.launch(of, len(x), of.arguments(*places, stride=2 * x.stride(0), front=front, valid=x.shape[1]))
    return codes, scales


def multiplied(
    case: Case, of: Instance, x: torch.Tensor, *, splits: int = 1, schedule: Schedule | None = None
) -> Made:
    """A dense kernel's [m, outputs] for a case's only matrix."""
    n, k = case.padded()
    outputs, extent = case.columns(), case.extent("linear", "k")
    front, valid, scales = extent.front, extent.length, None
    rows = torch.full((len(x), -(-x.shape[1] // 8) * 8), float("nan"), dtype=x.dtype)  # rubbish after the last column
    rows[:, : x.shape[1]] = x
    held = x
    if case.activation != case.job.dtype:
        rows, scales = quantized(case, x, k, front)
        held, front, valid = rows[:, front : front + valid], 0, k
    columns = np.full(n, -1, np.int32)
    columns[outputs] = np.arange(len(outputs))
    tiles = -(-len(x) // of.m), n // of.n
    factor = "input_global_scale" if case.activation == "int8" else "global_scale"
    names = ("weight", "weight_scale", "zero_point", factor, "bias")
    given = {"a": rows, "row_scales": scales} | {name: case.made.get(f"linear.{name}") for name in names}
    given["columns"] = torch.from_numpy(columns)
    made = {
        "c": torch.full((len(x), len(outputs)), float("nan"), dtype=case.dtype),
        "partials": torch.full((*tiles, splits, of.m, of.n), float("nan")) if splits > 1 else None,
        "arrivals": torch.zeros(tiles, dtype=torch.int32) if splits > 1 else None,
    }
    numbers = [len(x), n, k, rows.stride(0), front, valid, len(outputs), splits]
    launcher = Launcher(schedule or Schedule())
    for name, tensor in given.items():
        if tensor is not None:
            launcher.reads(name, tensor)
    for name, tensor in made.items():
        if tensor is not None:
            launcher.writes(name, tensor)
    places = [0 if tensor is None else tensor.data_ptr() for tensor in (*given.values(), *made.values())]
    launcher.launch(of, tiles[0] * tiles[1] * splits, [*places, *numbers])
    assert made["arrivals"] is None or not made["arrivals"].any()
    return Made(made["c"], case.product(held, scales=scales), launcher.counters[of.name])


def by_experts(
    case: Case, name: str, of: Instance, ids: np.ndarray, x: torch.Tensor, router: np.ndarray | None = None
) -> Made:
    """A kernel's [pairs, outputs] for one matrix of a mixture, with 8-bit activations. ids [tokens, top_k] are this
    rank's experts; x has a row for each token, or for each pair."""
    mixture = Mixture(case, x, ids, np.ones(ids.shape, dtype="f4"), "")
    rows, (n, k), outputs, extent = mixture.align(of.m), case.padded(name), case.columns(name), case.extent(name, "k")
    codes, scales = quantized(case, x, k, extent.front)
    columns = np.full(n, -1, np.int32)
    columns[outputs] = np.arange(len(outputs))
    c = torch.full((ids.size, len(outputs)), float("nan"), dtype=case.dtype)
    factor = "input_global_scale" if case.activation == "int8" else "global_scale"
    weights = [case.made.get(f"{name}.{one}") for one in ("weight", "weight_scale", "zero_point", factor, "bias")]
    given = [codes, scales, *weights, columns]
    beside = [rows.tokens, rows.tile_experts, rows.count, router]
    launcher = Launcher()
    for at, tensor in enumerate([*given, *beside]):
        if tensor is not None:
            launcher.reads(str(at), tensor)
    launcher.writes("c", c)
    per_row = ids.size // len(x)
    numbers = [ids.size, n, k, codes.stride(0), 0, k, len(outputs), 1]
    arguments = [*map(address, [*given, c, None, None]), *numbers, *map(address, beside), per_row]
    launcher.launch(of, len(rows.tile_experts) * (n // of.n), arguments)
    value, error = (np.empty(c.shape) for _ in range(2))
    for expert in np.unique(ids):
        pairs = np.flatnonzero(ids.reshape(-1) == expert)
        held = codes[pairs // per_row, extent.front : extent.front + extent.length]
        one = case.product(held, name, int(expert), scales=scales[pairs // per_row])
        if router is not None:
            by = router.reshape(-1, 1)[pairs]
            one = rounded(one.value * by, one.error * by, case.job.dtype)
        value[pairs], error[pairs] = one.value, one.error
    return Made(c, Product(value, error), launcher.counters[of.name])
