"""Check the backend `cuda` and the GEMMs on a GPU: a table, and the same as JSON. Exit status 1 where something failed.

    python scripts/gpu_check                 on a machine with a GPU and torch for it, in under six minutes
    python scripts/gpu_check --host          the backend `host` instead: what can be compared without a GPU
    python scripts/gpu_check --wheels        fetch what else it needs into build/wheels, for a machine without an index

Each check is a process of its own with a time limit: one that hangs, or breaks the GPU's context, leaves the others
alone. What this machine cannot do is `not available`, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import wheels
from rows import FAILED, Machine, Row, as_json, as_table

ROOT = wheels.ROOT

LIMITS = {
    "installed": 10,
    "primitives": 30,
    "recorded": 50,
    "reference": 40,
    "graphs": 20,
    "gemms": 45,
    "sanitizer": 45,
    "bandwidth": 25,
    "gemm_times": 50,
    "gemm_peers": 35,
}
"""Seconds for each check, which is the module of that name with `check(backend) -> rows`."""

HOST_PATIENCE = 10
"""Times as long without a GPU, where a C++ compiler has to build what the host runs."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(LIMITS)}; all unless stated")
    parser.add_argument("--host", action="store_true", help="run the backend `host`: no GPU is needed")
    parser.add_argument("--wheels", action="store_true", help="fetch wheels into build/wheels, and nothing else")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu_check.json", metavar="FILE")
    parser.add_argument("--alone", choices=LIMITS, help=argparse.SUPPRESS)  # a check's own process
    args = parser.parse_args()
    unknown = [name for name in args.checks if name not in LIMITS]
    if unknown:
        parser.error(f"no check is called {', '.join(unknown)}; there are {', '.join(LIMITS)}")
    if args.wheels:
        return wheels.fetch()
    wheels.unpack()
    sys.path.insert(0, str(ROOT))
    backend = "host" if args.host else "cuda"
    if args.alone:
        alone(args.alone, backend)
        return 0
    from layoutdsl import LayoutError

    try:
        machine = described(backend)
    except LayoutError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [row for name in args.checks or LIMITS for row in apart(name, backend)]
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(as_json(machine, rows), encoding="utf-8")
    print(as_table(machine, rows))
    return int(any(row.result == FAILED for row in rows))


def alone(name: str, backend: str) -> None:
    """Run one check here; its rows go to stdout, a line of JSON each."""
    start = time.perf_counter()
    for row in import_module(name).check(backend):
        now = time.perf_counter()
        print(json.dumps({**vars(row), "seconds": now - start}), flush=True)
        start = now


def apart(name: str, backend: str) -> Iterator[Row]:
    """Run one check in a process of its own; it fails where that ends badly or is too slow."""
    command = [sys.executable, str(Path(__file__).parent), "--alone", name, *(["--host"] if backend == "host" else [])]
    print(f"{name} ...", file=sys.stderr, flush=True)
    start, limit = time.perf_counter(), LIMITS[name] * (HOST_PATIENCE if backend == "host" else 1)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        out, said = done.stdout, done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired as slow:
        out, said = (slow.stdout or b"").decode(), [f"not done after {limit} s"]
    yield from (Row(**json.loads(line)) for line in out.splitlines() if line.startswith('{"check"'))
    if said:
        yield Row(name, "as a whole", FAILED, said[0], time.perf_counter() - start)


def described(backend: str) -> Machine:
    """Where it runs. LayoutError where there is no GPU, or no compiler for it."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    commit = git.stdout.strip() or "unknown"
    if backend == "host":
        return Machine("the host", f"torch {version('torch')}", commit)
    from layoutdsl.backends.cuda import toolkit

    (gpu, *_), (major, minor) = toolkit.gpus(), toolkit.driver()
    nvrtc = ".".join(map(str, toolkit.compiler().version))
    software = f"driver for CUDA {major}.{minor}, NVRTC {nvrtc}, torch {version('torch')}"
    return Machine(f"{gpu.name} ({gpu.arch})", software, commit)


if __name__ == "__main__":
    sys.exit(main())
