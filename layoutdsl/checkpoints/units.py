"""The units of a conversion: what is read, made and written at a time, each known before a byte is read.

A dense module is one unit. Of a module with experts each expert can be one: small ones are taken together up to SIZE
bytes of their source, and what all experts share is made with a rank's first one. Where a number is found over all of
them, such as the largest scale, they stay together. A tensor that is copied is cut into stretches of SIZE bytes.

One rank reads its slice of a unit. Several read it once, whole, and each runs its own plan on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from layoutdsl.backends import scratch
from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.folder import Entry
from layoutdsl.checkpoints.gather import WINDOW
from layoutdsl.checkpoints.reading import Source, bytes_of, sizes
from layoutdsl.checkpoints.rooms import bytes_for
from layoutdsl.ledger import is_apart
from layoutdsl.plan import Plan, TensorInfo
from layoutdsl.spans import split

SIZE = 16 << 20
"""Source bytes up to which small experts are one unit, and of one stretch of a copied tensor."""


@dataclass(frozen=True)
class Share:
    """What some ranks make of a unit, by their places in the conversion.

    origin: the plan for all that is read, or for all experts. steps: which of its steps (partial.py). slots: the ranks'
    places for the unit's experts, in order; experts: which of those that are read each of them is. Without slots it is
    the origin itself that is run. numbers: which of the checkpoint's experts those are that it is run on.
    """

    ranks: tuple[int, ...]
    origin: Plan
    steps: frozenset[int] = frozenset()
    slots: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()

    @cached_property
    def plan(self) -> Plan:
        """What is run: one plan for all units of so many experts."""
        return self.origin.parts.of_some(self.steps, len(self.slots)) if self.slots else self.origin

    def rows(self, info: TensorInfo) -> Iterator[tuple[int, int, int]]:
        """(first of the rows made, first of the output's rows, how many) of an output whose rows are experts; of any
        other one row."""
        if not self.slots or not is_apart(info):
            yield 0, 0, 1
            return
        for _, group in groupby(enumerate(self.slots), key=lambda one: one[1] - one[0]):
            run = list(group)
            yield run[0][0], run[0][1], len(run)

    def row_bytes(self, info: TensorInfo) -> int:
        """Bytes of one row."""
        return bytes_of(info) // (len(self.slots) if self.slots and is_apart(info) else 1)


@dataclass(frozen=True)
class Piece:
    """A unit, whichever of the modules that look alike it is of.

    experts: those of the checkpoint that are read; None for all of it. source: how one rank's slice gets into memory;
    None where several ranks read it whole. buffers: bytes of memory that what is read has at once; read, made: of all
    source tensors, with what reading and running take meanwhile, and of all results.
    """

    experts: range | None
    source: Source | None
    shares: tuple[Share, ...]
    buffers: int
    read: int
    made: int


@dataclass(frozen=True)
class Unit:
    """A piece of one module. job: with the tensors of the piece's experts alone."""

    job: Job
    piece: Piece
    last: bool

    @property
    def name(self) -> str:
        experts = self.piece.experts
        if experts is None:
            return self.job.unit.name
        return f"{self.job.unit.name}, expert {experts.start}" + (f" to {experts[-1]}" if len(experts) > 1 else "")

    @property
    def size(self) -> int:
        """Bytes of its source tensors."""
        return self.piece.buffers

    @property
    def read(self) -> int:
        return self.piece.read

    @property
    def made(self) -> int:
        return self.piece.made

    @property
    def files(self) -> frozenset[str]:
        """Names of the files that it is read from."""
        return frozenset(entry.file.name for entry in self.job.entries)


@dataclass(frozen=True)
class Copy:
    """The bytes [begin, end) of a tensor that every rank has as the checkpoint has it."""

    entry: Entry
    begin: int
    end: int

    @property
    def name(self) -> str:
        whole = self.end - self.begin == self.entry.size
        return self.entry.name if whole else f"{self.entry.name}, bytes {self.begin} to {self.end}"

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def read(self) -> int:
        return 0

    @property
    def made(self) -> int:
        """What was read is what is written."""
        return bytes_for([self.size])

    @property
    def last(self) -> bool:
        return self.end == self.entry.size

    @property
    def files(self) -> frozenset[str]:
        return frozenset({self.entry.file.name})


def copies(entries: Sequence[Entry]) -> Iterator[Copy]:
    """Every tensor that is copied, stretch by stretch."""
    for entry in entries:
        for begin in range(0, max(entry.size, 1), SIZE):
            yield Copy(entry, begin, min(begin + SIZE, entry.size))


def units(job: Job, plans: Sequence[Plan], pieces: Sequence[Piece]) -> Iterator[Unit]:
    """The units of one module."""
    for at, piece in enumerate(pieces):
        narrowed = job if piece.experts is None else _of_experts(job, plans, piece.experts)
        yield Unit(narrowed, piece, at == len(pieces) - 1)


def pieces(job: Job, plans: Sequence[Plan], source: Source | None, backend: str) -> Iterator[Piece]:
    """How a module is divided. plans: one for each rank; source: of a lone rank, how all of it gets into memory."""
    shares = [
        Share((at,), source.plan if source else plan, numbers=tuple(plan.source_experts))
        for at, plan in enumerate(plans)
    ]
    if not plans[0].experts[0] or any(one.scope == "tensor" for plan in plans for one in plan.reductions):
        yield _piece(job, source, _together(shares), backend)
        return
    here = sorted(set[int]().union(*(share.numbers for share in shares)))
    each = (source.size if source else job.size) // max(len(here) if source else plans[0].experts[0], 1)
    for experts in _batches(here, max(SIZE // max(each, 1), 1)):
        found = [_share(share, experts) for share in shares]
        taken = _together([share for share in found if share.slots])
        own = _source_of(source, taken[0], len(experts)) if source else None
        yield _piece(_of_experts(job, plans, experts), own, taken, backend, experts)


def _share(share: Share, experts: range) -> Share:
    """What a rank makes of these of its experts; with its first one, what they all have in common."""
    slots = tuple(slot for slot, expert in enumerate(share.numbers) if expert in experts)
    steps = frozenset(at for at, step in enumerate(share.origin.parts.steps) if 0 in slots or not step.once)
    numbers = tuple(share.numbers[slot] for slot in slots)
    return replace(
        share, steps=steps, slots=slots, experts=tuple(at - experts.start for at in numbers), numbers=numbers
    )


def _together(shares: Sequence[Share]) -> tuple[Share, ...]:
    """Ranks that make the same, as one."""
    found: dict[tuple, Share] = {}
    for share in shares:
        key = id(share.origin), share.slots
        known = found.get(key)
        found[key] = replace(known, ranks=(*known.ranks, *share.ranks)) if known else share
    return tuple(found.values())


def _batches(experts: Sequence[int], most: int) -> Iterator[range]:
    """Neighbours, so many at a time."""
    for _, group in groupby(enumerate(experts), key=lambda one: one[1] - one[0]):
        run = [expert for _, expert in group]
        yield from (range(at, min(at + most, run[-1] + 1)) for at in range(run[0], run[-1] + 1, most))


def _source_of(source: Source, share: Share, count: int) -> Source:
    """How so many experts of a rank's slice get into memory."""
    plan = source.plan.parts.of_some(share.steps, count)
    if source.slice is None:
        return Source(plan, None, (), None)
    steps = frozenset(
        at
        for at, step in enumerate(source.slice.parts.steps)
        if not step.once or 0 in share.slots or any(name in plan.input for name in step.outputs)
    )
    sliced = source.slice.parts.of_some(steps, count)
    return Source(plan, sliced, *split(sliced))


def _piece(
    job: Job, source: Source | None, shares: tuple[Share, ...], backend: str, experts: range | None = None
) -> Piece:
    buffers = bytes_for(sizes(source, job))
    made = bytes_for([bytes_of(info) for share in shares for info in share.plan.outputs])
    read = max(buffers, source.size if source else 0) + max(scratch(backend, share.plan) for share in shares)
    if source and source.slice:
        read += min(WINDOW, max((entry.size for entry in job.entries), default=0))
    return Piece(experts, source, shares, buffers, read, made)


def _of_experts(job: Job, plans: Sequence[Plan], experts: range) -> Job:
    """The same module as if it had these experts alone. plans: of all experts, from the checkpoint's tensors."""
    infos = {info.name: info for plan in plans for info in plan.inputs}
    narrowed: dict[str, tuple[Entry, ...]] = {}
    for name, entries in job.inputs.items():
        if job.apart(name):
            narrowed[name] = entries[experts.start : experts.stop]
        elif (info := infos.get(name)) is not None and is_apart(info):
            narrowed[name] = (_rows(entries[0], info, experts),)
        else:
            narrowed[name] = entries
    return replace(job, inputs=narrowed)


def _rows(entry: Entry, info: TensorInfo, experts: range) -> Entry:
    """Those of some experts in a tensor that has all of them, as a tensor of its own."""
    each = entry.size // info.experts
    shape = replace(info, experts=len(experts)).full_shape
    return replace(entry, shape=shape, start=entry.start + experts.start * each, size=len(experts) * each)
