"""Whole modules and layers, each over a copy of all that it reads: experts whose inner size has to be padded, in one
call; and attention with such experts, with scales, zero points and recodes.

The cpu backend on two threads. The experts of a layer come stacked. 672 is no multiple of what a
kernel takes: both its matrices are padded to 704.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import Figure, Scale
from benchmarks.timing import Conversion, measured
from layoutdsl import Plan, compile_plan

PROCESSES = 3
LIMIT_EXPERTS, LIMIT_LAYER = 2.0, 2.5
"""Times the copy."""

EXPERTS: dict[Scale, dict[str, int]] = {"full": {"e": 64, "i": 672, "h": 2688}, "quick": {"e": 2, "i": 96, "h": 256}}
ATTENTION: dict[Scale, dict[str, int]] = {
    "full": {"q": 32, "kv": 8, "d": 128, "h": 2688},
    "quick": {"q": 2, "kv": 1, "d": 64, "h": 256},
}
LAYERS = {
    "zero points": ("awq", "marlin_int4_a16", {"group": 32}),
    "zero points, FP8 activations": (
        "gptq", "marlin_int4_a8fp8", {"group": 32, "source.zero_points": True, "target.zero_points": True},
    ),
    "two levels of scales": ("nvfp4", "marlin_nvfp4_a16", {}),
}  # fmt: skip


def measure(scale: Scale) -> Iterator[Figure]:
    for module in ("moe_plain", "moe_gated"):
        plan = compile_plan("gptq", "marlin_int4_a16", module, EXPERTS[scale], params={"group": 32})
        yield _figure(scale, f"experts, {module}", LIMIT_EXPERTS, _shown(EXPERTS[scale]), plan)
    for name, (source, target, params) in LAYERS.items():
        plans = [
            compile_plan(source, target, module, sizes[scale], params=params)
            for module, sizes in (("attention", ATTENTION), ("moe_gated", EXPERTS))
        ]
        yield _figure(scale, f"layer, {name}", LIMIT_LAYER, f"{source} -> {target}", *plans)


def _figure(scale: Scale, name: str, limit: float, note: str, *plans: Plan) -> Figure:
    conversion = Conversion(*plans)
    taken = measured(scale, conversion)
    return Figure(name, taken.ratio, "times copy_", limit, f"{note}, {conversion.mebibytes:.0f} MiB, {taken}")


def _shown(sizes: dict[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in sizes.items())
