"""What the first use costs: a kernel of the cpu backend compiled, or found in its cache on disk, and a plan compiled,
or looked up.

Kernels are timed in processes of their own with a cache folder of their own: the first run of GPTQ int4 to Marlin at a
small size, less a second run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from timeit import Timer
from typing import Any

from benchmarks import Figure, Scale

LIMIT_COMPILED, LIMIT_CACHED, LIMIT_LOOKUP = 2.5, 0.3, 20.0
"""Seconds, seconds, microseconds."""

TRIES: dict[Scale, int] = {"full": 3, "quick": 1}
"""Processes, and repetitions of a look-up, of which the median counts."""

LINEAR = ("gptq", "marlin_int4_a16", "linear", {"n": 4096, "k": 4096})
EXPERTS = ("gptq", "marlin_int4_a16", "moe_gated", {"e": 128, "i": 768, "h": 2048})


def measure(scale: Scale) -> Iterator[Figure]:
    from benchmarks.timing import in_child  # not above: it would import all that `first_plan` is to import

    compiled: list[float] = []
    cached: list[float] = []
    for _ in range(TRIES[scale]):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"XDG_CACHE_HOME": folder, "NUMBA_CACHE_DIR": str(Path(folder) / "numba")}
            compiled.append(in_child(first_run, environment=caches))
            cached.append(in_child(first_run, environment=caches))
    note = "all kernels of GPTQ int4 to Marlin, and what makes or loads them"
    yield Figure("kernels_compiled", statistics.median(compiled), "s", LIMIT_COMPILED, note)
    yield Figure("kernels_from_disk", statistics.median(cached), "s", LIMIT_CACHED, note)
    firsts = [in_child(first_plan) for _ in range(TRIES[scale])]
    yield Figure("plan_first_in_process", statistics.median(firsts), "ms", None, "import, specs, compile, prove")
    for arguments in (LINEAR, EXPERTS):
        new, again = _lookup(TRIES[scale], *arguments)
        yield Figure(f"plan_new, {arguments[2]}", new, "us", None, "compile and prove, specs loaded")
        yield Figure(f"plan_again, {arguments[2]}", again, "us", LIMIT_LOOKUP, "the same arguments")


def first_run() -> float:
    """Seconds that a first run takes more than a second one; torch comes with the benchmarks."""
    from benchmarks.inputs import inputs, outputs
    from benchmarks.repack import plan_of

    plan = plan_of(256)
    given, out = inputs(plan), outputs(plan)
    times: list[float] = []
    for _ in range(2):
        start = time.perf_counter()
        plan.run(given, backend="cpu", out=out)
        times.append(time.perf_counter() - start)
    return times[0] - times[1]


def first_plan() -> float:
    """Milliseconds of a process' first plan, import included."""
    start = time.perf_counter()
    from layoutdsl import compile_plan

    compile_plan(*LINEAR)
    return (time.perf_counter() - start) * 1e3


def _lookup(tries: int, *arguments: Any) -> tuple[float, float]:
    """Microseconds of a plan that is new, its specs being loaded, and of the same asked for again."""
    from layoutdsl import compile_plan

    compile_plan(*arguments, params={"group": 64})
    start = time.perf_counter()
    compile_plan(*arguments, params={"group": 128})
    new = time.perf_counter() - start
    timer = Timer(lambda: compile_plan(*arguments, params={"group": 128}))
    count, _ = timer.autorange()
    return new * 1e6, statistics.median(timer.repeat(tries, count)) / count * 1e6
