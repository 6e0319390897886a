"""What is known of a plan before there are tensors: the calls that make it, and where they have their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from layoutdsl.backends.cpu.calls import Call, Layout, calls
from layoutdsl.backends.cpu.forms import Job, Moving, Single
from layoutdsl.backends.cpu.jobs import lower, scales_of
from layoutdsl.backends.cpu.operands import Unknown
from layoutdsl.plan import Plan, TensorInfo


@dataclass(frozen=True, eq=False)
class Signs:
    """Calls that write the same codes: one way if a scale of a reduction has a sign, and a faster one if none has."""

    reduction: str
    some: tuple[Call, ...]
    none: tuple[Call, ...]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Calls by what they are for. plain: what shares no target. signs: what gives codes the signs of scales that a
    reduction reads. looks: of these, what may refuse a code. shared: writes of outputs some of whose elements are
    compared with one that shares their target (compared); compares: that. largest: for each reduction. counted: codes
    of one expert of outputs whose values may become 0. whole: whether every output is written to its last code."""

    layout: Layout
    plain: tuple[Call, ...]
    signs: tuple[Signs, ...]
    looks: tuple[Call, ...]
    shared: tuple[Call, ...]
    compares: tuple[Call, ...]
    compared: tuple[str, ...]
    largest: tuple[tuple[Call, ...], ...]
    counted: Mapping[str, int]
    whole: bool


def prepared(plan: Plan) -> Prepared | None:
    """Made once for a plan and kept; None for one that breaks a law."""
    return _prepared(_Same(plan))


def copies_of(plan: Plan, info: TensorInfo) -> int:
    """How many experts an output has of its own."""
    return plan.experts[2] or 1 if info.experts and not info.shared else 1


class _Same:
    """A plan that is equal to itself alone: to compare two takes longer than to find what is known of one."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.plan is other.plan


@lru_cache(maxsize=64)
def _prepared(same: _Same) -> Prepared | None:
    plan = same.plan
    try:
        lowered = lower(plan)
    except Unknown:
        return None
    layout = Layout(plan.experts[2] or 1)
    shares = [bool(jobs) for jobs in lowered.compares]
    folds = [bool(jobs) and not share for jobs, share in zip(lowered.unsigned, shares)]

    def grouped(jobs: Sequence[Sequence[Job]], chosen: Iterable[bool]) -> tuple[Call, ...]:
        some = [
            (program.output, copies_of(plan, plan.output[program.output]), job)
            for program, own, wanted in zip(plan.programs, jobs, chosen)
            for job in own
            if wanted
        ]
        return calls(layout, some)

    return Prepared(
        layout,
        plain=grouped(lowered.writes, [not share and not fold for share, fold in zip(shares, folds)]),
        signs=tuple(
            Signs(reduction.name, grouped(lowered.writes, own), grouped(lowered.unsigned, own))
            for reduction in plan.reductions
            if any(own := [fold and scales_of(plan, one) is reduction for fold, one in zip(folds, plan.programs)])
        ),
        looks=grouped(lowered.looks, [True] * len(shares)),
        shared=grouped(lowered.writes, shares),
        compares=grouped(lowered.compares, shares),
        compared=tuple(program.output for program, share in zip(plan.programs, shares) if share),
        largest=tuple(
            calls(layout, [(reduction.output, layout.copies, job) for job in jobs])
            for reduction, jobs in zip(plan.reductions, lowered.largest)
        ),
        counted={
            program.output: sum(job.codes for job in jobs if isinstance(job.form, Moving | Single) and job.form.counts)
            for program, jobs in zip(plan.programs, lowered.writes)
        },
        whole=all(
            program.recode.name == "shape" or sum(job.codes for job in jobs) == plan.output[program.output].codes
            for program, jobs in zip(plan.programs, lowered.writes)
        ),
    )
