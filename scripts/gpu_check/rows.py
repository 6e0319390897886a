"""What the checks report, as rows, and the rows as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

PASSED, FAILED, ABSENT, BELOW = "passed", "failed", "not available", "below the aim"


@dataclass(frozen=True)
class Row:
    """One thing that was checked. `said`: how much was compared, what differs, or why it cannot be checked here;
    `figures`: what was measured, for the JSON alone."""

    check: str
    name: str
    result: str
    said: str = ""
    seconds: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Where it ran, in words."""

    device: str
    software: str
    commit: str


def as_table(machine: Machine, rows: Sequence[Row]) -> str:
    """Markdown."""
    cells = [("check", "of", "result", "", "seconds"), ("---", "---", "---", "---", "---:")]
    cells += [(row.check, row.name, row.result, row.said, f"{row.seconds:.1f}") for row in rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in cells]
    return "\n".join([f"{machine.device}; {machine.software}; commit {machine.commit}", "", *lines])


def as_json(machine: Machine, rows: Sequence[Row]) -> str:
    return json.dumps({**asdict(machine), "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
