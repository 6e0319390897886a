"""What `layoutdsl doctor` says."""

from __future__ import annotations

from collections.abc import Iterator

from rows import ABSENT, FAILED, PASSED, Row

from layoutdsl.doctor import examine


def check(backend: str) -> Iterator[Row]:
    missing = FAILED if backend == "cuda" else ABSENT
    for line in examine():
        yield Row("installed", line.item, PASSED if line.ok else missing, line.said)
