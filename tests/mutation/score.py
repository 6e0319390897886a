"""A mutant's verdict: which killer told it, or that it means the same."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mutation import same
from mutation.killers import KILLERS
from mutation.mutators import Mutant
from mutation.workplace import SPECS, Workplace


class Verdict(NamedTuple):
    """`by`: a killer, `same`, or nothing for a survivor. `said`: what it saw."""

    mutant: Mutant
    by: str
    said: str


def verdict(place: Workplace, mutant: Mutant) -> Verdict:
    with place.changed(mutant.spec, mutant.text) as path:
        for name, killer in KILLERS.items():
            if said := killer(path):
                return Verdict(mutant, name, said)
        if said := same.difference(SPECS / mutant.spec, path):
            return Verdict(mutant, "", said)
        return Verdict(mutant, "same", "")


def every_spec() -> list[Path]:
    return sorted(path for kind in ("checkpoint", "kernel", "module") for path in (SPECS / kind).glob("*.yaml"))
