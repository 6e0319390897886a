"""Every shipped pair of checkpoint and kernel, with zero points and in act-order too, over a copy of what it reads.

A linear layer of a 70B model, weights with all that stands beside them, made by the cpu backend on two threads. A
checkpoint that stores its weights row by row, outputs outermost, has to be transposed on the way.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import Figure, Scale
from benchmarks.timing import Conversion, measured
from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.codes import code_named
from layoutdsl.library import files, read_spec
from layoutdsl.model import Checkpoint, Kernel

PROCESSES = 3
Params = dict[str, bool | int | str]

LIMIT, LIMIT_MEAN = 4.0, 2.0
"""Times the copy: of any pair, and of the geometric mean over all."""

VARIANTS = {"": "", "zero points": "zero_points", "act-order": "act_order"}
"""And the parameter that asks for each."""

SIZES: dict[Scale, dict[str, int]] = {"full": {"n": 28672, "k": 8192}, "quick": {"n": 128, "k": 256}}
EVERY: dict[Scale, int] = {"full": 1, "quick": 12}
"""Which of the pairs are measured."""


@dataclass(frozen=True)
class Pair:
    name: str
    kind: str
    plan: Plan


def measure(scale: Scale) -> Iterator[Figure]:
    found: dict[str, list[float]] = {}
    for pair in list(pairs(SIZES[scale]))[:: EVERY[scale]]:
        conversion = Conversion(pair.plan)
        taken = measured(scale, conversion)
        found.setdefault(pair.kind, []).append(taken.ratio)
        note = f"{pair.kind}, {conversion.mebibytes:.0f} MiB, {taken}"
        yield Figure(f"pair, {pair.name}", taken.ratio, "times copy_", LIMIT, note)
    for kind, ratios in found.items():
        yield _mean(f"pairs_mean, {kind}", None, ratios)
    yield _mean("pairs_mean, all", LIMIT_MEAN, [ratio for ratios in found.values() for ratio in ratios])


def _mean(name: str, limit: float | None, ratios: Sequence[float]) -> Figure:
    return Figure(name, statistics.geometric_mean(ratios), "times copy_", limit, f"geometric, {len(ratios)} pairs")


def pairs(sizes: dict[str, int]) -> Iterator[Pair]:
    """Every conversion that there is from a checkpoint to a kernel; codes of 8 bits have half the outputs."""
    specs = [read_spec(path) for path in files()]
    for source in (spec for spec in specs if isinstance(spec, Checkpoint)):
        for target in (spec for spec in specs if isinstance(spec, Kernel)):
            for variant in VARIANTS:
                plan = _plan(source, target, variant, sizes)
                if plan is not None:
                    name = f"{source.name} -> {target.name}{', ' if variant else ''}{variant}"
                    yield Pair(name, variant if variant == "act-order" else _order(source), plan)


def _order(source: Checkpoint) -> str:
    codes = next(tensor for tensor in source.tensors.values() if tensor.role == "codes")
    return "row-major" if codes.order[0].name == "n" else "inputs outermost"


def _plan(source: Checkpoint, target: Kernel, variant: str, sizes: dict[str, int]) -> Plan | None:
    """None where the two have no conversion, or no such variant."""
    asked = VARIANTS[variant]
    if asked and (asked not in source.params or source.params[asked].type != "bool"):
        return None
    if variant == "zero points" and asked not in target.params:
        return None
    sides = {"source": source, "target": target}
    params: Params = {f"{side}.{asked}": True for side, spec in sides.items() if asked in spec.params}
    if len(target.params["dtype"].values) == 1:
        params["source.dtype"] = target.params["dtype"].values[0]
    for bits in source.params["bits"].values if "bits" in source.params else ():
        plan = _compiled(source, target, sizes, {**params, "source.bits": bits})
        if plan is not None:
            return plan
    return None if "bits" in source.params else _compiled(source, target, sizes, params)


def _compiled(source: Checkpoint, target: Kernel, sizes: dict[str, int], params: Params) -> Plan | None:
    try:
        plan = compile_plan(source, target, "linear", sizes, params=params)
    except LayoutError:
        return None
    if code_named(next(info.code for info in plan.inputs if info.role == "codes")).bits == 4:
        return plan
    return compile_plan(source, target, "linear", {**sizes, "n": sizes["n"] // 2}, params=params)
