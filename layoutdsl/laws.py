"""The arithmetic of proofs: whether a run follows a chain, and whether a set of runs covers what it should.

Nothing here knows how runs are made. Coverage along one axis is a comparison of intervals where runs are unbroken;
else, and for addresses, it is an identity of polynomials, tested at a point that each process draws at random: the sum
of z^address over all elements must equal 1 + z + ... + z^(total - 1). A false one passes with a probability below
2^-80, and nobody can make one that does. Either costs a few operations per loop, whatever the extents.

Powers of z repeat, at the latest after PRIME - 1 of them; so callers first bound the numbers that they add up.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from layoutdsl.layout import Chain, Digit, Run, View

PRIME = (1 << 127) - 1
X, DST, SRC = 1, 2, 3
"""Columns of a loop."""

MOST_SHOWN = 1 << 16
"""How many elements are listed to name the one that breaks a law; with more the message names none."""

MOST_SERIES = 1 << 16
"""How many series a point keeps."""

MOST_IRREGULAR = 1 << 10
"""How many elements a run may have whose steps no digit explains: they are compared one by one."""


def geometric(z: int, count: int) -> int:
    """1 + z + ... + z^(count - 1), modulo the prime, by doubling."""
    found, power = 0, 1
    for bit in bin(count)[2:]:
        found, power = found * (1 + power) % PRIME, power * power % PRIME
        if bit == "1":
            found, power = (found * z + 1) % PRIME, power * z % PRIME
    return found


class Point:
    """Where sums of z^address are evaluated; series are kept, since runs share most of their loops."""

    def __init__(self, z: int):
        self.z = z
        self._series: dict[tuple[int, int], int] = {}

    @classmethod
    def drawn(cls) -> Point:
        """A point that nobody can foresee."""
        return cls(int.from_bytes(os.urandom(16)) % (PRIME - 2) + 2)

    def power(self, exponent: int) -> int:
        return pow(self.z, exponent, PRIME)

    def series(self, step: int, count: int) -> int:
        """1 + z^step + ... + z^(step * (count - 1))."""
        found = self._series.get((step, count))
        if found is None:
            if len(self._series) >= MOST_SERIES:
                self._series.clear()
            found = self._series[step, count] = geometric(pow(self.z, step, PRIME), count)
        return found

    def total(self, runs: Iterable[Run], column: int) -> int:
        """Sum over all elements of runs, in one column."""
        found = 0
        for run in runs:
            term = pow(self.z, first(run, column), PRIME)
            for loop in run.loops:
                term = term * self.series(loop[column], loop[0]) % PRIME
            found += term
        return found % PRIME

    def written(self, runs: Iterable[Run]) -> int:
        """Sum over the target elements that runs write: a shared one once, a joined one not."""
        found = 0
        for run in runs:
            if run.join:
                continue
            term = pow(self.z, run.dst, PRIME)
            for count, _, step, _ in run.loops:
                if step:
                    term = term * self.series(step, count) % PRIME
            found += term
        return found % PRIME

    def prefix(self, chain: Chain, count: int) -> int:
        """Sum of z^A(x) over the first `count` coordinates of a chain."""
        if not chain.digits:
            return count % PRIME
        *below, (weight, _, stride) = chain.digits
        whole, rest = divmod(count, weight)
        lower = Chain(tuple(below))
        found = self.series(stride, whole) * self.prefix(lower, weight)
        if rest:
            found += self.power(whole * stride) * self.prefix(lower, rest)
        return found % PRIME


DRAWN = Point.drawn()
"""The point of this process."""


def first(run: Run, column: int) -> int:
    """The number in one column at a run's first element."""
    return (run.x, run.dst, run.src)[column - 1]


def size(run: Run) -> int:
    """How many elements a run has."""
    return math.prod([loop[0] for loop in run.loops])


def span(run: Run) -> tuple[int, int]:
    """The least and the largest coordinate of a run."""
    low = high = run.x
    for count, step, _, _ in run.loops:
        if step < 0:
            low += (count - 1) * step
        else:
            high += (count - 1) * step
    return low, high


# --- meaning ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def floors(digits: tuple[Digit, ...]) -> tuple[tuple[int, int], ...]:
    """(weight w, factor f): a chain's A(x) is the sum of f * (x // w). Digits that continue the one below vanish."""
    found: list[tuple[int, int]] = []
    carried = 0
    for weight, extent, stride in digits:
        if stride != carried:
            found.append((weight, stride - carried))
        carried = stride * extent
    return tuple(found)


@lru_cache(maxsize=1 << 14)
def follows(run: Run, view: View, column: int) -> int | None:
    """Whether a run's column is the view's address at every element; None if so, else the coordinate where it is not.

    x // w is affine along the loops if each steps by multiples of w, or stays, with all other such loops together,
    below the next multiple; then steps are compared as numbers. Where it is not, elements are compared one by one; a
    run that is both irregular and long counts as wrong. Requires loops that go forward.
    """
    loops, (chain, offset, pace, address) = run.loops, view
    start, steps, moved = offset + pace * run.x, [loop[X] * pace for loop in loops], [0] * len(loops)
    for weight, factor in floors(chain.digits):
        address += start // weight * factor
        room = start % weight
        for at, step in enumerate(steps):
            if step % weight:
                room += (loops[at][0] - 1) * step
            else:
                moved[at] += step // weight * factor
        if room >= weight:
            return _compared(run, view, column)
    if address != first(run, column):
        return run.x
    for loop, step in zip(loops, moved):
        if loop[column] != step:
            return run.x + loop[X]
    return None


def _compared(run: Run, view: View, column: int) -> int | None:
    """The same, element by element."""
    start = first(run, column)
    if view.at(run.x) != start:
        return run.x
    ends = ((run.x + (loop[0] - 1) * loop[X], start + (loop[0] - 1) * loop[column]) for loop in run.loops)
    for x, address in itertools.chain(ends, itertools.islice(_elements(run, column), MOST_IRREGULAR)):
        if view.at(x) != address:
            return x
    return None if size(run) <= MOST_IRREGULAR else run.x


def _elements(run: Run, column: int) -> Iterator[tuple[int, int]]:
    """(coordinate, number in one column) of each element, never listed: the innermost loop turns first."""
    index = [0] * len(run.loops)
    x, address = run.x, first(run, column)
    while True:
        yield x, address
        for at, loop in enumerate(run.loops):
            if index[at] < loop[0] - 1:
                index[at] += 1
                x, address = x + loop[X], address + loop[column]
                break
            x, address = x - index[at] * loop[X], address - index[at] * loop[column]
            index[at] = 0
        else:
            return


# --- coverage ---------------------------------------------------------------------------------------------------------


def covers(runs: Sequence[Run], low: int, high: int, point: Point) -> bool:
    """Whether the coordinates of runs are low, ..., high - 1, each once. Requires that none lies outside."""
    ends = {run.x: end for run in runs if (end := _unbroken_end(run)) is not None}
    if len(ends) == len(runs):
        at = low
        while at in ends:
            at = ends.pop(at)
        return at == high and not ends
    wanted = point.power(low) * point.series(1, high - low)
    return (point.total(runs, X) - wanted) % PRIME == 0


def _unbroken_end(run: Run) -> int | None:
    """Where a run's coordinates end, if they are run.x, run.x + 1, and so on."""
    reach = 1
    for count, step, _, _ in run.loops:
        if step != reach:
            return None
        reach *= count
    return run.x + reach


def uncovered(runs: Sequence[Run], low: int, high: int) -> int | None:
    """A coordinate that runs cover not once, for messages; None where there are too many to look."""
    counts = [size(run) for run in runs]
    if high - low > MOST_SHOWN or sum(counts) > MOST_SHOWN:
        return None
    seen = dict.fromkeys(range(low, high), 0)
    for run in runs:
        for x, _ in _elements(run, X):
            seen[x] = seen.get(x, 0) + 1
    return next((x for x, times in seen.items() if times != 1), None)


def miswritten(boxes: Sequence[tuple[Sequence[Run], Sequence[Run]]], total: int) -> tuple[int, int] | None:
    """(address, how often written) of a target element that rectangles of runs do not write exactly once, for messages;
    None where there are too many to look."""
    sizes = [(sum(map(size, n)), sum(map(size, k))) for n, k in boxes]
    if total > MOST_SHOWN or sum(n * k for n, k in sizes) > 4 * MOST_SHOWN:
        return None
    seen = dict.fromkeys(range(total), 0)
    for n, k in boxes:
        rows, columns = ([at for run in runs for at in _written(run)] for runs in (n, k))
        for a in rows:
            for b in columns:
                seen[a + b] = seen.get(a + b, 0) + 1
    return next(((at, times) for at, times in seen.items() if times != (1 if 0 <= at < total else 0)), None)


def _written(run: Run) -> Iterator[int]:
    if run.join:
        return
    moving = Run(run.part, run.x, run.dst, run.src, tuple(loop for loop in run.loops if loop[DST]))
    yield from (address for _, address in _elements(moving, DST))
