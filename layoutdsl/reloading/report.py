"""How far a round has come: which live tensors are old, half new and new, and what is still to be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from layoutdsl.checkpoints.progress import in_bytes
from layoutdsl.reloading.folding import fold

MOST_LINES = 8
"""Folded names of one kind that are printed; the others are counted."""


@dataclass(frozen=True)
class Status:
    """The same of one unit, or of one tensor that is copied. missing and waiting are names of the checkpoint."""

    old: tuple[str, ...]
    mixed: tuple[str, ...]
    new: tuple[str, ...]
    missing: tuple[str, ...]
    waiting: tuple[str, ...]
    held: int


@dataclass(frozen=True, eq=False)
class Report:
    """How far a round is whenever it is asked, which costs nothing before; `str` is a text for people, with equal
    layers folded into one line.

    written: live tensors into which the call wrote that made the report, be it padding alone.
    """

    ask: Callable[[], tuple[Status, ...]]
    written: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Status, ...]:
        """The same unit by unit, copied tensors last."""
        return self.ask()

    @property
    def old(self) -> tuple[str, ...]:
        """Live tensors in which nothing of the new checkpoint stands."""
        return tuple(name for part in self.parts for name in part.old)

    @property
    def mixed(self) -> tuple[str, ...]:
        """Live tensors of which a part is new: some experts, or some rows."""
        return tuple(name for part in self.parts for name in part.mixed)

    @property
    def new(self) -> tuple[str, ...]:
        """Live tensors that are those of the new checkpoint."""
        return tuple(name for part in self.parts for name in part.new)

    @property
    def missing(self) -> tuple[str, ...]:
        """Tensors of the checkpoint that this rank needs and that were not given yet."""
        return tuple(name for part in self.parts for name in part.missing)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Tensors of the checkpoint that were given and have yet to be written, in part or as a whole."""
        return tuple(name for part in self.parts for name in part.waiting)

    @property
    def held(self) -> int:
        """Bytes that are in memory for what waits."""
        return sum(part.held for part in self.parts)

    @property
    def complete(self) -> bool:
        """Whether all was given, and every live tensor is new."""
        return not any(part.missing or part.old or part.mixed for part in self.parts)

    def __str__(self) -> str:
        if self.complete:
            return f"complete: {len(self.new)} tensors are new"
        counts = f"{len(self.new)} tensors are new, {len(self.mixed)} half new, {len(self.old)} old"
        waiting = len(self.waiting)
        kept = f"; {waiting} given ones wait, {in_bytes(self.held)} are held" if waiting else ""
        lines = [*_lines("half new", self.mixed), *_lines("old", self.old), *_lines("missing", self.missing)]
        return "\n".join([f"not complete: {counts}{kept}", *lines])


def _lines(what: str, names: Iterable[str]) -> Iterator[str]:
    lines = fold(names)
    yield from (f"{what}: {line}" for line in lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        yield f"{what}: and {len(lines) - MOST_LINES} more lines"
