"""Boxes as exchanges of codes between whole words, for torch. Told without torch.

Of a box' loops, those whose step on either side is smaller than a word are split into digits of two. They form a block:
words are read, codes change places among them, words are written. All other loops step over whole bytes. With 4-bit
codes and words of 32 bits, GPTQ's `k = kw kp:8` to a kernel that has k's parity outermost in a word and takes the other
two bits of kp to different words is

    digit   source   target
    kp0     1        4         in a word on both sides
    kp1     2        32        in a source word; which of the target's
    kp2     4        64        in a source word; which of the target's
    kw0     n * 8    1         which of the source's words; in a target's
    n5      64 * 8   2         which of the source's words; in a target's

and three exchanges of one digit of the word's number with one digit of the place inside lead from left to right. A
digit of the word's number costs nothing to exchange with another: words only change names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from layoutdsl.backends.torch.boxes import Box, Loop
from layoutdsl.layout import Chain, View
from layoutdsl.plan import Lookup, Move

WORDS = (64, 32, 16, 8)
"""Bits of a word, the best first."""

MOST = 6
"""Digits of the word's number at most."""

LINE, CHUNK = 256, 512
"""Bytes that are read of a source row once it is touched, and that loops write together whose order is left alone."""

Swap = tuple[str, int, int]
"""("word", q, p) exchanges digit q of the word's number with digit p of the place in a word, ("code", p, r) two digits
of the place."""


@dataclass(frozen=True)
class Launch:
    """A box of codes of so many bits, in words: one block for each element of `around`, which counts in bytes.

    `digits` are those of the word's number, in bytes, `inside` those of the place in a word, in codes, both as the
    source has them and the least first; `writes` are the target steps of the number's digits once the swaps are done.
    """

    bits: int
    word: int
    around: Box
    digits: tuple[Loop, ...]
    inside: tuple[Loop, ...]
    writes: tuple[int, ...]
    swaps: tuple[Swap, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        """The source steps of the number's digits."""
        return tuple(digit[4] for digit in self.digits)

    @property
    def unit(self) -> int:
        """Bytes of which all addresses are multiples."""
        steps = [step for loop in self.around.loops for step in loop[3:]]
        return math.gcd(self.around.dst, *self.around.src, *self.reads, *self.writes, *steps)


def lower(box: Box, bits: int) -> Launch | None:
    """The launch that moves the codes of a box, of so many bits on both sides; None where whole bytes do not do it."""
    loops = [loop for loop in box.loops if loop[1] > 1]
    if box.join or any(ddst <= 0 or dsrc < 0 for *_, ddst, dsrc in loops) or box.dst * bits % 8:
        return None
    found = (_launch(replace(box, loops=tuple(loops)), bits, word) for word in WORDS if word >= bits)
    return next((launch for launch in found if launch is not None), None)


def _launch(box: Box, bits: int, word: int) -> Launch | None:
    steps = [1 << p for p in range((word // bits).bit_length() - 1)]
    taken = _take(box.loops, steps, 4)
    if taken is None:
        return None
    inside, rest = taken
    known = {digit[3] for digit in inside}
    taken = _take(rest, [step for step in steps if step not in known], 3)
    if taken is None:
        return None
    words, rest = taken
    steps_around = [sum(box.src), *(loop[4] for loop in words), *(step for loop in rest for step in loop[3:])]
    if len(words) > MOST or any(step * bits % 8 for step in steps_around):
        return None
    digits, places = tuple(words), tuple(inside)
    swaps = tuple(_swaps(inside, words, steps))
    if any(digit[3] * bits % 8 for digit in words):
        return None
    writes = tuple(digit[3] * bits // 8 for digit in words)
    around = replace(box, dst=box.dst * bits // 8, src=(sum(box.src) * bits // 8, 0), loops=_ordered(rest, bits))
    return Launch(bits, word, around, _in_bytes(digits, bits), places, writes, swaps)


def _take(loops: Sequence[Loop], steps: Sequence[int], column: int) -> tuple[list[Loop], list[Loop]] | None:
    """Digits of two with these steps (column 3: target, 4: source), split off the loops, and what is left."""
    rest, digits = list(loops), []
    for step in steps:
        at = next((at for at, loop in enumerate(rest) if loop[column] == step and loop[1] % 2 == 0), None)
        if at is None:
            return None
        axis, count, dx, ddst, dsrc = rest[at]
        digits.append((axis, 2, dx, ddst, dsrc))
        rest[at : at + 1] = [(axis, count // 2, 2 * dx, 2 * ddst, 2 * dsrc)] if count > 2 else []
    return digits, rest


def _swaps(inside: list[Loop], words: list[Loop], steps: Sequence[int]) -> Iterator[Swap]:
    """Exchanges until `inside` has the target's order; both lists are changed. Those with digits of the word's number
    come first: they cost half."""
    while wrong := [p for p, step in enumerate(steps) if inside[p][3] != step]:
        numbers = [digit[3] for digit in words]
        at = next((p for p in wrong if steps[p] in numbers), None)
        if at is not None:
            q = numbers.index(steps[at])
            inside[at], words[q] = words[q], inside[at]
            yield "word", q, at
        else:
            at = wrong[0]
            other = next(p for p in wrong if inside[p][3] == steps[at])
            inside[at], inside[other] = inside[other], inside[at]
            yield "code", at, other


def _in_bytes(loops: Sequence[Loop], bits: int) -> tuple[Loop, ...]:
    return tuple((axis, count, dx, dst * bits // 8, src * bits // 8) for axis, count, dx, dst, src in loops)


def _ordered(loops: Sequence[Loop], bits: int) -> tuple[Loop, ...]:
    """In bytes: the largest target step outermost, so that pieces are stretches of the target. But along a source row
    that is read in pieces LINE bytes are read at once, while they are at hand: just outside of the innermost loop."""
    rest = sorted(_in_bytes(loops, bits), key=lambda loop: -loop[3])
    near = sum(loop[3] < CHUNK for loop in rest)
    outer, inner = rest[: len(rest) - near], rest[len(rest) - near :]
    along: list[Loop] = []
    for at, (axis, count, dx, dst, src) in enumerate(outer[:-1]):
        turns = max((t for t in range(1, LINE // src + 1) if count % t == 0), default=1) if 0 < src < LINE else 1
        if turns > 1:
            along.append((axis, turns, dx, dst, src))
            outer[at] = (axis, count // turns, dx * turns, dst * turns, src * turns)
    return tuple(loop for loop in (*outer, *inner[:-1], *along, *inner[-1:]) if loop[1] > 1)


def halved(launch: Launch) -> Launch:
    """The same launch on words of half the size: which half of a word becomes a digit of the word's number."""
    number, top = len(launch.digits), len(launch.inside) - 1
    names, swaps = list(range(number + 1)), []
    for kind, a, b in launch.swaps:
        if kind == "word" and b == top:
            names[a], names[number] = names[number], names[a]
        elif kind == "word":
            swaps.append((kind, names[a], b))
        elif b == top:
            swaps.append(("word", names[number], a))
        else:
            swaps.append((kind, a, b))
    step = launch.word // 16
    writes = dict(zip(names, (*launch.writes, step)))
    return replace(
        launch,
        word=launch.word // 2,
        digits=(*launch.digits, (*launch.inside[top][:4], step)),
        inside=launch.inside[:top],
        writes=tuple(writes[name] for name in range(number + 1)),
        swaps=tuple(swaps),
    )


def straight(move: Move, box: Box) -> Box | None:
    """A box of a gathered move, its source the sorted tensor; None where it is not affine there."""
    for axis, lookup in enumerate((move.gather_n, move.gather_k)):
        if lookup is not None and box is not None:
            box = _through(box, axis, lookup)
    return box


def _through(box: Box, axis: int, lookup: Lookup) -> Box | None:
    """The positions along one axis become addresses, their loops cut where a digit of the layout carries."""
    offset, step, base = lookup.views[box.part if axis == 0 else 0]
    weights = sorted((weight for weight, _, _ in lookup.digits if weight > 1), reverse=True)
    cut = [part for loop in box.loops for part in (_cut(loop, step, weights) if loop[0] == axis else (loop,))]
    own = [(count, step * dsrc) for of, count, _, _, dsrc in cut if of == axis]
    first = box.src[axis]
    for weight in weights:
        low = sum((count - 1) * by for count, by in own if by < weight)
        if (offset + step * first) % weight + low >= weight or any(by > weight and by % weight for _, by in own):
            return None
    view = View(Chain(lookup.digits), offset, step, base)
    at = view.at(first)
    loops = ((*loop[:4], view.at(first + loop[4]) - at) if loop[0] == axis else loop for loop in cut)
    src = (at, box.src[1]) if axis == 0 else (box.src[0], at)
    return replace(box, src=src, loops=tuple(loops))


def _cut(loop: Loop, step: int, weights: list[int]) -> Iterator[Loop]:
    """A loop over positions, cut at the weights that it passes where they are whole steps of it."""
    axis, count, dx, ddst, dsrc = loop
    for weight in weights:
        turns = weight // (step * dsrc) if dsrc else 0
        if 1 < turns < count and turns * step * dsrc == weight and count % turns == 0:
            yield axis, count // turns, turns * dx, turns * ddst, turns * dsrc
            count = turns
    yield axis, count, dx, ddst, dsrc
