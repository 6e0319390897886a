"""What the timed benchmarks share: conversions with their tensors in memory, rounds in which the measured take turns,
and functions that are measured in a process of their own.

A ratio is to `torch.Tensor.copy_` of the bytes that the conversion reads, in the same rounds, into storage that has
been touched: what the machine does to one of them it does to the other.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import Scale
from benchmarks.inputs import inputs, outputs
from layoutdsl.plan import Plan

THREADS = 2
PROCESSES = 3
"""How many processes a timed benchmark is run in, unless told otherwise."""

ROUNDS: Mapping[Scale, int] = {"full": 7, "quick": 1}
ROOT = Path(__file__).resolve().parent.parent


class Conversion:
    """Plans with inputs and outputs, all in memory; `run` and `copy` are what is compared."""

    def __init__(self, *plans: Plan):
        self.jobs = [(plan, inputs(plan), outputs(plan)) for plan in plans]
        self.sources = [tensor.view(-1).view(torch.uint8) for _, given, _ in self.jobs for tensor in given.values()]
        self.copies = [torch.ones_like(source) for source in self.sources]

    @property
    def mebibytes(self) -> float:
        return sum(source.nbytes for source in self.sources) / (1 << 20)

    def run(self, backend: str = "cpu") -> None:
        for plan, given, out in self.jobs:
            plan.run(given, backend=backend, out=out)

    def copy(self) -> None:
        for source, target in zip(self.sources, self.copies):
            target.copy_(source)


def use_threads(count: int) -> None:
    """So many threads for torch and for the kernels of the cpu backend."""
    import numba

    torch.set_num_threads(count)
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))


def medians(scale: Scale, **works: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each work; in every round each has its turn, and the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + ROUNDS[scale]):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def over_copy(scale: Scale, conversion: Conversion) -> float:
    """Time of a conversion by the cpu backend over that of the copy."""
    found = medians(scale, copy=conversion.copy, run=conversion.run)
    return found["run"] / found["copy"]


def in_child(function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None) -> Any:
    """What a function of a module gives in a new process; arguments and result travel as JSON."""
    code = f"import json, sys; from {function.__module__} import {function.__name__} as measured; "
    code += "print(json.dumps(measured(*json.loads(sys.argv[1]))))"
    return json.loads(_lines([sys.executable, "-c", code, json.dumps(arguments)], environment)[-1])


def _lines(command: Sequence[str], environment: Mapping[str, str] | None) -> list[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
