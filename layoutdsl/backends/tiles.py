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
from itertools import islice, product

import numpy as np

from layoutdsl.backends.axes import BESIDE, DATA, DST, KEPT, KIND, PART, SRC, Axis, Grid
from layoutdsl.backends.warps import arranged

MOST_DIGITS = 8
"""Of one axis in a tile."""

SMALLEST, LARGEST = 128, 4096
"""Bytes of a tile: a word for each lane of a warp; what its shared memory holds."""

SECTOR = 32
"""Bytes that memory moves at least."""

LEFT, CALL = 8.0, 1 << 16
"""What a byte that is left to the grid costs, and what a call costs, in bytes moved in tiles."""

MOST_STRETCHES = 16

_PLACES, _LABELS = [DST, SRC, BESIDE], [KIND, PART]

@dataclass(frozen=True)
class Digit:
    """Steps of a digit of two, in codes."""

    target: int
    source: int
    beside: int = 0


@dataclass(frozen=True)
class Tiles:
    """Tiles that lie alike: `counts` along an axis that goes faster and one that goes slower, whose steps are `fast` and
    `slow`. `first`: the addresses of the first, as a digit's."""

    digits: tuple[Digit, ...]
    part: int
    counts: tuple[int, int]
    first: Digit
    fast: Digit
    slow: Digit


@dataclass(frozen=True)
class _Stretch:
    """Neighbouring blocks of an axis at equal steps, of one kind and part."""

    kind: int
    part: int
    count: int
    first: Digit
    step: Digit


@dataclass(frozen=True, eq=False)
class _Side:
    """Blocks of 2^b entries along an axis. `alike`: which lie as `digits` say; `covers`: how many entries these have, by
    kind."""

    digits: tuple[Digit, ...]
    alike: np.ndarray
    covers: np.ndarray
    stretches: tuple[_Stretch, ...]


def tiled(grid: Grid, bits: int) -> tuple[list[Tiles], Grid]:
    """The tiles of a grid whose codes have `bits` bits on both sides, and the grid without them."""
    data = grid.actions == DATA
    n_sides, k_sides = (
        [_side(axis, size, kinds, bits) for size in range(MOST_DIGITS)]
        for axis, kinds in ((grid.n, data.any(axis=1)), (grid.k, data.any(axis=0)))
    )
    n_counts, k_counts = (np.bincount(axis[KIND], minlength=len(kinds)) for axis, kinds in ((grid.n, data), (grid.k, data.T)))
    whole = int(n_counts @ data @ k_counts)
    best, chosen = whole * bits / 8 * LEFT + CALL, None
    for n, k in product(n_sides, k_sides):
        covered = int(n.covers @ data @ k.covers)
        left = whole - covered
        moved = covered * _price(n.digits + k.digits, bits) + left * LEFT
        price = moved * bits / 8 + CALL * (len(n.stretches) * len(k.stretches) + (left > 0))
        if price < best:
            best, chosen = price, (n, k)
    if chosen is None:
        return [], grid
    digits = chosen[0].digits + chosen[1].digits
    pairs = product(chosen[0].stretches, chosen[1].stretches)
    return [_tiles(a, b, digits) for a, b in pairs if data[a.kind, b.kind]], _without(grid, *chosen)


def source_order(digits: tuple[Digit, ...]) -> tuple[int, ...]:
    """Of the digits, named by their place in the target, the source's order."""
    targets = sorted(digits, key=lambda digit: digit.target)
    return tuple(sorted(range(len(targets)), key=lambda at: targets[at].source))


def row(steps: list[int]) -> int:
    """How many of these ascending steps are 1, 2, 4 and so on."""
    return next((at for at, step in enumerate(steps) if step != 1 << at), len(steps))


def _price(digits: tuple[Digit, ...], bits: int) -> float:
    """What a byte costs in such tiles: 1 where all its sectors are full and enough is under way."""
    size = (bits << len(digits)) // 8
    steps = sorted(digit.target for digit in digits), sorted(digit.source for digit in digits)
    word = (32 // bits).bit_length() - 1
    if not SMALLEST <= size <= LARGEST:
        return LEFT
    for one in steps:
        if row(one) < word or one[0] < 1 or len({*one}) < len(one) or any(step * bits % 8 for step in one[word:]):
            return LEFT
    if arranged(source_order(digits), word) is None:
        return LEFT
    rows = [(bits << row(one)) // 8 for one in steps]
    sectors = sum(max(SECTOR / one, 1.0) for one in rows) / 2
    return sectors + abs(np.log2(size / 2048)) / 16 + sum(max(np.log2(128 / one), 0.0) for one in rows) / 64


def _side(axis: Axis, size: int, kinds: np.ndarray, bits: int) -> _Side:
    """Blocks of 2^size entries along an axis; `kinds`: which bring data."""
    count = axis.shape[1] >> size
    blocks = axis[:, : count << size].reshape(6, count, 1 << size)
    within = blocks[_PLACES] - blocks[_PLACES, :, :1]
    steps = within[:, :, [1 << at for at in range(size)]]
    spread = within[:, :, :1]
    for at in range(size):
        spread = np.concatenate([spread, spread + steps[:, :, at : at + 1]], axis=2)
    alike = np.all(within == spread, axis=(0, 2)) & kinds[blocks[KIND, :, 0]]
    alike &= np.all(blocks[_LABELS] == blocks[_LABELS, :, :1], axis=(0, 2))
    alike &= np.all(blocks[[DST, SRC], :, 0] * bits % 8 == 0, axis=0)
    if not alike.any():
        return _Side((Digit(0, 0),) * size, alike, np.zeros(len(kinds), np.int64), ())
    chosen = steps[:, :1]
    if size:
        flat = steps[:, alike].transpose(1, 0, 2).reshape(-1, 3 * size)
        values, counts = np.unique(flat, axis=0, return_counts=True)
        chosen = values[counts.argmax()].reshape(3, 1, size)
        alike &= np.all(steps == chosen, axis=(0, 2))
    digits = tuple(Digit(*map(int, one)) for one in chosen[:, 0].T)
    stretches = tuple(islice(_stretches(blocks[:, :, 0], alike), MOST_STRETCHES + 1))
    covers = np.bincount(blocks[KIND, alike, 0], minlength=len(kinds)) << size
    return _Side(digits, alike, covers if len(stretches) <= MOST_STRETCHES else covers * 0, stretches)


def _stretches(starts: np.ndarray, alike: np.ndarray) -> Iterator[_Stretch]:
    """Of the blocks that begin with these entries."""
    ahead = np.diff(starts, axis=1)
    joined = alike[:-1] & alike[1:] & np.all(ahead[_LABELS] == 0, axis=0)
    even = joined[:-1] & joined[1:] & np.all(ahead[_PLACES, :-1] == ahead[_PLACES, 1:], axis=0)
    ends = np.append(np.flatnonzero(~even), len(alike) - 2)
    wanted, at = np.flatnonzero(alike), 0
    while (next_one := np.searchsorted(wanted, at)) < len(wanted):
        first = last = int(wanted[next_one])
        if first < len(joined) and joined[first]:
            last = int(ends[np.searchsorted(ends, first)]) + 1
        step = _digit(ahead[:, first]) if last > first else Digit(0, 0)
        kind, part = starts[_LABELS, first].tolist()
        yield _Stretch(kind, part, last - first + 1, _digit(starts[:, first]), step)
        at = last + 1


def _digit(column: np.ndarray) -> Digit:
    return Digit(int(column[DST]), int(column[SRC]), int(column[BESIDE]))


def _tiles(n: _Stretch, k: _Stretch, digits: tuple[Digit, ...]) -> Tiles:
    fast, slow = sorted((n, k), key=lambda one: (one.count == 1, one.step.source))
    first = Digit(*(a + b for a, b in zip(_numbers(n.first), _numbers(k.first))))
    return Tiles(digits, n.part, (fast.count, slow.count), first, fast.step, slow.step)


def _numbers(digit: Digit) -> tuple[int, int, int]:
    return digit.target, digit.source, digit.beside


def _without(grid: Grid, n: _Side, k: _Side) -> Grid:
    """The grid that keeps what is in tiles: entries of blocks that lie alike are kinds of their own."""
    axes, sizes = [], grid.actions.shape
    for axis, side, kinds in zip((grid.n, grid.k), (n, k), sizes):
        made = axis.copy()
        covered = np.repeat(side.alike, 1 << len(side.digits))
        made[KIND, : len(covered)] += covered * kinds
        axes.append(made)
    actions = np.tile(grid.actions, (2, 2))
    inside = actions[sizes[0] :, sizes[1] :]
    inside[inside == DATA] = KEPT
    return replace(grid, n=axes[0], k=axes[1], actions=actions)
