"""Input that means harm is refused with a report, soon, and without a look at anything but what was given."""

import re
import time
from pathlib import Path

import pytest
from hostile import CASES, READ, Case, report

ROOT = Path(__file__).resolve().parent.parent

BOUND = 10.0
"""Seconds of processor time for one case; those of docs/hostile-input.md are far below, on an idle machine."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.what}")
def test_case(case: Case, tmp_path: Path) -> None:
    read = case.made(tmp_path)
    start = time.process_time()
    found = report(read)
    seconds = time.process_time() - start
    assert case.says in found, found[:2000]
    assert case.says == READ or re.match(r"L[DP]\d{3} [a-z-]+: ", found), found[:2000]
    assert "hunter2" not in found
    assert len(found) < 100_000
    assert all(char.isprintable() or char == "\n" for char in found)
    assert seconds < BOUND


def test_the_page_has_every_case() -> None:
    page = (ROOT / "docs" / "hostile-input.md").read_text(encoding="utf-8")
    missing = [case.what for case in CASES if f"\n| {case.what.replace('|', '&#124;')} | " not in page]
    assert not missing, f"run scripts/hostile_table.py: {missing}"


def test_cases_have_names_of_their_own() -> None:
    names = [(case.kind, case.what) for case in CASES]
    assert len(set(names)) == len(names)
