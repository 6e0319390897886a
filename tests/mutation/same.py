from __future__ import annotations
from pathlib import Path


def difference(right: Path, changed: Path) -> str | None:
    return "not compared"
