"""The law `complete` over all ranks: together their plans read each source element as often as stated."""

from __future__ import annotations

from collections.abc import Sequence

from layoutdsl import laws
from layoutdsl.laws import PRIME, Point
from layoutdsl.layout import View, runs
from layoutdsl.plan import Plan, Program
from layoutdsl.prove.given import Given, Pair, broken
from layoutdsl.resolve import Stored


def prove_across(plans: Sequence[Given]) -> None:
    """Requires that each plan is proven by itself."""
    plans = sorted(plans, key=lambda given: (given.plan.ranks.rank, given.plan.ranks.ep_rank))
    _are_all_ranks([given.plan for given in plans])
    first = plans[0]
    if first.source.mode != "whole":
        return  # each rank has its own tensors and, by the law on one rank, reads all of them
    for at, program in enumerate(first.plan.programs):
        for source in dict.fromkeys(name for name in program.sources if name):
            _complete(plans, at, source)


def _are_all_ranks(plans: Sequence[Plan]) -> None:
    if not plans:
        broken("complete", "no plan is given")
    first = plans[0]
    for plan in plans:
        for field in ("source", "target", "module", "sizes", "sharded", "habits"):
            if getattr(plan, field) != getattr(first, field):
                broken(
                    "complete", f"the plans of rank {first.ranks.rank} and {plan.ranks.rank} differ in their {field}"
                )
        if (plan.ranks.tp, plan.ranks.ep) != (first.ranks.tp, first.ranks.ep):
            broken("complete", f"a plan of {plan.ranks.tp} x {plan.ranks.ep} ranks stands among those of others")
    have = sorted((plan.ranks.rank, plan.ranks.ep_rank) for plan in plans)
    if len(have) != first.ranks.tp * first.ranks.ep or len(set(have)) != len(have):
        every = f"plans of {first.ranks.tp} x {first.ranks.ep} ranks"
        broken("complete", f"{every} are needed, each once; given are those of {', '.join(map(str, have))}")


def _complete(plans: Sequence[Given], at: int, source: str) -> None:
    z = plans[0].z
    expert = Point(pow(z.z, 3, PRIME))
    found = 0
    for given in plans:
        _, start, count = given.plan.experts
        found += _read(given.plan.programs[at], source, z) * expert.power(start) * expert.series(1, max(count, 1))
    output = plans[0].plan.programs[at].output
    pair = next(pair for pair in plans[0].pairs if any(t.name == output for held in pair.target.values() for t in held))
    tensor = next(tensor for held in pair.source.values() for tensor in held if tensor.name == source)
    replicas = plans[0].plan.replicas
    wanted = _stored(plans[0], at, pair, tensor) * expert.series(1, max(plans[0].plan.experts[0], 1)) * replicas
    if tensor.role == "bias" and pair.matrix.k.cut:
        wanted = wanted * pow(plans[0].plan.ranks.tp, -1, PRIME)  # it stands on rank 0 alone, which reads it once
    if (found - wanted) % PRIME:
        broken("complete", f"the ranks together do not read `{source}` exactly {replicas} times for `{output}`")


def _read(program: Program, source: str, z: Point) -> int:
    """Sum over what one rank reads of a source."""
    found = 0
    for move in program.moves:
        if move.kind == "data":
            n = [run for run in move.n if program.sources[run.part] == source]
            found += z.total(n, laws.SRC) * z.total(move.k, laws.SRC)
    return found


def _stored(given: Given, at: int, pair: Pair, tensor: Stored) -> int:
    """Sum over all elements that one expert of a source tensor holds, shared ones as often as elements share them."""
    z, k = given.z, pair.matrix.k
    data = [move for move in given.plan.programs[at].moves if move.kind == "data"]
    along_k = z.series(1, k.size) if any(move.gather_k for move in data) else z.prefix(tensor.k[0].chain, k.size)
    along_n = 0
    for part in tensor.parts:
        stretch, view = pair.matrix.n[part], tensor.view(part)[0]
        if any(move.gather_n for move in data):
            along_n += z.series(1, stretch.size)
            continue
        whole = View(view.chain, view.offset - view.step * stretch.start, view.step, view.base)
        along_n += z.total(runs(stretch.size, whole, None), laws.DST)
    return along_n * along_k
