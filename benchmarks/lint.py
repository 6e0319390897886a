"""`layoutdsl lint` of all shipped specs, from the start of the process to its end: with every proof run, and again when
nothing has changed.

The least of several runs counts, since a shared machine only ever adds time. Processor time is that of all processes.
The code is compiled before, as pip leaves it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks import Figure, Scale
from layoutdsl.library import shipped

LIMIT_PROVEN, LIMIT_KEPT = 0.8, 0.4
"""Seconds."""

RUNS: dict[Scale, int] = {"full": 15, "quick": 1}


def measure(scale: Scale) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        _run(folder)  # compiles the code
        proven = [_run(folder, "--no-cache") for _ in range(RUNS[scale])]
        kept = [_run(folder) for _ in range(RUNS[scale])]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    for name, runs, limit in (("proven", proven, LIMIT_PROVEN), ("kept", kept, LIMIT_KEPT)):
        yield Figure(f"lint_{name}", min(wall for wall, _ in runs), "s", limit, cores)
        yield Figure(f"lint_{name}_processor", min(used for _, used in runs), "s", None, "all processes together")


def _run(cache: str, *flags: str) -> tuple[float, float]:
    """Seconds that one run takes, and processor seconds."""
    before, start = _used(), time.perf_counter()
    command = [sys.executable, "-m", "layoutdsl", "lint", str(shipped()), *flags]
    kept = {"XDG_CACHE_HOME": cache, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, env={**os.environ, **kept}, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, _used() - before


def _used() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime
