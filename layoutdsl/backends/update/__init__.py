"""Source tensors applied to existing storage as they arrive, in any order: the same bytes as one full run.

The ledger (ledger.py) says which steps of the plan a tensor makes possible; these are put together to as few partial
plans as differ among the experts, and a backend's `amend` carries them out. What spans experts is in reduced.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from layoutdsl.backends import amend, buffers, load
from layoutdsl.backends.update.pieces import Given, Pieces, inputs, inputs_of_some, pieces, triples
from layoutdsl.backends.update.reduced import Spanning, Tops
from layoutdsl.errors import LayoutError
from layoutdsl.ledger import Job, Ledger, Pending, Piece, is_apart
from layoutdsl.plan import Plan

MOST_WORKS = 1 << 14
"""Kept at a time: all that differ, where tensors come one by one."""


@dataclass(frozen=True)
class Applied:
    """What came of an update: the outputs into which something was written, and what is held of what was given."""

    written: tuple[str, ...]
    pending: tuple[Pending, ...]


@dataclass(frozen=True)
class Batch:
    """Steps for some of the rank's experts, all by number: what one partial plan carries out."""

    steps: frozenset[int]
    slots: Sequence[int]


@dataclass(frozen=True)
class Work:
    """A batch, its experts by their numbers in the source, and the storage that it writes into. plan: the partial plan,
    which is the same for all experts, so that backends find again what they know of it."""

    batch: Batch
    plan: Plan
    experts: Sequence[int]
    out: dict[str, torch.Tensor]

    def apart(self) -> Work:
        """The same into other storage."""
        return replace(self, out={name: torch.empty_like(tensor) for name, tensor in self.out.items()})


class Updates(Mapping[str, torch.Tensor]):
    """The outputs of a plan, whose storage stays where it is, and what waits to be written into them.

    A mapping from name to output tensor. Made by `Plan.updates`.
    """

    def __init__(self, plan: Plan, out: Mapping[str, torch.Tensor] | None, backend: str):
        load(backend)  # refused now, rather than at the first tensor
        self.plan, self.backend = plan, backend
        self._out = buffers.allocate(plan, {}, out)
        self._lie, self._works = _lying(self._out), dict[tuple[frozenset[int], Sequence[Job]], list[Work]]()
        self._ledger = Ledger(plan)
        self._held: Pieces = {}
        reductions = {reduction.name: reduction for reduction in plan.reductions}
        self._spanning = {
            at: Spanning(plan, reductions[step.spans], step) for at, step in enumerate(self._ledger.steps) if step.spans
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._out[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._out)

    def __len__(self) -> int:
        return len(self._out)

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What is held, since what it leads to cannot be written yet, and what each piece waits for."""
        return self._ledger.pending

    @property
    def missing(self) -> tuple[Piece, ...]:
        """What has not been given yet. Once nothing is missing or pending, the outputs are those of a full run."""
        return self._ledger.missing

    @property
    def progress(self) -> Mapping[str, tuple[int, int]]:
        """Of each output, how many of the steps that write it, expert by expert, have been done with what was given,
        and how many there are."""
        return self._ledger.progress

    @property
    def held(self) -> int:
        """Bytes of what is held."""
        return sum(tensor.nbytes for tensor in self._held.values())

    def update(self, name: str, tensor: Given, *, expert: int | None = None) -> Applied:
        """Apply a source tensor, or that of one expert, counted as in the checkpoint; see `Plan.update`. What cannot be
        applied yet is copied and held."""
        return self.update_all({name: tensor}, expert=expert)

    def update_all(self, tensors: Mapping[str, Given], *, expert: int | None = None) -> Applied:
        """Apply several source tensors, or those of one expert, at once: all of them or, where one is refused, none."""
        return self.update_each(self._named(tensors, expert))

    def update_each(self, given: Iterable[tuple[str, int | None, Given]]) -> Applied:
        """The same for tensors of several experts: (name, expert, tensor) of each."""
        return self._apply(self._pieces(given))

    def alone(self, tensors: Mapping[str, Given], *, expert: int | None = None) -> Applied:
        """The same, refused where something would have to be held."""
        new = self._pieces(self._named(tensors, expert))
        trial = Ledger(self.plan)
        ready = trial.ready(new.keys())
        alone = [job for job in ready if job.step not in self._spanning or len(_slots(job.step, ready)) == trial.slots]
        trial.note(new.keys(), alone)
        if trial.pending:
            raise LayoutError(
                f"it cannot be applied alone: {trial.pending[0]}",
                code="LP350",
                name="not-alone",
                help="give them to `updates = plan.updates(out)`, in any order: it holds each until it can be applied",
            )
        return self._apply(new)

    def _named(self, tensors: Mapping[str, Given], expert: int | None) -> Iterator[tuple[str, int | None, Given]]:
        buffers.mapping(tensors, "tensors are given as", f"it reads: {', '.join(self.plan.input)}")
        return ((name, expert, tensor) for name, tensor in tensors.items())

    def _pieces(self, given: Iterable[tuple[str, int | None, Given]]) -> Pieces:
        found: Pieces = {}
        for name, expert, tensor in triples(given):
            found |= pieces(self.plan, name, tensor, expert)
        return found

    # how it is applied ------------------------------------------------------------------------------------------------

    def _apply(self, new: Pieces) -> Applied:
        new = {piece: tensor.clone() if self._overlaps(tensor) else tensor for piece, tensor in new.items()}
        there, ready = self._held | new, self._ledger.ready(new.keys())
        seen, whole, alone = self._reduce(ready, there)
        works = self._in_place(ready, frozenset(whole))
        beside = [self._beside_witness(step, slots) for step, slots in alone.items()]
        # What one of them refuses is refused before the first one writes.
        for work, witness in beside:
            self._carry_out(work, witness | there)
        for work in (*(work.apart() for work in works[1:]), *works):
            self._carry_out(work, there)
        for work, _ in beside:
            self._take(work)
        works = [*works, *(work for work, _ in beside)]
        self._note(new, works, seen, there)
        written = {name for work in works for name in work.out}
        return Applied(tuple(name for name in self._out if name in written), self._ledger.pending_of(new.keys()))

    def _reduce(self, ready: Sequence[Job], there: Pieces) -> tuple[dict[int, Tops], set[int], dict[int, list[int]]]:
        """Of the steps that span experts: what each has seen, those to be done for all, and those for some experts."""
        seen: dict[int, Tops] = {}
        whole: set[int] = set()
        alone: dict[int, list[int]] = {}
        for step, spanning in self._spanning.items():
            slots = _slots(step, ready)
            if not slots:
                continue
            seen[step] = spanning.look(slots, there)
            if len(slots if spanning.witness else seen[step]) == self._ledger.slots:
                whole.add(step)
            elif spanning.witness:
                spanning.check(slots, seen[step])
                alone[step] = slots
        return seen, whole, alone

    def _note(self, new: Pieces, works: Sequence[Work], seen: Mapping[int, Tops], there: Pieces) -> None:
        """All of that has been carried out."""
        jobs = [job for work in works for job in self._ledger.jobs(work.batch.slots, work.batch.steps)]
        self._ledger.note(new.keys(), jobs)
        for step, tops in seen.items():
            self._spanning[step].note(_slots(step, jobs), tops, there)
        self._held = {
            piece: new[piece].detach().clone() if piece in new else self._held[piece] for piece in self._ledger.held
        }

    def _carry_out(self, work: Work, there: Pieces) -> None:
        try:
            amend(self.backend, work.plan, inputs_of_some(work.plan, work.experts, there), work.out)
        except LayoutError:
            # Its experts are 0, 1 and so on; the same plan with their own numbers tells which one is refused.
            plan = self.plan.parts.of(work.batch.steps, work.experts)
            amend(self.backend, plan, inputs(plan, there), work.out)
            raise

    def _in_place(self, ready: Sequence[Job], whole: frozenset[int]) -> list[Work]:
        """Jobs, and steps for all experts, into the storage: found again where the same have been done before."""
        lie = _lying(self._out)
        if lie != self._lie or len(self._works) >= MOST_WORKS:
            self._out, self._lie = buffers.allocate(self.plan, {}, self._out), lie
            self._works.clear()
        jobs = tuple(job for job in ready if job.step not in self._spanning)
        works = self._works.get((whole, jobs))
        if works is None:
            batches = _batches(jobs, whole, self._ledger.slots)
            works = self._works[whole, jobs] = [self._work(batch) for batch in batches]
        return works

    def _work(self, batch: Batch) -> Work:
        """A batch of neighbours, into the storage."""
        plan = self.plan.parts.of_some(batch.steps, len(batch.slots))
        first, end = batch.slots[0], batch.slots[-1] + 1
        out = {
            info.name: self._rows(info.name)[first:end] if is_apart(info) else self[info.name] for info in plan.outputs
        }
        return Work(batch, plan, [self.plan.source_experts[slot] for slot in batch.slots], out)

    def _beside_witness(self, step: int, slots: Sequence[int]) -> tuple[Work, Pieces]:
        """A step of some experts and the witness, whose tensors it also tells, into storage of its own."""
        other, witness = self._spanning[step].beside(slots)
        experts = [*(self.plan.source_experts[slot] for slot in slots), other]
        batch = Batch(frozenset({step}), slots)
        plan = self.plan.parts.of_some(batch.steps, len(experts))
        out = {info.name: self[info.name].new_empty(info.full_shape) for info in plan.outputs}
        return Work(batch, plan, experts, out), witness

    def _take(self, work: Work) -> None:
        """Bring the experts from storage of their own to their places."""
        for info in work.plan.outputs:
            made = work.out[info.name]
            if is_apart(info):
                for slot, row in zip(work.batch.slots, made):
                    self._rows(info.name)[slot].copy_(row)
            else:
                self[info.name].copy_(made.view(self[info.name].shape))

    def _overlaps(self, tensor: torch.Tensor) -> bool:
        """Whether it may share memory with an output: one batch would write over what the next one reads."""
        first = tensor.untyped_storage().data_ptr()
        return any(out.nbytes and out.untyped_storage().data_ptr() == first for out in self._out.values())

    def _rows(self, name: str) -> torch.Tensor:
        """An output with the rank's experts along its first dimension."""
        return self[name].view(self.plan.output[name].full_shape)


def _slots(step: int, jobs: Sequence[Job]) -> list[int]:
    """The experts that a step is done for."""
    return [job.slot for job in jobs if job.step == step]


def _lying(out: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """Where tensors lie in memory: who gives one of them other storage has it looked at anew."""
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in out.values()]


def _batches(jobs: Sequence[Job], whole: Collection[int], slots: int) -> list[Batch]:
    """Jobs put together for neighbours, and steps for all experts; the batch of most experts first."""
    steps: dict[int, frozenset[int]] = {}
    for job in jobs:
        steps[job.slot] = steps.get(job.slot, frozenset()) | {job.step}
    found = {range(slots): frozenset(whole)} if whole else {}
    for _, group in groupby(enumerate(sorted(steps)), key=lambda one: (one[1] - one[0], steps[one[1]])):
        alike = [slot for _, slot in group]
        run = range(alike[0], alike[-1] + 1)
        found[run] = found.get(run, frozenset()) | steps[run[0]]
    return [Batch(found[run], run) for run in sorted(found, key=len, reverse=True)]
