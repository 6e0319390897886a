"""How long GEMMs and mixtures of experts take on the shapes of real models: beside torch's matmul of weights that are
not quantized, and beside reading the weights once as fast as a copy does. All are replays of CUDA graphs, on as many
sets of weights as do not fit into the GPU's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from bandwidth import seconds
from gemms import compile_all
from rows import ABSENT, BELOW, FAILED, PASSED, Row

from layoutdsl import LayoutError, MarlinLinear, MarlinMoE, Plan, compile_plan
from layoutdsl.gemm import launch, mixture, table
from layoutdsl.gemm.instance import Instance
from layoutdsl.gemm.matrix import Matrix, matrices

ROWS = (1, 16, 64, 256, 1024, 4096)

ROUNDS, EACH = 5, 4

Work = Callable[[], Any]
Measure = Callable[[int], tuple[dict[str, float], int]]
"""Rows -> the seconds of each, ours first, and the bytes of the weights that are read."""


@dataclass(frozen=True)
class Timed:
    """A plan, and how many experts a token has (0: none)."""

    source: str
    target: str
    module: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str = "float16"
    group: int = 0
    top_k: int = 0

    @property
    def plan(self) -> Plan:
        params: dict[str, Any] = {"dtype": self.dtype}
        return compile_plan(
            self.source, self.target, self.module, dict(self.sizes),
            params=params | ({"group": self.group} if self.group else {}),
        )  # fmt: skip


def _linear(n: int, k: int) -> tuple[tuple[str, int], ...]:
    return ("n", n), ("k", k)


def _experts(e: int, i: int, h: int) -> tuple[tuple[str, int], ...]:
    return ("e", e), ("i", i), ("h", h)


TIMED = {
    "int4, 4096 x 4096": Timed("gptq", "marlin_int4_a16", "linear", _linear(4096, 4096), group=128),
    "int4, 28672 x 4096": Timed("gptq", "marlin_int4_a16", "linear", _linear(28672, 4096), group=128),
    "int4, 4096 x 14336": Timed("gptq", "marlin_int4_a16", "linear", _linear(4096, 14336), group=128),
    "FP8, 28672 x 4096": Timed("fp8", "marlin_fp8_a16", "linear", _linear(28672, 4096), "bfloat16"),
    "NVFP4, 28672 x 4096": Timed("nvfp4", "marlin_nvfp4_a16", "linear", _linear(28672, 4096), "bfloat16"),
    "int4 x int8, 28672 x 4096": Timed("gptq", "marlin_int4_a8int8", "linear", _linear(28672, 4096), group=128),
    "int4, 8 of 128 experts 768 x 2048": Timed(
        "gptq", "marlin_int4_a16", "moe_gated", _experts(128, 768, 2048), group=128, top_k=8
    ),
    "MXFP4, 4 of 32 experts 2880 x 2880": Timed(
        "mxfp4", "marlin_mxfp4_a16", "moe_gated", _experts(32, 2880, 2880), "bfloat16", top_k=4
    ),
}
"""Shapes of Llama 3 8B, Qwen3 30B A3B and gpt-oss 20B. n x k, or for experts i x h."""


def check(backend: str) -> Iterator[Row]:
    if backend == "host":
        yield Row("gemm_times", "GEMMs and mixtures of experts", ABSENT, "needs a GPU")
        return
    compile_all(needed(torch.cuda.get_device_properties().multi_processor_count))
    speed = copy_speed()
    for name, timed in TIMED.items():
        yield from rows_of("gemm_times", name, mixtures if timed.top_k else products, speed)


def needed(multiprocessors: int) -> set[Instance]:
    """The GEMMs that a GPU of so many multiprocessors takes for all that is timed."""
    found: set[Instance] = set()
    for timed in TIMED.values():
        plan = timed.plan
        for facts, experts in ((of.facts, of.experts) for of in (Matrix.of(plan, name) for name in matrices(plan))):
            for rows in ROWS:
                if timed.top_k:
                    tile = mixture._choice(facts, rows * timed.top_k, experts, multiprocessors).tile
                    found.add(launch.instance(facts, tile, "experts"))
                else:
                    tile = table.choose(
                        facts.code, facts.kind, rows=rows, n=facts.n, k=facts.k, multiprocessors=multiprocessors
                    ).tile
                    found.add(launch.instance(facts, tile))
    return found


def rows_of(check: str, name: str, prepare: Callable[[Timed], Measure], speed: float) -> Iterator[Row]:
    """A row for each number of rows. One that fails leaves the others alone."""
    try:
        measure = prepare(TIMED[name])
        for rows in ROWS:
            yield judged(check, f"{name}, M = {rows}", *measure(rows), speed)
    except (LayoutError, torch.OutOfMemoryError) as error:
        yield Row(check, name, FAILED, str(error).splitlines()[0])


def judged(check: str, name: str, taken: dict[str, float], size: int, speed: float) -> Row:
    """`taken` has the seconds of each, ours first; size: bytes of the weights that are read; speed: bytes a second."""
    ours, limit = taken["ours"], size / speed
    others = [f"{who} {other * 1e6:.1f} ({other / ours:.2f}x)" for who, other in taken.items() if who != "ours"]
    said = f"{ours * 1e6:.1f} us; weights once {limit * 1e6:.1f} ({limit / ours:.0%}); {', '.join(others)}"
    figures = {f"{who} us": round(other * 1e6, 2) for who, other in (*taken.items(), ("weights once", limit))}
    return Row(check, name, PASSED if ours <= min(taken.values()) else BELOW, said, figures=figures)


# --- products ---------------------------------------------------------------------------------------------------------


def products(timed: Timed) -> Measure:
    """What measures so many rows: the seconds of each, and the bytes of one matrix."""
    plan, sizes = timed.plan, dict(timed.sizes)
    first = filled(MarlinLinear(plan, device="cuda"))
    size = bytes_of(first)
    layers = [first, *(filled(MarlinLinear(plan, device="cuda")) for _ in range(copies(size) - 1))]
    dtype = getattr(torch, timed.dtype)
    dense = [
        torch.randn(sizes["n"], sizes["k"], dtype=dtype, device="cuda")
        for _ in range(copies(2 * sizes["n"] * sizes["k"]))
    ]

    def measure(rows: int) -> tuple[dict[str, float], int]:
        x = torch.randn(rows, sizes["k"], dtype=dtype, device="cuda")
        taken = {"ours": time_of([lambda layer=layer: layer(x) for layer in layers])}
        taken["torch"] = time_of([lambda weight=weight: torch.nn.functional.linear(x, weight) for weight in dense])
        return taken, size

    return measure


def mixtures(timed: Timed) -> Measure:
    """Likewise; the bytes are those of all experts that a token has chosen."""
    sizes = dict(timed.sizes)
    e, i, h = (sizes[name] for name in "eih")
    layer, dtype = filled(MarlinMoE(timed.plan, activation="silu", device="cuda")), getattr(torch, timed.dtype)
    size = bytes_of(layer)
    w13 = torch.randn(e, h, 2 * i, dtype=dtype, device="cuda")
    w2 = torch.randn(e, i, h, dtype=dtype, device="cuda")

    def measure(rows: int) -> tuple[dict[str, float], int]:
        x = torch.randn(rows, h, dtype=dtype, device="cuda")
        busy = min(e, rows * timed.top_k)
        turns = [routed(rows, timed.top_k, e, seed) for seed in range(copies(size * busy // e))]
        touched = sum(len(ids.unique()) for ids, _ in turns) / len(turns)
        taken = {"ours": time_of([lambda ids=ids, router=router: layer(x, ids, router) for ids, router in turns])}
        of_each = torch.randn(busy, ceil(rows * timed.top_k / busy), h, dtype=dtype, device="cuda")
        taken["torch"] = time_of([lambda at=at: batched(of_each, w13[at], w2[at]) for at in stretches(e, busy)])
        return taken, int(size * touched / e)

    return measure


def batched(x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """As many rows for each of some experts: what torch has for a mixture."""
    gate, up = torch.bmm(x, w13).chunk(2, dim=-1)
    return torch.bmm(torch.nn.functional.silu(gate) * up, w2)


def stretches(experts: int, busy: int) -> list[slice]:
    """Different experts by turns, as many as may be."""
    return [slice(at, at + busy) for at in range(0, experts - busy + 1, busy)]


def routed(tokens: int, top_k: int, experts: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts each token has, at random, and their weights."""
    dice = torch.Generator("cuda").manual_seed(seed)
    ids = torch.rand(tokens, experts, device="cuda", generator=dice).argsort(1)[:, :top_k].contiguous()
    return ids, torch.rand(tokens, top_k, device="cuda", generator=dice)


# --- weights and times ------------------------------------------------------------------------------------------------


def filled(module: Any) -> Any:
    """Random codes, and scales that are small."""
    for info in module.plan.outputs:
        tensor = module.tensors[info.name]
        if info.role == "codes":
            tensor.view(torch.uint8).random_()
        elif tensor.element_size() == 1:
            tensor.view(torch.uint8).fill_(112)
        elif tensor.is_floating_point():
            tensor.fill_(2.0**-10)
    return module


def bytes_of(module: torch.nn.Module) -> int:
    return sum(buffer.nbytes for buffer in module.buffers())


def copies(size: int) -> int:
    """How many sets of weights of that size are twice what the GPU's cache holds, 16 at most."""
    cache = torch.cuda.get_device_properties().L2_cache_size
    return max(1, min(16, ceil(2 * cache / max(size, 1))))


def time_of(turns: Sequence[Work]) -> float:
    """Seconds of one, of a graph that has them all."""
    for work in turns:
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in turns:
            work()
    return seconds(graph.replay, ROUNDS, EACH) / len(turns)


def copy_speed() -> float:
    """Bytes, read and written, that a copy moves in a second."""
    half = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(half)
    return 2 * half.nbytes / time_of([lambda: other.copy_(half)])
