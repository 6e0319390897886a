"""Source tensors applied to existing storage as they arrive, in any order: the same bytes as one full run.

The ledger (ledger.py) says which steps of the plan a tensor makes possible; these are put together to as few partial
plans as differ among the experts, and a backend's `amend` carries them out. Where a reduction spans experts, its steps
wait until the scales of all experts have been seen. From then on those of one expert are applied alone, as long as what
the reduction finds stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from layoutdsl.backends import amend, buffers
from layoutdsl.backends.reduced import Top, reduced, tops
from layoutdsl.errors import LayoutError
from layoutdsl.ledger import Job, Ledger, Pending, Piece, is_apart
from layoutdsl.partial import partial, with_largest
from layoutdsl.plan import Plan, TensorInfo

Given = torch.Tensor | Sequence[torch.Tensor]
Pieces = dict[Piece, torch.Tensor]


@dataclass(frozen=True)
class Applied:
    """What came of an update: the outputs into which something was written, and what is held of what was given."""

    written: tuple[str, ...]
    pending: tuple[Pending, ...]


@dataclass(frozen=True)
class Batch:
    """Steps (by number) for a range of the rank's experts: what one partial plan carries out."""

    steps: frozenset[int]
    slots: range


class Updates(Mapping[str, torch.Tensor]):
    """The outputs of a plan, whose storage stays where it is, and what waits to be written into them.

    A mapping from name to output tensor. Made by `Plan.updates`.
    """

    def __init__(self, plan: Plan, out: Mapping[str, torch.Tensor] | None, backend: str):
        self.plan, self.backend = plan, backend
        self._out = buffers.allocate(plan, {}, out)
        self._ledger = Ledger(plan)
        self._held: Pieces = {}
        self._tops: dict[str, dict[int, Top]] = {reduction.name: {} for reduction in plan.reductions}

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

    def update(self, name: str, tensor: Given, *, expert: int | None = None) -> Applied:
        """Apply a source tensor, or that of one expert, counted as in the checkpoint; see `Plan.update`. What cannot be
        applied yet is copied and held."""
        return self._apply(self._pieces(name, tensor, expert))

    def alone(self, name: str, tensor: Given, *, expert: int | None = None) -> Applied:
        """The same, refused where something would have to be held."""
        new = self._pieces(name, tensor, expert)
        trial = Ledger(self.plan)
        ready = trial.ready(new.keys())
        trial.note(new.keys(), [job for job in ready if not self._spans(job) or self._is_whole(job, ready)])
        if trial.pending:
            raise LayoutError(
                f"it cannot be applied alone: {trial.pending[0]}",
                code="LP350",
                name="not-alone",
                help="give them to `updates = plan.updates(out)`, in any order: it holds each until it can be applied",
            )
        return self._apply(new)

    # what is given ----------------------------------------------------------------------------------------------------

    def _pieces(self, name: str, given: Given, expert: int | None) -> Pieces:
        """What is given, checked, per expert that the rank has; of another rank's expert nothing."""
        info, here = buffers.input_named(self.plan, name), self.plan.source_experts
        if expert is None:
            flats = buffers.experts(self.plan, info, given)
            experts = here if is_apart(info) else (None,)
            dtypes = [given.dtype if isinstance(given, torch.Tensor) else given[at or 0].dtype for at in experts]
            shaped = [flat.view(dtype).view(info.shape) for flat, dtype in zip(flats, dtypes)]
            return {Piece(name, at): tensor for at, tensor in zip(experts, shaped)}
        if not is_apart(info) or isinstance(expert, bool) or expert not in range(info.experts):
            has = f"{info.experts} experts" if is_apart(info) else "no experts"
            way = f"count as in the checkpoint, from 0 to {info.experts - 1}" if is_apart(info) else "leave it out"
            raise LayoutError(
                f"`{name}` has {has}, expert {expert!r} is given", code="LP351", name="no-such-expert", help=way
            )
        buffers.matches(info, given, info.shape, f", expert {expert}")
        assert isinstance(given, torch.Tensor)
        return {Piece(name, expert): given} if expert in here else {}

    # how it is applied ------------------------------------------------------------------------------------------------

    def _apply(self, new: Pieces) -> Applied:
        there, ready = self._held | new, self._ledger.ready(new.keys())
        seen = self._look(ready, there)
        whole = {job.step for job in ready if self._is_whole(job, ready) or self._is_complete(job, seen)}
        alone = [job for job in ready if job.step not in whole and self._spans(job) in self._ledger.settled | {""}]
        for name in {self._spans(job) for job in alone} - {""}:
            self._refuse_change(name, [job.slot for job in alone if self._spans(job) == name], seen[name])
        batches = _batches(alone, whole, self._ledger.slots)
        written = self._carry_out(batches, there, seen)
        self._tops |= seen
        done = [job for batch in batches for job in self._ledger.jobs(batch.slots) if job.step in batch.steps]
        self._ledger.note(new.keys(), done)
        self._held = {
            piece: new[piece].detach().clone() if piece in new else self._held[piece] for piece in self._ledger.held
        }
        return Applied(tuple(name for name in self if name in written), self._ledger.pending_of(new.keys()))

    def _carry_out(self, batches: Sequence[Batch], there: Pieces, seen: Mapping[str, Mapping[int, Top]]) -> set[str]:
        """Write what comes of the batches, all or nothing. Returns the names of the outputs."""
        ready = [self._prepared(batch, there, seen) for batch in batches]
        for plan, tensors, views in ready[1:]:
            # What a later one would refuse is refused before the first one writes.
            amend(self.backend, plan, tensors, {name: torch.empty_like(view) for name, view in views.items()})
        for plan, tensors, views in ready:
            amend(self.backend, plan, tensors, views)
        return {name for _, _, views in ready for name in views}

    def _prepared(
        self, batch: Batch, there: Pieces, seen: Mapping[str, Mapping[int, Top]]
    ) -> tuple[Plan, dict[str, Any], dict[str, torch.Tensor]]:
        """The plan of a batch, its inputs, and the storage that it writes into."""
        plan = self._partial(batch)
        tensors = self._inputs(plan, there)
        for reduction in plan.reductions:
            if reduction.kind == "largest" and len(batch.slots) < self._ledger.slots:
                plan = with_largest(plan, reduction)
                (largest,) = reduced(self.plan, reduction, seen[reduction.name])
                dtype = getattr(torch, plan.input[reduction.name].dtypes[0])
                tensors[reduction.name] = torch.tensor([largest], dtype=dtype, device=buffers.device_of(tensors))
        return plan, tensors, {info.name: self._view(info, batch.slots) for info in plan.outputs}

    def _partial(self, batch: Batch) -> Plan:
        return partial(self.plan, [self._ledger.steps[step] for step in batch.steps], batch.slots)

    def _inputs(self, plan: Plan, there: Pieces) -> dict[str, Any]:
        """The inputs of a partial plan; of experts that it does not read, nothing."""
        found: dict[str, Any] = {}
        for info in plan.inputs:
            if is_apart(info):
                here = {at: there[Piece(info.name, at)] for at in plan.source_experts}
                found[info.name] = [here.get(at) for at in range(info.experts)]
            else:
                found[info.name] = there[Piece(info.name, None)]
        return found

    def _view(self, info: TensorInfo, slots: range) -> torch.Tensor:
        """An output of a partial plan: that of some experts, where each has its own."""
        tensor = self._out[info.name]
        if not is_apart(info):
            return tensor
        return tensor.view(self._ledger.slots, -1)[slots.start : slots.stop].view(info.full_shape)

    # reductions over all experts --------------------------------------------------------------------------------------

    def _spans(self, job: Job) -> str:
        return self._ledger.steps[job.step].spans

    def _is_whole(self, job: Job, ready: Sequence[Job]) -> bool:
        """Whether a reduction's step is ready for all experts."""
        return bool(self._spans(job)) and sum(other.step == job.step for other in ready) == self._ledger.slots

    def _is_complete(self, job: Job, seen: Mapping[str, Mapping[int, Top]]) -> bool:
        """Whether the last expert's scales have been seen that a reduction has waited for."""
        name = self._spans(job)
        return bool(name) and name not in self._ledger.settled and len(seen[name]) == self._ledger.slots

    def _look(self, ready: Sequence[Job], there: Pieces) -> dict[str, dict[int, Top]]:
        """By reduction, the top of each expert that has been seen, now or before."""
        found: dict[str, dict[int, Top]] = {}
        for reduction in self.plan.reductions:
            jobs = [job for job in ready if self._spans(job) == reduction.name]
            for batch in _batches(jobs, set(), self._ledger.slots):
                plan = self._partial(batch)
                known = found.setdefault(reduction.name, dict(self._tops[reduction.name]))
                known |= zip(batch.slots, tops(plan, reduction, self._inputs(plan, there)))
        return found

    def _refuse_change(self, name: str, slots: Sequence[int], seen: Mapping[int, Top]) -> None:
        """LayoutError where what the experts have in common is not what it was."""
        reduction = next(reduction for reduction in self.plan.reductions if reduction.name == name)
        before, after = (reduced(self.plan, reduction, found) for found in (self._tops[name], seen))
        # A plan of some experts must find by itself what one of all would.
        alone = [reduced(self.plan, reduction, {slot: seen[slot]}) == after[slot : slot + 1] for slot in slots]
        if before == after and (reduction.kind == "largest" or all(alone)):
            return
        needs = sorted({piece.name for job in self._ledger.spanning(name) for piece in self._ledger.needs(job)})
        what = "the largest scale" if reduction.kind == "largest" else "the power of two"
        raise LayoutError(
            f"the scales of `{reduction.output}` are relative to {what} of all experts, which this update changes",
            code="LP352",
            name="changes-all",
            help=f"give {' and '.join(f'`{one}`' for one in needs)} of all experts to a new `plan.updates(out)`",
        )


def _batches(jobs: Sequence[Job], whole: set[int], slots: int) -> list[Batch]:
    """Jobs put together, and steps for all experts at once; the batch of most experts first."""
    at: dict[int, frozenset[int]] = {}
    for job in jobs:
        at[job.slot] = at.get(job.slot, frozenset()) | {job.step}
    found = {range(slots): frozenset(whole)} if whole else {}
    for _, group in groupby(enumerate(sorted(at)), key=lambda one: (one[1] - one[0], at[one[1]])):
        run = [slot for _, slot in group]
        alike = range(run[0], run[-1] + 1)
        found[alike] = found.get(alike, frozenset()) | at[run[0]]
    return [Batch(found[run], run) for run in sorted(found, key=len, reverse=True)]
