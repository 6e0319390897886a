"""Tiles of a grid: cubes of 2^m codes that lie alike on both sides, so that whole rows of memory are moved at once.

A tile is 2^p neighbours along n times 2^q along k, in the order of the target's addresses. Each of its m = p + q digits
has a step in the target and one in the source; digits whose steps are 1, 2, 4, ... make a row of contiguous bytes. GPTQ
int4 to Marlin, p = 6 and q = 4:

    digit    k3  n3  k0  n4  n5  k1  k2  n0  n1  n2
    target   1   2   4   8   16  32  64  128 256 512     one row of 512 bytes
    source   8n  64  1   128 256 2   4   8   16  32      two rows of 256 bytes

What does not lie alike (a last column that is half pad, a part that begins inside of a tile) is left to the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, product

import numpy as np

from layoutdsl.backends.repack.axes import BESIDE, DATA, DST, KEPT, KIND, PART, SRC, Axis, Grid
from layoutdsl.backends.repack.warps import arranged

MOST_DIGITS = 7
"""Of one axis in a tile."""

SMALLEST, LARGEST = 128, 4096
"""Bytes of a tile: a word for each lane of a warp; what its shared memory holds."""

SECTOR = 32
"""Bytes that memory moves at least."""

LEFT, CALL = 8.0, 1 << 16
"""What a byte that is left to the grid costs, and what a call costs, in bytes moved in tiles."""

GROUPS = 3
"""How many different steps there may be from row to row."""

WORTH = 2048
"""Bytes for which tiles are looked for."""

MOST_STRETCHES = 16

_PLACES = [DST, SRC, BESIDE]

@dataclass(frozen=True)
class Digit:
    """Steps of a digit of two, in codes."""

    target: int
    source: int
    beside: int = 0


@dataclass(frozen=True)
class Tiles:
    """Tiles that lie alike: `counts` along an axis that goes faster and one that goes slower, whose steps are `fast`
    and `slow`. `first`: the addresses of the first, as a digit's. action: DATA, or the code that pads; then the
    source's addresses say nothing."""

    action: int
    digits: tuple[Digit, ...]
    part: int
    counts: tuple[int, int]
    first: Digit
    fast: Digit
    slow: Digit

    @property
    def steps(self) -> tuple[Digit, Digit, Digit]:
        return self.first, self.fast, self.slow


@dataclass(frozen=True)
class _Stretch:
    """Neighbouring blocks of an axis at equal steps, of one part."""

    part: int
    count: int
    first: Digit
    step: Digit


@dataclass(frozen=True, eq=False)
class _Side:
    """Blocks of 2^b entries along an axis: their first entries, and which of them lie as `digits` say."""

    digits: tuple[Digit, ...]
    starts: Axis
    alike: np.ndarray

    @property
    def covers(self) -> int:
        return int(self.alike.sum()) << len(self.digits)

    @property
    def inside(self) -> np.ndarray:
        """Of each entry, whether it is in such a block; those after the last block are left out."""
        return np.repeat(self.alike, 1 << len(self.digits))

    @cached_property
    def stretches(self) -> tuple[_Stretch, ...]:
        """One more than MOST_STRETCHES of them where there are more."""
        return tuple(islice(_stretches(self.starts, self.alike), MOST_STRETCHES + 1))


def tiled(grid: Grid, bits: int, wanted: np.ndarray) -> tuple[list[Tiles], Grid]:
    """The tiles of a grid of target codes of `bits` bits, and the grid without them; `wanted`: which pairs of kinds.

    Kinds of entries are cut one pair after the other, the largest first: in blocks of all that stands in the target,
    then, of what that leaves, in blocks of their own entries alone.
    """
    found: list[Tiles] = []
    left = np.where(wanted, grid.actions, KEPT)
    done: set[tuple[int, int, bool]] = set()
    while (pair := _most(grid, left, {one[:2] for one in done if one[2]})) is not None:
        apart = (*pair, False) in done
        places = [np.flatnonzero(axis[KIND] == kind) if apart else np.arange(axis.shape[1])
                  for axis, kind in zip((grid.n, grid.k), pair)]
        action = int(grid.actions[pair])
        axes = [_entries(axis[:, at], action) for axis, at in zip((grid.n, grid.k), places)]
        n, k = _cut(*axes, pair, bits)
        if n is None or k is None:
            done.add((*pair, apart))
            continue
        found += [_tiles(action, a, b, n.digits + k.digits) for a, b in product(n.stretches, k.stretches)]
        covered = [at[: side.inside.size][side.inside] for at, side in zip(places, (n, k))]
        left = _split(left, pair)
        grid = _without(grid, pair, *covered)
    return found, grid


def _entries(axis: Axis, action: int) -> Axis:
    """Entries as tiles look at them: a pad has no source, but its target's."""
    if action == DATA:
        return axis
    made = axis.copy()
    made[SRC], made[BESIDE] = made[DST], 0
    return made


def _most(grid: Grid, actions: np.ndarray, done: set[tuple[int, int]]) -> tuple[int, int] | None:
    """The pair of kinds with the most codes, but for those that are done."""
    counts = [np.bincount(axis[KIND], minlength=size) for axis, size in zip((grid.n, grid.k), actions.shape)]
    codes = (actions != KEPT) * np.outer(*counts)
    for pair in done:
        codes[pair] = 0
    n, k = divmod(int(codes.argmax()), codes.shape[1])
    return (n, k) if codes[n, k] else None


def _cut(n: Axis, k: Axis, kinds: tuple[int, int], bits: int) -> tuple[_Side, _Side] | tuple[None, None]:
    """The cheapest way to cut entries of a kind into tiles, if any is cheaper than to go through them pair by pair."""
    whole = int(np.sum(n[KIND] == kinds[0])) * int(np.sum(k[KIND] == kinds[1])) * bits // 8
    best, chosen = whole * LEFT + CALL, (None, None)
    if whole < WORTH:
        return chosen
    sides = [list(_sides(axis, kind, bits)) for axis, kind in zip((n, k), kinds)]
    for a, b in product(*sides):
        covered, size = a.covers * b.covers * bits // 8, (bits << len(a.digits + b.digits)) // 8
        if not SMALLEST <= size <= LARGEST or covered + (whole - covered) * LEFT >= best:
            continue
        moved = covered * _price(a.digits + b.digits, bits) + (whole - covered) * LEFT
        if moved < best and len(a.stretches) <= MOST_STRETCHES and len(b.stretches) <= MOST_STRETCHES:
            price = moved + CALL * (len(a.stretches) * len(b.stretches) + (covered < whole))
            if price < best:
                best, chosen = price, (a, b)
    return chosen


def source_order(digits: tuple[Digit, ...]) -> tuple[int, ...]:
    """Of the digits, named by their place in the target, the source's order."""
    targets = sorted(digits, key=lambda digit: digit.target)
    return tuple(sorted(range(len(targets)), key=lambda at: targets[at].source))


def recoded(digits: tuple[Digit, ...], word: int) -> str | None:
    """Whether all codes of a word have one operand as they come (first), or else as they go (last)."""
    for when, side in (("first", "source"), ("last", "target")):
        if not any(digit.beside for digit in sorted(digits, key=lambda digit: getattr(digit, side))[:word]):
            return when
    return None


def row(steps: list[int]) -> int:
    """How many of these ascending steps are 1, 2, 4 and so on."""
    return next((at for at, step in enumerate(steps) if step != 1 << at), len(steps))


def groups(steps: list[int]) -> list[int]:
    """Ascending steps as groups in which each is twice the one before: how many are in each."""
    found: list[int] = []
    for at, step in enumerate(steps):
        if at and step == 2 * steps[at - 1]:
            found[-1] += 1
        else:
            found.append(1)
    return found


@lru_cache(maxsize=1024)
def _price(digits: tuple[Digit, ...], bits: int) -> float:
    """What a byte costs in such tiles: 1 where all its sectors are full and enough is under way."""
    size = (bits << len(digits)) // 8
    steps = sorted(digit.target for digit in digits), sorted(digit.source for digit in digits)
    word = (32 // bits).bit_length() - 1
    for one in steps:
        if row(one) < word or one[0] < 1 or len({*one}) < len(one) or any(step * bits % 8 for step in one[word:]):
            return LEFT
        if len(groups(one[row(one) :])) > GROUPS:
            return LEFT
    if recoded(digits, word) is None or arranged(source_order(digits), word) is None:
        return LEFT
    rows = [(bits << row(one)) // 8 for one in steps]
    sectors = sum(max(SECTOR / one, 1.0) for one in rows) / 2
    return sectors + abs(np.log2(size / 2048)) / 16 + sum(max(np.log2(128 / one), 0.0) for one in rows) / 64


def _sides(axis: Axis, kind: int, bits: int) -> Iterator[_Side]:
    """Blocks of 1, 2, 4, ... entries of a kind: two that lie alike make one of the next size."""
    starts = axis
    lies = axis[KIND] == kind
    steps = np.zeros((axis.shape[1], 0, 3), np.int64)
    while lies.any():
        values, counts = np.unique(steps[lies].reshape(int(lies.sum()), -1), axis=0, return_counts=True)
        usual = values[counts.argmax()].reshape(-1, 3)
        alike = lies & np.all(steps == usual, axis=(1, 2)) & np.all(starts[[DST, SRC]] * bits % 8 == 0, axis=0)
        yield _Side(tuple(Digit(*map(int, one)) for one in usual), starts, alike)
        if len(usual) == MOST_DIGITS:
            return
        whole = len(lies) // 2 * 2
        first, second = slice(0, whole, 2), slice(1, whole, 2)
        ahead = (starts[_PLACES, second] - starts[_PLACES, first]).T[:, None]
        lies = lies[first] & lies[second] & np.all(steps[first] == steps[second], axis=(1, 2))
        starts, steps = starts[:, first], np.concatenate([steps[first], ahead], axis=1)


def _stretches(starts: np.ndarray, alike: np.ndarray) -> Iterator[_Stretch]:
    """Of the blocks that begin with these entries."""
    ahead = np.diff(starts, axis=1)
    joined = alike[:-1] & alike[1:] & (ahead[PART] == 0)
    even = joined[:-1] & joined[1:] & np.all(ahead[_PLACES, :-1] == ahead[_PLACES, 1:], axis=0)
    ends = np.append(np.flatnonzero(~even), len(alike) - 2)
    wanted, at = np.flatnonzero(alike), 0
    while (next_one := np.searchsorted(wanted, at)) < len(wanted):
        first = last = int(wanted[next_one])
        if first < len(joined) and joined[first]:
            last = int(ends[np.searchsorted(ends, first)]) + 1
        step = _digit(ahead[:, first]) if last > first else Digit(0, 0)
        yield _Stretch(int(starts[PART, first]), last - first + 1, _digit(starts[:, first]), step)
        at = last + 1


def _digit(column: np.ndarray) -> Digit:
    return Digit(int(column[DST]), int(column[SRC]), int(column[BESIDE]))


def _tiles(action: int, n: _Stretch, k: _Stretch, digits: tuple[Digit, ...]) -> Tiles:
    fast, slow = sorted((n, k), key=lambda one: (one.count == 1, one.step.source))
    first = Digit(*(a + b for a, b in zip(_numbers(n.first), _numbers(k.first))))
    return Tiles(action, digits, n.part, (fast.count, slow.count), first, fast.step, slow.step)


def _numbers(digit: Digit) -> tuple[int, int, int]:
    return digit.target, digit.source, digit.beside


def _without(grid: Grid, pair: tuple[int, int], n_covered: np.ndarray, k_covered: np.ndarray) -> Grid:
    """The grid that keeps what is in tiles: entries that these cover get kinds of their own."""
    n, k = grid.n.copy(), grid.k.copy()
    n[KIND, n_covered], k[KIND, k_covered] = grid.actions.shape
    return replace(grid, n=n, k=k, actions=_split(grid.actions, pair))


def _split(actions: np.ndarray, pair: tuple[int, int]) -> np.ndarray:
    """Actions with two kinds more, split off a pair: nothing is done between these two."""
    made = np.pad(actions, ((0, 1), (0, 1)))
    made[-1, :-1], made[:-1, -1] = actions[pair[0]], actions[:, pair[1]]
    made[-1, -1] = KEPT
    return made
