"""Every listed GEMM kernel (tests/gemm_listed.py) against float64 products of the checkpoint that its weights are from,
and against itself: a second call gives the same bits, also where blocks share the inputs of a tile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from rows import ABSENT, FAILED, PASSED, Row
from wheels import ROOT

from layoutdsl import LayoutError, MarlinLinear, MarlinMoE, backends
from layoutdsl.gemm import mixture
from layoutdsl.gemm.launch import Inputs, launcher_of

sys.path.insert(0, str(ROOT / "tests"))
from gemm_cases import SUMS, SUMS_OF_E4M3, Case, Product, draw, experts, rounded
from gemm_listed import EXPERTS, LISTED, SIZES, TOP_K, Listed, kernels
from gemm_runs import chosen

HOST_EVERY = 15
"""The host compiles for seconds what NVRTC does in one, and multiplies slowly: there it is one kernel in so many."""


def check(backend: str) -> Iterator[Row]:
    if backend == "cuda":
        compile_all(kernels())
    for number, entry in enumerate(LISTED):
        if backend == "cuda" or number % HOST_EVERY == 0:
            yield Row("gemms", str(entry), *held(entry, backend, entry.splits))


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
    device = torch.device(backends.device(backend))
    if entry.kernel.kind == "e4m3" and backend == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return ABSENT, "GPUs multiply e4m3 from sm_89 on"
    try:
        made, again = (by_experts if entry.by_experts else dense)(entry, device, splits)
    except LayoutError as error:
        return ABSENT if error.diagnostics[0].name == "no-compiler" else FAILED, error.message
    if not again:
        return FAILED, "the results of a second call differ"
    return judged(made, f", {splits} blocks for each tile" if splits > 1 else "")


def judged(made: Sequence[tuple[torch.Tensor, Product]], beside: str = "") -> tuple[str, str]:
    """Result, and how much of the bound it takes."""
    off = [np.abs(found.double().cpu().numpy() - wanted.value) / wanted.error for found, wanted in made]
    count, beyond = sum(one.size for one in off), sum(int((~(one <= 1)).sum()) for one in off)
    if beyond:
        return FAILED, f"{beyond} of {count} results are off by more than the bound{beside}"
    return PASSED, f"{count} results, off by {max(one.max() for one in off):.0%} of the bound or less{beside}"


Outcome = tuple[list[tuple[torch.Tensor, Product]], bool]
"""What was made and what it must be; and whether a second call made the same."""


def dense(entry: Listed, device: torch.device, splits: int) -> Outcome:
    case = drawn(entry, SIZES, params={"bias": True})
    layer = MarlinLinear(case.plan).load_checkpoint(case.tensors).to(device)
    x = case.x(entry.rows).to(device)
    with chosen(entry.tile, splits=splits):
        made, again = layer(x), layer(x)
    facts = layer.matrix.facts
    given = Inputs.of(launcher_of(device), x, facts)
    wanted = case.product(x.cpu()) if given.scales is None else multiplied(case, "linear", given, facts.front, 0)
    return [(made, wanted)], torch.equal(made, again)


def by_experts(entry: Listed, device: torch.device, splits: int) -> Outcome:
    case = drawn(entry, EXPERTS, **({"stored": ("alternating", "alternating")} if entry.alternating else {}))
    layer = MarlinMoE(case.plan, activation=entry.activation).load_checkpoint(case.tensors).to(device)
    x = case.x(entry.rows, "w13") / 4
    dice = np.random.default_rng(entry.rows)
    ids = np.stack([dice.permutation(EXPERTS["e"])[:TOP_K] for _ in range(entry.rows)])
    router = dice.uniform(0, 1, ids.shape).astype("f4")
    given = [tensor.to(device) for tensor in (x, torch.from_numpy(ids), torch.from_numpy(router))]
    with chosen(entry.tile, splits=splits), recorded() as products:
        made, again = layer(*given), layer(*given)
    whole = made, experts(case, x, ids, router, entry.activation, unit=unit(case))
    if not entry.kernel.result:
        return [whole], torch.equal(made, again)
    # Activations are rounded to 8 bits before each product: each is held against what it was given as well.
    (first, w13), (second, w2) = products[:2]
    return [
        whole,
        (w13, each_expert(case, "w13", first, ids)),
        (w2, each_expert(case, "w2", second, ids, router)),
    ], torch.equal(made, again)


def unit(case: Case) -> float:
    return SUMS_OF_E4M3 if case.activation == "float8_e4m3fn" else SUMS


def multiplied(case: Case, name: str, given: Inputs, front: int, expert: int, rows: Any = slice(None)) -> Product:
    """Of 8-bit activations, some of their rows."""
    valid = case.extent(name, "k").length
    codes, scales = given.rows[rows, front : front + valid].cpu(), given.scales[rows].cpu()
    return case.product(codes, name, expert, scales=scales, unit=unit(case))


def each_expert(case: Case, name: str, given: Inputs, ids: np.ndarray, router: np.ndarray | None = None) -> Product:
    """One product of a mixture: a row for each pair of a token and an expert."""
    per_row, front = ids.size // len(given.rows), case.extent(name, "k").front
    value, error = (np.empty((ids.size, len(case.columns(name)))) for _ in range(2))
    for expert in np.unique(ids):
        pairs = np.flatnonzero(ids.reshape(-1) == expert)
        one = multiplied(case, name, given, front, int(expert), pairs // per_row)
        if router is not None:
            by = router.reshape(-1, 1)[pairs]
            one = rounded(one.value * by, one.error * by, case.job.dtype)
        value[pairs], error[pairs] = one.value, one.error
    return Product(value, error)


def drawn(entry: Listed, sizes: dict[str, int], **options: Any) -> Case:
    fixed = entry.name in ("e4m3", "mxfp8", "nvfp4", "mxfp4", "gpt_oss", "mxfp4_e4m3")
    return draw(entry.name, entry.dtype, entry.module, sizes, group=None if fixed else entry.group, **options)


@contextmanager
def recorded() -> Iterator[list[tuple[Inputs, torch.Tensor]]]:
    """What products of mixtures are given, and their results."""
    found: list[tuple[Inputs, torch.Tensor]] = []
    multiply: Callable[..., None] = mixture.multiply

    def kept(launcher: Any, kernel: Any, inputs: Inputs, stored: Any, facts: Any, out: torch.Tensor, **options: Any):
        multiply(launcher, kernel, inputs, stored, facts, out, **options)
        found.append((inputs, out))

    mixture.multiply = kept
    try:
        yield found
    finally:
        mixture.multiply = multiply
