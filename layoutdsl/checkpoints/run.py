"""Carrying a conversion out: every unit read once, run for each rank and written; then, if asked, the way back.

One unit's source tensors and one rank's results are in memory at a time.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from layoutdsl.checkpoints.binding import Job, Work
from layoutdsl.checkpoints.folder import Entry, Folder, read_header, read_tensor
from layoutdsl.checkpoints.planning import Planner, within
from layoutdsl.checkpoints.report import Checked, Progress, Row
from layoutdsl.checkpoints.writing import Writer, sync
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan

FILE = "model.safetensors"
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Conversion:
    """All that is known before a weight is read. `plans` has a plan per rank for each of the work's jobs."""

    folder: Folder
    work: Work
    planner: Planner
    plans: tuple[tuple[Plan, ...], ...]
    backend: str

    def jobs(self) -> Iterator[tuple[Job, tuple[Plan, ...]]]:
        return zip(self.work.jobs, self.plans, strict=True)

    def progress(self) -> Progress:
        return Progress(sum(part.size for part in (*self.work.jobs, *self.work.copies)))

    def read(self, job: Job) -> Tensors:
        return {name: self.folder.read(entry.name) for name, entry in job.inputs.items()}

    def run(self, job: Job, plan: Plan, given: Tensors) -> Tensors:
        try:
            return plan.run(given, backend=self.backend)
        except LayoutError as error:
            raise within(job, error) from None


def write(conversion: Conversion, homes: Mapping[int, Path], rows: Mapping[str, Row]) -> None:
    """One folder per rank with its tensors and the checkpoint's config.json, on disk when this returns.

    homes: rank -> its folder; rows: unit -> the row of the report that counts its time.
    """
    with ExitStack() as stack:
        progress = conversion.progress()
        stack.callback(progress.close)
        writers: list[Writer] = []
        for at, (rank, home) in enumerate(homes.items()):
            home.mkdir(exist_ok=True)
            described, metadata = _described(conversion, at, rank)
            writers.append(Writer(home / FILE, described, metadata))
            stack.callback(writers[-1].abandon)
        for job, plans in conversion.jobs():
            progress.at(job.unit.name)
            given = conversion.read(job)
            begin = time.perf_counter()
            for plan, writer in zip(plans, writers, strict=True):
                for name, tensor in conversion.run(job, plan, given).items():
                    writer.write(output_name(job, plan, name), tensor)
            rows[job.unit.name].seconds += time.perf_counter() - begin
            progress.add(job.size)
        for entry in conversion.work.copies:
            progress.at(entry.name)
            tensor = conversion.folder.read(entry.name)
            for writer in writers:
                writer.write(entry.name, tensor)
            progress.add(entry.size)
        for writer, home in zip(writers, homes.values(), strict=True):
            writer.close()
            shutil.copyfile(conversion.folder.path / "config.json", home / "config.json")
            sync(home / "config.json")
            sync(home)


def output_name(job: Job, plan: Plan, name: str) -> str:
    """Name in the output of a plan's tensor: `linear.weight` becomes `model.layers.0.self_attn.qkv_proj.weight`."""
    return job.unit.output(name.removeprefix(plan.extents[0].matrix + "."))


def _described(
    conversion: Conversion, at: int, rank: int
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, str]]:
    """Every tensor of one rank's file, and the file's metadata."""
    described = {entry.name: (entry.dtype, entry.shape) for entry in conversion.work.copies}
    units: dict[str, str] = {}
    plans: dict[str, Plan] = {}
    for job, ranks in conversion.jobs():
        digest = ranks[at].digest[:12]
        units[job.unit.name], plans[digest] = digest, ranks[at]
        for info in ranks[at].outputs:
            name = output_name(job, ranks[at], info.name)
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
        "layoutdsl.tp": str(conversion.planner.tp),
        "layoutdsl.rank": str(rank),
        "layoutdsl.units": json.dumps(units),
    }
    metadata.update({f"layoutdsl.plan.{digest}": plan.to_json() for digest, plan in plans.items()})
    return described, metadata


# --- the way back -----------------------------------------------------------------------------------------------------


def check(conversion: Conversion, homes: Mapping[int, Path]) -> Checked:
    """Read what was written, take it back through the inverse plans, compare with each rank's slice of the source."""
    checked = Checked()
    headers = [read_header(home / FILE)[0] for home in homes.values()]
    with ExitStack() as stack:
        progress = conversion.progress()
        stack.callback(progress.close)
        for job, plans in conversion.jobs():
            progress.at(f"checking {job.unit.name}")
            if why := next(filter(None, map(_no_way_back, plans)), None):
                checked.left_out[job.unit.name] = why
                continue
            given = conversion.read(job)
            for plan, header in zip(plans, headers, strict=True):
                _compare(conversion, job, plan, given, header, checked)
            progress.add(job.size)
        for entry in conversion.work.copies:
            for header in headers:
                _same(entry.name, conversion.folder.read(entry.name), read_tensor(header[entry.name]))
                checked.tensors += 1
            progress.add(entry.size)
    return checked


def _no_way_back(plan: Plan) -> str | None:
    """Why the bytes of the source cannot come back, where they cannot."""
    if plan.losses:
        return "lossy: " + plan.losses[0][1]
    if any(move.gather_k or move.gather_n for program in plan.programs for move in program.moves):
        return "act-order: the output is sorted by group"
    if plan.passed:
        return f"`{plan.passed[0][0]}` passes through"
    return None


def _compare(
    conversion: Conversion, job: Job, plan: Plan, given: Tensors, header: Mapping[str, Entry], checked: Checked
) -> None:
    inverse, own = conversion.planner.back(job, plan)
    stored = {info.name: read_tensor(header[output_name(job, plan, info.name)]) for info in plan.outputs}
    back = conversion.run(job, inverse, stored)
    for name, wanted in conversion.run(job, own, given).items():
        _same(f"{job.unit.name}, rank {plan.ranks.rank}, {name}", wanted, back[name])
        info = inverse.output[name]
        checked.tensors += 1
        checked.values += info.codes * max(info.experts, 1) if info.role == "codes" else 0


def _same(name: str, wanted: torch.Tensor, found: torch.Tensor) -> None:
    a, b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (wanted, found))
    if wanted.dtype != found.dtype or not torch.equal(a, b):
        raise LayoutError(
            f"check failed: `{name}` read back differs from the source",
            code="LP221",
            name="check-failed",
            help="nothing was kept; this is a fault of layoutdsl or of the disk",
        )
