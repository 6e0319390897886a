"""A converted folder held against the checkpoint that it was made of, value by value.

    print(verify("model-tp2", against="model"))      # layoutdsl verify model-tp2 --against model

Each rank's file says by which plans it was made. A plan counts for nothing by itself: it is proven anew, must be one
for this very checkpoint and rank, and what it made is decoded and compared (see compare.py). What was copied is
compared byte for byte. No tensor may be missing or too many, and no other safetensors file may stand beside a rank's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.checkpoints.folder import Entry, read_header, read_tensor
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.plan import Plan, params_of
from layoutdsl.resolve import Ranks, bind, dealt, with_defaults

if TYPE_CHECKING:
    from layoutdsl.checkpoints.binding import Job
    from layoutdsl.checkpoints.compare import Comparison
    from layoutdsl.checkpoints.names import Unit
    from layoutdsl.checkpoints.opening import Opened

PREFIX = "layoutdsl."
PLAN = f"{PREFIX}plan."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl verify`."""
    parser.add_argument("dst", metavar="DST", help="folder that convert has written, or the folder of one rank in it")
    parser.add_argument("--against", required=True, metavar="SRC", help="the checkpoint that it was made of")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl verify` and print what was compared: 1 where ranks are not there, unless one was named."""
    found = verify(args.dst, against=args.against, specs=args.specs or ())
    print(found)
    alone = len(found.ranks) == 1 and not any(Path(args.dst).glob("rank-*"))
    return 0 if alone or not found.missing else 1


@dataclass
class Lossy:
    """What the plans of some units declare lossy: their bound, and the largest relative error that was found."""

    bound: str
    error: float = 0.0
    units: dict[str, dict[str, Unit]] = field(default_factory=dict[str, dict[str, "Unit"]])

    def __str__(self) -> str:
        from layoutdsl.checkpoints.report import folded

        found = f"{self.error:.2g} of a value at most" if self.error else "none found"
        where = ", ".join(folded(list(units.values())) for units in self.units.values())
        return f"loss: {self.bound.partition(': ')[2]}: {found}: {where}"


@dataclass
class Verified:
    """What was compared and found equal, over all ranks at hand; `str` is what the command prints."""

    ranks: tuple[int, ...]
    of: int
    weights: int = 0
    others: int = 0
    pads: int = 0
    copies: int = 0
    lossy: dict[str, Lossy] = field(default_factory=dict[str, Lossy])
    seconds: float = 0.0

    def add(self, unit: Unit, found: Comparison) -> None:
        """Count what was compared of a unit on one rank."""
        self.weights += found.weights
        self.others += found.others
        self.pads += found.pads
        for loss in found.losses:
            known = self.lossy.setdefault(loss.bound, Lossy(loss.bound))
            known.error = max(known.error, loss.error)
            known.units.setdefault(unit.key, {})[unit.name] = unit

    @property
    def missing(self) -> list[int]:
        """Ranks of the conversion that are not there."""
        return sorted(set(range(self.of)) - set(self.ranks))

    def __str__(self) -> str:
        from layoutdsl.checkpoints.report import ranges

        which = f"rank{'s' if len(self.ranks) > 1 else ''} {ranges(self.ranks).strip('{}')} of {self.of}"
        but = " but for the losses below" if any(loss.error for loss in self.lossy.values()) else ""
        beside = f" and {self.others:,} values beside them" if self.others else ""
        found = [
            f"{self.weights:,} weights{beside} equal the source's{but}",
            *([f"{self.pads:,} pads are neutral"] if self.pads else []),
            *([f"{self.copies} copied tensors are equal"] if self.copies else []),
        ]
        return "\n".join(
            [
                f"verified {which}: {', '.join(found)}, {self.seconds:.2f} s",
                *([f"not there: rank {ranges(self.missing).strip('{}')}"] if self.missing else []),
                *map(str, self.lossy.values()),
            ]
        )


def verify(dst: str | Path, *, against: str | Path, specs: Sequence[str | Path] = ()) -> Verified:
    """Hold `dst`, which `convert` has written (all ranks, some of them, or the folder of one), against `against`.

    specs: folders of the user's own specs and names. One unit of the source, and of one rank, is in memory at a time.
    Raises LayoutError for the first unit that differs: rank, tensor and place, both values and how many differ; for a
    tensor or a file that is missing or too many; and for a plan that is none for this checkpoint.
    """
    from layoutdsl.checkpoints.opening import opened
    from layoutdsl.checkpoints.progress import Progress

    start, folders = time.perf_counter(), tuple(map(str, specs))
    source = opened(against, folders)
    found = _ranks(Path(dst))
    report = Verified(tuple(rank.number for rank in found), found[0].ranks.tp * found[0].ranks.ep)
    for rank in found:
        _belongs(source, rank, folders)
    _prove(source, found, folders)
    with Progress(source.work.size * len(found)) as progress:
        for job in source.work.jobs:
            for comparison in _compared(job, found, folders, progress.at):
                report.add(job.unit, comparison)
        for entry in source.work.copies:
            progress.at(entry.name, entry.size * len(found))
            _copied(entry, found)
    report.copies = len(source.work.copies)
    report.seconds = time.perf_counter() - start
    return report


# --- what a folder says of itself -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rank:
    """One rank's folder: its tensors, the digest of each unit's plan, and the plans, not yet proven."""

    home: Path
    ranks: Ranks
    number: int
    entries: dict[str, Entry]
    units: dict[str, str]
    plans: dict[str, Plan]
    experts: tuple[int, ...]

    def plan(self, job: Job) -> Plan:
        return self.plans[self.units[job.unit.name]]


def _ranks(dst: Path) -> list[_Rank]:
    """The ranks at hand, in order of their numbers. LayoutError where they are not of one conversion."""
    from layoutdsl.checkpoints.storing import FILE

    homes = [dst] if (dst / FILE).is_file() else [path.parent for path in dst.glob(f"rank-*/{FILE}")]
    found = sorted((_rank(home / FILE) for home in homes), key=lambda rank: rank.number)
    if not found:
        raise _not_converted(f"`{dst}` holds neither {FILE} nor a folder rank-0 with one")
    for folder in sorted(dst.glob("rank-*")):
        if folder.is_dir() and not (folder / FILE).is_file():
            raise _not_converted(f"`{folder}` has no {FILE}")
    for rank in found:
        named, other = rank.home.name.removeprefix("rank-"), (rank.ranks.tp, rank.ranks.ep)
        if (len(found) > 1 and named != str(rank.number)) or other != (found[0].ranks.tp, found[0].ranks.ep):
            raise _not_converted(f"`{rank.home}` holds rank {rank.number} of {other[0]} x {other[1]}")
        if rank.experts != found[0].experts:
            raise _not_converted(f"`{rank.home}` and `{found[0].home}` have different maps of experts")
    return found


def _rank(path: Path) -> _Rank:
    from layoutdsl.checkpoints.planning import one_rank

    entries, metadata = read_header(path)
    try:
        tp, ep, number = (int(metadata[PREFIX + key]) for key in ("tp", "ep", "rank"))
        units: Any = json.loads(metadata[f"{PREFIX}units"])
        texts = {key.removeprefix(PLAN): text for key, text in metadata.items() if key.startswith(PLAN)}
        experts = tuple(map(int, json.loads(metadata.get(f"{PREFIX}experts", "[]"))))
        if not set(units.values()) <= set(texts):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _not_converted(f"the metadata of `{path}` do not say by which plans it was made") from None
    try:
        plans = {digest: Plan.from_json(text, prove=False) for digest, text in texts.items()}
    except LayoutError as error:
        raise _within(f"`{path}`", error) from None
    return _Rank(path.parent, one_rank(tp, ep, number), number, entries, units, plans, experts)


def _not_converted(message: str) -> LayoutError:
    return LayoutError(
        message, code="LP223", name="not-converted", help="name a folder that `layoutdsl convert` has written"
    )


def _belongs(source: Opened, rank: _Rank, specs: tuple[str, ...]) -> None:
    """LayoutError where a rank's plans are not for this checkpoint, or its tensors are not those of its plans."""
    from layoutdsl.checkpoints.run import CONFIG
    from layoutdsl.checkpoints.storing import FILE, output_name

    config = rank.home / CONFIG
    if not config.is_file() or config.read_bytes() != (source.folder.path / CONFIG).read_bytes():
        raise _of_another(rank, f"`{config}` is not that of the source")
    units = {job.unit.name for job in source.work.jobs}
    if odd := sorted(units.symmetric_difference(rank.units)):
        has, other = ("the source", rank.home) if odd[0] in units else (rank.home, "the source")
        raise _of_another(rank, f"unit `{odd[0]}` is in `{has}` and not in `{other}`")
    names = {entry.name for entry in source.work.copies}
    for job in source.work.jobs:
        plan = rank.plan(job)
        for what, stated, true in _facts(job, plan, rank, specs):
            if stated != true:
                raise _of_another(rank, f"the plan of `{job.unit.name}` has {what} {stated}, the checkpoint {true}")
        names |= {output_name(job, info.name) for info in plan.outputs}
    if odd := sorted(names.symmetric_difference(rank.entries)):
        raise LayoutError(
            f"rank {rank.number}: tensor `{odd[0]}` is {'missing' if odd[0] in names else 'of no unit and not copied'}",
            code="LP217" if odd[0] in names else "LP216",
            name="missing-tensor" if odd[0] in names else "unmatched-tensor",
            help="convert the checkpoint anew",
        )
    for path in sorted(rank.home.glob("*.safetensors")):
        if path.name != FILE:
            raise LayoutError(
                f"rank {rank.number}: `{path}` stands beside {FILE}: a loader that takes all files would read both",
                code="LP216",
                name="unmatched-tensor",
                help="remove it, or move it out of the rank's folder",
            )


def _facts(job: Job, plan: Plan, rank: _Rank, specs: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    """(what, as the plan has it, as the checkpoint has it)"""
    from layoutdsl.checkpoints.names import own_params
    from layoutdsl.library import load_spec
    from layoutdsl.model import Module

    module = load_spec(job.unit.names.module, specs=specs, kind="module")
    assert isinstance(module, Module)
    ranks = rank.ranks if "ep" in module.ranks else Ranks(rank.ranks.tp, rank.ranks.rank)
    yield "the format", plan.source.spec, job.group.spec.name
    yield "the parameters", params_of(plan.source), bind(job.group.spec, job.params)
    yield "the module", plan.module.spec, module.name
    yield "the module's parameters", params_of(plan.module), bind(module, own_params(job.unit.names, module))
    yield "the sizes", dict(plan.sizes), with_defaults(module, job.sizes)
    yield "the matrices", plan.only, job.only
    yield "the ranks", plan.ranks, ranks
    if module.experts:
        yield "places for experts", plan.places, len(rank.experts)
        yield "experts", plan.source_experts, _experts(plan, rank)
    yield "sources cut beforehand:", plan.sharded, False


def _experts(plan: Plan, rank: _Rank) -> Sequence[int]:
    """Which experts the rank holds, by the map that the file states; without one what its plan says of itself."""
    start, count = dealt(len(rank.experts), rank.ranks.ep, rank.ranks.ep_rank, 1)
    return rank.experts[start : start + count] or plan.source_experts


def _of_another(rank: _Rank, why: str) -> LayoutError:
    return LayoutError(
        f"rank {rank.number} was not made of this checkpoint: {why}",
        code="LP224",
        name="other-checkpoint",
        help="name the checkpoint, and the folders of specs, that `layoutdsl convert` was given",
    )


def _prove(source: Opened, found: Sequence[_Rank], specs: tuple[str, ...]) -> None:
    """Prove every plan; where all ranks are at hand, also that together they read each element as often as they should.
    Units that look alike have their plans in common."""
    from layoutdsl.prove import prove, prove_ranks

    seen: set[tuple[str, ...]] = set()
    for job in source.work.jobs:
        plans = {rank.plan(job).ranks: rank.plan(job) for rank in found}
        first, digests = next(iter(plans)), tuple(plan.digest for plan in plans.values())
        if digests in seen:
            continue
        seen.add(digests)
        try:
            if len(plans) == first.tp * first.ep:
                prove_ranks(tuple(plans.values()), specs=specs)
            else:
                for plan in plans.values():
                    prove(plan, specs=specs)
        except LayoutError as error:
            raise _within(f"`{job.unit.name}`", error) from None


# --- values -----------------------------------------------------------------------------------------------------------


def _compared(
    job: Job, found: Sequence[_Rank], specs: tuple[str, ...], at: Callable[[str, int], None]
) -> Iterator[Comparison]:
    """One unit on each rank. The source is read once for all ranks that hold the same experts."""
    from layoutdsl.checkpoints.compare import compare
    from layoutdsl.checkpoints.making import trim
    from layoutdsl.checkpoints.reading import whole
    from layoutdsl.checkpoints.storing import output_name

    experts, given = None, {}
    for rank in found:
        plan = rank.plan(job)
        at(job.unit.name, job.size)
        if plan.source_experts != experts:
            given.clear()
            trim()
            experts, given = plan.source_experts, whole(plan, job)
        made = {info.name: read_tensor(rank.entries[output_name(job, info.name)]) for info in plan.outputs}
        try:
            yield compare(plan, given, made, specs=specs)
        except LayoutError as error:
            raise _within(f"rank {rank.number}, `{job.unit.name}`", error) from None


def _copied(entry: Entry, found: Sequence[_Rank]) -> None:
    import torch

    wanted = read_tensor(entry).reshape(-1).view(torch.uint8)
    for rank in found:
        own = rank.entries[entry.name]
        if str(own) != str(entry):
            raise _differs(f"rank {rank.number}: `{entry.name}` is {own}, in the source it is {entry}")
        made = read_tensor(own).reshape(-1).view(torch.uint8)
        if not torch.equal(made, wanted):
            count = int((made != wanted).sum())
            raise _differs(f"rank {rank.number}: `{entry.name}` differs from the source in {count:,} bytes")


def _differs(message: str) -> LayoutError:
    return LayoutError(message, code="LP222", name="value-differs", help="convert the checkpoint anew")


def _within(where: str, error: LayoutError) -> LayoutError:
    """The same error with the rank and the unit that it is about."""
    return LayoutError.of(
        [Diagnostic(d.code, d.name, f"{where}: {d.message}", d.span, d.help, d.source) for d in error.diagnostics]
    )
