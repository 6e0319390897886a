"""Compile and prove every shipped pair: milliseconds per target tensor of one rank.

Core only, one thread, process time; plans and resolved tensors are forgotten before each run, specs stay loaded. The
least of several runs counts, since a shared machine only ever adds time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import Figure, Scale
from layoutdsl import LayoutError, compile_plan
from layoutdsl.compile import forget
from layoutdsl.library import files, read_spec
from layoutdsl.model import Checkpoint, Format, Kernel

ROUNDS: dict[Scale, int] = {"full": 15, "quick": 1}
LIMIT_MS = 1.0
"""Per target tensor."""

EVERY: dict[Scale, int] = {"full": 1, "quick": 40}
"""Which of the pairs of formats are measured."""

EXPERTS = (2, 512)
LAYERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("moe_gated", {"i": 1408, "h": 2048}),
    ("moe_gated", {"i": 192, "h": 2880}),
    ("moe_plain", {"i": 672, "h": 2688}),
)


def measure(scale: Scale) -> Iterator[Figure]:
    formats = [spec for path in files() if isinstance(spec := read_spec(path), Format)]
    pairs = [(source, target) for source in formats for target in formats][:: EVERY[scale]]
    cases = [case for pair in pairs for case in _cases(*pair)]
    best: dict[str, float] = {}
    for _ in range(ROUNDS[scale]):
        # Round by round over all pairs, so that a slow moment of the machine does not fall on one pair alone.
        cases = [case for case in cases if _time(case, best)]
    worst = max(best, key=best.__getitem__)
    yield Figure("compile_and_prove_worst", best[worst], "ms per target tensor", LIMIT_MS, worst)
    yield Figure(
        "compile_and_prove_mean", sum(best.values()) / len(best), "ms per target tensor", LIMIT_MS, f"{len(best)} plans"
    )
    few, many = (f"e={experts} " for experts in EXPERTS)
    ratios = sorted(best[name.replace(few, many)] / best[name] for name in best if few in name)
    yield Figure(
        "experts_512_over_2", ratios[len(ratios) // 2], "median ratio of times", 1.1, f"{len(ratios)} pairs of plans"
    )


Case = tuple[str, Format, Format, str, dict[str, int], dict[str, Any]]
"""Name, source, target, module, sizes, parameters."""


def _cases(source: Format, target: Format) -> Iterator[Case]:
    pair = f"{source.name} -> {target.name}"
    for at, entry in enumerate(source.try_ if isinstance(source, Checkpoint) else target.try_):
        sizes = {name: int(entry[name]) for name in ("n", "k")}  # pyright: ignore[reportArgumentType]
        params = _params(source, target, entry)
        yield f"{pair}, linear, line {at + 1} of try", source, target, "linear", sizes, params
    for module, extents in LAYERS:
        for experts in EXPERTS:
            sizes, params = {"e": experts, **extents}, _params(source, target, {})
            yield f"{pair}, {module} e={experts} i={extents['i']}", source, target, module, sizes, params


def _params(source: Format, target: Format, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry's parameters, and the dtype where the kernel takes only one."""
    owner = "source" if isinstance(source, Checkpoint) else "target"
    params = {f"{owner}.{name}": value for name, value in entry.items() if name not in ("n", "k")}
    if isinstance(target, Kernel) and len(target.params["dtype"].values) == 1:
        params.setdefault("source.dtype", target.params["dtype"].values[0])
    return params


def _time(case: Case, best: dict[str, float]) -> bool:
    """Note one run's time if it is the least so far; False where there is no conversion between the two formats."""
    name, source, target, module, sizes, params = case
    forget()
    # As timeit does: how much there is to collect depends on what else the process has made.
    gc.disable()
    start = time.process_time()
    try:
        plan = compile_plan(source, target, module, sizes, params=params)
    except LayoutError:
        return False
    finally:
        taken = (time.process_time() - start) * 1e3
        gc.enable()
    taken /= len(plan.outputs)
    best[name] = min(best.get(name, taken), taken)
    return True
