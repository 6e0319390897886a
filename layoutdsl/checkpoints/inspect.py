"""What a checkpoint folder is and what would become of it, before any weight is read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdsl import flags
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    from layoutdsl.checkpoints.binding import Job
    from layoutdsl.checkpoints.opening import Opened
    from layoutdsl.model import ParamValue
    from layoutdsl.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl inspect`."""
    parser.add_argument("src", metavar="SRC", help="folder with config.json and safetensors files")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="number of tensor-parallel ranks (default: 1)")
    parser.add_argument("--ep", type=int, default=1, metavar="N", help="number of expert-parallel ranks (default: 1)")
    parser.add_argument(
        "--param", action="append", default=[], type=flags.param, metavar="NAME=VALUE", help="as for convert"
    )
    parser.add_argument("--to", action="append", metavar="KERNEL", help="kernel spec, as for convert; may be repeated")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl inspect`: 0 where all of the checkpoint can be converted, else 1."""
    found = inspect(
        args.src, tp=args.tp, ep=args.ep, to=args.to or (), params=flags.of_kernels(args.param), specs=args.specs
    )
    print(found)
    return 1 if found.refused else 0


def inspect(
    src: str | Path,
    *,
    tp: int = 1,
    ep: int = 1,
    to: str | Sequence[str] = (),
    params: Mapping[str, ParamValue] | None = None,
    specs: Sequence[str | Path] = (),
) -> Inspection:
    """What is in the folder `src`, and what each unit would become for `tp` times `ep` ranks.

    Raises LayoutError where the folder is no whole checkpoint; what cannot be converted is part of the answer.
    """
    from layoutdsl.checkpoints.opening import opened
    from layoutdsl.checkpoints.planning import Planner, every_rank, kernels_asked

    folders, ranks = tuple(map(str, specs)), every_rank(tp, ep)
    kernels = kernels_asked(to, folders)
    source = opened(src, folders)
    planner = Planner(ranks, kernels, folders, source.dtype, dict(params or {}))
    lines: dict[tuple, Line] = {}
    for job in source.work.jobs:
        plans, why = (), ""
        try:
            plans = planner.plans(job)
        except LayoutError as error:
            why = error.message.partition(": ")[2]  # without the unit's name, which the line begins with
            why += f"; {error.help}" if error.help else ""
        key = job.unit.key, job.only, job.group.spec.name, tuple(job.params.items()), id(plans) if plans else why
        lines.setdefault(key, Line(plans, why, planner.sizes(job))).jobs.append(job)
    return Inspection(str(src), source, len(ranks), tuple(lines.values()))


@dataclass
class Line:
    """Units that look alike, the plan that they have for each rank, or why they have none."""

    plans: tuple[Plan, ...]
    why: str
    sizes: dict[str, int | tuple[int, ...]]
    jobs: list[Job] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        from layoutdsl.checkpoints.progress import in_bytes
        from layoutdsl.checkpoints.report import AS_IT_IS, folded

        job = self.jobs[0]
        kernel = "not converted" if self.why else self.plans[0].target.spec if job.quantized else AS_IT_IS
        shapes = " · ".join(f"{axis} {'+'.join(map(str, size)) if isinstance(size, tuple) else size}"
                            for axis, size in self.sizes.items())  # fmt: skip
        fmt = job.group.spec.name if job.quantized else "not quantized"
        name = folded([one.unit for one in self.jobs])
        return name, fmt, shapes, kernel, str(len(self.jobs)), in_bytes(sum(one.size for one in self.jobs))


@dataclass(frozen=True)
class Inspection:
    """The answer; `str` is what the command prints."""

    path: str
    source: Opened
    ranks: int
    lines: tuple[Line, ...]

    @property
    def refused(self) -> list[Line]:
        return [line for line in self.lines if line.why]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        from layoutdsl.checkpoints.progress import in_bytes
        from layoutdsl.checkpoints.report import folded, size_of, table

        folder, work = self.source.folder, self.source.work
        files = len({entry.file for entry in folder.entries.values()})
        size = in_bytes(sum(entry.size for entry in folder.entries.values()))
        yield f"{self.path}: {self.source.architecture}, {len(folder.entries)} tensors, {size}, {_count(files, 'file')}"
        for group in self.source.declared.groups:
            which = f"{group.name}: " if group.name else ""
            yield f"format: {which}{group}"
        if self.source.declared.ignored:
            yield f"left as they were: {', '.join(self.source.declared.ignored)}"
        yield ""
        head = ("unit", "format", "sizes", "goes to", "units", "bytes")
        yield from table([head, *(line.cells() for line in self.lines)], 2)
        yield ""
        if work.copies:
            yield f"copied whole: {_count(len(work.copies), 'tensor')}, {in_bytes(sum(e.size for e in work.copies))}"
        for line in self.refused:
            yield f"not converted: {folded([job.unit for job in line.jobs])}: {line.why}"
        if not self.refused:
            copies = sum(entry.size for entry in work.copies)
            each = [sum(size_of(line.plans[at]) * len(line.jobs) for line in self.lines) for at in range(self.ranks)]
            yield f"on each of {_count(self.ranks, 'rank')}: {in_bytes(max(each) + copies)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
