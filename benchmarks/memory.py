"""Memory that repacking GPTQ int4 weights takes beside inputs and outputs: what the peak of a process grows by.

Two threads, each way in a process of its own, after a small run of the same kind: what imports, kernels and
threads take once is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks import Figure, Scale
from benchmarks.peer_steps import repacked
from benchmarks.repack import SIZE, plan_of
from benchmarks.timing import THREADS, Conversion, in_child

LIMIT = 1.0
"""MiB, by the cpu backend."""

WAYS: dict[Scale, tuple[str, ...]] = {"full": ("cpu", "torch", "engines"), "quick": ("cpu",)}
SMALL = 512


def measure(scale: Scale) -> Iterator[Figure]:
    size = max(SIZE[scale], SMALL)
    for way in WAYS[scale]:
        limit = LIMIT if way == "cpu" else None
        yield Figure(f"extra_memory, {way}", in_child(extra, way, size), "MiB", limit, f"{size}x{size}")


def extra(way: str, size: int) -> float:
    """MiB by which the process' memory peaks above what it held, inputs and outputs included, before the run."""
    torch.set_num_threads(THREADS)
    small, large = Conversion(plan_of(SMALL)), Conversion(plan_of(size))

    def run(conversion: Conversion) -> None:
        if way != "engines":
            conversion.run(way)
            return
        ((_, given, out),) = conversion.jobs
        out["linear.weight"].copy_(repacked(given["linear.qweight"]))

    run(small)
    before = _kibibytes("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest that it was begins anew
    run(large)
    return (_kibibytes("VmHWM") - before) / 1024


def _kibibytes(key: str) -> int:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(key)).split()[1])
