"""Repack GPTQ's int4 weights for Marlin with the cpu backend: the time over that of torch's copy_ of the same bytes.

Two threads, output allocated before (a new one costs more than the repack: its pages are touched for the first time),
the two measured in turns, median of several. It is a whole run, checks and scales included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks import Figure

if TYPE_CHECKING:
    import torch

    from layoutdsl.plan import Plan, TensorInfo

SIZE = 8192
GROUP = 128
THREADS = 2
ROUNDS = 7
LIMIT = 2.0
"""Times the copy."""


def measure() -> Iterator[Figure]:
    import numba
    import torch

    from layoutdsl import compile_plan

    torch.set_num_threads(THREADS)
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    sizes, params = {"n": SIZE, "k": SIZE}, {"group": GROUP}
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", sizes, params=params)
    given = {info.name: _tensor(info, plan) for info in plan.inputs}
    out = {info.name: torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    weight = given["linear.qweight"]
    copied = torch.empty_like(weight)
    ratio, best = _ratio(lambda: plan.run(given, backend="cpu", out=out), lambda: copied.copy_(weight))
    yield Figure("repack_over_copy", ratio, "times copy_", LIMIT, f"{SIZE}x{SIZE}, {THREADS} threads, {best:.1f} ms")


def _tensor(info: TensorInfo, plan: Plan) -> torch.Tensor:
    """Any weights, scales of one, and what the plan's checks ask for."""
    import torch

    dtype = getattr(torch, info.dtypes[0])
    if info.role == "scale":
        return torch.ones(info.full_shape, dtype=dtype)
    if info.role == "act_order":
        return torch.arange(info.codes, dtype=dtype) // GROUP
    if info.role == "zero_point":
        (expect,) = {check.expect[0] for check in plan.checks if check.tensor == info.name}
        return torch.full(info.full_shape, expect * 0x11111111, dtype=dtype)
    return torch.randint(-(1 << 31), 1 << 31, info.full_shape, dtype=torch.int64).to(dtype)


def _ratio(work: Callable[[], Any], copy: Callable[[], Any]) -> tuple[float, float]:
    """Median time of the work over that of the copy, and the former in ms."""
    work(), copy()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for each, found in zip((work, copy), times):
            start = time.perf_counter()
            each()
            found.append(time.perf_counter() - start)
    worked, copied = map(statistics.median, times)
    return worked / copied, worked * 1e3
