"""One plan per unit and rank, shared by units that look alike; and the kernel that codes go to by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from layoutdsl import library, recodes
from layoutdsl.compile import compile_plan
from layoutdsl.checkpoints.binding import Job
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, Kernel, Module, ParamValue
from layoutdsl.plan import Plan
from layoutdsl.prove import prove_ranks
from layoutdsl.resolve import Matrix, Ranks, Side, bind, matrices, pad, tensors


@dataclass
class Planner:
    """Compiles plans from one checkpoint format. `to` is the kernel asked for; None: chosen by the codes."""

    spec: Checkpoint
    path: Path
    tp: int
    ranks: tuple[int, ...]
    to: str | None
    specs: tuple[str, ...]
    known: dict[tuple, tuple[Plan, ...]] = field(default_factory=dict)
    slices: dict[str, tuple[Plan, Plan]] = field(default_factory=dict)

    def plans(self, job: Job) -> tuple[Plan, ...]:
        """The plan of each rank. LayoutError names the unit, then what the planner has to say."""
        key = (job.unit.key, tuple(job.sizes.items()), tuple(job.params.items()))
        if key not in self.known:
            try:
                self.known[key] = self._compiled(job)
            except LayoutError as error:
                raise within(job, error) from None
        return self.known[key]

    def _compiled(self, job: Job) -> tuple[Plan, ...]:
        kernel = self.to or self._kernel(job)
        found = tuple(
            compile_plan(
                self._name,
                kernel,
                job.module,
                job.sizes,
                params=self._params(job),
                tp=self.tp,
                rank=rank,
                specs=self.specs,
            )
            for rank in self.ranks
        )
        self._heads(job, found[0])
        if len(found) == self.tp:
            prove_ranks(found, specs=self.specs)
        return found

    def back(self, job: Job, plan: Plan) -> tuple[Plan, Plan]:
        """The way back from a rank's outputs, and the rank's slice of the source in the source's own format."""
        if plan.digest not in self.slices:
            params = {**self._params(job), **{f"target.{name}": value for name, value in job.params.items()}}
            own = compile_plan(
                self._name,
                self._name,
                job.module,
                job.sizes,
                params=params,
                tp=self.tp,
                rank=plan.ranks.rank,
                specs=self.specs,
            )
            self.slices[plan.digest] = plan.inverse(specs=self.specs), own
        return self.slices[plan.digest]

    @property
    def _name(self) -> str:
        return str(self.path)

    def _params(self, job: Job) -> dict[str, ParamValue]:
        own = {name: value for name, value in job.unit.names.params.items() if not name.startswith("source.")}
        return {**own, **{f"source.{name}": value for name, value in job.params.items()}}

    def _heads(self, job: Job, plan: Plan) -> None:
        """Ranks keep neighbours together that belong together: a head is one rank's."""
        for extent in plan.extents:
            grain = job.whole.get(extent.axis, 1)
            if extent.part != "*" and extent.length < extent.size and extent.length % grain:
                count = extent.size // grain
                fits = max(ranks for ranks in range(1, self.tp) if count % ranks == 0)
                where = f"axis `{extent.axis}`" + (f" of part `{extent.part}`" if extent.part else "")
                raise LayoutError(
                    f"{where} has {count} heads of {grain}, which {self.tp} tensor-parallel ranks do not divide evenly",
                    code="LP120",
                    name="uneven-cut",
                    help=f"{fits} ranks divide them",
                )

    # the kernel -------------------------------------------------------------------------------------------------------

    def _kernel(self, job: Job) -> str:
        """The first shipped kernel, by name, that holds the same kind of codes and scales."""
        module = load_spec(job.module, specs=self.specs, kind="module")
        assert isinstance(module, Module)
        own = {name: value for name, value in job.unit.names.params.items() if name in module.params}
        matrix = matrices(module, bind(module, own), job.sizes, Ranks())[0]
        why: LayoutError | None = None
        for path in library.files():
            kernel = library.read_spec(path)
            if isinstance(kernel, Kernel):
                try:
                    self._fits(kernel, job, matrix)
                    return kernel.name
                except LayoutError as error:
                    why = error
        assert why is not None
        raise LayoutError(
            f"no shipped kernel takes the codes of `{self.spec.name}`",
            code="LP130",
            name="no-conversion",
            help="name a kernel of your own with --to and its folder with --specs",
        )

    def _fits(self, kernel: Kernel, job: Job, matrix: Matrix) -> None:
        """LayoutError where the kernel's codes or scales are of another kind. Shapes are the planner's business."""
        params = bind(kernel, _accepted(kernel, job.params))
        (padded,) = pad(kernel, params, [matrix], [0])
        source = {tensor.role: tensor for tensor in tensors(Side(self.spec, job.params, "whole"), matrix)}
        target = {tensor.role: tensor for tensor in tensors(Side(kernel, params, "padded"), padded, 0)}
        recodes.for_codes(matrix.name, source["codes"], target["codes"], "zero_point" in source, False)
        if "scale" in source and "scale" in target:
            scale = recodes.for_scale(
                matrix.name, source["scale"], target["scale"], source.get("global_scale"), target.get("global_scale")
            )
            if "global_scale" in target:
                recodes.for_global(matrix.name, source.get("global_scale"), target["global_scale"], scale)
        elif "scale" in source or "scale" in target:
            raise LayoutError("one side has scales, the other has none")


def _accepted(kernel: Kernel, params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """Those of the source's parameters that the kernel has and takes."""
    found: dict[str, ParamValue] = {}
    for name, value in params.items():
        if name in kernel.params:
            try:
                bind(kernel, {name: value})
                found[name] = value
            except LayoutError:
                continue
    return found


def within(job: Job, error: LayoutError) -> LayoutError:
    """The same error with the unit that it is about."""
    return LayoutError.of(
        [
            Diagnostic(d.code, d.name, f"`{job.unit.name}`: {d.message}", d.span, d.help, d.source)
            for d in error.diagnostics
        ]
    )
