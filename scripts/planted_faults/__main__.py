"""Show that the tests of the GEMM kernels catch faults: plant each of faults.yaml, run the tests that have to see it.

    python scripts/planted_faults             all of them, about five minutes; then docs/gemm-faults.md is written
    python scripts/planted_faults --sample    those that CI runs
    python scripts/planted_faults WORD...     those with one of these words in their name

No file of the checkout is changed: a test run gets the changed text in the place of the file's. At the end the tests
that failed run without a fault. Exit status 1 where a fault is not caught, or a test fails without one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
from faults import ROOT, Fault, listed

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

import gemm_cases  # noqa: F401  imports what takes long

from layoutdsl.backends import kernel_sources
from layoutdsl.backends.host import build as host_build

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
        os.environ["XDG_CACHE_HOME"] = cache
        host_build.runtime_library()
        outcomes = []
        for outcome in pool.map(planted, chosen):
            outcomes.append(outcome)
            found = "caught" if outcome.test else "MISSED"
            print(found, outcome.fault.name, outcome.test, outcome.said, sep="  ", flush=True)
        missed = [outcome for outcome in outcomes if not outcome.test]
        wrong = without_fault(sorted({outcome.test for outcome in outcomes if outcome.test}))
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught" + (f"; without a fault: {wrong}" if wrong else ""))
    if missed or wrong:
        return 1
    if len(chosen) == len(listed()):
        PAGE.write_text(page(outcomes), encoding="utf-8")
    return 0


def planted(fault: Fault) -> Outcome:
    """Run a fault's tests on kernels that have it."""
    failed, said = first_failure(fault.tests, fault.texts(), fault.only)
    return Outcome(fault, failed, said)


def without_fault(tests: Sequence[str]) -> str:
    """What these tests say of the kernels as they are; empty where all pass."""
    failed, said = first_failure(tests, {})
    return "" if said == PASSED else f"{failed}: {said}"


PASSED = "all tests pass"


def first_failure(tests: Sequence[str], texts: Mapping[str, str], only: str = "") -> tuple[str, str]:
    """The first of these tests that fails because of what a kernel does, if any, and what it says."""
    fork = get_context("fork")  # torch is imported once
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=run_tests, args=(theirs, tests, texts, only))
    child.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            return "", f"not done after {SECONDS} s"
        return ours.recv()
    except EOFError:
        return "", "the tests ended the process"
    finally:
        child.kill()
        child.join()


def run_tests(to: Connection, tests: Sequence[str], texts: Mapping[str, str], only: str) -> None:
    """In a process of its own: from here on it has the changed kernels."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    read, first = kernel_sources._read, First()
    kernel_sources._read = lambda name: texts[name] if name in texts else read(name)
    named = [f"{ROOT / 'tests'}/{test}" for test in tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={ROOT}", "-k", only]
    ended = pytest.main([*named, *options], plugins=[first])
    if ended == pytest.ExitCode.OK:
        to.send(("", PASSED))
    elif ended != pytest.ExitCode.TESTS_FAILED or first.when != "call" or "LP301" in first.said:
        to.send(("", first.said or f"pytest ended with {ended.name}"))
    else:
        to.send((first.test, meaning(first.said)))


class First:
    """Of a run of tests, the first to fail."""

    test = said = when = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.when:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.said = crash.message if crash else str(report.longrepr)
            self.test, self.when = report.nodeid.removeprefix("tests/"), report.when


def meaning(said: str) -> str:
    """What a failed test says, in few words."""
    for code, words in REFUSALS.items():
        if f"LayoutError: {code} " in said:
            return f"{words} ({code})"
    if "are wrong, the worst at" in said:
        return "results that differ from float64 products"
    first = said.splitlines()[0].removeprefix("AssertionError: ")
    return "results that are not as defined" if first.startswith(("assert ", "Schedule(")) else first


def page(outcomes: Sequence[Outcome]) -> str:
    rows = (
        (outcome.fault.name, f"`{outcome.fault.files}`", f"`{outcome.test}`", outcome.said.replace("|", "\\|"))
        for outcome in outcomes
    )
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
