"""Every listed GEMM kernel (tests/gemm_listed.py) against float64 products of the checkpoint that its weights are from,
and against itself: a second call gives the same bits, also where blocks share the inputs of a tile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rows import ABSENT, FAILED, PASSED, Row
from wheels import ROOT

from layoutdsl import LayoutError, MarlinLinear, MarlinMoE, backends
from layoutdsl.gemm import table
from layoutdsl.gemm.launch import Inputs, launcher_of

sys.path.insert(0, str(ROOT / "tests"))
from gemm_cases import Case, Product, draw, experts
from gemm_listed import EXPERTS, LISTED, SIZES, TOP_K, Listed, kernels

HOST_EVERY = 15
"""The host compiles for seconds what NVRTC does in one, and multiplies slowly: there it is one kernel in so many."""


def check(backend: str) -> Iterator[Row]:
    if backend == "cuda":
        compile_all(kernels())
    for number, entry in enumerate(LISTED):
        if backend == "cuda" or number % HOST_EVERY == 0:
            yield Row("gemms", str(entry), *held(entry, backend, splits=1 + number % 2))


def compile_all(wanted: Iterable[Any]) -> None:
    """Into the cache, on all cores."""
    from layoutdsl.backends.cuda import compile as cuda_compile
    from layoutdsl.backends.cuda import toolkit

    (gpu, *_) = toolkit.gpus()

    def one(kernel: Any) -> None:
        try:
            cuda_compile.compiled(kernel, gpu.arch)
        except LayoutError:
            return  # its own row says so

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, wanted))


def held(entry: Listed, backend: str, splits: int) -> tuple[str, str]:
    """Result, and how near to what was compared."""
    try:
        made, again, wanted = (by_experts if entry.by_experts else dense)(entry, torch.device(backends.device(backend)), splits)
    except LayoutError as error:
        return ABSENT if error.diagnostics[0].name in ("no-compiler", "wrong-device") else FAILED, error.message
    off = np.abs(made.double().cpu().numpy() - wanted.value)
    if off.shape != wanted.error.shape or not (off <= wanted.error).all():
        return FAILED, f"{int((~(off <= wanted.error)).sum())} of {off.size} results are off by more than the bound"
    if not torch.equal(made, again):
        return FAILED, f"{int((made != again).sum())} of {off.size} results differ in a second call"
    shared = f", {splits} blocks for each tile" if splits > 1 else ""
    return PASSED, f"{off.size} results, off by {(off / wanted.error).max():.0%} of the bound or less{shared}"


Outcome = tuple[torch.Tensor, torch.Tensor, Product]


def dense(entry: Listed, device: torch.device, splits: int) -> Outcome:
    case = drawn(entry, SIZES, params={"bias": True})
    layer = MarlinLinear(case.plan).load_checkpoint(case.tensors).to(device)
    x = case.x(entry.rows).to(device)
    with chosen(entry.tile, splits):
        made, again = layer(x), layer(x)
    facts = layer.matrix.facts
    given = Inputs.of(launcher_of(device), x, facts)
    if given.scales is None:
        return made, again, case.product(x.cpu())
    codes = given.rows[:, facts.front : facts.front + facts.valid].cpu()
    return made, again, case.product(codes, scales=given.scales.cpu())


def by_experts(entry: Listed, device: torch.device, splits: int) -> Outcome:
    stored = ("apart", "alternating" if entry.alternating else "stacked")
    case = drawn(entry, EXPERTS, stored=stored)
    layer = MarlinMoE(case.plan, activation=entry.activation).load_checkpoint(case.tensors).to(device)
    x = case.x(entry.rows, "w13") / 4
    dice = np.random.default_rng(entry.rows)
    ids = np.stack([dice.permutation(EXPERTS["e"])[:TOP_K] for _ in range(entry.rows)])
    router = dice.uniform(0, 1, ids.shape).astype("f4")
    given = [tensor.to(device) for tensor in (x, torch.from_numpy(ids), torch.from_numpy(router))]
    with chosen(entry.tile, splits):
        made, again = layer(*given), layer(*given)
    return made, again, experts(case, x, ids, router, entry.activation)


def drawn(entry: Listed, sizes: dict[str, int], **options: Any) -> Case:
    module = "linear" if not entry.by_experts else "moe_plain" if entry.activation == "relu2" else "moe_gated"
    fixed = entry.name in ("e4m3", "mxfp8", "nvfp4", "mxfp4", "gpt_oss", "mxfp4_e4m3")
    return draw(entry.name, entry.dtype, module, sizes, group=None if fixed else entry.group, **options)


@contextmanager
def chosen(tile: table.Tile, splits: int) -> Iterator[None]:
    """Whatever the shape, GEMMs get this tile and so many blocks for each."""
    choose: Callable[..., table.Choice] = table.choose
    table.choose = lambda *_, **__: table.Choice(tile, splits)
    try:
        yield
    finally:
        table.choose = choose
