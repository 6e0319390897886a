"""Figures as lines, as JSON, and as a table in Markdown that says on which machine they were measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import Figure

PACKAGES = ("torch", "numba", "numpy", "layoutdsl")


def line(figure: Figure) -> str:
    wanted = ", ".join(words for words in (figure.wanted, figure.missed) if words)
    return f"{figure.name:48} {figure.value:10.3f} {figure.unit}{f'  ({wanted})' if wanted else ''}  {figure.note}"


def to_json(figure: Figure) -> str:
    return json.dumps({**asdict(figure), "ok": not figure.missed})


def from_json(text: str) -> Figure:
    fields = json.loads(text)
    del fields["ok"]
    return Figure(**fields)


def merged(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The median of each figure over several processes, with the note of the process whose value it is."""
    found: list[Figure] = []
    for same in zip(*runs, strict=True):
        assert len({figure.name for figure in same}) == 1, "two processes measured different things"
        middle = statistics.median_low(figure.value for figure in same)
        found.append(next(figure for figure in same if figure.value == middle))
    return found


def markdown(name: str, doc: str, figures: Sequence[Figure], processes: int) -> str:
    """The text of results/NAME.md."""
    rows = [
        f"| {one.name} | {one.value:.3f} {one.unit} | {one.wanted} | {one.missed} | {one.note} |" for one in figures
    ]
    return "\n".join(
        [
            f"<!-- written by `python -m benchmarks {name} --write` -->",
            f"# {name.replace('_', ' ').capitalize()}",
            "",
            *doc.strip().splitlines(),
            "",
            f"{machine()}. Medians of {processes} process{'es' * (processes > 1)}.",
            "",
            "| figure | measured | wanted | missed | |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def machine() -> str:
    """Processor, logical cores, operating system and versions, in a line."""
    packages = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    return ", ".join(
        [
            _processor(),
            f"{os.cpu_count()} logical cores",
            f"{platform.system()} {platform.machine()}",
            f"Python {platform.python_version()}",
            *packages,
        ]
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else "unknown processor"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
