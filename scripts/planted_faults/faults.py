"""The list of faults, read from faults.yaml: what each changes in kernels/, and which tests have to see it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "kernels"


@dataclass(frozen=True)
class Change:
    """A passage of a file of kernels/, which has it once, and what stands there instead."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """`tests` are names below tests/, run in this order; `only` chooses among them as pytest's -k does."""

    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    only: str = ""
    sample: bool = False

    @property
    def files(self) -> str:
        return ", ".join(dict.fromkeys(change.file for change in self.changes))

    def texts(self) -> dict[str, str]:
        """The changed files. ValueError where one has not exactly the passage that was to be changed."""
        made: dict[str, str] = {}
        for change in self.changes:
            text = made.get(change.file) or (KERNELS / change.file).read_text(encoding="utf-8")
            passage = re.compile(r"\s+".join(map(re.escape, change.old.split())))
            count = len(passage.findall(text))
            if count != 1:
                raise ValueError(f"{self.name}: {change.file} has {count} times: {change.old}")
            made[change.file] = passage.sub(lambda _, new=change.new: new, text)
        return made


def listed() -> tuple[Fault, ...]:
    entries = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8"))
    return tuple(_fault(**entry) for entry in entries)


def _fault(fault, file, old, new, tests, only="", sample=False, also=()) -> Fault:
    changes = [Change(file, old, new), *(Change(**{"file": file, **more}) for more in also)]
    return Fault(fault, tuple(changes), tuple(tests), only, sample)
