"""How fast conversions are: bytes read and written in a second, over those of a device copy of as many bytes.

Both are replays of a CUDA graph, so that it is the GPU's time alone; the time of a whole run, with what the CPU does
and the look at what was refused, stands beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rows import ABSENT, BELOW, PASSED, Row

from benchmarks.inputs import inputs, outputs
from layoutdsl import compile_plan

AIM = 0.85
ROUNDS, EACH = 7, 10

LARGE = {"n": 16384, "k": 16384}
MOE = {"e": 64, "i": 672, "h": 2688}
CASES: dict[str, tuple[str, str, str, dict[str, int], dict[str, Any]]] = {
    "gptq, inputs outermost": ("gptq", "marlin_int4_a16", "linear", LARGE, {"group": 128}),
    "gptq, act-order": ("gptq", "marlin_int4_a16", "linear", LARGE, {"group": 128, "act_order": True}),
    "awq": ("awq", "marlin_int4_a16", "linear", LARGE, {"group": 128}),
    "ct_int, row-major": ("ct_int", "marlin_int4_a16", "linear", LARGE, {"group": 128, "bits": 4}),
    "fp8, row-major": ("fp8", "marlin_fp8_a16", "linear", LARGE, {}),
    "gptq, padded experts": ("gptq", "marlin_int4_a16", "moe_gated", MOE, {"group": 32}),
    "mxfp4, padded experts": ("mxfp4", "marlin_mxfp4_a16", "moe_gated", MOE, {}),
}


def check(backend: str) -> Iterator[Row]:
    if backend == "host":
        yield Row("bandwidth", "over a device copy", ABSENT, "needs a GPU")
        return
    for name in CASES:
        yield Row("bandwidth", name, *measured(name))


def measured(name: str) -> tuple[str, str]:
    source, target, module, sizes, params = CASES[name]
    plan = compile_plan(source, target, module, sizes, params=params)
    given = {key: tensor.cuda() for key, tensor in inputs(plan).items()}
    out = {key: tensor.cuda() for key, tensor in outputs(plan).items()}
    size = sum(tensor.nbytes for tensor in (*given.values(), *out.values()))
    half = torch.ones(size // 2, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(half)
    run = lambda: plan.run(given, backend="cuda", out=out)  # noqa: E731
    alone, whole = seconds(captured(run)), wall(run)
    copied = seconds(captured(lambda: other.copy_(half)))
    said = f"{copied / alone:.0%} of a copy ({size / alone / 1e12:.2f} TB/s of {size / 1e6:.0f} MB); "
    return PASSED if copied / alone >= AIM else BELOW, f"{said}a whole run {copied / whole:.0%}"


def captured(work: Callable[[], Any]) -> Callable[[], None]:
    """The same as a graph to replay."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def seconds(replay: Callable[[], None], rounds: int = ROUNDS, each: int = EACH) -> float:
    """Median of a replay on the GPU: of so many rounds, the mean of each."""
    found: list[float] = []
    for _ in range(rounds + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(each):
            replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1e3 / each)
    return statistics.median(found[1:])


def wall(run: Callable[[], Any]) -> float:
    """Median of a run, from its call until the GPU is done."""
    found: list[float] = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])
