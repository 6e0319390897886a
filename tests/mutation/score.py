"""A mutant's verdict: which killer told it, or that it means the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from layoutdsl.errors import LayoutError
from layoutdsl.library import read_spec
from mutation import same
from mutation.killers import CHEAP, CONFIGURED, DEAR
from mutation.mutators import Mutant, mutants
from mutation.workplace import SPECS, Workplace

UNCOUNTED = "schema"
"""Of a text that the reader and the schema do not let pass: it is no mutant."""

KILLERS = tuple(dict.fromkeys((*CHEAP, *CONFIGURED, *DEAR)))


class Verdict(NamedTuple):
    """`by`: a killer, `same`, UNCOUNTED, or nothing for a survivor. `said`: what it saw."""

    mutant: Mutant
    by: str
    said: str


def all_mutants() -> Iterator[Mutant]:
    for kind in ("checkpoint", "kernel", "module"):
        for file in sorted((SPECS / kind).glob("*.yaml")):
            yield from mutants(SPECS, file)


def verdicts(some: Iterable[Mutant]) -> Iterator[Verdict]:
    """Verdicts in a copy of the shipped specs."""
    with tempfile.TemporaryDirectory() as folder, Workplace(Path(folder)).entered() as place:
        for mutant in some:
            yield verdict(place, mutant)


def verdict(place: Workplace, mutant: Mutant) -> Verdict:
    with place.changed(mutant.spec, mutant.text) as path:
        if not _is_valid(path):
            return Verdict(mutant, UNCOUNTED, "")
        # What only config.json is read with is told by nothing else.
        by_config = mutant.section in ("detect", "params.config", "params.map")
        for name, killer in (CONFIGURED if by_config else CHEAP).items():
            if said := killer(path):
                return Verdict(mutant, name, said)
        differs = same.difference(read_spec(SPECS / mutant.spec), read_spec(path))
        if differs is None:
            return Verdict(mutant, "same", "")
        for name, killer in ({} if by_config else DEAR).items():
            if said := killer(path):
                return Verdict(mutant, name, said)
    return Verdict(mutant, "", differs)


def _is_valid(path: Path) -> bool:
    """Whether the reader and the schema let a text pass; what lint finds in it beyond that does not matter."""
    try:
        read_spec(path)
    except LayoutError as error:
        return not any(found.code.startswith("LD0") and found.code < "LD030" for found in error.diagnostics)
    return True
