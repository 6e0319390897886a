"""Show that the tests of the GEMM kernels catch faults: plant each of faults.yaml, run the tests that have to see it.

    python scripts/planted_faults             all of them, about five minutes; then docs/gemm-faults.md is written
    python scripts/planted_faults --sample    those that CI runs
    python scripts/planted_faults WORD...     those with one of these words in their name

No file of the checkout is changed: a test run gets the changed text in the place of the file's. At the end the tests
that failed run without a fault. Exit status 1 where a fault is not caught, or a test fails without one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults import ROOT, Fault, listed

PAGE = ROOT / "docs" / "gemm-faults.md"

HEAD = """<!-- Written by scripts/planted_faults: change what it reads, not this text. -->

# Faults that the tests of the GEMM kernels catch

Each line is a fault that `python scripts/planted_faults` plants into the text of a kernel, the first test that fails
with it, and by what. All tests named here pass without a fault. They run on the host: [backends.md](backends.md#host).

| fault | planted in `kernels` | caught by | which says |
|---|---|---|---|
"""

SECONDS = 300
"""Of one fault's tests: a kernel that has one may run for ever."""

REFUSALS = {
    "LP303": "an access out of bounds",
    "LP304": "an access that is not aligned",
    "LP305": "threads that part ways at a barrier",
    "LP306": "threads that all wait",
    "LP307": "a race on shared memory",
}
"""What the host runner says of a kernel, by the code of its refusal."""


@dataclass(frozen=True)
class Outcome:
    """`test` is the first that failed; empty where none did, or where it failed for another reason."""

    fault: Fault
    test: str
    said: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/planted_faults", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults with one of these in their name")
    parser.add_argument("--sample", action="store_true", help="only those that CI runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    args = parser.parse_args()
    chosen = [
        fault
        for fault in listed()
        if (fault.sample or not args.sample) and (not args.words or any(word in fault.name for word in args.words))
    ]
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(args.jobs) as pool:
        outcomes = []
        for outcome in pool.map(partial(planted, cache=Path(cache)), chosen):
            outcomes.append(outcome)
            print(f"{'caught' if outcome.test else 'MISSED'}  {outcome.fault.name}: {outcome.test} {outcome.said}", flush=True)
        missed = [outcome for outcome in outcomes if not outcome.test]
        wrong = without_fault(sorted({outcome.test for outcome in outcomes if outcome.test}), Path(cache))
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught" + (f"; without a fault: {wrong}" if wrong else ""))
    if missed or wrong:
        return 1
    if len(chosen) == len(listed()):
        PAGE.write_text(page(outcomes), encoding="utf-8")
    return 0


def planted(fault: Fault, cache: Path) -> Outcome:
    """Run a fault's tests on kernels that have it."""
    failed, said = first_failure([f"tests/{test}" for test in fault.tests], fault.texts(), cache, only=fault.only)
    return Outcome(fault, failed, said)


def without_fault(tests: Sequence[str], cache: Path) -> str:
    """What these tests say of the kernels as they are; empty where all pass."""
    failed, said = first_failure([f"tests/{test}" for test in tests], {}, cache)
    return f"{failed}: {said}" if failed or said != PASSED else ""


PASSED = "all tests pass"


def first_failure(tests: Sequence[str], texts: Mapping[str, str], cache: Path, only: str = "") -> tuple[str, str]:
    """The first of these tests that fails because of what a kernel does, if any, and what it says."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "changed.json").write_text(json.dumps(texts), encoding="utf-8")
        paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        env = {
            **os.environ, "PLANTED": place, "XDG_CACHE_HOME": str(cache),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "planting", "-p", "no:cacheprovider", *tests]
        command += ["-k", only] if only else []
        try:
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "", f"not done after {SECONDS} s"
        if done.returncode == 0:
            return "", PASSED
        if not (folder / "found.json").is_file():
            lines = (done.stdout + done.stderr).strip().splitlines()
            return "", f"pytest ended with {done.returncode}: {lines[-1] if lines else ''}"
        found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    if found["when"] != "call" or "LP301" in found["said"]:
        return "", found["said"]
    return found["test"], meaning(found["said"])


def meaning(said: str) -> str:
    """What a failed test says, in few words."""
    for code, words in REFUSALS.items():
        if f"[{code}]" in said:
            return f"{words} ({code})"
    if "are wrong, the worst at" in said:
        return "results that differ from float64 products"
    return said.splitlines()[0].removeprefix("AssertionError: ")[:90]


def page(outcomes: Sequence[Outcome]) -> str:
    rows = (
        (outcome.fault.name, f"`{outcome.fault.files}`", f"`{outcome.test}`", outcome.said.replace("|", "\\|"))
        for outcome in outcomes
    )
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
