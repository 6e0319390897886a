"""The cheapest way to bring digits of codes to their places inside vectors.

A vector has two lanes of 128 bits. What processors do in an instruction or a few to digits of a code's place in one, by
the width of a digit, which is the bits from a code to the next of it:

    merge       the digit of the vectors' number comes in at one of the widths 8 .. 64; those from there up to 32 move
                up by one, and that of 64 becomes the digit of the number (`unpack` on x86, `zip` on ARM)
    exchange    the digit of the number and that of one width change places
    arrange     the digits of 8 .. 64 change places among each other
    swap        two digits of the place change places

With bytes in two vectors, digits 0 1 2 3 4 of the place and 5 of the number, 5 0 1 2 4 is one merge away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count

MERGE, ARRANGE, SWAP, SWAP_LANES, SWAP_NIBBLES = 1, 1, 1, 2, 5
EXCHANGE = {4: 3, 8: 3, 16: 2, 32: 2, 64: 1, 128: 1}
"""Instructions for a vector; an exchange by the digit's width, a swap by whether it crosses lanes or opens bytes."""


@dataclass(frozen=True)
class Op:
    """kind: merge, exchange, arrange or swap. digit: which of the vectors' number. place: the width of the digit of the
    place; of a swap, `other` is that of the other one. order: of an arrange, for each digit from 8 bits on, which of
    them it was."""

    kind: str
    digit: int = 0
    place: int = 0
    other: int = 0
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    """Which digit each of the place and of the vectors' number is."""

    inside: tuple[int, ...]
    words: tuple[int, ...]

    def after(self, op: Op, bits: int) -> State:
        inside, words, lanes = list(self.inside), list(self.words), _lanes(bits, len(self.inside))
        if op.kind == "arrange":
            inside[lanes.start : lanes.stop] = [inside[lanes.start + one] for one in op.order]
            return State(tuple(inside), self.words)
        at = (op.place // bits).bit_length() - 1
        if op.kind == "swap":
            other = (op.other // bits).bit_length() - 1
            inside[at], inside[other] = inside[other], inside[at]
        elif op.kind == "exchange":
            inside[at], words[op.digit] = words[op.digit], inside[at]
        else:
            inside.insert(at, words[op.digit])
            words[op.digit] = inside.pop(lanes.stop)
        return State(tuple(inside), tuple(words))


@cache
def _lanes(bits: int, inside: int) -> range:
    """The digits of the place whose width is 8 .. 64."""
    found = [at for at in range(inside) if 8 <= bits << at <= 64]
    return range(found[0], found[-1] + 1)


@lru_cache(maxsize=1024)
def route(bits: int, start: State, wanted: tuple[int, ...]) -> tuple[Op, ...]:
    """Operations on codes of so many bits after which the first digits of the place are those wanted."""
    least, known, number = _Least(bits, start, wanted), {_key(start): 0}, count()
    left: list[tuple[int, int, int, State, tuple[Op, ...]]] = [(least(start), 0, next(number), start, ())]
    while left:
        _, done, _, state, ops = heapq.heappop(left)  # of those that need as little, that which has come farthest
        if state.inside[: len(wanted)] == wanted:
            return ops
        for step, op in least.moves(state):
            then, total = state.after(op, bits), step - done
            if known.get(_key(then), total + 1) > total:
                known[_key(then)] = total
                heapq.heappush(left, (total + least(then), -total, next(number), then, (*ops, op)))
    raise AssertionError("every digit can be exchanged or swapped to its place")


def _key(state: State) -> tuple[object, ...]:
    """Which digit of the vectors' number is which does not count."""
    return state.inside, frozenset(state.words)


class _Least:
    """What a state needs at least, and the operations that may lead on from it."""

    def __init__(self, bits: int, start: State, wanted: tuple[int, ...]):
        self.bits, self.wanted = bits, wanted
        self.places = dict(enumerate(wanted))
        self.lanes = _lanes(bits, len(start.inside))
        self.inner = {digit for at, digit in self.places.items() if at in self.lanes}
        self.alone = [at for at in range(len(start.inside)) if at not in self.lanes]

    def __call__(self, state: State) -> int:
        inside = state.inside
        mine = {inside[at] for at in self.lanes}
        cost = sum(1 for at in self.lanes if at in self.places and self.places[at] not in mine)
        for at in self.alone:
            if at in self.places and inside[at] != self.places[at]:
                cost += EXCHANGE[self.bits << at]
        return cost

    def moves(self, state: State) -> Iterator[tuple[int, Op]]:
        inside, words = state.inside, state.words
        for digit, word in enumerate(words):
            if word in self.inner:
                for at in self.lanes:
                    yield MERGE, Op("merge", digit, self.bits << at)
            for at, old in enumerate(inside):
                comes = self.places.get(at) == word
                leaves = at in self.alone and old in self.wanted and self.places.get(at) != old
                if comes or leaves:
                    yield EXCHANGE[self.bits << at], Op("exchange", digit, self.bits << at)
        yield from self._arranged(inside)
        for at, wanted in self.places.items():
            if inside[at] != wanted and wanted in inside:
                other = inside.index(wanted)
                narrow = self.bits << min(at, other) < 8
                far = at not in self.lanes or other not in self.lanes
                yield (
                    SWAP_NIBBLES if narrow else SWAP_LANES if far else SWAP,
                    Op("swap", place=self.bits << at, other=self.bits << other),
                )

    def _arranged(self, inside: tuple[int, ...]) -> Iterator[tuple[int, Op]]:
        """Digits of lanes to where they are wanted, or those that are not wanted there to the top, to leave first."""
        mine = [inside[at] for at in self.lanes]
        wanted = [self.places.get(at) for at in self.lanes]
        free = [digit for digit in mine if digit not in wanted]
        filled = [digit if digit in mine else None for digit in wanted]
        placed = [digit if digit is not None else free.pop(0) for digit in filled]
        bottom = [digit for digit in wanted if digit in mine]
        for order in (placed, [*bottom, *(digit for digit in mine if digit not in bottom)]):
            if order != mine:
                yield ARRANGE, Op("arrange", order=tuple(mine.index(digit) for digit in order))
