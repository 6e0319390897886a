"""All recorded cases of another engine, byte for byte: what `layoutdsl conform` holds against them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rows import FAILED, PASSED, Row
from wheels import ROOT

from layoutdsl import conform

GOLDEN = ROOT / "tests" / "golden"
HOST_EVERY = 16
"""The host compiles for a second or two what NVRTC does in a tenth: there it is one case in so many."""


def check(backend: str) -> Iterator[Row]:
    cases = json.loads((GOLDEN / "index.json").read_text())["cases"][:: HOST_EVERY if backend == "host" else 1]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            shutil.copy(GOLDEN / case["file"], folder)
        (Path(folder) / "index.json").write_text(json.dumps({"cases": cases}))
        wrong = [outcome for outcome in conform.cases(Path(folder), backend=backend) if outcome.wrong is not None]
    for outcome in wrong:
        yield Row("recorded", outcome.name, FAILED, str(outcome.wrong))
    yield Row("recorded", f"{len(cases)} cases", FAILED if wrong else PASSED, f"{len(cases) - len(wrong)} byte-equal")
