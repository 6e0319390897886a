"""A mutant's verdict: which killer told it, or that it means the same."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from layoutdsl.library import read_spec
from mutation import same
from mutation.killers import CHEAP, DEAR
from mutation.mutators import Mutant
from mutation.workplace import SPECS, Workplace


class Verdict(NamedTuple):
    """`by`: a killer, `same`, or nothing for a survivor. `said`: what it saw."""

    mutant: Mutant
    by: str
    said: str


def verdict(place: Workplace, mutant: Mutant) -> Verdict:
    with place.changed(mutant.spec, mutant.text) as path:
        for name, killer in CHEAP.items():
            if said := killer(path):
                return Verdict(mutant, name, said)
        differs = same.difference(read_spec(SPECS / mutant.spec), read_spec(path))
        if differs is None:
            return Verdict(mutant, "same", "resolves to the same")
        for name, killer in DEAR.items():
            if said := killer(path):
                return Verdict(mutant, name, said)
    return Verdict(mutant, "", differs)


def every_spec() -> list[Path]:
    return sorted(path for kind in ("checkpoint", "kernel", "module") for path in (SPECS / kind).glob("*.yaml"))
