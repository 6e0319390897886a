"""How the lanes of a warp take a tile of 32-bit words from one order to another, through shared memory.

The tile stands in shared memory twice, as the source has it and as the target wants it. A lane takes blocks of words
out of the first, exchanges codes among them in registers, and puts them into the second. Digits of a tile are named by
their place in the target; with 4-bit codes 0, 1, 2 are the place in a word and all others number the words. For GPTQ to
Marlin (tiles.py) the source's order is 2 5 6 7 8 9 1 3 4 0:

    in a source word      2 5 6         5 and 6 are exchanged with 0 and 1, which number source words:
    in a target word      0 1 2         so a block has four words, and 5 and 6 number the target's
    lanes                 7 8 3 4 9     of what numbers words on both sides

An access of a warp has no bank conflicts where its lanes differ in all digits of a word's bank. The two digits that
number banks 0 to 3 are in the block, which is then moved by 8 or 16 bytes, or among the lanes; three more lanes get the
rest of the bank, from where they stand or by a swizzle: their digit is added to a bank's digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LANES = 5
QUAD = 2
"""Digits of a word's place in 16 bytes."""

MOST_BLOCK = 4
"""Digits of a block: its words are registers."""


@dataclass(frozen=True)
class Side:
    """One of the two images. places: what each digit that numbers words adds, as bytes, to a word's place there.
    swizzles: (from, to), a digit of a word's number that is added to another. vector: digits of the words that a lane
    moves at once."""

    places: dict[int, int]
    swizzles: tuple[tuple[int, int], ...]
    vector: int


@dataclass(frozen=True)
class Warp:
    """word: how many digits are the place in a word. block: the digits that number a lane's words as they come, the
    vector's first; exchanged: ("word", q, p) where digit q of the block and digit p of the word change places,
    ("code", p, r) where two digits of the word do. after: what numbers the words then. turns: digits that a lane goes
    through."""

    word: int
    block: tuple[int, ...]
    exchanged: tuple[tuple[str, int, int], ...]
    after: tuple[int, ...]
    lanes: tuple[int, ...]
    turns: tuple[int, ...]
    source: Side
    target: Side


@lru_cache(maxsize=1024)
def arranged(source: tuple[int, ...], word: int) -> Warp | None:
    """The way of a warp through a tile whose source has the target's digits in the order `source`, from the smallest
    step on; None where there is none: too few digits for the lanes, or too many in a block."""
    target = tuple(range(len(source)))
    inside, numbers = set(source[:word]), set(source[word:]) - set(target[:word])
    incoming, outgoing = set(target[:word]) - inside, inside - set(target[:word])
    quads = source[word : word + QUAD], target[word : word + QUAD]
    # A quad's upper half is in a block only with its lower one: so a lane moves it as a whole.
    extra: set[int] = set()
    while lacking := {
        low for (low, high), own in zip(quads, (incoming, outgoing)) if high in own | extra and low not in own | extra
    }:
        extra |= lacking
    free = sorted(numbers - extra)
    lanes = _lanes(quads, (incoming | extra, outgoing | extra), free)
    if len(lanes) < LANES or len(incoming | extra) > MOST_BLOCK:
        return None
    first = [digit for digit in quads[0] if digit in incoming | extra]
    block = (*first, *sorted((incoming | extra) - {*first}))
    exchanged, after = _exchanges(list(source[:word]), list(block))
    sides = (
        _side(order, word, lanes, sum(digit in moved for digit in quad))
        for order, quad, moved in zip((source, target), quads, (block, after))
    )
    return Warp(word, block, exchanged, after, lanes, tuple(d for d in free if d not in lanes), *sides)


def _lanes(quads: Sequence[tuple[int, ...]], blocks: Sequence[set[int]], free: Sequence[int]) -> tuple[int, ...]:
    """Five digits, those of the quads that no block has first; of a quad that is half in a block before all, as 8-byte
    accesses look at four lanes alone."""
    left = sorted(([digit for digit in quad if digit not in block] for quad, block in zip(quads, blocks)), key=len)
    return tuple(dict.fromkeys([digit for digits in left for digit in digits] + [*free]))[:LANES]


def _exchanges(inside: list[int], numbers: list[int]) -> tuple[tuple[tuple[str, int, int], ...], tuple[int, ...]]:
    """Exchanges until the place in a word is the target's, and what numbers the words then. Those of whole words come
    first: they cost half."""
    made: list[tuple[str, int, int]] = []
    while wrong := [place for place, digit in enumerate(inside) if digit != place]:
        place = next((place for place in wrong if place in numbers), None)
        if place is not None:
            at = numbers.index(place)
            inside[place], numbers[at] = place, inside[place]
            made.append(("word", at, place))
        else:
            place = wrong[0]
            other = inside.index(place)
            inside[place], inside[other] = place, inside[place]
            made.append(("code", place, other))
    return tuple(made), tuple(numbers)


def _side(order: Sequence[int], word: int, lanes: tuple[int, ...], vector: int) -> Side:
    """The image whose digits stand in this order: the lanes that an access looks at get a digit of the bank each."""
    number = {digit: place - word for place, digit in enumerate(order) if place >= word}
    looked_at = [number[digit] for digit in lanes[: LANES - vector]]
    free = [bank for bank in range(QUAD, LANES) if bank not in looked_at]
    swizzles = tuple(zip((place for place in looked_at if place >= LANES), free))
    added = dict(swizzles)
    places = {digit: 4 << place ^ (4 << added[place] if place in added else 0) for digit, place in number.items()}
    return Side(places, swizzles, vector)
