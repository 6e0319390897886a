"""Which bytes of its source tensors a plan needs: what a loader has to fetch.

Half of the inputs of a GPTQ matrix of 64 outputs and 256 inputs, in words of 8 inputs stored `kw n`, are the second
half of the file's tensor; half of its outputs are 32 words of 4 bytes in each of 32 rows, 256 bytes apart:

    >>> from layoutdsl import compile_plan
    >>> def plan(split):
    ...     return compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 256}, tp=2, rank=1,
    ...                         params={"qzeros": False, "g_idx": False, "split": split})
    >>> plan("k").reads()["linear.qweight"].ranges()
    ((4096, 8192),)
    >>> plan("n").reads()["linear.qweight"].strips
    (Strip(at=(128,), length=128, loops=((32, (256,)),)),)

The cost depends on the runs of the plan, not on extents or experts; only `Reads.ranges` and `Reads.size` list rows.
Everything counts bytes inside the tensor of one expert; `plan.experts` says which experts a rank needs. Nothing here is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from layoutdsl.codes import DTYPE_BITS, code_named
from layoutdsl.layout import Chain, Run, View, runs
from layoutdsl.plan import Lookup, Move, Plan, TensorInfo
from layoutdsl.strips import Strip, joined, tidy

NOWHERE = Run(-1, 0, 0, 0, ())


@dataclass(frozen=True, slots=True)
class Reads:
    """The bytes of one tensor that a plan reads. Strips may overlap, their ranges do not."""

    strips: tuple[Strip, ...]

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """[begin, end) of each stretch of bytes, in order, joined where they touch."""
        found: list[tuple[int, int]] = []
        for begin, end in sorted((at, at + strip.length) for strip in self.strips for (at,) in strip.starts()):
            if found and begin <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end)
            else:
                found.append((begin, end))
        return tuple(found)

    @property
    def size(self) -> int:
        """How many bytes these are."""
        return sum(end - begin for begin, end in self.ranges())


def reads(plan: Plan) -> Mapping[str, Reads]:
    """What the plan reads of each of its inputs: moves, operands, fills, checks, reductions and what passes through.

    A gathered axis counts whole, as does the order that it is gathered by; of a code below a byte its whole byte. A
    stored shape counts in the first of its dtypes: a file with a narrower one ends before.
    """
    found: dict[str, set[Strip]] = {info.name: set() for info in plan.inputs}
    for name, n, k in read(plan):
        bits = bits_of(plan.input[name])
        loops = ((count, (step * bits,)) for count, _, _, step in (*n.loops, *k.loops))
        found[name].add(tidy(((n.src + k.src) * bits,), bits, loops))
    return {
        name: Reads(joined(whole for strip in joined(strips) for whole in _bytes(strip)))
        for name, strips in found.items()
    }


def bits_of(info: TensorInfo) -> int:
    """Bits of each code of a tensor, as it is stored."""
    return DTYPE_BITS[info.dtypes[0]] if info.role == "weight_shape" else code_named(info.code).bits


def read(plan: Plan) -> Iterator[tuple[str, Run, Run]]:
    """Every box of codes that the plan reads: the tensor, and a run along n and along k."""
    for program in plan.programs:
        beside = (*program.operands, *([program.fill] if program.fill else []))
        for one in (program, *beside):
            yield from _moves(plan, one.sources, one.moves)
    for check in plan.checks:
        yield from _moves(plan, (check.tensor,), check.moves, check=True)
        if check.other:
            yield from _moves(plan, (check.other,), check.moves, check=True)
        if check.kind == "shape":
            yield _whole(plan, check.tensor)
    for reduction in plan.reductions:
        for name, at in reduction.globals:
            yield name, replace(NOWHERE, src=at), NOWHERE
    for name, _ in plan.passed:
        yield _whole(plan, name)


def _whole(plan: Plan, name: str) -> tuple[str, Run, Run]:
    return name, replace(NOWHERE, loops=((plan.input[name].codes, 1, 0, 1),)), NOWHERE


def _moves(
    plan: Plan, sources: tuple[str, ...], moves: Iterable[Move], *, check: bool = False
) -> Iterator[tuple[str, Run, Run]]:
    for move in moves:
        if move.kind != "data":
            continue
        for lookup in (move.gather_n, move.gather_k):
            if lookup is not None:
                yield _whole(plan, lookup.tensor)
        along_k = _along(plan, move.k, move.gather_k)
        for n in _along(plan, move.n, move.gather_n):
            for k in along_k:
                yield sources[0 if check else n.part], n, k


def _along(plan: Plan, axis: tuple[Run, ...], lookup: Lookup | None) -> list[Run]:
    """The runs of one axis; of a gathered one all that its order can lead to."""
    if lookup is None:
        return list(axis)
    found: list[Run] = []
    for part in sorted({run.part for run in axis}):
        offset, step, base = lookup.views[part]
        last = (plan.input[lookup.tensor].codes - 1) * step
        # Parts that alternate are all gathered by one order: what stands between the steps of one is another's.
        for run in runs(last + 1, View(Chain(lookup.digits), offset, 1, base), None, part=part):
            found.append(replace(run, src=run.dst, loops=tuple((c, dx, 0, dst) for c, dx, dst, _ in run.loops)))
    return found


def _bytes(strip: Strip) -> Iterator[Strip]:
    """The bytes that hold a strip of bits; where a loop steps by half bytes, every other row apart."""
    (begin,) = strip.at
    for at, (count, (step,)) in enumerate(strip.loops):
        if step % 8:
            rest = strip.loops[:at] + strip.loops[at + 1 :]
            yield from _bytes(tidy((begin,), strip.length, (*rest, (count - count // 2, (2 * step,)))))
            yield from _bytes(tidy((begin + step,), strip.length, (*rest, (count // 2, (2 * step,)))))
            return
    first, end = begin // 8, -(-(begin + strip.length) // 8)
    yield tidy((first,), end - first, ((count, (step // 8,)) for count, (step,) in strip.loops))
