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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import Scale
from benchmarks.inputs import inputs, outputs
from layoutdsl.plan import Plan

THREADS = 2
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


@dataclass(frozen=True)
class Taken:
    """Medians over rounds: seconds of a work and of the copies before it, on the clock and of all processors together.

    Where others keep the machine busy, the fastest copy is far from the median, and processor time is what to look at.
    """

    seconds: float
    copy: float
    fastest: float
    processor: float
    copy_processor: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.copy

    def __str__(self) -> str:
        times = (f"{seconds * 1e3:.1f}" for seconds in (self.seconds, self.copy, self.fastest))
        text = "{} ms, copy {} (fastest {}), in processor time {:.2f}"
        return text.format(*times, self.processor / self.copy_processor)


def against_copy(scale: Scale, copy: Callable[[], object], **works: Callable[[], object]) -> dict[str, Taken]:
    """In every round each work has its turn, right after a copy that it is compared with; the first does not count."""
    turns: dict[str, list[tuple[float, ...]]] = {name: [] for name in works}
    for _ in range(1 + ROUNDS[scale]):
        for name, work in works.items():
            turns[name].append((*_seconds(copy), *_seconds(work)))
    found: dict[str, Taken] = {}
    for name in works:
        copied, copied_processor, worked, processor = zip(*turns[name][1:])
        found[name] = Taken(
            seconds=statistics.median(worked),
            copy=statistics.median(copied),
            fastest=min(copied),
            processor=statistics.median(processor),
            copy_processor=statistics.median(copied_processor),
        )
    return found


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of all processors together."""
    start, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - busy


def measured(scale: Scale, conversion: Conversion) -> Taken:
    """A conversion by the cpu backend on THREADS."""
    torch.set_num_threads(THREADS)
    return against_copy(scale, conversion.copy, run=conversion.run)["run"]


def in_child(function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None) -> Any:
    """What a function of a module gives in a new process; arguments and result travel as JSON."""
    code = f"import json, sys; from {function.__module__} import {function.__name__} as measured; "
    code += "print(json.dumps(measured(*json.loads(sys.argv[1]))))"
    command, variables = [sys.executable, "-c", code, json.dumps(arguments)], {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
