"""GPTQ int4 weights to Marlin: our backends and what engines do today, each over torch's copy_ of the same bytes.

It is a whole run, checks and scales included; of the engines' steps it is the weights alone. Those were measured at 250
to 300 times the copy elsewhere: where they are far from that here, being so many times faster says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import Figure, Scale
from layoutdsl import Plan, compile_plan

PROCESSES = 3
SIZE: dict[Scale, int] = {"full": 8192, "quick": 256}
GROUP = 128
BACKENDS = ("cpu", "torch")
LIMIT = 2.0
"""Times the copy, by the cpu backend on two threads."""

LEAST_FACTOR = 100
RECORDED = (250 * 0.7, 300 * 1.3)
"""Between which the engines' steps must be, times the copy."""


def plan_of(size: int) -> Plan:
    return compile_plan("gptq", "marlin_int4_a16", "linear", {"n": size, "k": size}, params={"group": GROUP})


def measure(scale: Scale) -> Iterator[Figure]:
    import torch

    from benchmarks.peer_steps import repacked
    from benchmarks.timing import THREADS, Conversion, medians, use_threads

    conversion = Conversion(plan_of(SIZE[scale]))
    ((_, given, out),) = conversion.jobs
    weight, made = given["linear.qweight"], out["linear.weight"]
    for backend in BACKENDS:
        made.zero_()
        conversion.run(backend)
        assert torch.equal(repacked(weight), made), f"the engines' steps and the {backend} backend differ"
    for threads in (THREADS, 1):
        use_threads(threads)
        found = medians(
            scale,
            copy=conversion.copy,
            cpu=conversion.run,
            torch=lambda: conversion.run("torch"),
            peer=lambda: repacked(weight),
        )
        shown = f"{SIZE[scale]}x{SIZE[scale]}, {threads} thread{'s' * (threads > 1)}"
        for backend in BACKENDS:
            ratio, taken = found[backend] / found["copy"], f"{found[backend] * 1e3:.1f} ms"
            limit = LIMIT if (backend, threads) == ("cpu", THREADS) else None
            yield Figure(f"repack_over_copy, {backend}, {shown}", ratio, "times copy_", limit, taken)
        least, limit = RECORDED
        peer = found["peer"] / found["copy"]
        yield Figure(f"engines_over_copy, {shown}", peer, "times copy_", limit, f"{found['peer']:.2f} s", least)
        counts = "" if least <= peer <= limit else "does not count: the engines' steps are not as recorded"
        yield Figure(f"engines_over_repack, {shown}", found["peer"] / found["cpu"], "times", None, counts, LEAST_FACTOR)
