"""Carrying a conversion out: for each unit and rank the slice is read, run through its plan, and handed on.

One unit's source tensors and one rank's results are in memory at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from layoutdsl.checkpoints.binding import Job, Work
from layoutdsl.checkpoints.folder import Folder
from layoutdsl.checkpoints.planning import Planner, number_of, within
from layoutdsl.checkpoints.progress import Progress
from layoutdsl.checkpoints.writing import Writer, sync
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan
from layoutdsl.resolve import Ranks

FILE = "model.safetensors"
CONFIG = "config.json"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Conversion:
    """All that is known before a weight is read. `plans` has a plan per rank for each of the work's jobs."""

    folder: Folder
    work: Work
    planner: Planner
    plans: tuple[tuple[Plan, ...], ...]
    backend: str
    device: str = "cpu"

    def jobs(self) -> Iterator[tuple[Job, tuple[Plan, ...]]]:
        return zip(self.work.jobs, self.plans, strict=True)

    @property
    def peak(self) -> int:
        return 0

    def made(self, job: Job, plan: Plan) -> Tensors:
        """One unit on one rank: its tensors by their names in the output."""
        given: dict[str, torch.Tensor | list[torch.Tensor]] = {}
        for name, entries in job.inputs.items():
            read = [self.folder.read(entry.name).to(self.device) for entry in entries]
            given[name] = read if job.apart(name) else read[0]
        try:
            found = plan.run(given, backend=self.backend)
        except LayoutError as error:
            raise within(job, error) from None
        return {output_name(job, name): tensor for name, tensor in found.items()}


def write(conversion: Conversion, homes: Mapping[Ranks, Path]) -> None:
    """One folder per rank with its tensors and the checkpoint's config.json, on disk when this returns.

    homes: rank -> its folder.
    """
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(conversion.work.size * len(homes)))
        writers: list[Writer] = []
        for at, (ranks, home) in enumerate(homes.items()):
            home.mkdir(exist_ok=True)
            described, metadata = _described(conversion, at, ranks)
            writers.append(Writer(home / FILE, described, metadata))
            stack.callback(writers[-1].abandon)
        for job, plans in conversion.jobs():
            for plan, writer in zip(plans, writers, strict=True):
                progress.at(job.unit.name, job.size)
                for name, tensor in conversion.made(job, plan).items():
                    writer.write(name, tensor)
        for entry in conversion.work.copies:
            progress.at(entry.name, entry.size * len(writers))
            tensor = conversion.folder.read(entry.name)
            for writer in writers:
                writer.write(entry.name, tensor)
        for writer, home in zip(writers, homes.values(), strict=True):
            writer.close()
            shutil.copyfile(conversion.folder.path / CONFIG, home / CONFIG)
            sync(home / CONFIG)
            sync(home)


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
        digest = of_ranks[at].digest[:12]
        units[job.unit.name], plans[digest] = digest, of_ranks[at]
        for info in of_ranks[at].outputs:
            name = output_name(job, info.name)
            if name in described:
                raise LayoutError(
                    f"two tensors of the output have the name `{name}`",
                    code="LP214",
                    name="unknown-architecture",
                    help="correct the output names of the names' templates",
                )
            described[name] = info.dtypes[0], info.full_shape
    metadata = {
        "format": "pt",
        "layoutdsl.tp": str(ranks.tp),
        "layoutdsl.ep": str(ranks.ep),
        "layoutdsl.rank": str(number_of(ranks)),
        "layoutdsl.units": json.dumps(units),
    }
    metadata.update({f"layoutdsl.plan.{digest}": plan.to_json() for digest, plan in plans.items()})
    return described, metadata
