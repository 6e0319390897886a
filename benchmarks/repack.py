"""GPTQ int4 weights to Marlin: our backends and what engines do today, each over torch's copy_ of the same bytes.

It is a whole run, checks and scales included; of the engines' steps it is the weights alone. Those were measured at 250
to 300 times the copy elsewhere: where they are far from that here, being so many times faster says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks import Figure, Scale
from benchmarks.peer_steps import repacked
from benchmarks.timing import THREADS, Conversion, against_copy
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
    conversion = Conversion(plan_of(SIZE[scale]))
    ((_, given, out),) = conversion.jobs
    made = out["linear.weight"]
    for backend in BACKENDS:
        made.zero_()
        conversion.run(backend)
        assert torch.equal(repacked(given["linear.qweight"]), made), f"{backend} differs from the engines' steps"
    for threads in (THREADS, 1):
        yield from _of_threads(scale, threads, conversion)


def _of_threads(scale: Scale, threads: int, conversion: Conversion) -> Iterator[Figure]:
    """Limits are for THREADS; with one thread the figures are for information."""
    weight = conversion.jobs[0][1]["linear.qweight"]
    torch.set_num_threads(threads)
    found = against_copy(
        scale,
        conversion.copy,
        cpu=conversion.run,
        torch=lambda: conversion.run("torch"),
        engines=lambda: repacked(weight),
    )
    held = threads == THREADS
    shown = f"{SIZE[scale]}x{SIZE[scale]}, {threads} thread{'s' * (threads > 1)}"
    for backend in BACKENDS:
        taken, limit = found[backend], LIMIT if held and backend == "cpu" else None
        yield Figure(f"repack_over_copy, {backend}, {shown}", taken.ratio, "times copy_", limit, str(taken))
    engines, (least, most) = found["engines"], RECORDED
    bounds = {"limit": most, "least": least} if held else {"limit": None}
    yield Figure(f"engines_over_copy, {shown}", engines.ratio, "times copy_", note=str(engines), **bounds)
    note = "" if least <= engines.ratio <= most else "does not count: the engines' steps are not as recorded"
    factor = engines.seconds / found["cpu"].seconds
    yield Figure(f"engines_over_repack, {shown}", factor, "times", None, note, LEAST_FACTOR if held else None)
