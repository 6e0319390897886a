"""A pytest plugin for one run of tests on kernels that have a fault, and what the first test to fail says.

PLANTED is a folder: changed.json has the kernels' files that are changed, found.json is written where a test fails.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from layoutdsl.backends import kernel_sources

FOLDER = Path(os.environ["PLANTED"])


def pytest_configure() -> None:
    changed = json.loads((FOLDER / "changed.json").read_text(encoding="utf-8"))
    read = kernel_sources._read
    kernel_sources._read = lambda name: changed[name] if name in changed else read(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message if crash else str(report.longrepr)
        found = {"test": report.nodeid.removeprefix("tests/"), "said": said, "when": report.when}
        (FOLDER / "found.json").write_text(json.dumps(found), encoding="utf-8")
