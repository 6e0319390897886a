"""Compile and prove every shipped pair: milliseconds per target tensor of one rank.

Core only, one thread, process time; resolved tensors are forgotten before each run, specs stay loaded. The least of
several runs counts, since a shared machine only ever adds time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import Figure
from layoutdsl import LayoutError, compile_plan
from layoutdsl.library import files, read_spec
from layoutdsl.model import Checkpoint, Format, Kernel
from layoutdsl.resolve import forget

ROUNDS = 9
LIMIT_MS = 1.0
"""Per target tensor."""

EXPERTS = (2, 512)
LAYERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("moe_gated", {"i": 1408, "h": 2048}),
    ("moe_gated", {"i": 192, "h": 2880}),
    ("moe_plain", {"i": 672, "h": 2688}),
)


def measure() -> Iterator[Figure]:
    per_tensor: dict[str, float] = {}
    ratios: list[float] = []
    formats = [spec for path in files() if isinstance(spec := read_spec(path), Format)]
    for source in formats:
        for target in formats:
            for name, module, sizes, params in _cases(source, target):
                timed = _time(source, target, module, sizes, params)
                if timed is not None:
                    per_tensor[name] = timed
            few, many = (
                [per_tensor.get(f"{source.name} -> {target.name}, {module} e={e} i={s['i']}") for module, s in LAYERS]
                for e in EXPERTS
            )
            ratios += [b / a for a, b in zip(few, many) if a and b]
    worst = max(per_tensor, key=per_tensor.__getitem__)
    mean = sum(per_tensor.values()) / len(per_tensor)
    yield Figure("compile_and_prove_worst", per_tensor[worst], "ms per target tensor", LIMIT_MS, worst)
    yield Figure("compile_and_prove_mean", mean, "ms per target tensor", LIMIT_MS, f"{len(per_tensor)} plans")
    middle = sorted(ratios)[len(ratios) // 2]
    yield Figure("experts_512_over_2", middle, "median ratio of times", 1.1, f"{len(ratios)} pairs of plans")


def _cases(source: Format, target: Format) -> Iterator[tuple[str, str, dict[str, int], dict[str, Any]]]:
    pair = f"{source.name} -> {target.name}"
    for at, entry in enumerate(source.try_ if isinstance(source, Checkpoint) else target.try_):
        sizes = {name: int(entry[name]) for name in ("n", "k")}  # pyright: ignore[reportArgumentType]
        yield f"{pair}, linear, line {at} of try", "linear", sizes, _params(source, target, entry)
    for module, sizes in LAYERS:
        for experts in EXPERTS:
            yield (
                f"{pair}, {module} e={experts} i={sizes['i']}",
                module,
                {"e": experts, **sizes},
                _params(source, target, {}),
            )


def _params(source: Format, target: Format, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry's parameters, and the dtype where the kernel takes only one."""
    owner = "source" if isinstance(source, Checkpoint) else "target"
    params = {f"{owner}.{name}": value for name, value in entry.items() if name not in ("n", "k")}
    if isinstance(target, Kernel) and len(target.params["dtype"].values) == 1:
        params.setdefault("source.dtype", target.params["dtype"].values[0])
    return params


def _time(source: Format, target: Format, module: str, sizes: dict[str, int], params: dict[str, Any]) -> float | None:
    best = float("inf")
    for _ in range(ROUNDS):
        forget()
        start = time.process_time()
        try:
            plan = compile_plan(source, target, module, sizes, params=params)
        except LayoutError:
            return None  # no conversion between these two
        best = min(best, (time.process_time() - start) * 1e3 / len(plan.outputs))
    return best
