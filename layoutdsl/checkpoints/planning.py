"""One plan per unit and rank, shared by units that look alike; and the kernel that codes go to by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from layoutdsl.arguments import MOST_RANKS, whole
from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.names import own_params
from layoutdsl.choose import kernel_for
from layoutdsl.compile import compile_plan
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.library import load_spec
from layoutdsl.model import Module, ParamValue
from layoutdsl.plan import Plan
from layoutdsl.prove import prove_ranks
from layoutdsl.resolve import Ranks, bind, held_matrices, matrices

OWN = {"parts": "stacked", "transposed": False}
"""How a layer that is not quantized is written: its parts in one tensor, outputs before inputs."""


def every_rank(tp: int, ep: int) -> tuple[Ranks, ...]:
    """All ranks in order of their numbers: tensor-parallel neighbours first. LayoutError for less than one of each, and
    for more than MOST_RANKS."""
    tp, ep = whole("tp", tp), whole("ep", ep)
    for count, what in ((tp, "tensor"), (ep, "expert"), (tp * ep, "tensor- and expert")):
        if not 1 <= count <= MOST_RANKS:
            raise LayoutError(
                f"a model cannot have {count} {what}-parallel ranks",
                code="LP110",
                name="ranks",
                help=f"ask for 1 to {MOST_RANKS}",
            )
    return tuple(Ranks(tp, rank, ep, ep_rank) for ep_rank in range(ep) for rank in range(tp))


def one_rank(tp: int, ep: int, number: int) -> Ranks:
    """The rank of that number; LayoutError where there is none."""
    every, number = every_rank(tp, ep), whole("rank", number)
    if not 0 <= number < len(every):
        raise LayoutError(
            f"rank {number} of {len(every)} ranks does not exist",
            code="LP110",
            name="ranks",
            help=f"ranks count from 0 to {len(every) - 1}",
        )
    return every[number]


def kernels_asked(to: str | Sequence[str], specs: tuple[str, ...]) -> tuple[str, ...]:
    """The kernel specs that were named; LayoutError where one is none."""
    kernels = (to,) if isinstance(to, str) else tuple(to)
    for kernel in kernels:
        load_spec(kernel, specs=specs, kind="kernel")
    return kernels


def number_of(ranks: Ranks) -> int:
    return ranks.ep_rank * ranks.tp + ranks.rank


@dataclass
class Planner:
    """Compiles plans for some ranks. `to` are the kernels asked for; with none, they are chosen by the codes. `dtype`
    is that of the activations, None for that of each layer's own tensors; `params` are the kernels' own; `experts` has
    the expert of each place that ranks have for one, where some experts have several."""

    ranks: tuple[Ranks, ...]
    to: tuple[str, ...]
    specs: tuple[str, ...]
    dtype: str | None = None
    params: dict[str, ParamValue] = field(default_factory=dict)
    experts: tuple[int, ...] = ()
    known: dict[tuple, tuple[Plan, ...]] = field(default_factory=dict)

    def plans(self, job: Job) -> tuple[Plan, ...]:
        """The plan of each rank. LayoutError names the unit, then what the planner has to say."""
        key = (job.unit.key, job.only, job.group.spec.name, tuple(job.sizes.items()), tuple(job.params.items()))
        if key not in self.known:
            try:
                self.known[key] = self._compiled(job)
            except LayoutError as error:
                raise within(job, error) from None
        return self.known[key]

    def check_experts(self, jobs: Sequence[Job]) -> None:
        """LayoutError for a map of experts where no unit has any."""
        if self.experts and not any(self._module(job).experts for job in jobs):
            raise LayoutError(
                "the map of experts is for a model with experts; this checkpoint has none",
                code="LP114",
                name="expert-map",
                help="leave out --experts-map",
            )

    def _compiled(self, job: Job) -> tuple[Plan, ...]:
        target, params = self.target(job)
        made: dict[Ranks, Plan] = {}
        for ranks in map(self._own_ranks, self.ranks, [job] * len(self.ranks)):
            if ranks not in made:
                made[ranks] = self._compile(job, target, params, ranks, grains=self._grains(job, ranks.tp))
        first = next(iter(made))
        if len(made) == first.tp * first.ep:
            prove_ranks(tuple(made.values()), specs=self.specs)
        return tuple(made[self._own_ranks(ranks, job)] for ranks in self.ranks)

    def _grains(self, job: Job, tp: int) -> dict[str, int]:
        """Where no kernel asks for more, inner features that ranks do not divide are dealt out one by one."""
        module = self._module(job)
        if job.quantized or "tp" not in module.ranks:
            return {}
        params = bind(module, own_params(job.unit.names, module))
        axis, held = module.ranks["tp"].fill(params), held_matrices(module, params)
        inner = axis not in module.visible and set(job.only or held) == set(held)
        size = job.sizes.get(axis)
        return {axis: 1} if inner and isinstance(size, int) and size % tp else {}

    def _compile(
        self,
        job: Job,
        target: str,
        params: dict[str, ParamValue],
        ranks: Ranks,
        *,
        sharded: bool = False,
        grains: Mapping[str, int] | None = None,
    ) -> Plan:
        return compile_plan(
            str(job.group.path),
            target,
            job.unit.names.module,
            job.sizes,
            params=params,
            tp=ranks.tp,
            rank=ranks.rank,
            ep=ranks.ep,
            ep_rank=ranks.ep_rank,
            sharded=sharded,
            grains=grains,
            only=job.only,
            experts=self.experts if self._module(job).experts else (),
            specs=self.specs,
        )

    def target(self, job: Job) -> tuple[str, dict[str, ParamValue]]:
        """What a job's tensors become, and all parameters."""
        params = self._params(job)
        if job.quantized:
            module = self._module(job)
            bound = bind(module, own_params(job.unit.names, module))
            found = matrices(module, bound, job.sizes, Ranks(), only=job.only)
            stated = {**({"dtype": self.dtype} if self.dtype else {}), **self.params}
            name = kernel_for(job.group.spec, job.params, found, asked=self.to, stated=self.params, specs=self.specs)
            known = load_spec(name, specs=self.specs, kind="kernel").params
            return name, params | {f"target.{key}": value for key, value in stated.items() if key in known}
        return str(job.group.path), params | {
            f"target.{name}": OWN.get(name, value) for name, value in job.params.items()
        }

    def _own_ranks(self, ranks: Ranks, job: Job) -> Ranks:
        """The same without expert-parallel ranks, where the unit has no experts to share: each has all of it."""
        return ranks if "ep" in self._module(job).ranks else Ranks(ranks.tp, ranks.rank)

    def _module(self, job: Job) -> Module:
        module = load_spec(job.unit.names.module, specs=self.specs, kind="module")
        assert isinstance(module, Module)
        return module

    def sizes(self, job: Job) -> dict[str, int | tuple[int, ...]]:
        """Those of the module's sizes that the job's matrices have, as the names state them."""
        module = self._module(job)
        held = held_matrices(module, bind(module, own_params(job.unit.names, module)), job.only).values()
        products = (axes for m in held for axes in (*(m.n.values() if isinstance(m.n, dict) else [m.n]), m.k))
        used = {axis if axis in job.sizes else module.default[axis] for axes in products for axis in axes}
        return {axis: size for axis, size in job.sizes.items() if axis in used or axis == module.experts}

    def slice(self, job: Job, plan: Plan) -> Plan:
        """The plan that takes a rank's slice out of the source, in the source's own format, cut as `plan` cuts it."""
        params = {**self._params(job), **{f"target.{name}": value for name, value in job.params.items()}}
        return self._compile(job, str(job.group.path), params, plan.ranks, grains=dict(plan.grains))

    def local(self, job: Job, plan: Plan) -> Plan:
        """The plan that makes of a rank's slice what `plan` makes of the whole."""
        return self._compile(job, *self.target(job), plan.ranks, sharded=True, grains=dict(plan.grains))

    def _params(self, job: Job) -> dict[str, ParamValue]:
        own = {name: value for name, value in job.unit.names.params.items() if not name.startswith("source.")}
        return {**own, **{f"source.{name}": value for name, value in job.params.items()}}


def within(job: Job, error: LayoutError) -> LayoutError:
    """The same error with the unit that it is about."""
    return LayoutError.of(
        [
            Diagnostic(d.code, d.name, f"`{job.unit.name}`: {d.message}", d.span, d.help, d.source)
            for d in error.diagnostics
        ]
    )
