"""What a GEMM has to know of one matrix of a plan: its code, its group, and where the caller's columns stand in it.

    >>> Matrix.of(plan, "linear")
    Matrix(name='linear', facts=Facts(code='u4b8', kind='f16', dtype='float16', group=64, n=256, k=384, ...), ...)

The kernels read the tensors of the kernel specs in READS. A spec of another name will do where its tensors are theirs:
a build with other tiles, say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.gemm.facts import KINDS, Facts, Stretch
from layoutdsl.library import load_spec, recall
from layoutdsl.model import Kernel
from layoutdsl.plan import Duty, Extent, Plan, TensorInfo, params_of

READS = {
    "marlin_int4_a16": "",
    "marlin_int8_a16": "",
    "marlin_fp8_a16": "",
    "marlin_mxfp8_a16": "",
    "marlin_nvfp4_a16": "",
    "marlin_mxfp4_a16": "",
    "marlin_int4_a8int8": "s8",
    "marlin_int8_a8int8": "s8",
    "marlin_int4_a8fp8": "e4m3",
    "marlin_mxfp4_a8fp8": "e4m3",
}
"""Kernel spec -> the activations that it is for; empty: those of the parameters' dtype."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of a rank.

    inputs    columns of the caller's x, of which the first `facts.valid` are multiplied
    parts     how its outputs stand: `plain` (one part), `split` (one after the other), `alternating` (by turns)
    experts   how many of them this rank has; 0 where there are none
    tensors   role -> tensor, of those that a GEMM reads
    """

    name: str
    facts: Facts
    inputs: int
    parts: str
    experts: int
    tensors: tuple[tuple[str, TensorInfo], ...]
    duties: tuple[Duty, ...]

    @staticmethod
    def of(plan: Plan, name: str, *, specs: tuple[str, ...] = ()) -> Matrix:
        """Raises LayoutError where the plan has no such matrix, or no kernel reads it."""
        activations = _activations(plan, specs)
        names = dict(plan.groups)
        if name not in names:
            raise LayoutError(
                f"the plan has no matrix `{name}`",
                code="LP341",
                name="no-such-matrix",
                help=did_you_mean(name, names) or f"it has: {', '.join(names)}",
            )
        tensors = {
            info.role: info
            for info in plan.outputs
            if info.name.rpartition(".")[0] == name and info.role != "input_scale"
        }
        dtype = str(params_of(plan.target)["dtype"])
        (k,), n = _axis(plan, name, "k"), _axis(plan, name, "n")
        duties = tuple(duty for duty in plan.duties if duty.matrix == name)
        gathers = any(duty.kind == "gather_input" for duty in duties)
        facts = Facts(
            code=tensors["codes"].code,
            scale=tensors["scale"].code,
            kind=activations or KINDS[dtype],
            dtype=dtype,
            group=names[name],
            n=next((one.padded for one in n if one.part == "*"), sum(one.padded for one in n)),
            k=k.padded,
            front=k.front,
            valid=k.length,
            columns=tuple(_stretches(plan, n, _lacks(duties, n[0]))),
        )
        return Matrix(
            name=name,
            facts=facts,
            inputs=k.size if gathers else k.length + _lacks(duties, k),
            parts=_arrangement(plan, n),
            experts=tensors["codes"].experts,
            tensors=tuple(tensors.items()),
            duties=duties,
        )

    @cached_property
    def tensor(self) -> Mapping[str, TensorInfo]:
        return dict(self.tensors)

    def summary(self, plan: Plan) -> str:
        """Name, sizes and how it is stored, in a line."""
        facts = self.facts
        groups = f"groups of {facts.group}" if facts.group else "one group"
        return (
            f"{self.name}: {self.inputs} -> {facts.outputs} of {facts.dtype}, {facts.code} in {groups}, "
            f"stored {facts.n} x {facts.k} as {plan.target.spec} has them"
        )

    def has(self, kind: str) -> bool:
        """Whether the caller has a duty of that kind."""
        return any(duty.kind == kind for duty in self.duties)


def matrices(plan: Plan, specs: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names of a plan's matrices; LayoutError where no GEMM reads them."""
    _activations(plan, specs)
    return tuple(name for name, _ in plan.groups)


def stored_as(plan: Plan, of: tuple[Matrix, ...]) -> str:
    """What the plan's tensors hold, in a line: what kernels have to know of them, and which slice it is of what. Plans
    of which it is equal store the same bytes for the same weights, whatever the checkpoint was."""
    facts = [f"{one.facts} parts={one.parts}" for one in of]
    slices = [
        f"{at.role}{at.part and f'.{at.part}'}={at.start}:{at.start + at.length}/{at.size}"
        for one in of
        for at in plan.extents
        if at.matrix == one.name
    ]
    total, start, count = plan.experts
    held = plan.slots or f"{start}:{start + count}"
    experts = [f"experts={held}/{total}".replace(" ", "")] if total else []
    return " ".join((*facts, *slices, *experts))


def _activations(plan: Plan, specs: tuple[str, ...]) -> str:
    """What the kernels that read this plan's outputs multiply; LayoutError where there are none."""
    if not isinstance(plan, Plan):
        raise LayoutError(
            f"this is a {type(plan).__name__}, expected a Plan",
            code="LP340",
            name="no-gemm",
            help="compile_plan(...) makes one, Plan.from_json reads one",
        )
    spec = recall(plan.target.spec, plan.target.digest, specs)
    if isinstance(spec, Kernel):
        for name, activations in READS.items():
            if load_spec(name, kind="kernel").tensors == spec.tensors:
                return activations
    raise LayoutError(
        f"no GEMM reads the tensors of `{plan.target.spec}`",
        code="LP340",
        name="no-gemm",
        help=f"compile a plan to one of {', '.join(READS)}, or to a spec with the tensors of one of them",
    )


def _axis(plan: Plan, name: str, role: str) -> list[Extent]:
    return [extent for extent in plan.extents if (extent.matrix, extent.role) == (name, role)]


def _arrangement(plan: Plan, n: list[Extent]) -> str:
    if sum(extent.part != "*" for extent in n) == 1:
        return "plain"
    return "alternating" if params_of(plan.target).get("parts") == "alternating" else "split"


def _lacks(duties: tuple[Duty, ...], extent: Extent) -> int:
    """Elements beyond this rank's own that the caller has all the same: those of heads that other ranks hold."""
    return next((duty.rest for duty in duties if (duty.kind, duty.axis) == ("lacks", extent.axis)), 0)


def _stretches(plan: Plan, n: list[Extent], lacks: int) -> Iterator[Stretch]:
    """The caller's outputs, in the order in which they are stored."""
    parts = [extent for extent in n if extent.part != "*"]
    if _arrangement(plan, n) == "alternating":
        yield Stretch(0, sum(part.length for part in parts))
        return
    start, whole = 0, len(parts) < len(n)
    for part in parts:
        # Parts that are padded together, at the end of the last, are as wide as on the widest rank.
        yield Stretch(start, part.padded if whole else part.length + lacks)
        start += part.padded
