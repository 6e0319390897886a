"""The law `complete` over all ranks: together their plans read each source element as often as stated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from layoutdsl import laws
from layoutdsl.laws import DRAWN, PRIME, Point
from layoutdsl.layout import View, runs
from layoutdsl.plan import Plan, Program
from layoutdsl.prove.given import Given, Pair, broken
from layoutdsl.resolve import Stored

EXPERTS = Point.drawn()
"""The point for experts, apart from that for addresses."""

SHARED = (
    "source",
    "target",
    "module",
    "only",
    "sizes",
    "grains",
    "choice",
    "groups",
    "tiles",
    "places",
    "sharded",
    "habits",
)
"""What the plans of all ranks have in common."""


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
        for field in SHARED:
            if getattr(plan, field) != getattr(first, field):
                broken(
                    "complete", f"the plans of rank {first.ranks.rank} and {plan.ranks.rank} differ in their {field}"
                )
        if (plan.ranks.tp, plan.ranks.ep) != (first.ranks.tp, first.ranks.ep):
            broken("complete", f"a plan of {plan.ranks.tp} x {plan.ranks.ep} ranks stands among those of others")
        # Without a kernel nothing is padded, and ranks store what they hold.
        if first.tiles and [one.padded for one in plan.extents] != [one.padded for one in first.extents]:
            broken("complete", f"rank {first.ranks.rank} and {plan.ranks.rank} are padded to different extents")
    places = {plan.ranks.ep_rank: plan for plan in plans}
    for plan in plans:
        if plan.slots != places[plan.ranks.ep_rank].slots:
            broken("complete", f"the ranks with expert-parallel rank {plan.ranks.ep_rank} hold different experts")
    have = sorted((plan.ranks.rank, plan.ranks.ep_rank) for plan in plans)
    if len(have) != first.ranks.tp * first.ranks.ep or len(set(have)) != len(have):
        every = f"plans of {first.ranks.tp} x {first.ranks.ep} ranks"
        broken("complete", f"{every} are needed, each once; given are those of {', '.join(map(str, have))}")


def _complete(plans: Sequence[Given], at: int, source: str) -> None:
    found = 0
    for given in plans:
        read = _read(given.plan.programs[at], source)
        for one in given.plan.source_experts:
            found += read * EXPERTS.power(one)
    output = plans[0].plan.programs[at].output
    pair = next(pair for pair in plans[0].pairs if any(t.name == output for held in pair.target.values() for t in held))
    tensor = next(tensor for held in pair.source.values() for tensor in held if tensor.name == source)
    often = _places(plans)
    wanted = _stored(plans[0], at, pair, tensor)
    wanted *= sum(often[one] * EXPERTS.power(one) for one in often) if often else 1
    if tensor.role == "bias" and pair.matrix.k.cut:
        k = pair.matrix.k  # it stands on rank 0 alone, which reads it once
        wanted = wanted * k.length * pow(k.size, -1, PRIME)
    if (found - wanted) % PRIME:
        broken("complete", f"the ranks together do not read `{source}` as often as the plans say, for `{output}`")


def _places(plans: Sequence[Given]) -> dict[int, int]:
    """Expert -> how many places it has in one tensor-parallel rank's experts; every one has some."""
    total, tp = plans[0].plan.experts[0], plans[0].plan.ranks.tp
    found = Counter(expert for given in plans for expert in given.plan.source_experts) if total else Counter()
    for expert in range(total):
        if not found[expert]:
            broken("complete", f"no rank holds expert {expert}")
    return {expert: count // tp for expert, count in found.items()}


def _read(program: Program, source: str) -> int:
    """Sum over what one rank reads of a source."""
    found = 0
    for move in program.moves:
        if move.kind == "data":
            n = [run for run in move.n if program.sources[run.part] == source]
            found += DRAWN.total(n, laws.SRC) * DRAWN.total(move.k, laws.SRC)
    return found


def _stored(given: Given, at: int, pair: Pair, tensor: Stored) -> int:
    """Sum over all elements that one expert of a source tensor holds, shared ones as often as elements share them."""
    z, k = DRAWN, pair.matrix.k
    data = [move for move in given.plan.programs[at].moves if move.kind == "data"]
    along_k = z.series(1, k.size) if any(move.gather_k for move in data) else z.prefix(tensor.k[0].chain, k.size)
    along_n = 0
    for part in tensor.parts:
        stretch, view = pair.matrix.n[part], tensor.view(part)[0]
        held = min(stretch.held(given.plan.ranks.tp), k.held(given.plan.ranks.tp))
        if any(move.gather_n for move in data):
            along_n += z.series(1, stretch.size) * held
            continue
        whole = View(view.chain, view.offset - view.step * stretch.start, view.step, view.base)
        along_n += z.total(runs(stretch.size, whole, None), laws.DST) * held
    return along_n * along_k
