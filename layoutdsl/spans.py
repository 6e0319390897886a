"""Which bytes of a plan's outputs are bytes of its inputs, unchanged: what can be transferred instead of converted.

A rank's half of the outputs of a GPTQ matrix of 64 outputs and 256 inputs are 32 words of 4 bytes in each of 32 rows,
256 bytes apart, which follow each other in the rank's own tensor:

    >>> from layoutdsl import compile_plan
    >>> plan = compile_plan("gptq", "gptq", "linear", {"n": 64, "k": 256}, tp=2, rank=1,
    ...                     params={"qzeros": False, "source.g_idx": False, "target.g_idx": True, "split": "n"})
    >>> found = plan.moves()
    >>> list(found.spans[0].pieces())[:2]
    [(128, 0, 128), (384, 128, 128)]
    >>> found.others
    (('linear.g_idx', 'no input has its values (recode `ramp`)'),)

The cost depends on the runs of the plan, not on extents or experts; only `pieces` lists rows. Everything counts bytes
inside the tensor of one expert: in place s of the outputs stands expert `plan.source_experts[s]` of the inputs. Nothing
here is refused, and nothing is looked at: a copy of codes refuses those that are not finite, a transfer does not, and
the plan's checks are left to whoever has the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from layoutdsl.codes import DTYPE_BITS, code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Plan, Program
from layoutdsl.reads import bits_of, read
from layoutdsl.strips import Strip, joined, tidy


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

    @property
    def strip(self) -> Strip:
        """The same as a strip of (source byte, target byte)."""
        loops = tuple((count, (source, target)) for count, source, target in self.loops)
        return Strip((self.source_byte, self.target_byte), self.length, loops)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """(source byte, target byte, length) of each row."""
        for source, target in self.strip.starts():
            yield source, target, self.length


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes of an output that come from no input, such as pads: `pattern` repeated over `length` bytes, again at every
    step of the loops (count, target step)."""

    target: str
    target_byte: int
    length: int
    pattern: bytes
    loops: tuple[tuple[int, int], ...] = ()

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(target byte, length) of each row."""
        loops = tuple((count, (step,)) for count, step in self.loops)
        for (target,) in Strip((self.target_byte,), self.length, loops).starts():
            yield target, self.length


@dataclass(frozen=True, slots=True)
class Moves:
    """A plan as bytes to transfer. Spans and constants together write every byte of their outputs once; `others` are
    the outputs that have to be converted, each with the reason."""

    spans: tuple[Span, ...]
    constants: tuple[Constant, ...]
    others: tuple[tuple[str, str], ...]


def moves(plan: Plan) -> Moves:
    """The outputs that are whole bytes of inputs, unchanged, and constants such as pads; and those that are not."""
    spans: list[Span] = []
    constants: list[Constant] = []
    others: list[tuple[str, str]] = []
    for program in plan.programs:
        found = _of_program(plan, program)
        if isinstance(found, str):
            others.append((program.output, found))
        else:
            spans += found[0]
            constants += found[1]
    for source, target in plan.passed:
        if plan.output[target].role == "k_perm":
            others.append((target, f"it is the sorted order of `{source}`"))
        else:
            spans.append(Span(source, 0, target, 0, plan.input[source].codes * bits_of(plan.input[source]) // 8))
    return Moves(tuple(spans), tuple(constants), tuple(others))


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
    found = moves(plan)
    made = {span.target for span in found.spans} - {constant.target for constant in found.constants}
    moved = tuple(span for span in found.spans if span.target in made)
    left = plan.output.keys() - made
    if not left and not plan.checks:
        return moved, None
    rest = replace(
        plan,
        programs=tuple(program for program in plan.programs if program.output in left),
        passed=tuple((source, target) for source, target in plan.passed if target in left),
        outputs=tuple(info for info in plan.outputs if info.name in left),
    )
    # A check names its tensors even on a rank that holds none of their elements.
    needed = {name for name, _, _ in read(rest)} | {check.tensor for check in rest.checks}
    needed |= {check.other for check in rest.checks}
    return moved, replace(rest, inputs=tuple(info for info in plan.inputs if info.name in needed))


# --- one output -------------------------------------------------------------------------------------------------------


def _of_program(plan: Plan, program: Program) -> tuple[list[Span], list[Constant]] | str:
    """One output as spans and constants; in words why it is not."""
    info = plan.output[program.output]
    if program.recode.name == "shape":
        size = DTYPE_BITS[info.dtypes[0]] // 8
        values = b"".join(value.to_bytes(size, "little") for value in program.values)
        return [], [Constant(program.output, 0, len(values), values)]
    if reason := _changes(program):
        return reason
    spans: list[Span] = []
    for name, strips in _moved(program, bits_of(info)).items():
        source = plan.input[name]
        if (bool(source.experts), source.shared) != (bool(info.experts), info.shared):
            return f"all experts have one `{name}`, or one of this"
        for strip in joined(strips):
            if not _is_bytes(strip):
                return f"its bytes are not those of `{name}`"
            (begin, into), length = (at // 8 for at in strip.at), strip.length // 8
            loops = tuple((count, source // 8, target // 8) for count, (source, target) in strip.loops)
            spans.append(Span(name, begin, program.output, into, length, loops))
    constants: list[Constant] = []
    for pattern, strips in _filled(program, bits_of(info)).items():
        for strip in joined(strips):
            if not _is_bytes(strip):
                return "its pads are no whole bytes"
            loops = tuple((count, step // 8) for count, (step,) in strip.loops)
            constants.append(Constant(program.output, strip.at[0] // 8, strip.length // 8, pattern, loops))
    return spans, constants


def _changes(program: Program) -> str:
    """Why the codes of an output are not codes that stand in an input; nothing where they are."""
    recode, kinds = program.recode, {move.kind for move in program.moves}
    same = code_named(recode.source).bits == code_named(recode.target).bits
    unchanged = same and (recode.name == "copy" or (recode.name == "offset" and recode.power == 0))
    if "data" in kinds and (not unchanged or program.operands or program.reduction):
        return f"its codes change (recode `{recode.name}`)"
    if "value" in kinds and recode.name != "constant":
        return f"no input has its values (recode `{recode.name}`)"
    if program.fill:
        return "its pads repeat zero points"
    for move in program.moves:
        for lookup in (move.gather_n, move.gather_k):
            if lookup is not None:
                return f"its codes are sorted by `{lookup.tensor}`"
        if move.kind == "data" and any(_compares(run) for run in (*move.n, *move.k)):
            return "several codes have one place, and must be equal"
    return ""


def _compares(run: Run) -> bool:
    """Whether source elements share a target and so must be equal."""
    return run.join or any(src and not dst for _, _, dst, src in run.loops)


def _moved(program: Program, bits: int) -> dict[str, set[Strip]]:
    """What comes from sources, by their names, in strips of bits on both sides."""
    found: dict[str, set[Strip]] = {}
    for move in program.moves:
        for n, k in product(move.n, move.k) if move.kind == "data" else ():
            loops = ((count, (src * bits, dst * bits)) for count, _, dst, src in (*n.loops, *k.loops))
            strip = tidy(((n.src + k.src) * bits, (n.dst + k.dst) * bits), bits, loops)
            found.setdefault(program.sources[n.part], set()).add(strip)
    return found


def _filled(program: Program, bits: int) -> dict[bytes, set[Strip]]:
    """What comes from no source, by the bytes that repeat, in strips of bits."""
    found: dict[bytes, set[Strip]] = {}
    for move in program.moves:
        code = move.pad if move.kind == "pad" else program.recode.power
        pattern = (code if bits >= 8 else code * 0x11).to_bytes(max(bits // 8, 1), "little")
        for n, k in product(move.n, move.k) if move.kind != "data" else ():
            loops = ((count, (dst * bits,)) for count, _, dst, _ in (*n.loops, *k.loops))
            found.setdefault(pattern, set()).add(tidy(((n.dst + k.dst) * bits,), bits, loops))
    return found


def _is_bytes(strip: Strip) -> bool:
    return not any(number % 8 for number in (*strip.at, strip.length, *(step for _, of in strip.loops for step in of)))
