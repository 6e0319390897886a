"""Run the benchmarks; exit status 1 where a figure is over its limit, or under what it must reach."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

from benchmarks import MODULES, Figure
from benchmarks.report import from_json, line, markdown, merged, to_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}; all unless stated")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one process: whether it runs, no figures")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--write", action="store_true", help="tables of what is measured into benchmarks/results")
    parser.add_argument("--processes", type=int, metavar="N", help="of whose figures the medians count")
    args = parser.parse_args()
    unknown = [name for name in args.modules if name not in MODULES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(MODULES)}")
    if args.quick and args.write:
        parser.error("figures of --quick mean nothing and are not written")
    # Threads of a copy that has ended would wait for the next in a loop: in the way of others, and counted as work.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    missed = False
    for name in args.modules or MODULES:
        module = import_module(f"benchmarks.{name}")
        processes = 1 if args.quick else args.processes or getattr(module, "PROCESSES", 1)
        figures: list[Figure] = []
        for figure in _measured(name, module, processes, quick=args.quick):
            figures.append(figure)
            print(to_json(figure) if args.json else line(figure), flush=True)
        missed |= any(figure.missed for figure in figures)
        if args.write and not hasattr(module, "RESULTS"):  # a module that has them writes a table of its own
            text = markdown(name, module.__doc__ or "", figures, processes)
            (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    return 1 if missed else 0


def _measured(name: str, module: ModuleType, processes: int, *, quick: bool) -> Iterator[Figure]:
    if quick:
        yield from (replace(figure, limit=None, least=None) for figure in module.measure("quick"))
    elif processes == 1:
        yield from module.measure("full")
    else:
        yield from merged([_child(name, f"{at + 1} of {processes}") for at in range(processes)])


def _child(name: str, which: str) -> list[Figure]:
    print(f"{name}, process {which}", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks", name, "--json", "--processes", "1"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    figures = [from_json(text) for text in done.stdout.splitlines()]
    if done.returncode and not any(figure.missed for figure in figures):  # it ended with an error, and has said which
        sys.exit(done.returncode)
    return figures


if __name__ == "__main__":
    sys.exit(main())
