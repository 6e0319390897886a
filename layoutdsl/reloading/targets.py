"""What a round writes to: a unit, whose tensors go through its plan, or a tensor that is copied.

Both take tensors of the checkpoint until all that they await are there. Directly, each is written to the live tensors
as soon as it can be; staged, they become tensors beside the live ones, and `commit` copies these when it is called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from layoutdsl.backends import buffers
from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.folder import Entry
from layoutdsl.checkpoints.planning import within
from layoutdsl.checkpoints.storing import output_name
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan
from layoutdsl.reloading.live import Described, Model, unmoved
from layoutdsl.reloading.report import Status

if TYPE_CHECKING:
    from layoutdsl.backends.update import Updates

Given = Mapping[str, torch.Tensor]
"""Tensors by their names in the checkpoint."""


class Target(ABC):
    """awaited: the checkpoint's tensors that this rank needs; entries: those that it may be given."""

    name: str
    entries: Mapping[str, Entry]
    awaited: frozenset[str]
    wanted: Mapping[str, Described]

    def __init__(self, staged: bool):
        self._staged, self._due = staged, set[str]()
        self._live: dict[str, torch.Tensor] = {}
        self._addresses: dict[str, int] = {}
        self._new = False
        self._status: Status | None = None

    @property
    def complete(self) -> bool:
        """Whether all that is awaited was given."""
        return not self._due

    def begin(self, found: Mapping[str, torch.Tensor]) -> None:
        """Forget what was given, and write to those of these live tensors that are its own from now on."""
        self._live = {name: found[name] for name in self.wanted}
        self._addresses = {name: buffers.address(tensor) for name, tensor in self._live.items()}
        self._due = {*self.awaited}
        self._new, self._status = False, None
        self._restart()

    def release(self) -> None:
        """Let go of the live tensors until the next round begins."""
        self._live, self._addresses = {}, {}
        self._restart()

    def check(self, model: Model) -> None:
        """LayoutError where the model has other tensors by now than those that this round writes to."""
        unmoved(model, self._addresses)

    def give(self, given: Given) -> tuple[str, ...]:
        """Take tensors that were looked at, none of them twice: all of them or, where one is refused, none. Returns
        the live tensors that were written to."""
        needed = {name: tensor.detach() for name, tensor in given.items() if name in self.awaited}
        written = self._take(needed) if needed else ()
        self._due -= given.keys()
        self._status = None
        if self._staged:
            return ()
        self._new = self.complete
        return written

    def commit(self) -> tuple[str, ...]:
        """Copy what is staged to the live tensors. Returns their names."""
        for name, tensor in self._stage().items():
            self._live[name].copy_(tensor)
        self._restart()
        self._new, self._status = True, None
        return tuple(self._live)

    @property
    def new(self) -> bool:
        """Whether its live tensors are those of the new checkpoint."""
        return self._new

    @property
    def status(self) -> Status:
        if self._status is None:
            self._status = self._found()
        return self._status

    def _found(self) -> Status:
        names = tuple(self.wanted)
        missing = tuple(name for name in self.entries if name in self._due)
        if self._new:
            return Status((), (), names, missing, (), 0)
        if self._staged:
            waiting = tuple(name for name in self.entries if name in self.awaited and name not in self._due)
            return Status(names, (), (), missing, waiting, self._held())
        old, mixed, new = self._sorted()
        return Status(old, mixed, new, missing, self._waiting(), self._held())

    @abstractmethod
    def _restart(self) -> None:
        """Let go of all that is held or staged."""

    @abstractmethod
    def _take(self, given: Given) -> tuple[str, ...]:
        """Write, hold or stage."""

    @abstractmethod
    def _stage(self) -> Mapping[str, torch.Tensor]:
        """What is staged, by the names of the live tensors."""

    @abstractmethod
    def _sorted(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The names of old, half new and new live tensors."""

    @abstractmethod
    def _waiting(self) -> tuple[str, ...]:
        """Names of what is held."""

    @abstractmethod
    def _held(self) -> int:
        """Bytes of what is held or staged."""


@dataclass(frozen=True)
class Place:
    """What a checkpoint's name means in a plan."""

    input: str
    expert: int | None


class Unit(Target):
    """One unit of the checkpoint: its tensors are applied through its plan, as they come."""

    def __init__(self, job: Job, plan: Plan, backend: str, staged: bool):
        super().__init__(staged)
        self.name, self._job, self._plan, self._backend = job.unit.name, job, plan, backend
        self._names = {info.name: output_name(job, info.name) for info in plan.outputs}
        self.wanted = {self._names[info.name]: (info.dtypes[0], info.full_shape) for info in plan.outputs}
        self._places = {
            entry.name: Place(name, at if job.apart(name) else None)
            for name, entries in job.inputs.items()
            for at, entry in enumerate(entries)
        }
        self.entries = {entry.name: entry for entry in job.entries}
        here = {None, *plan.source_experts}
        self.awaited = frozenset(name for name, place in self._places.items() if place.expert in here)
        self._updates: Updates | None = None

    def begin(self, found: Mapping[str, torch.Tensor]) -> None:
        super().begin(found)
        try:
            self._device = buffers.device_of(self._live)
        except LayoutError as error:
            raise within(self._job, error) from None

    def _restart(self) -> None:
        self._updates = None

    def _take(self, given: Given) -> tuple[str, ...]:
        if self._updates is None:
            self._updates = self._plan.updates(self._storage(), backend=self._backend)
        places = ((self._places[name], tensor) for name, tensor in given.items())
        try:
            applied = self._updates.update_each(
                (place.input, place.expert, tensor.to(self._device)) for place, tensor in places
            )
        except LayoutError as error:
            raise within(self._job, error) from None
        return tuple(self._names[name] for name in applied.written)

    def _storage(self) -> dict[str, torch.Tensor]:
        found = {name: self._live[own] for name, own in self._names.items()}
        return {name: torch.empty_like(tensor) for name, tensor in found.items()} if self._staged else found

    def _stage(self) -> Mapping[str, torch.Tensor]:
        return {self._names[name]: tensor for name, tensor in (self._updates or {}).items()}

    def _sorted(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        found: tuple[list[str], list[str], list[str]] = [], [], []
        progress = self._updates.progress if self._updates is not None else {}
        for name, own in self._names.items():
            done, of = progress.get(name, (0, 1))
            found[0 if not done else 1 if done < of else 2].append(own)
        return tuple(found[0]), tuple(found[1]), tuple(found[2])

    def _waiting(self) -> tuple[str, ...]:
        held = {Place(*each.piece) for each in self._updates.pending} if self._updates is not None else set()
        return tuple(name for name, place in self._places.items() if place in held)

    def _held(self) -> int:
        if self._updates is None:
            return 0
        staged = sum(tensor.nbytes for tensor in self._updates.values()) if self._staged else 0
        return self._updates.held + staged


class Copy(Target):
    """A tensor that every rank has whole."""

    def __init__(self, entry: Entry, staged: bool):
        super().__init__(staged)
        self.name, self.entries, self.awaited = entry.name, {entry.name: entry}, frozenset((entry.name,))
        self.wanted = {entry.name: (entry.dtype, entry.shape)}
        self._kept: dict[str, torch.Tensor] = {}

    def _restart(self) -> None:
        self._kept = {}

    def _take(self, given: Given) -> tuple[str, ...]:
        if self._staged:
            self._kept = {name: tensor.to(self._live[name].device, copy=True) for name, tensor in given.items()}
            return ()
        for name, tensor in given.items():
            self._live[name].copy_(tensor)
        return tuple(given)

    def _stage(self) -> Mapping[str, torch.Tensor]:
        return self._kept

    def _sorted(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        return (self.name,), (), ()

    def _waiting(self) -> tuple[str, ...]:
        return ()

    def _held(self) -> int:
        return sum(tensor.nbytes for tensor in self._kept.values())
