"""What the cpu backend launches: each box of a program's moves as loops over words around one block of words.

Of a box' loops, those whose step on either side is smaller than a word are split into digits of two. They form the
block: words are read, codes change places among them, words are written. All other loops step over whole bytes. With
4-bit codes and words of 32 bits, GPTQ's `k = kw kp:8` to a kernel that has k's parity outermost in a word and takes the
other two bits of kp to different words is

    digit   source   target
    kp0     1        4         in a word on both sides
    kp1     2        32        in a source word; which of the target's
    kp2     4        64        in a source word; which of the target's
    kw0     n * 8    1         which of the source's words; in a target's
    n5      64 * 8   2         which of the source's words; in a target's

and three exchanges of one digit of the word's number with one digit of the place inside lead from left to right
(`Form.swaps`). A form says nothing of sizes: programs of other ranks, layers and shapes share it.

`launches` gives None for what is left to the torch backend: gathers, operands, reductions, recodes of wide codes,
elements that share a target, and boxes that do not fill whole bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Move, Plan, Program, TensorInfo

Loop = tuple[int, int, int]
"""(count, target step, source step)"""

WORDS = (64, 32, 16, 8)
MOST = 16
"""How many words a block has at most: as many as a processor has registers."""

LINE, CHUNK = 256, 512
"""Bytes that are read of a source row once it is touched, and that loops write together whose order is left alone."""

TABLES = ("rescale", "reciprocal", "offset")
"""Recodes that know nothing but the code: all codes of 8 and 16 bits are recoded beforehand."""

NIBBLES = ("fp8_nibbles", "plain_nibbles")
"""Recodes around a zero point; the kernels know that of 8 only."""


@dataclass(frozen=True)
class Form:
    """One kernel. how: move, fill (words of a constant), table (codes of `bits` looked up in a table of words), or a
    nibble recode on the way. swaps: (word, q, p) exchanges
    digit q of the word's number with digit p of the place in a word, (code, p, r) two digits of the place."""

    how: str
    bits: int
    word: int
    digits: int = 0
    swaps: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Launch:
    """A kernel and its numbers, in bytes: where it begins, loops (outermost first), and the step of each digit of the
    word's number before and after the swaps. `value`: the word that fills."""

    form: Form
    part: int
    dst: int
    src: int
    loops: tuple[Loop, ...]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    value: int = 0


def launches(plan: Plan, program: Program) -> tuple[Launch, ...] | None:
    """The launches that make an output, or None where the torch backend has to."""
    how, info = _how(program), plan.output[program.output]
    if how is None or program.operands or program.fill is not None or program.reduction:
        return None
    made: list[Launch] = []
    codes = 0
    for move in program.moves:
        if move.gather_n is not None or move.gather_k is not None or move.kind == "value":
            return None
        for n, k in product(move.n, move.k):
            launch = _launch(plan, program, how, move, n, k)
            if launch is None:
                return None
            made.append(launch)
            if not (n.join or k.join):
                codes += math.prod(loop[0] for side in (n, k) for loop in side.loops if loop[2])
    return tuple(made) if codes == info.codes else None


def _how(program: Program) -> str | None:
    recode = program.recode
    a, b = code_named(recode.source), code_named(recode.target)
    if recode.name == "copy" or (recode.name == "offset" and recode.power == 0 and a.bits == b.bits):
        return "move"
    if recode.name == "constant":
        return "fill"
    if recode.name in TABLES and a.bits in (8, 16) and b.bits >= 8:
        return "table"
    if recode.name in NIBBLES and (a.bias or (b.bias if recode.name == "fp8_nibbles" else 0)) == 8:
        return recode.name
    return None


def _launch(plan: Plan, program: Program, how: str, move: Move, n: Run, k: Run) -> Launch | None:
    info = plan.output[program.output]
    bits = code_named(info.code).bits
    fills = move.kind == "pad" or how == "fill"
    loops = [(count, dst, 0 if fills else src) for side in (n, k) for count, _, dst, src in side.loops]
    loops = [loop for loop in loops if loop[0] > 1 and loop[1:] != (0, 0)]
    if (n.join or k.join or any(dst == 0 for _, dst, _ in loops)) and not fills:
        return None
    loops = [loop for loop in loops if loop[1]]  # elements that share a target are filled once
    dst, src = n.dst + k.dst, 0 if fills else n.src + k.src
    if not _inside(info, dst, [(count, step) for count, step, _ in loops]):
        return None
    if fills:
        return _fill(move.pad if move.kind == "pad" else program.recode.power, bits, dst, loops)
    source = plan.input[program.sources[n.part]]
    if not _inside(source, src, [(count, step) for count, _, step in loops]):
        return None
    if how == "table":
        of = code_named(source.code).bits
        return Launch(Form(how, of, bits), n.part, dst * bits // 8, src * of // 8, _ordered(loops, bits, of))
    if code_named(source.code).bits != bits:
        return None
    for word in WORDS:
        found = _block(how, bits, word, loops) if word >= bits else None
        if found is not None and dst * bits % 8 == src * bits % 8 == 0:
            form, rest, reads, writes = found
            return Launch(form, n.part, dst * bits // 8, src * bits // 8, _ordered(rest, bits, bits), reads, writes)
    return None


def _inside(info: TensorInfo, start: int, loops: Sequence[tuple[int, int]]) -> bool:
    """Whether all addresses are in the tensor: the kernels do not look."""
    spans = [(count - 1) * step for count, step in loops]
    return start + sum(min(span, 0) for span in spans) >= 0 and start + sum(max(s, 0) for s in spans) < info.codes


def _fill(code: int, bits: int, dst: int, loops: list[Loop]) -> Launch | None:
    for word in WORDS:
        taken = _take(loops, [1 << p for p in range((word // bits).bit_length() - 1)], 1) if word >= bits else None
        if taken is not None and dst * bits % 8 == 0 and all(loop[1] * bits % 8 == 0 for loop in taken[1]):
            value = sum(code << at for at in range(0, word, bits))
            return Launch(Form("fill", 8, word), -1, dst * bits // 8, 0, _ordered(taken[1], bits, bits), value=value)
    return None


def _take(loops: list[Loop], steps: list[int], side: int) -> tuple[list[Loop], list[Loop]] | None:
    """Digits of two with these steps on a side (1: target, 2: source), split off the loops, and what is left."""
    rest, digits = list(loops), []
    for step in steps:
        at = next((at for at, loop in enumerate(rest) if loop[side] == step and loop[0] % 2 == 0), None)
        if at is None:
            return None
        count, dst, src = rest[at]
        digits.append((2, dst, src))
        rest[at : at + 1] = [(count // 2, 2 * dst, 2 * src)] if count > 2 else []
    return digits, rest


def _block(
    how: str, bits: int, word: int, loops: list[Loop]
) -> tuple[Form, list[Loop], tuple[int, ...], tuple[int, ...]] | None:
    """The block of words of this size: its form, the loops around it, and its steps in bytes; None where there is
    none."""
    steps = [1 << p for p in range((word // bits).bit_length() - 1)]
    taken = _take(loops, steps, 2)
    if taken is None:
        return None
    inside, rest = taken
    known = {digit[1] for digit in inside}
    taken = _take(rest, [step for step in steps if step not in known], 1)
    if taken is None:
        return None
    words, rest = taken
    around = [*(src for _, _, src in words), *(step for loop in rest for step in loop[1:])]
    if 1 << len(words) > MOST or any(step * bits % 8 for step in around):
        return None
    reads = tuple(src * bits // 8 for _, _, src in words)
    swaps = tuple(_swaps(inside, words, steps))
    if any(digit[1] * bits % 8 for digit in words):
        return None
    writes = tuple(dst * bits // 8 for _, dst, _ in words)
    return Form(how, bits, word, len(words), swaps), rest, reads, writes


def _swaps(inside: list[Loop], words: list[Loop], steps: list[int]) -> Iterator[tuple[str, int, int]]:
    """Exchanges until `inside` has the target's order; both lists are changed. Those with digits of the word's number
    come first: they cost half."""
    while wrong := [p for p, step in enumerate(steps) if inside[p][1] != step]:
        numbers = [digit[1] for digit in words]
        at = next((p for p in wrong if steps[p] in numbers), None)
        if at is not None:
            q = numbers.index(steps[at])
            inside[at], words[q] = words[q], inside[at]
            yield "word", q, at
        else:
            at = wrong[0]
            other = next(p for p in wrong if inside[p][1] == steps[at])
            inside[at], inside[other] = inside[other], inside[at]
            yield "code", at, other


def _ordered(loops: list[Loop], bits: int, of: int) -> tuple[Loop, ...]:
    """Loops in bytes, of target codes of `bits` and source codes of `of`: the smallest target step innermost, but along
    a source row that is read in pieces LINE bytes are read at once, while they are at hand: just outside of it."""
    rest = sorted(((count, dst * bits // 8, src * of // 8) for count, dst, src in loops), key=lambda loop: -loop[1])
    near = sum(loop[1] < CHUNK for loop in rest)
    outer, inner = rest[: len(rest) - near], rest[len(rest) - near :]
    along: list[Loop] = []
    for at, (count, dst, src) in enumerate(outer[:-1]):
        turns = max((t for t in range(1, LINE // src + 1) if count % t == 0), default=1) if 0 < src < LINE else 1
        if turns > 1:
            along.append((turns, dst, src))
            outer[at] = (count // turns, dst * turns, src * turns)
    return tuple(loop for loop in (*outer, *inner[:-1], *along, *inner[-1:]) if loop[0] > 1)
