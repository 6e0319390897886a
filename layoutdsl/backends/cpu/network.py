"""Blocks of codes that change places inside vectors: which digits of a move they hold, and the exchanges between them.

Loops of a move are split into digits of two. Those whose step is small on either side form a block: vectors are read,
codes change places among them, vectors are written. With 4-bit codes, GPTQ's `k = kw kp:8`, `n` beside it, to a kernel
that has k's parity outermost in a word and the rest of n and k elsewhere is

    digit   source step   target step
    kp0     1             4             in a vector on both sides
    kp1     2             128           in a source vector; which of the target's
    kw0     n * 8         1             which of the source's vectors; in a target's

and operations on digits (routes.py) lead from left to right. A granule is what is read, or written, of one address:
a vector, or a part of one where no more lies together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layoutdsl.backends.cpu.routes import Op, State, route

BITS = 256
"""Of a vector."""

REGISTERS = 4
"""A block has at most 2^4 vectors: as many as most processors have registers."""

WIDER = 3
"""One of less than 2^3 takes two lines of the cache that lie together, if it can: fewer pages are written in turn."""

PIECE = 32
"""Bits of the smallest granule, but for codes that are recoded as they are read: those may be read one by one."""

Loop = tuple[int, int, int, int]
"""(axis, count, target step, source step) in codes."""


@dataclass(frozen=True)
class Digit:
    """A digit of two of one axis (0 is n, 1 is k), with its steps in codes."""

    axis: int
    dst: int
    src: int


@dataclass(frozen=True)
class Network:
    """What is done in a block. Digits are numbered as the source has them: first those of the place in a vector, then
    those of the vector's number. `axes` says which axis each is of; `reads` and `writes` count those in a granule.
    line: the digit that makes two granules of the target lie together; -1 where none does."""

    bits: int
    reads: int
    writes: int
    axes: tuple[int, ...]
    ops: tuple[Op, ...]
    line: int = -1

    @property
    def inside(self) -> int:
        """How many digits the place in a vector has."""
        return (BITS // self.bits).bit_length() - 1

    @property
    def vectors(self) -> int:
        return 1 << len(self.axes) - self.inside

    @property
    def written(self) -> list[int]:
        """The digits in the order in which the target has them."""
        digits = tuple(range(len(self.axes)))
        state = State(digits[: self.inside], digits[self.inside :])
        for op in self.ops:
            state = state.after(op, self.bits)
        return [*state.inside, *state.words]


@dataclass(frozen=True)
class Block:
    """A network and the digits that it was made for, in its order."""

    network: Network
    digits: tuple[Digit, ...]


def blocks(bits: int, loops: Sequence[Loop], least: int = PIECE) -> Iterator[Block]:
    """The blocks that loops can be cut into, the best first: those with the largest granules, of `least` bits where
    they are read."""
    inside = _digits_in(BITS, bits)
    for missing in range(2 * inside + 1):
        for unwritten in range(missing + 1):
            reads, writes = inside - missing + unwritten, inside - unwritten
            if min(reads, writes) >= 0 and bits << reads >= least and bits << writes >= PIECE:
                found = _block(bits, reads, writes, loops)
                if found is not None:
                    yield found


def _digits_in(width: int, bits: int) -> int:
    return (width // bits).bit_length() - 1


def _block(bits: int, reads: int, writes: int, loops: Sequence[Loop]) -> Block | None:
    rest, inside = list(loops), _digits_in(BITS, bits)
    granule = [taken(rest, 1 << at, "src") for at in range(reads)]
    known = {digit.dst for digit in granule if digit is not None}
    others = [taken(rest, 1 << at, "dst") for at in range(writes) if 1 << at not in known]
    if None in granule or None in others:
        return None
    digits, words = [digit for digit in granule if digit], [digit for digit in others if digit]
    room = inside + REGISTERS - len(digits) - len(words)
    line = next((digit for digit in digits if digit.dst == 1 << writes), None)
    if line is None and room > 0:
        line = taken(rest, 1 << writes, "dst")
        words += [line] if line is not None else []
        longer = [loop for loop in rest if loop[1] % 2 == 0 and loop[2] == 2 << writes != loop[3]]
        if line is not None and longer and len(digits) + len(words) < inside + WIDER:
            words += [one for one in (taken(rest, 2 << writes, "dst"),) if one is not None]
    while len(digits) + len(words) < inside:
        more = smallest(rest)
        if more is None:
            return None
        words.append(more)
    if room < 0:
        return None
    for at in range(reads, inside):
        wanted = next((word for word in words if word.dst == 1 << at and at < writes), None)
        free = [word for word in words if not word.dst < 1 << writes] if at >= writes else []
        chosen = wanted or (free or words)[0]
        words.remove(chosen)
        digits.append(chosen)
    ordered = (*digits, *words)
    numbers = {digit.dst: at for at, digit in enumerate(ordered)}
    start = State(tuple(range(inside)), tuple(range(inside, len(ordered))))
    ops = route(bits, start, tuple(numbers[1 << at] for at in range(writes)))
    axes = tuple(digit.axis for digit in ordered)
    return Block(Network(bits, reads, writes, axes, ops, -1 if line is None else ordered.index(line)), ordered)


def taken(rest: list[Loop], step: int, side: str) -> Digit | None:
    """A digit with that step, split off the loops."""
    for at, (axis, count, dst, src) in enumerate(rest):
        if (dst if side == "dst" else src) == step and count > 1:
            rest[at] = (axis, count // 2, 2 * dst, 2 * src)
            return Digit(axis, dst, src)
    return None


def smallest(rest: list[Loop]) -> Digit | None:
    """The digit with the smallest target step that is left."""
    left = [loop for loop in rest if loop[1] > 1]
    return taken(rest, min(left, key=lambda loop: loop[2])[2], "dst") if left else None
