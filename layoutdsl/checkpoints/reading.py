"""A rank's slice of a unit, read from its files: only the bytes that the rank needs, where they are whole bytes.

    source = source_of(planner, job, plan)    # before a byte is read: ranges(source, job) says which are needed
    made = source.plan.run(read(source, job))

The slice is itself a plan, from the checkpoint's format to the same format for one rank. What it only moves is read
straight to its place; the little that is left (a stored shape, a word cut in two) goes through that plan. Where ranks
cannot have slices of their own (they cut groups of the checkpoint, or its inputs are in act-order), the tensors have
their whole size in memory, and of each only the bytes that are needed are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from layoutdsl.checkpoints import gather
from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.folder import Entry, opened, read_tensor, tensor_of
from layoutdsl.checkpoints.gather import Take
from layoutdsl.checkpoints.planning import Planner, within
from layoutdsl.codes import DTYPE_BITS
from layoutdsl.errors import LayoutError
from layoutdsl.ledger import is_apart
from layoutdsl.partial import numbered
from layoutdsl.plan import Plan, TensorInfo
from layoutdsl.spans import Span, split
from layoutdsl.strips import Strip, moved

Given = torch.Tensor | list[torch.Tensor]


@dataclass(frozen=True)
class Source:
    """How one unit gets into memory, and the plan that goes on from there.

    spans: bytes of the files' tensors that are bytes of the slice's. rest: the plan that makes the slice's other
    tensors, from ones of the files' size. Without a `slice` all tensors are of that size.
    """

    plan: Plan
    slice: Plan | None
    spans: tuple[Span, ...]
    rest: Plan | None

    @cached_property
    def needs(self) -> Mapping[str, Sequence[Strip]]:
        """Of the tensors that have the files' size, the bytes that are needed of one expert."""
        plan = self.rest if self.slice else self.plan
        return {name: of.strips for name, of in plan.reads().items()} if plan else {}

    @cached_property
    def moves(self) -> Mapping[str, Mapping[str, Sequence[Strip]]]:
        """Of the slice's tensors, and of the files' tensors that each of them comes from, the bytes of one expert that
        are moved."""
        found: dict[str, dict[str, list[Strip]]] = {}
        for span in self.spans:
            found.setdefault(span.target, {}).setdefault(span.source, []).append(span.strip)
        return found

    @property
    def size(self) -> int:
        """Bytes of source tensors that are in memory at most, before the plan runs."""
        whole = 0 if self.rest is None else sum(map(bytes_of, self.rest.inputs))
        return sum(map(bytes_of, self.plan.inputs)) + whole


def source_of(planner: Planner, job: Job, plan: Plan) -> Source:
    """The source of one unit for the rank of its plan."""
    whole = Source(plan, None, (), None)
    if plan.ranks.tp * plan.ranks.ep == 1 or not all(extent.length for extent in plan.extents):
        return whole  # a slice that is empty has no scale of the whole either
    try:
        slice, local = planner.slice(job, plan), planner.local(job, plan)
    except LayoutError:
        return whole
    moved, rest = split(slice)
    return Source(local, slice, moved, rest) if local.outputs == plan.outputs else whole


def ranges(source: Source, job: Job) -> Iterator[tuple[Entry, int, int]]:
    """Every stretch of bytes that is needed: the tensor, and [begin, end) inside it. Of those that are near each
    other, what stands between is mapped, not copied (see gather)."""
    plan = source.slice or source.plan
    for name, reads in plan.reads().items():
        for entry, base, size in _experts(plan, job, name):
            yield from ((entry, base + begin, base + min(end, size)) for begin, end in reads.ranges())


def read(source: Source, job: Job, take: Take, experts: Sequence[int] | None = None) -> dict[str, Given]:
    """The tensors that the source's plan takes, in memory. experts: which of the checkpoint's the job has, where it
    does not have all. LayoutError where a file cannot be read."""
    if source.slice is None:
        return _needed(source.plan, job, source.needs, take)
    found: dict[str, Given] = {}
    for info in source.slice.outputs:
        if info.name in source.moves:
            found[info.name] = _sliced(source.slice, job, info, source.moves[info.name], take)
    if source.rest is not None:
        rest = _needed(source.rest, job, source.needs, take)
        try:
            found.update(run(source.rest, rest, experts or source.rest.source_experts))
        except LayoutError as error:
            raise within(job, error) from None
    return found


def run(plan: Plan, given: dict[str, Given], experts: Sequence[int], **options: Any) -> dict[str, torch.Tensor]:
    """Run a plan whose experts may be 0, 1 and so on; LayoutError calls them by their numbers in the checkpoint, which
    are these."""
    try:
        return plan.run(given, **options)
    except LayoutError:
        if [*experts] != [*plan.source_experts]:
            known = numbered(plan, experts)
            known.run(_by_number(known, given), **options)
        raise


def _by_number(plan: Plan, given: dict[str, Given]) -> dict[str, Given]:
    """The tensors of some experts where a plan looks for them."""
    found = dict(given)
    for info in plan.inputs:
        if is_apart(info):
            tensors = dict(zip(plan.source_experts, given[info.name]))
            found[info.name] = [tensors.get(expert) for expert in range(info.experts)]
    return found


def sizes(source: Source | None, job: Job) -> list[int]:
    """The buffers that `read` takes, or `read_whole` where there is no source."""
    if source is None or source.slice is None:
        return [entry.size for entry in job.entries]
    moved = [bytes_of(info) for info in source.slice.outputs if info.name in source.moves]
    return moved + [entry.size for name in source.needs for entry in job.inputs[name]]


def read_whole(job: Job, take: Take) -> dict[str, Given]:
    """All tensors of a module, or of those of its experts that it has."""
    into = gather.wholes(job.entries, take)
    found: dict[str, Given] = {}
    for name, entries in job.inputs.items():
        tensors = [tensor_of(entry, into[id(entry)]) for entry in entries]
        found[name] = tensors if job.apart(name) else tensors[0]
    return found


def whole(plan: Plan, job: Job) -> dict[str, Given]:
    """The tensors that a plan takes, all of them; of experts that are not this rank's, nothing."""
    found: dict[str, Given] = {}
    for name in plan.input:
        here = plan.source_experts if job.apart(name) else range(1)
        entries = enumerate(job.inputs[name])
        tensors = [read_tensor(entry) if at in here else torch.empty(0) for at, entry in entries]
        found[name] = tensors if job.apart(name) else tensors[0]
    return found


def _needed(plan: Plan, job: Job, needs: Mapping[str, Sequence[Strip]], take: Take) -> dict[str, Given]:
    """The tensors that a plan takes, filled where it reads them; of experts that are not this rank's, nothing."""
    wholes: list[Entry] = []
    partly: list[tuple[Entry, int, int, Sequence[Strip]]] = []
    for name, strips in needs.items():
        for entry, base, size in {(id(one[0]), one[1]): one for one in _experts(plan, job, name)}.values():
            if size == entry.size and _is_all(strips, size):
                wholes.append(entry)
            else:
                partly.append((entry, base, size, strips))
    into = gather.wholes(wholes, take)
    for entry, base, size, strips in partly:
        if id(entry) not in into:
            into[id(entry)] = take(entry.size)
        with opened(entry) as file:
            gather.fill(file, entry, (_in_place(strip, base, size) for strip in strips), into[id(entry)])
    found: dict[str, Given] = {}
    for name in needs:
        tensors = [_tensor(entry, into.get(id(entry))) for entry in job.inputs[name]]
        found[name] = tensors if job.apart(name) else tensors[0]
    return found


def _is_all(strips: Sequence[Strip], size: int) -> bool:
    """Whether strips are so many bytes from the first on."""
    return len(strips) == 1 and not strips[0].loops and strips[0].at == (0,) and strips[0].length >= size


def _in_place(strip: Strip, base: int, size: int) -> Strip:
    """A strip of an expert's bytes, to where they stand in its tensor; a stored shape may end before."""
    (at,), loops = strip.at, tuple((count, (step, step)) for count, (step,) in strip.loops)
    return Strip((base + at, base + at), min(strip.length, size - at), loops)


def _tensor(entry: Entry, data: memoryview | None) -> torch.Tensor:
    """A tensor of a file's dtype and shape; of one that is not needed, nothing."""
    return torch.empty(0, dtype=getattr(torch, entry.dtype)) if data is None else tensor_of(entry, data)


def _sliced(plan: Plan, job: Job, info: TensorInfo, moves: Mapping[str, Sequence[Strip]], take: Take) -> torch.Tensor:
    """One tensor of the slice, of all the rank's experts, filled from the files."""
    first = job.inputs[next(iter(moves))][0]
    into = take(bytes_of(info))
    each = len(into) // max(info.experts if not info.shared else 1, 1)
    for name, strips in moves.items():
        for at, (entry, base, _) in enumerate(_experts(plan, job, name)):
            with opened(entry) as file:
                gather.fill(file, entry, (moved(strip, (base, at * each)) for strip in strips), into)
    return torch.frombuffer(into, dtype=torch.uint8).view(getattr(torch, first.dtype)).view(info.full_shape)


def _experts(plan: Plan, job: Job, name: str) -> Iterator[tuple[Entry, int, int]]:
    """(tensor, where an expert's bytes begin in it, how many they are) for each of the rank's experts."""
    info, entries = plan.input[name], job.inputs[name]
    if job.apart(name):
        yield from ((entries[expert], 0, entries[expert].size) for expert in plan.source_experts)
        return
    size = entries[0].size // (info.experts if info.experts and not info.shared else 1)
    here = plan.source_experts if info.experts and not info.shared else range(1)
    yield from ((entries[0], expert * size, size) for expert in here)


def bytes_of(info: TensorInfo) -> int:
    """Bytes of a plan's tensor, all experts."""
    return math.prod(info.full_shape) * DTYPE_BITS[info.dtypes[0]] // 8
