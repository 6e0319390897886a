"""Which bytes of its source tensors a plan needs, and which of them it only moves: what a loader has to fetch.

Half of the inputs of a GPTQ matrix of 64 outputs and 256 inputs, in words of 8 inputs stored `kw n`, are the second
half of the file's tensor; half of its outputs are 32 words of 4 bytes in each of 32 rows, 256 bytes apart:

    >>> from layoutdsl import compile_plan
    >>> def plan(split, target):
    ...     return compile_plan("gptq", target, "linear", {"n": 64, "k": 256}, tp=2, rank=1,
    ...                         params={"qzeros": False, "g_idx": False, "split": split})
    >>> plan("k", "marlin_int4_a16").reads()["linear.qweight"].ranges()
    ((4096, 8192),)
    >>> plan("n", "marlin_int4_a16").reads()["linear.qweight"].strips
    (Strip(at=(128,), length=128, loops=((32, (256,)),)),)
    >>> list(spans(plan("n", "gptq"))[0].pieces())[:2]
    [(128, 0, 128), (384, 128, 128)]

A strip stands for all its rows, and strips are joined without listing them: the cost depends on the runs of the plan,
not on extents or experts. Only `Reads.ranges`, `Reads.size` and `Span.pieces` list rows. Everything counts bytes inside
the tensor of one expert; `plan.experts` says which experts a rank needs. Nothing here is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from layoutdsl.codes import DTYPE_BITS, code_named
from layoutdsl.layout import Chain, Run, View, runs
from layoutdsl.plan import Lookup, Move, Plan, Program, TensorInfo
from layoutdsl.recodes import Recode

Place = tuple[int, ...]
"""An address per side: of the source alone, or of source and target."""

Loops = tuple[tuple[int, Place], ...]
"""(count, step per side), the least step first."""

NOWHERE = Run(-1, 0, 0, 0, ())


@dataclass(frozen=True, slots=True, order=True)
class Strip:
    """`length` neighbours from `at` on, again at every step of the loops; with two sides, neighbours on both."""

    at: Place
    length: int
    loops: Loops = ()

    def starts(self) -> Iterator[Place]:
        """Where each row begins, the innermost loop turning first."""
        return zip(*map(self._column, range(len(self.at))))

    def _column(self, side: int) -> list[int]:
        found = [self.at[side]]
        for count, steps in reversed(self.loops):
            moves = [i * steps[side] for i in range(count)]
            found = [at + move for at in found for move in moves]
        return found


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


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of an output that are bytes of an input: `length` of them, again at every step of the loops (count, source
    step, target step)."""

    source: str
    source_byte: int
    target: str
    target_byte: int
    length: int
    loops: tuple[tuple[int, int, int], ...] = ()

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """(source byte, target byte, length) of each row."""
        loops = tuple((count, (source, target)) for count, source, target in self.loops)
        for source, target in Strip((self.source_byte, self.target_byte), self.length, loops).starts():
            yield source, target, self.length


# --- what is read -----------------------------------------------------------------------------------------------------


def reads(plan: Plan) -> Mapping[str, Reads]:
    """What the plan reads of each of its inputs: moves, operands, fills, checks, reductions and what passes through.

    A gathered axis counts whole, as does the order that it is gathered by; of a code below a byte its whole byte. A
    stored shape counts in the first of its dtypes: a file with a narrower one ends before.
    """
    found: dict[str, set[Strip]] = {info.name: set() for info in plan.inputs}
    for name, n, k in _read(plan):
        bits = _bits(plan.input[name])
        loops = ((count, (step * bits,)) for count, _, _, step in (*n.loops, *k.loops))
        found[name].add(_tidy(((n.src + k.src) * bits,), bits, loops))
    return {
        name: Reads(_joined(whole for strip in _joined(strips) for whole in _bytes(strip)))
        for name, strips in found.items()
    }


def _bits(info: TensorInfo) -> int:
    return DTYPE_BITS[info.dtypes[0]] if info.role == "weight_shape" else code_named(info.code).bits


def _read(plan: Plan) -> Iterator[tuple[str, Run, Run]]:
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


# --- what is only moved -----------------------------------------------------------------------------------------------


def spans(plan: Plan) -> tuple[Span, ...] | None:
    """The plan as bytes to copy, for one expert; None where it does anything else (see `split`)."""
    moved, rest = split(plan)
    return moved if rest is None else None


def split(plan: Plan) -> tuple[tuple[Span, ...], Plan | None]:
    """The outputs that are whole bytes of inputs, unchanged, as spans; and a plan that makes all others.

    In that plan are the recodes, pads, gathers, bytes put together from parts of others, and values that no input has,
    such as a stored shape; also all checks. It reads only what these need, and is None where nothing is left. A copy
    refuses codes that are not finite, which spans do not look at: leave it to the plan that comes after.
    """
    moved: list[Span] = []
    left: list[Program] = []
    for program in plan.programs:
        found = _moved(plan, program)
        if found is None:
            left.append(program)
        else:
            moved += found
    passed: list[tuple[str, str]] = []
    for source, target in plan.passed:
        if plan.output[target].role == "k_perm":
            passed.append((source, target))
        else:
            length = plan.input[source].codes * _bits(plan.input[source]) // 8
            moved.append(Span(source, 0, target, 0, length))
    if not left and not passed and not plan.checks:
        return tuple(moved), None
    made = {program.output for program in left} | {target for _, target in passed}
    outputs = tuple(info for info in plan.outputs if info.name in made)
    rest = replace(plan, programs=tuple(left), passed=tuple(passed), outputs=outputs)
    # A check names its tensors even on a rank that holds none of their elements.
    needed = {name for name, _, _ in _read(rest)} | {check.tensor for check in rest.checks}
    needed |= {check.other for check in rest.checks}
    return tuple(moved), replace(rest, inputs=tuple(info for info in plan.inputs if info.name in needed))


def _moved(plan: Plan, program: Program) -> list[Span] | None:
    """The spans of one output; None where it is not whole bytes of inputs, unchanged."""
    if not _unchanged(program.recode) or program.operands or program.fill or program.reduction:
        return None
    if any(move.kind != "data" or move.gather_n or move.gather_k or _compares(move) for move in program.moves):
        return None
    info = plan.output[program.output]
    bits = _bits(info)
    found: dict[str, set[Strip]] = {}
    for move in program.moves:
        for n in move.n:
            for k in move.k:
                loops = ((count, (src * bits, dst * bits)) for count, _, dst, src in (*n.loops, *k.loops))
                at = ((n.src + k.src) * bits, (n.dst + k.dst) * bits)
                found.setdefault(program.sources[n.part], set()).add(_tidy(at, bits, loops))
    moved: list[Span] = []
    for name, strips in found.items():
        source = plan.input[name]
        if (bool(source.experts), source.shared) != (bool(info.experts), info.shared):
            return None
        for strip in _joined(strips):
            numbers = (*strip.at, strip.length, *(step for _, steps in strip.loops for step in steps))
            if any(number % 8 for number in numbers):
                return None
            begin, into, length = (number // 8 for number in numbers[:3])
            loops = tuple((count, source // 8, target // 8) for count, (source, target) in strip.loops)
            moved.append(Span(name, begin, program.output, into, length, loops))
    return moved


def _unchanged(recode: Recode) -> bool:
    """Whether codes stay what they are: copied, or zero points of one convention on both sides."""
    same = code_named(recode.source).bits == code_named(recode.target).bits
    return same and (recode.name == "copy" or (recode.name == "offset" and recode.power == 0))


def _compares(move: Move) -> bool:
    """Whether source elements share a target and so must be equal."""
    return any(run.join or any(src and not dst for _, _, dst, src in run.loops) for run in (*move.n, *move.k))


# --- strips -----------------------------------------------------------------------------------------------------------


def _tidy(at: Place, length: int, loops: Iterable[tuple[int, Place]]) -> Strip:
    """A strip with as few loops as will do: neighbours go into its length, loops that continue one another are one."""
    kept: list[tuple[int, Place]] = []
    for count, steps in sorted(loops, key=lambda loop: loop[1]):
        if count == 1 or not any(steps):
            continue
        if len(set(steps)) == 1 and steps[0] <= length:
            length += (count - 1) * steps[0]
        elif kept and steps == tuple(kept[-1][0] * step for step in kept[-1][1]):
            kept[-1] = kept[-1][0] * count, kept[-1][1]
        else:
            kept.append((count, steps))
    return Strip(at, length, tuple(kept))


def _joined(strips: Iterable[Strip]) -> tuple[Strip, ...]:
    """The same elements in as few strips as the two rules below find."""
    found = set(strips)
    while True:
        fewer = _continued(_touching(found))
        if len(fewer) == len(found):
            return tuple(sorted(fewer))
        found = fewer


def _touching(strips: Iterable[Strip]) -> set[Strip]:
    """Strips with the same loops whose rows touch, on all sides alike, become one."""
    alike: dict[tuple[Loops, Place], list[Strip]] = {}
    for strip in sorted(strips):
        alike.setdefault((strip.loops, tuple(a - strip.at[0] for a in strip.at)), []).append(strip)
    found: set[Strip] = set()
    for (loops, _), group in alike.items():
        at, end = group[0].at, group[0].at[0]
        for strip in group:
            if strip.at[0] > end:
                found.add(_tidy(at, end - at[0], loops))
                at = strip.at
            end = max(end, strip.at[0] + strip.length)
        found.add(_tidy(at, end - at[0], loops))
    return found


def _continued(strips: set[Strip]) -> set[Strip]:
    """A strip, or one row, that begins where a loop of another one would step next, becomes one with it."""
    found = set(strips)
    at_place: dict[tuple[Place, int], list[Strip]] = {}
    for strip in strips:
        at_place.setdefault((strip.at, strip.length), []).append(strip)
    for strip in sorted(strips):
        for at in range(len(strip.loops)):
            if strip not in found:
                break
            count, steps = strip.loops[at]
            rest = strip.loops[:at] + strip.loops[at + 1 :]
            end = tuple(a + count * step for a, step in zip(strip.at, steps))
            start = tuple(a - step for a, step in zip(strip.at, steps))
            for other in at_place.get((end, strip.length), ()):
                turns = _turns(other, rest, steps)
                if turns and other in found:
                    found -= {strip, other}
                    found.add(_tidy(strip.at, strip.length, (*rest, (count + turns, steps))))
                    break
            else:
                row = Strip(start, strip.length, rest)
                if row in found:
                    found -= {strip, row}
                    found.add(_tidy(start, strip.length, (*rest, (count + 1, steps))))
    return found


def _turns(strip: Strip, rest: Loops, steps: Place) -> int:
    """How often a strip takes these steps, its other loops being `rest`: 1 for a single row, 0 if they are others."""
    if strip.loops == rest:
        return 1
    own = [loop for loop in strip.loops if loop[1] == steps]
    return own[0][0] if own and tuple(loop for loop in strip.loops if loop[1] != steps) == rest else 0


def _bytes(strip: Strip) -> Iterator[Strip]:
    """The bytes that hold a strip of bits; where a loop steps by half bytes, every other row apart."""
    (begin,) = strip.at
    for at, (count, (step,)) in enumerate(strip.loops):
        if step % 8:
            rest = strip.loops[:at] + strip.loops[at + 1 :]
            yield from _bytes(_tidy((begin,), strip.length, (*rest, (count - count // 2, (2 * step,)))))
            yield from _bytes(_tidy((begin + step,), strip.length, (*rest, (count // 2, (2 * step,)))))
            return
    first, end = begin // 8, -(-(begin + strip.length) // 8)
    yield _tidy((first,), end - first, ((count, (step // 8,)) for count, (step,) in strip.loops))
