"""Read millions of changed specs, plans, config.json and safetensors headers, and keep what goes wrong.

    python scripts/fuzz --inputs 1000000 --into build/fuzz      # or --minutes 40; two processes, niced
    python scripts/fuzz --report --into build/fuzz              # the figures so far, as a table

A run goes on where the last one into the same folder ended. What goes wrong (any exception but LayoutError, more than a
second of processor time, a report that cannot be printed) is kept there: the input, and what happened to it. Exit code
1 where there is such a thing. `python scripts/fuzz/guided.py` looks for new paths through the code instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

from fuzzing import KINDS, changed, peak, tried

SHARES = {"header": 58, "plan": 36, "config": 3, "spec": 3}
"""Of a hundred inputs so many are of each kind: a plan takes a millisecond, a spec several."""

CHUNK = 500


@dataclass
class Tally:
    """What became of so many inputs of one kind."""

    inputs: int = 0
    past: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_input: int = 0
    peak: int = 0
    mended: int = 0
    done: list[int] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        if other.slowest > self.slowest:
            self.slowest, self.slowest_input = other.slowest, other.slowest_input
        self.inputs += other.inputs
        self.past += other.past
        self.seconds += other.seconds
        self.peak = max(self.peak, other.peak)
        self.mended += other.mended
        self.done += other.done
        self.faults.update(other.faults)


def chunk(name: str, first: int) -> Tally:
    """Try inputs number `first` and the following of one kind."""
    kind, found = KINDS[name], Tally()
    for number in range(first, first + CHUNK):
        outcome = tried(kind, changed(kind, number))
        one = Tally(1, int(outcome.past), outcome.seconds, outcome.seconds, number)
        if outcome.fault:
            one.faults[str(number)] = outcome.fault
        found.add(one)
    found.peak, found.done = peak(), [first]
    return found


def run(into: Path, inputs: int, minutes: float, processes: int) -> dict[str, Tally]:
    """Try inputs until there are so many in all, or the time is over; what is known so far is written every time."""
    tallies = read(into)
    again(into, tallies)
    until = time.monotonic() + minutes * 60
    pending: dict[Future[Tally], tuple[str, int]] = {}
    with ProcessPoolExecutor(processes, initializer=os.nice, initargs=(10,)) as pool:
        todo = plan(tallies, inputs)
        while True:
            while len(pending) < 2 * processes and time.monotonic() < until and (one := next(todo, None)):
                pending[pool.submit(chunk, *one)] = one
            if not pending:
                return tallies
            for done in wait(pending, return_when=FIRST_COMPLETED).done:
                name, _ = pending.pop(done)
                found = done.result()
                keep(into, name, found)
                tallies[name].add(found)
                write(into, tallies)


def plan(tallies: dict[str, Tally], inputs: int) -> Iterator[tuple[str, int]]:
    """The chunks that are still to be done: (kind, first input), the kinds in turn."""
    wanted = {name: range(0, inputs * share // 100, CHUNK) for name, share in SHARES.items()}
    turns = sorted((first / firsts.stop, name, first) for name, firsts in wanted.items() for first in firsts)
    done = {(name, first) for name, tally in tallies.items() for first in tally.done}
    yield from ((name, first) for _, name, first in turns if (name, first) not in done)


def again(into: Path, tallies: dict[str, Tally]) -> None:
    """Try what went wrong in earlier runs; what no longer does is mended and forgotten."""
    for name, tally in tallies.items():
        for number in [*tally.faults]:
            if not tried(KINDS[name], changed(KINDS[name], int(number))).fault:
                del tally.faults[number]
                tally.mended += 1
                for path in into.glob(f"{name}-{number}.*"):
                    path.unlink()
    write(into, tallies)


def keep(into: Path, name: str, found: Tally) -> None:
    for number, fault in found.faults.items():
        text = changed(KINDS[name], int(number))
        (into / f"{name}-{number}.input").write_text(text, encoding="utf-8", errors="surrogatepass")
        (into / f"{name}-{number}.txt").write_text(fault, encoding="utf-8", errors="backslashreplace")


def read(into: Path) -> dict[str, Tally]:
    into.mkdir(parents=True, exist_ok=True)
    path = into / "state.json"
    state = json.loads(path.read_text()) if path.exists() else {}
    return {name: Tally(**state.get(name, {})) for name in SHARES}


def write(into: Path, tallies: dict[str, Tally]) -> None:
    path = into / "state.json"
    path.with_suffix(".new").write_text(json.dumps({name: asdict(tally) for name, tally in tallies.items()}, indent=1))
    path.with_suffix(".new").replace(path)


def report(tallies: dict[str, Tally]) -> str:
    """The figures as a table."""
    lines = [
        "| input | inputs | past the schema | mean time | slowest | faults, mended | faults, left |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    whole = Tally()
    for name, tally in tallies.items():
        whole.add(tally)
        lines.append(row(name, tally))
    return "\n".join([*lines, row("all", whole)])


def row(name: str, tally: Tally) -> str:
    count = max(tally.inputs, 1)
    return (
        f"| {name} | {tally.inputs:,} | {tally.past / count:.0%} | {tally.seconds / count * 1e3:.2f} ms "
        f"| {tally.slowest * 1e3:.0f} ms | {tally.mended} | {len(tally.faults)} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many in all, those of earlier runs included")
    parser.add_argument("--minutes", type=float, default=60, help="when to stop at the latest")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("build/fuzz"), help="folder of the figures and findings")
    parser.add_argument("--report", action="store_true", help="print the figures so far and do nothing else")
    args = parser.parse_args()
    tallies = read(args.into) if args.report else run(args.into, args.inputs, args.minutes, args.processes)
    print(report(tallies))
    return 1 if any(tally.faults for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
