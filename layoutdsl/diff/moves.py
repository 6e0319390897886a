"""How many elements of a tensor stand elsewhere in another version, and which.

An element's place is where its first bit stands in the tensor's bytes: an address along n plus one along k. So an
element stays where its two differences cancel, and elements are counted without walking over each of them: the time
is that of the two axes, not of their product. Elements that share one stored code in both versions count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from layoutdsl.layout import View
from layoutdsl.show.sheet import Sheet

Pair = tuple[int, int]
"""The bits before an element, of those along one axis: in one version, in the other."""


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
    n, k = _along_n(before, after), _along_k(before, after)
    along_n, along_k = Counter(map(_far, n)), Counter(map(_far, k))
    elements = len(n) * len(k)
    moved = elements - sum(count * along_k[-far] for far, count in along_n.items())
    if not moved:
        return Moves(elements, 0)
    return Moves(elements, moved, tuple(_examples(n, k)), _first(n, k) // before.stored.code.bits)


def _along_n(before: Sheet, after: Sheet) -> dict[Pair, tuple[int, int]]:
    """Each pair of places along n, with the first (part, n) that has it."""
    found: dict[Pair, tuple[int, int]] = {}
    for part in sorted(before.stored.parts):
        stretch, views = before.matrix.n[part], (before.stored.view(part)[0], after.stored.view(part)[0])
        for x, pair in enumerate(_pairs(before, after, *views, stretch.length)):
            found.setdefault(pair, (part, stretch.start + x))
    return found


def _along_k(before: Sheet, after: Sheet) -> dict[Pair, int]:
    found: dict[Pair, int] = {}
    stretch, views = before.matrix.k, (before.stored.k[0], after.stored.k[0])
    for x, pair in enumerate(_pairs(before, after, *views, stretch.length)):
        found.setdefault(pair, stretch.start + x)
    return found


def _pairs(before: Sheet, after: Sheet, one: View, other: View, length: int) -> Iterator[Pair]:
    bits, others = before.stored.code.bits, after.stored.code.bits
    yield from ((one.at(x) * bits, other.at(x) * others) for x in range(length))


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
