"""What a plan stores, how much of it is padding, and what else could have been chosen at what price.

    padding(plan)           what this rank stores beyond its logical elements, read off the plan alone
    recalled(plan, specs)   the request that leads to the plan, from the specs that it names
    everywhere(request)     what all ranks store together
    rivals(request)         for each set of matrices that share an inner axis the next best way to serve it
    lighter(asked)          the ranks, no more of them, at which padding is a tenth or less
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from layoutdsl.builder import Builder
from layoutdsl.codes import code_named
from layoutdsl.errors import LayoutError
from layoutdsl.layout import Run
from layoutdsl.library import recall
from layoutdsl.model import Format, Kernel, Module
from layoutdsl.pairs import Request, cut_matrices, pairs_of, sides
from layoutdsl.plan import Extent, Move, Plan, Program, TensorInfo, params_of
from layoutdsl.planner import Choice, choices, decided
from layoutdsl.resolve import Fit, Matrix, Ranks, dealt, front_of, stored_bytes, stored_group, widened, with_extents

NEAR = 16
"""How many numbers of ranks below one's own are tried one by one."""

MUCH = Fraction(1, 10)
"""Of what is stored, so much padding is worth other ranks."""


@dataclass(frozen=True)
class Price:
    """Bytes stored, and those of them that are padding."""

    stored: int
    added: Fraction

    @property
    def share(self) -> Fraction:
        return self.added / self.stored if self.stored else Fraction()


@dataclass(frozen=True)
class Rival:
    """How else matrices that share an inner axis could be served: the best of all other ways, None where all others pad
    each axis as much or more. `bytes` are those that they store on the widest rank as they are."""

    matrices: tuple[str, ...]
    bytes: int
    choice: Choice | None

    @property
    def more(self) -> int:
        """Bytes that it stores more; less than 0 where the plan was not left to choose."""
        return self.choice.bytes - self.bytes if self.choice is not None else 0


# --- one rank ---------------------------------------------------------------------------------------------------------


def bytes_of(info: TensorInfo) -> int:
    return info.codes * code_named(info.code).bits * copies_of(info) // 8


def copies_of(info: TensorInfo) -> int:
    return 1 if info.shared or not info.experts else info.experts


def padding(plan: Plan) -> list[tuple[str, str, str, int, Fraction]]:
    """(output, pad code, reason, how many codes, their bytes) of all that is stored and holds no logical element; the
    pad code is empty where it is filled from the data. Over all experts of the rank."""
    return list(_padding(plan.programs, plan.outputs))


def _padding(
    programs: Iterable[Program], outputs: Iterable[TensorInfo]
) -> Iterator[tuple[str, str, str, int, Fraction]]:
    known = {info.name: info for info in outputs}
    for program in programs:
        info, counts = known[program.output], dict[tuple[str, str], int]()
        pads = [(str(move.pad), move.reason, move) for move in program.moves if move.kind == "pad"]
        fills = [("", "fill", move) for move in program.fill.moves] if program.fill else []
        for code, reason, move in (*pads, *fills):
            counts[code, reason] = counts.get((code, reason), 0) + elements(move) * copies_of(info)
        for (code, reason), count in counts.items():
            yield info.name, code, reason, count, Fraction(count * code_named(info.code).bits, 8)


def elements(move: Move) -> int:
    """How many stored elements a move writes."""
    return _spots(move.n) * _spots(move.k)


def _spots(runs: Sequence[Run]) -> int:
    """Stored elements along one axis: a loop that stands still repeats one, a joined run repeats another's."""
    total = 0
    for run in runs:
        count = 0 if run.join else 1
        for times, _, step, _ in run.loops:
            count *= times if step else 1
        total += count
    return total


# --- all ranks --------------------------------------------------------------------------------------------------------


def recalled(plan: Plan, specs: tuple[str, ...] = ()) -> Request | None:
    """The request of a plan towards a kernel, with the padding and the groups that the plan has; None of other plans.

    Raises LayoutError where its specs are not found, or are others by now.
    """
    source, target, module = (recall(side.spec, side.digest, specs) for side in (plan.source, plan.target, plan.module))
    if not isinstance(target, Kernel):
        return None
    assert isinstance(source, Format) and isinstance(module, Module)
    request = Request(
        source=source,
        target=target,
        module=module,
        source_params=params_of(plan.source),
        target_params=params_of(plan.target),
        module_params=params_of(plan.module),
        sizes=dict(plan.sizes),
        ranks=plan.ranks,
        sharded=plan.sharded,
        habits=plan.habits,
        padded={},
        group_given=False,
        grains=dict(plan.grains),
        only=plan.only,
        places=plan.places,
    )
    known = {(extent.matrix, extent.role, extent.part): extent for extent in plan.extents}
    groups, found = dict(plan.groups), cut_matrices(request)
    if not all(_is_cut_so(matrix, known) and matrix.name in groups for matrix in found):
        raise LayoutError("the plan is cut as its specs do not say", code="LP108", name="other-spec")
    return replace(request, fitted={m.name: Fit(with_extents(m, known), groups[m.name]) for m in found})


def _is_cut_so(matrix: Matrix, known: dict[tuple[str, str, str], Extent]) -> bool:
    named = [("k", "", matrix.k), *(("n", part, s) for part, s in zip(matrix.parts or ("",), matrix.n))]
    if matrix.pad == "tail" and (matrix.name, "n", "*") not in known:
        return False
    return all(
        (extent := known.get((matrix.name, role, part))) is not None
        and (extent.start, extent.length) == (stretch.start, stretch.length)
        for role, part, stretch in named
    )


def on(request: Request, ranks: Ranks) -> Request:
    """What another rank is asked for, which is padded as this one."""
    assert request.fitted is not None
    source, fitted = sides(request)[0], dict[str, Fit]()
    for matrix in cut_matrices(replace(request, ranks=ranks)):
        fit = request.fitted[matrix.name]
        own = 0 if source.mode == "padded" else stored_group(source, matrix)
        front = front_of(matrix.k.start, matrix.k.length, fit.group, own)
        wide = widened(matrix, [s.padded for s in fit.matrix.n], fit.matrix.n_padded, fit.matrix.k.padded, front)
        fitted[matrix.name] = fit._replace(matrix=wide)
    return replace(request, ranks=ranks, fitted=fitted)


def everywhere(request: Request) -> Price:
    """What all ranks store together. Ranks that hold as much behind as much padding in front store the same."""
    ranks = request.ranks
    counts: dict[tuple[object, ...], int] = {}
    prices: dict[tuple[object, ...], Price] = {}
    for ep_rank, times in _expert_ranks(request):
        for rank in range(ranks.tp):
            there = on(request, Ranks(ranks.tp, rank, ranks.ep, ep_rank))
            key = (ep_rank, *map(_held, (there.fitted or {}).values()))
            counts[key] = counts.get(key, 0) + times
            if key not in prices:
                prices[key] = _price(there)
    return Price(
        sum(prices[key].stored * count for key, count in counts.items()),
        sum((prices[key].added * count for key, count in counts.items()), Fraction()),
    )


def _expert_ranks(request: Request) -> Iterator[tuple[int, int]]:
    """One expert-parallel rank for each number of experts that one holds, and how many hold so many."""
    total = request.sizes.get(request.module.experts or "", 0)
    assert isinstance(total, int)
    count, ep = request.places or total, request.ranks.ep
    held = [dealt(count, ep, rank, 1)[1] for rank in range(ep)]
    yield from ((held.index(each), held.count(each)) for each in dict.fromkeys(held))


def _held(fit: Fit) -> tuple[object, ...]:
    m = fit.matrix
    return m.k.front, m.k.length, tuple(s.length for s in m.n), m.bias_here


def _price(request: Request) -> Price:
    pairs, _ = pairs_of(request)
    builder = Builder(request, pairs)
    for pair in pairs:
        builder.matrix(pair)
    added = sum((size for *_, size in _padding(builder.programs, builder.outputs)), Fraction())
    return Price(sum(map(bytes_of, builder.outputs)), added)


def empty_ranks(request: Request) -> dict[str, list[int]]:
    """Axis -> the tensor-parallel ranks that hold nothing of it."""
    found: dict[str, list[int]] = {}
    for fit in (request.fitted or {}).values():
        for stretch in (fit.matrix.k, *fit.matrix.n):
            if ranks := [rank for rank, (_, length) in enumerate(stretch.all()) if not length]:
                found[stretch.axis] = ranks
    return found


# --- other ways -------------------------------------------------------------------------------------------------------


def rivals(request: Request) -> list[Rival]:
    """The next best way to serve each set of matrices; nothing where none but what was imposed serves it."""
    assert request.fitted is not None and isinstance(request.target, Kernel)
    if isinstance(request.source, Kernel):
        return []
    try:
        sets = choices(_free(request))
    except LayoutError:  # only what was imposed serves it
        return []
    found: list[Rival] = []
    for ways in sets:
        ours = [request.fitted[fit.matrix.name] for fit in ways[0].fits]
        size = sum(stored_bytes(request.target, request.target_params, fit.matrix, fit.group) for fit in ours)
        other = next((way for way in ways if not _are_alike(way.fits, ours)), None)
        found.append(Rival(tuple(fit.matrix.name for fit in ours), size, other))
    return found


def left_to_choose(request: Request) -> Request | None:
    """What the planner was asked, without its answer; None where cuts or extents were imposed."""
    free = _free(request)
    return next((asked for asked in (free, replace(free, group_given=True)) if _leads(asked, request)), None)


def lighter(asked: Request) -> tuple[Ranks, Price] | None:
    """Where experts can be spread, as many ranks with fewer of them tensor-parallel; else fewer ranks: the nearest at
    which padding is a tenth or less. Requires what the planner was asked."""
    for ranks in _fewer(asked):
        try:
            price = everywhere(decided(replace(asked, ranks=ranks)))
        except LayoutError:
            continue
        if price.share <= MUCH:
            return ranks, price
    return None


def _fewer(request: Request) -> Iterator[Ranks]:
    """The nearest first: as many ranks in all, then fewer, one by one as far as NEAR, then those that divide."""
    tp, ep, module = request.ranks.tp, request.ranks.ep, request.module
    shares = [tp // by for by in range(2, tp + 1) if tp % by == 0]
    if "ep" in module.ranks:
        total = request.sizes.get(module.experts or "", 0)
        most = request.places or (total if isinstance(total, int) else 0)
        yield from (Ranks(share, 0, ep * tp // share) for share in shares if ep * tp // share <= most)
    near = range(tp - 1, max(tp - 1 - NEAR, 0), -1)
    yield from (Ranks(count, 0, ep) for count in dict.fromkeys((*near, *shares)))


def _free(request: Request) -> Request:
    return replace(request, grains={}, fitted=None, group_given=False)


def _leads(asked: Request, request: Request) -> bool:
    """Whether the planner, left to itself, serves the request as it is served."""
    if isinstance(request.source, Kernel):
        return False
    try:
        fitted = decided(asked).fitted or {}
    except LayoutError:
        return False
    return _are_alike(list(fitted.values()), [(request.fitted or {})[name] for name in fitted])


def _are_alike(one: Sequence[Fit], other: Sequence[Fit]) -> bool:
    """Whether ranks hold the same of each matrix, in the same padding and groups."""
    return list(map(_layout, one)) == list(map(_layout, other))


def _layout(fit: Fit) -> tuple[object, ...]:
    m = fit.matrix
    return fit.group, m.n_padded, *((s.padded, tuple(s.all())) for s in (m.k, *m.n))
