"""Carrying a conversion out: for each unit and rank the slice is read, run through its plan, and handed on.

One unit's source tensors and one rank's results are in memory at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from layoutdsl.backends import device, scratch
from layoutdsl.checkpoints.binding import Job, Work
from layoutdsl.checkpoints.folder import Entry, Folder, read_tensor
from layoutdsl.checkpoints.opening import Opened
from layoutdsl.checkpoints.planning import Planner, number_of, within
from layoutdsl.checkpoints.progress import Progress
from layoutdsl.checkpoints.reading import Given, Source, bytes_of, give_back, ranges, read, source_of
from layoutdsl.checkpoints.writing import Writer, sync
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Lost, Plan
from layoutdsl.resolve import Ranks

FILE = "model.safetensors"
CONFIG = "config.json"
Tensors = dict[str, torch.Tensor]

PLANS = 8_000_000
"""Bytes of all plans and of our own code, about; a plan has tens of kB, whatever its sizes."""


@dataclass(frozen=True)
class Conversion:
    """All that is known before a weight is read. `plans` has a plan per rank for each of the work's jobs."""

    source: Opened
    planner: Planner
    plans: tuple[tuple[Plan, ...], ...]
    backend: str
    device: str = "cpu"

    @property
    def folder(self) -> Folder:
        return self.source.folder

    @property
    def work(self) -> Work:
        return self.source.work

    def jobs(self) -> Iterator[tuple[Job, tuple[Plan, ...]]]:
        """Each unit with its plan for each rank."""
        return zip(self.work.jobs, self.plans, strict=True)

    def sourced(self) -> Iterator[tuple[Job, tuple[Source, ...]]]:
        """Each unit with how it gets into memory for each rank."""
        return zip(self.work.jobs, self.sources, strict=True)

    def reads(self) -> Iterator[tuple[Path, str, int, int]]:
        """(file, tensor, begin, end) of every stretch of bytes that will be read, counted in the file."""
        for job, sources in self.sourced():
            for source in sources:
                for entry, begin, end in ranges(source, job):
                    yield entry.file, entry.name, entry.start + begin, entry.start + end
        for entry in self.work.copies:
            yield entry.file, entry.name, entry.start, entry.start + entry.size

    def read(self, entry: Entry) -> torch.Tensor:
        """A tensor that is copied."""
        return read_tensor(entry).to(self.device)

    @cached_property
    def sources(self) -> tuple[tuple[Source, ...], ...]:
        """How each unit gets into memory for each rank; units that look alike have it in common."""
        known: dict[int, tuple[Source, ...]] = {}
        found: list[tuple[Source, ...]] = []
        for job, plans in self.jobs():
            if id(plans) not in known:
                known[id(plans)] = tuple(source_of(self.planner, job, plan) for plan in plans)
            found.append(known[id(plans)])
        return tuple(found)

    @property
    def size(self) -> int:
        """Bytes to read, over all ranks."""
        copies = sum(entry.size for entry in self.work.copies) * len(self.planner.ranks)
        return sum(source.size for each in self.sources for source in each) + copies

    @cached_property
    def peak(self) -> int:
        """Bytes in memory at once, above what the interpreter with torch takes: one unit's slice on one rank, what it
        becomes, what the backend needs meanwhile, and the plans."""
        sources = {id(source): source for each in self.sources for source in each}.values()
        units = [one.size + sum(map(bytes_of, one.plan.outputs)) + scratch(self.backend, one.plan) for one in sources]
        return PLANS + max([*units, *(entry.size for entry in self.work.copies)])

    def made(self, job: Job, source: Source, lost: list[Lost] | None = None) -> Tensors:
        """One unit on one rank: its tensors by their names in the output. `lost` is told which values became 0."""
        give_back()
        try:
            place = device(self.backend, self.device)
            given = {name: _to(tensor, place) for name, tensor in read(source, job).items()}
            found = source.plan.run(given, backend=self.backend, report=lost)
        except LayoutError as error:
            raise within(job, error) from None
        return {output_name(job, name): tensor.to(self.device) for name, tensor in found.items()}


def _to(given: Given, device: str) -> Given:
    return [tensor.to(device) for tensor in given] if isinstance(given, list) else given.to(device)


def write(conversion: Conversion, homes: Mapping[Ranks, Path]) -> dict[str, list[Lost]]:
    """One folder per rank with its tensors and the checkpoint's config.json, on disk when this returns.

    homes: rank -> its folder. Returns what each unit lost to 0, by its name.
    """
    lost: dict[str, list[Lost]] = {}
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(conversion.size))
        writers: list[Writer] = []
        for at, (ranks, home) in enumerate(homes.items()):
            home.mkdir(exist_ok=True)
            described, metadata = _described(conversion, at, ranks)
            writers.append(Writer(home / FILE, described, metadata))
            stack.callback(writers[-1].abandon)
        for job, sources in conversion.sourced():
            for source, writer in zip(sources, writers, strict=True):
                progress.at(job.unit.name, source.size)
                for name, tensor in conversion.made(job, source, lost.setdefault(job.unit.name, [])).items():
                    writer.write(name, tensor)
        give_back()
        for entry in conversion.work.copies:
            progress.at(entry.name, entry.size * len(writers))
            tensor = read_tensor(entry)
            for writer in writers:
                writer.write(entry.name, tensor)
        for writer, home in zip(writers, homes.values(), strict=True):
            writer.close()
            shutil.copyfile(conversion.folder.path / CONFIG, home / CONFIG)
            sync(home / CONFIG)
            sync(home)
    return lost


def output_name(job: Job, name: str) -> str:
    """Name in the output of a plan's tensor: `linear.weight` becomes `model.layers.0.self_attn.qkv_proj.weight`."""
    matrix, _, tensor = name.partition(".")
    return job.unit.output(matrix, tensor)


def _described(
    conversion: Conversion, at: int, ranks: Ranks
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, str]]:
    """Every tensor of one rank's file, and the file's metadata."""
    described = {entry.name: (entry.dtype, entry.shape) for entry in conversion.work.copies}
    units: dict[str, str] = {}
    plans: dict[str, Plan] = {}
    for job, of_ranks in conversion.jobs():
        if job.unit.name in units:
            raise _twice(f"two units of the output have the name `{job.unit.name}`")
        digest = of_ranks[at].digest[:12]
        units[job.unit.name], plans[digest] = digest, of_ranks[at]
        for info in of_ranks[at].outputs:
            name = output_name(job, info.name)
            if name in described:
                raise _twice(f"two tensors of the output have the name `{name}`")
            described[name] = info.dtypes[0], info.full_shape
    metadata = {
        "format": "pt",
        "layoutdsl.tp": str(ranks.tp),
        "layoutdsl.ep": str(ranks.ep),
        "layoutdsl.rank": str(number_of(ranks)),
        "layoutdsl.units": json.dumps(units),
    }
    if conversion.planner.experts:
        metadata["layoutdsl.experts"] = json.dumps(conversion.planner.experts)
    metadata.update({f"layoutdsl.plan.{digest}": plan.to_json() for digest, plan in plans.items()})
    return described, metadata


def _twice(message: str) -> LayoutError:
    return LayoutError(
        message, code="LP214", name="unknown-architecture", help="correct the output names of the names' templates"
    )
