"""Whether the cost per byte grows: from 64 MiB of weights to 1 GiB, and from one expert to 512 of equal bytes in all.

GPTQ int4 to Marlin by the cpu backend on two threads, each over a copy of what it reads; the experts come stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks import Figure, Scale
from benchmarks.timing import Conversion, measured
from layoutdsl import compile_plan

PROCESSES = 3
LIMIT = 1.25
"""The largest ratio to the copy over the first."""

Sizes = Mapping[str, int]
LINEAR: dict[Scale, tuple[Sizes, ...]] = {
    "full": ({"n": 8192, "k": 16384}, {"n": 16384, "k": 32768}, {"n": 32768, "k": 65536}),
    "quick": ({"n": 128, "k": 256}, {"n": 256, "k": 256}),
}
EXPERTS: dict[Scale, tuple[Sizes, ...]] = {
    "full": ({"e": 1, "i": 8192, "h": 8192}, {"e": 16, "i": 2048, "h": 2048}, {"e": 512, "i": 128, "h": 1024}),
    "quick": ({"e": 1, "i": 256, "h": 256}, {"e": 4, "i": 128, "h": 128}),
}


def measure(scale: Scale) -> Iterator[Figure]:
    yield from _grown(scale, "bytes", "linear", LINEAR[scale])
    yield from _grown(scale, "experts", "moe_gated", EXPERTS[scale])


def _grown(scale: Scale, what: str, module: str, cases: tuple[Sizes, ...]) -> Iterator[Figure]:
    ratios: list[float] = []
    for sizes in cases:
        conversion = Conversion(compile_plan("gptq", "marlin_int4_a16", module, sizes, params={"group": 128}))
        taken = measured(scale, conversion)
        ratios.append(taken.ratio)
        shown = " ".join(f"{axis}={size}" for axis, size in sizes.items())
        yield Figure(f"{what}, {shown}", taken.ratio, "times copy_", None, f"{conversion.mebibytes:.0f} MiB, {taken}")
    yield Figure(f"growth_with_{what}", max(ratios[1:]) / ratios[0], "times the first ratio", LIMIT)
