"""Where the units of a conversion lie in the files of its ranks: written, recorded, and looked at again by a later run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.digest import Digest
from layoutdsl.checkpoints.journal import PLANS, Finished, Journal
from layoutdsl.checkpoints.making import Made
from layoutdsl.checkpoints.planning import Planner, number_of
from layoutdsl.checkpoints.units import Copy, Share, Unit
from layoutdsl.checkpoints.writing import Described, Writer, bytes_of
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan
from layoutdsl.resolve import Ranks

FILE = "model.safetensors"


class Store:
    """The files of all ranks, and the journal of what is in them."""

    def __init__(self, writers: Sequence[Writer], journal: Journal):
        self.writers, self.journal = writers, journal

    def put(self, work: Unit | Copy, made: Made) -> Finished:
        """Write a unit into the files of its ranks and record it. Any thread may do so."""
        return self.record(work, written(self.writers, work, made))

    def record(self, work: Unit | Copy, wrote: Finished) -> Finished:
        """Note that a unit was written, here or by another process."""
        finished = replace(wrote, files=self.journal.files)
        self.journal.add(key(work), finished)
        return finished

    def finished(self, work: Unit | Copy) -> bool:
        """Whether an earlier run has finished a unit: from the same files, by the same plans, and it is there."""
        known, files = self.journal.finished.get(key(work)), self.journal.files
        if known is None or known.plans != _plans(work):
            return False
        if any(name not in files or known.files.get(name) != files[name] for name in work.files):
            return False
        return all(wrote == known.wrote for wrote in self._wrote(work))

    def _wrote(self, work: Unit | Copy) -> Iterator[str]:
        """The digests of what is on disk, as `put` records them: for copies of every rank, of others with each rank of
        a share in turn."""
        if isinstance(work, Copy):
            for writer in self.writers:
                yield _digest(writer.get(work.entry.name, work.begin, work.end - work.begin))
            return
        shares = work.piece.shares
        for turn in range(max(len(share.ranks) for share in shares)):
            ranks = [share.ranks[turn % len(share.ranks)] for share in shares]
            yield "".join(_digest(self._get(work, *one)) for one in zip(shares, ranks))

    def _get(self, unit: Unit, share: Share, rank: int) -> Iterator[bytes]:
        for _, name, _, at, size in _places(unit, share):
            yield from self.writers[rank].get(name, at, size)


def written(writers: Sequence[Writer], work: Unit | Copy, made: Made) -> Finished:
    """Write a unit into the files of its ranks. What is to be recorded of it, without the state of its files."""
    if isinstance(work, Copy):
        digests = [Digest(made.data)]
        for writer in writers:
            writer.put(work.entry.name, work.begin, made.data)
    else:
        digests = [_put(writers, work, *one) for one in zip(work.piece.shares, made.tensors, strict=True)]
    wrote = "".join(digest.hexdigest() for digest in digests)
    return Finished(_plans(work), wrote, {}, tuple((one.tensor, one.expert, one.count, one.of) for one in made.lost))


def _put(writers: Sequence[Writer], unit: Unit, share: Share, tensors: Mapping[str, torch.Tensor]) -> Digest:
    digest = Digest()
    data = {name: bytes_of(tensor) for name, tensor in tensors.items()}
    for output, name, first, at, size in _places(unit, share):
        part = data[output][first : first + size]
        digest.update(part)
        for rank in share.ranks:
            writers[rank].put(name, at, part)
    return digest


def _digest(chunks: Iterator[bytes]) -> str:
    digest = Digest()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _places(unit: Unit, share: Share) -> Iterator[tuple[str, str, int, int, int]]:
    """(plan's name, name in the file, first byte of what was made, first byte of the file's tensor, bytes) of all that
    a unit makes for one rank."""
    for info in share.plan.outputs:
        row, name = share.row_bytes(info), output_name(unit.job, info.name)
        for first, at, count in share.rows(info):
            yield info.name, name, first * row, at * row, count * row


def key(work: Unit | Copy) -> str:
    """What a unit is called in the journal."""
    return f"copy of {work.name}" if isinstance(work, Copy) else work.name


def _plans(work: Unit | Copy) -> str:
    """Names the plans by which a unit is made, and for which of the ranks' places."""
    if isinstance(work, Copy):
        return ""
    shares = [(share.plan.digest, share.ranks, share.slots, share.experts) for share in work.piece.shares]
    return hashlib.sha256(json.dumps(shares).encode()).hexdigest()


def output_name(job: Job, name: str) -> str:
    """Name in the output of a plan's tensor: `linear.weight` becomes `model.layers.0.self_attn.qkv_proj.weight`."""
    matrix, _, tensor = name.partition(".")
    return job.unit.output(matrix, tensor)


def described(
    planner: Planner, jobs: Iterator[tuple[Job, Plan]], copies: Described, ranks: Ranks
) -> tuple[Described, dict[str, str]]:
    """Every tensor of one rank's file, and the file's metadata. jobs: each module with the rank's plan."""
    tensors = dict(copies)
    units: dict[str, str] = {}
    plans: dict[str, Plan] = {}
    for job, plan in jobs:
        if job.unit.name in units:
            raise _twice(f"two units of the output have the name `{job.unit.name}`")
        digest = plan.digest[:12]
        units[job.unit.name], plans[digest] = digest, plan
        for info in plan.outputs:
            name = output_name(job, info.name)
            if name in tensors:
                raise _twice(f"two tensors of the output have the name `{name}`")
            tensors[name] = info.dtypes[0], info.full_shape
    metadata = {
        "format": "pt",
        "layoutdsl.tp": str(ranks.tp),
        "layoutdsl.ep": str(ranks.ep),
        "layoutdsl.rank": str(number_of(ranks)),
        "layoutdsl.units": json.dumps(units),
    }
    if planner.experts:
        metadata["layoutdsl.experts"] = json.dumps(planner.experts)
    metadata.update({f"layoutdsl.plan.{digest}": plan.to_json() for digest, plan in plans.items()})
    return tensors, metadata


def of(planner: Planner, kernels: Sequence[str], writers: Sequence[Writer]) -> dict[str, str]:
    """What a conversion is, in words by name, for its journal."""
    numbers = [number_of(ranks) for ranks in planner.ranks]
    heads = hashlib.sha256(b"".join(writer.head for writer in writers)).hexdigest()
    return {
        "tp": str(planner.ranks[0].tp),
        "ep": str(planner.ranks[0].ep),
        "ranks": f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0]),
        "kernels": ", ".join(kernels),
        "dtype": str(planner.dtype),
        PLANS: heads,
    }


def homes(planner: Planner, place: Path, *, alone: bool) -> list[Path]:
    """The folder of each rank: the output itself where it is of one alone."""
    return [place if alone else place / f"rank-{number_of(ranks)}" for ranks in planner.ranks]


def _twice(message: str) -> LayoutError:
    return LayoutError(
        message, code="LP214", name="unknown-architecture", help="correct the output names of the names' templates"
    )
