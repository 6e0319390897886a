"""Carrying a conversion out: its units, read ahead, made and written behind, and what an earlier run has finished left
as it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from layoutdsl.checkpoints import pipeline, storing
from layoutdsl.checkpoints.binding import Job, Work
from layoutdsl.checkpoints.folder import Entry, Folder, fail_changed
from layoutdsl.checkpoints.journal import Finished, Journal, State, state
from layoutdsl.checkpoints.making import Made, Making, Read
from layoutdsl.checkpoints.opening import Opened
from layoutdsl.checkpoints.pipeline import Pipeline
from layoutdsl.checkpoints.planning import Planner
from layoutdsl.checkpoints.progress import Progress
from layoutdsl.checkpoints.publishing import JOURNAL, sync
from layoutdsl.checkpoints.reading import Source, ranges, source_of
from layoutdsl.checkpoints.storing import FILE, Store
from layoutdsl.checkpoints.units import Copy, Piece, Unit, copies, pieces, units
from layoutdsl.checkpoints.writing import Writer
from layoutdsl.plan import Lost, Plan

CONFIG = "config.json"

PLANS = 8_000_000
"""Bytes of all plans and of our own code, about; a plan has tens of kB, whatever its sizes."""

ENTRY = 2_000
"""Bytes that what is known of a tensor of the checkpoint takes, about."""

KERNELS = {"cpu": 80_000_000}
"""Bytes that a backend's compiled kernels and their loader take, where they come from its cache, with the modules that
are imported for them."""


@dataclass(frozen=True)
class Conversion:
    """All that is known before a weight is read. `plans` has a plan per rank for each of the work's jobs; files is what
    the checkpoint's files looked like before they were opened."""

    source: Opened
    planner: Planner
    plans: tuple[tuple[Plan, ...], ...]
    backend: str
    device: str
    files: State

    @property
    def folder(self) -> Folder:
        return self.source.folder

    @property
    def work(self) -> Work:
        return self.source.work

    def jobs(self) -> Iterator[tuple[Job, tuple[Plan, ...]]]:
        """Each module with its plan for each rank."""
        return zip(self.work.jobs, self.plans, strict=True)

    @cached_property
    def units(self) -> tuple[Unit | Copy, ...]:
        """All that is to be done, in order; what is copied comes last."""
        known: dict[int, tuple[Piece, ...]] = {}
        found: list[Unit | Copy] = []
        for job, plans in self.jobs():
            if id(plans) not in known:  # modules that look alike have their plans in common
                known[id(plans)] = tuple(pieces(job, plans, self._source(job, plans), self.backend))
            found.extend(units(job, plans, known[id(plans)]))
        return (*found, *copies(self.work.copies))

    def _source(self, job: Job, plans: Sequence[Plan]) -> Source | None:
        return source_of(self.planner, job, plans[0]) if len(plans) == 1 else None

    def reads(self) -> Iterator[tuple[Path, str, int, int]]:
        """(file, tensor, begin, end) of every stretch of bytes that will be read, counted in the file."""
        for unit in self.units:
            for entry, begin, end in _stretches(unit):
                yield entry.file, entry.name, entry.start + begin, entry.start + end

    @cached_property
    def under_way(self) -> int:
        """Bytes of all units that are under way at once: of each what is read, what it becomes, and what the backend
        needs meanwhile."""
        return pipeline.peak(self.units)

    @cached_property
    def largest(self) -> int:
        """The same of the largest unit."""
        return max((unit.read + unit.made for unit in self.units), default=0)

    @property
    def peak(self) -> int:
        """Bytes in memory at once, above what the interpreter with torch takes: units, plans and code."""
        return self._before + self.under_way

    @property
    def peak_of_one(self) -> int:
        """The same where one unit at a time is under way."""
        return self._before + self.largest

    @property
    def _before(self) -> int:
        return PLANS + KERNELS.get(self.backend, 0) + ENTRY * len(self.folder.entries)


def _stretches(work: Unit | Copy) -> Iterator[tuple[Entry, int, int]]:
    if isinstance(work, Copy):
        yield work.entry, work.begin, work.end
    elif work.piece.source is None:
        yield from ((entry, 0, entry.size) for entry in work.job.entries)
    else:
        yield from ranges(work.piece.source, work.job)


Done = Generator[tuple[Unit | Copy, Finished], None, None]
"""Each unit when it is written and recorded, in any order."""

CarryOut = Callable[[Conversion, Store, Sequence[Unit | Copy], Progress], Done]
"""A way to carry units out. One that is closed midway leaves nothing at work."""


def here(conversion: Conversion, store: Store, works: Sequence[Unit | Copy], progress: Progress) -> Done:
    """Carry units out in this process."""
    making = Making(conversion)

    def make(work: Unit | Copy, given: Read) -> Made:
        progress.at(work.name, work.size)
        return making.make(work, given)

    def write(work: Unit | Copy, made: Made) -> Finished:
        finished = store.put(work, made)
        making.give_back(made)
        return finished

    yield from Pipeline(making.read, make, write).run(works)


def write(
    conversion: Conversion, partial: Path, homes: Sequence[Path], carry_out: CarryOut = here
) -> dict[str, list[Lost]]:
    """One folder per rank with its tensors and the checkpoint's config.json, on disk when this returns.

    partial: the folder of the journal. homes: the folder of each rank. Returns what each module lost to 0, by its name.
    """
    with ExitStack() as stack:
        writers, of = files_of(conversion, homes)
        journal = Journal(partial / JOURNAL, of, conversion.files)
        stack.callback(journal.close)
        for home, writer in zip(homes, writers, strict=True):
            stack.callback(writer.abandon)
            home.mkdir(exist_ok=True, parents=True)
            writer.open()
        done = _carry_out(conversion, Store(writers, journal), carry_out)
        for writer, home in zip(writers, homes, strict=True):
            writer.close()
            shutil.copyfile(conversion.folder.path / CONFIG, home / CONFIG)
            sync(home / CONFIG)
            sync(home)
        _check_unchanged(conversion)
    lost: dict[str, list[Lost]] = {}
    for unit in conversion.units:
        if isinstance(unit, Unit):
            lost.setdefault(unit.job.unit.name, []).extend(Lost(*one) for one in done[storing.key(unit)].lost)
    return lost


def files_of(conversion: Conversion, homes: Sequence[Path]) -> tuple[list[Writer], dict[str, str]]:
    """The file of each rank, unopened, and what the conversion is, in words by name."""
    writers = [Writer(home / FILE, *of) for home, of in zip(homes, _described(conversion), strict=True)]
    return writers, storing.of(conversion.planner, _kernels(conversion), writers)


def _described(conversion: Conversion):
    copied = {entry.name: (entry.dtype, entry.shape) for entry in conversion.work.copies}
    for at, ranks in enumerate(conversion.planner.ranks):
        jobs = ((job, plans[at]) for job, plans in conversion.jobs())
        yield storing.described(conversion.planner, jobs, copied, ranks)


def _kernels(conversion: Conversion) -> list[str]:
    return sorted({plans[0].target.spec for job, plans in conversion.jobs() if job.quantized})


def _carry_out(conversion: Conversion, store: Store, carry_out: CarryOut) -> dict[str, Finished]:
    """Do what no earlier run has done. Returns what is finished, by the journal's names."""
    works = conversion.units
    with ThreadPoolExecutor(pipeline.READERS) as pool:
        there = [*pool.map(store.finished, works)]
    done = {storing.key(work): store.journal.finished[storing.key(work)] for work, is_ in zip(works, there) if is_}
    left = [work for work, is_ in zip(works, there) if not is_]
    left.sort(key=lambda work: isinstance(work, Unit))  # copies first: the disk has work while kernels are loaded

    with (
        Progress(sum(work.size for work in left)) as progress,
        closing(carry_out(conversion, store, left, progress)) as coming,
    ):
        for work, finished in coming:
            done[storing.key(work)] = finished
    return done


def _check_unchanged(conversion: Conversion) -> None:
    now = state(conversion.folder.path)
    for name in sorted({CONFIG, *(name for unit in conversion.units for name in unit.files)}):
        if now.get(name) != conversion.files.get(name):
            fail_changed(conversion.folder.path / name)
