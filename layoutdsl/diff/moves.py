"""How many elements of a tensor stand elsewhere in another version, and which.

An element's place is where its first bit stands in the tensor's bytes: an address along n plus one along k. So an
element stays where its two differences cancel, and elements are counted without walking over each of them: the time
is that of the two axes, not of their product. Elements that share one stored code in both versions count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from layoutdsl.layout import View
from layoutdsl.show.sheet import Sheet

Pair = tuple[int, int]
"""The bits before an element, of those along one axis: in one version, in the other."""

MOST_KNOWN = 64
"""Answers that are kept: most settings lay most tensors out alike."""


class Both(NamedTuple):
    """One tensor in two versions: a view per part along n, one along k, the bits of a code; and what the views map,
    (part, start, length) along n and (start, length) along k."""

    n: tuple[tuple[View, View], ...]
    k: tuple[View, View]
    bits: tuple[int, int]
    held: tuple[tuple[int, int, int], ...]
    inputs: tuple[int, int]


@dataclass(frozen=True)
class Example:
    """One element, n counted inside its part."""

    part: int
    n: int
    k: int


@dataclass(frozen=True)
class Moves:
    """Of `elements` that are stored, `moved` stand elsewhere; examples of them, and the first code that one leaves."""

    elements: int
    moved: int
    examples: tuple[Example, ...] = ()
    first: int | None = None


def moves_of(before: Sheet, after: Sheet) -> Moves:
    """The moves between two versions of a tensor of the same matrix. Requires tensors whose elements are drawn."""
    parts, matrix = sorted(before.stored.parts), before.matrix
    return _moves(
        Both(
            tuple((before.stored.view(part)[0], after.stored.view(part)[0]) for part in parts),
            (before.stored.k[0], after.stored.k[0]),
            (before.stored.code.bits, after.stored.code.bits),
            tuple((part, matrix.n[part].start, matrix.n[part].length) for part in parts),
            (matrix.k.start, matrix.k.length),
        )
    )


@lru_cache(MOST_KNOWN)
def _moves(both: Both) -> Moves:
    n: dict[Pair, tuple[int, int]] = {}
    k: dict[Pair, int] = {}
    for views, (part, start, length) in zip(both.n, both.held):
        for at, pair in enumerate(_pairs(both, views, length), start):
            n.setdefault(pair, (part, at))
    start, length = both.inputs
    for at, pair in enumerate(_pairs(both, both.k, length), start):
        k.setdefault(pair, at)
    along_n, along_k = Counter(map(_far, n)), Counter(map(_far, k))
    elements = len(n) * len(k)
    moved = elements - sum(count * along_k[-far] for far, count in along_n.items())
    if not moved:
        return Moves(elements, 0)
    return Moves(elements, moved, tuple(_examples(n, k)), _first(n, k) // both.bits[0])


def _pairs(both: Both, views: tuple[View, View], length: int) -> Iterator[Pair]:
    one, other = views
    yield from ((one.at(x) * both.bits[0], other.at(x) * both.bits[1]) for x in range(length))


def _far(pair: Pair) -> int:
    return pair[1] - pair[0]


def _examples(n: Mapping[Pair, tuple[int, int]], k: Mapping[Pair, int]) -> Iterator[Example]:
    """The first that moves along n, the first along k, else the first of all: no more than two."""
    (n_pair, (part, n_first)), (k_pair, k_first) = next(iter(n.items())), next(iter(k.items()))
    column = [Example(*place, k_first) for pair, place in n.items() if _far(pair) != -_far(k_pair)]
    row = [Example(part, n_first, at) for pair, at in k.items() if _far(pair) != -_far(n_pair)]
    found = dict.fromkeys((*column[:1], *row[:1]))
    if found:
        yield from found
        return
    for pair, place in n.items():
        for other, at in k.items():
            if _far(pair) != -_far(other):
                yield Example(*place, at)
                return


def _first(n: Mapping[Pair, tuple[int, int]], k: Mapping[Pair, int]) -> int:
    """The least place of an element that moves, in bits of the version before."""
    least = {_far(pair): pair[0] for pair in sorted(k, key=lambda pair: -pair[0])}
    nearest = sorted(least.items(), key=lambda one: one[1])[:2]  # one of two differs from what cancels
    starts: dict[int, int] = {}
    for pair in n:
        starts[_far(pair)] = min(pair[0], starts.get(_far(pair), pair[0]))
    return min(start + at for far, start in starts.items() for other, at in nearest if far != -other)
