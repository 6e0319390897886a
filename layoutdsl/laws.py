"""The arithmetic of proofs: whether a run follows a chain, and whether a set of runs covers what it should.

Nothing here knows how runs are made. Coverage is an identity of polynomials, tested at a point drawn from the plan's
own digest: the sum of z^address over all elements must equal 1 + z + ... + z^(total - 1). A false one passes with a
probability below 2^-80. It costs a few powers per loop, whatever the extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from layoutdsl.layout import Chain, Digit, Run, View

PRIME = (1 << 127) - 1
X, DST, SRC = 1, 2, 3
"""Columns of a loop."""


def geometric(z: int, count: int) -> int:
    """1 + z + ... + z^(count - 1), modulo the prime, by doubling."""
    found, power = 0, 1
    for bit in bin(count)[2:]:
        found, power = found * (1 + power) % PRIME, power * power % PRIME
        if bit == "1":
            found, power = (found * z + 1) % PRIME, power * z % PRIME
    return found


def total(runs: Iterable[Run], z: int, column: int, *, written: bool = False) -> int:
    """Sum of z^address over the elements of runs, in one column. `written`: each shared target element once, joins not."""
    found = 0
    for run in runs:
        if written and run.join:
            continue
        term = pow(z, (run.x, run.dst, run.src)[column - 1], PRIME)
        for loop in run.loops:
            if written and loop[DST] == 0:
                continue
            term = term * geometric(pow(z, loop[column], PRIME), loop[0]) % PRIME
        found += term
    return found % PRIME


def prefix(chain: Chain, count: int, z: int) -> int:
    """Sum of z^A(x) over the first `count` coordinates of a chain."""
    if not chain.digits:
        return count % PRIME
    *below, (weight, _, stride) = chain.digits
    whole, rest = divmod(count, weight)
    lower = Chain(tuple(below))
    found = geometric(pow(z, stride, PRIME), whole) * prefix(lower, weight, z)
    if rest:
        found += pow(z, whole * stride, PRIME) * prefix(lower, rest, z)
    return found % PRIME


@lru_cache(maxsize=4096)
def coalesced(chain: Chain) -> tuple[Digit, ...]:
    """The chain's digits, neighbours joined where the upper stride continues the lower: the same addresses."""
    found: list[Digit] = []
    for weight, extent, stride in chain.digits:
        if found and found[-1][1] * found[-1][2] == stride:
            low, count, step = found.pop()
            found.append((low, count * extent, step))
        else:
            found.append((weight, extent, stride))
    return tuple(found)


def follows(run: Run, view: View, column: int) -> int | None:
    """Whether a run's column is the view's address at every element; None if so, else the coordinate where it is not.

    A digit's carry is affine along the loops if each loop either steps by whole digits, or stays, with all other such
    loops together, below the digit. Where that holds the steps are compared as numbers.
    """
    address = (run.x, run.dst, run.src)[column - 1]
    if view.at(run.x) != address:
        return run.x
    start = view.offset + view.step * run.x
    steps = [view.step * loop[X] for loop in run.loops]
    digits = coalesced(view.chain)
    carries: list[list[int]] = []
    for weight, _, _ in digits:
        room = start % weight
        carry: list[int] = []
        for (count, *_), step in zip(run.loops, steps):
            if step % weight:
                room += (count - 1) * step
                carry.append(0)
            else:
                carry.append(step // weight)
        if room >= weight:
            return _first_difference(run, view, column)
        carries.append(carry)
    for at, loop in enumerate(run.loops):
        moved = sum(
            stride * (carries[d][at] - (extent * carries[d + 1][at] if extent else 0))
            for d, (_, extent, stride) in enumerate(digits)
        )
        if moved != loop[column]:
            return run.x + loop[X]
    return None


def _first_difference(run: Run, view: View, column: int, most: int = 1 << 16) -> int:
    """The coordinate of the first element, among the first many, that does not stand where the view says."""
    points = [(run.x, (run.x, run.dst, run.src)[column - 1])]
    for loop in run.loops:
        points = [(x + i * loop[X], a + i * loop[column]) for i in range(loop[0]) for x, a in points][:most]
        for x, address in points:
            if view.at(x) != address:
                return x
    return run.x


def span(run: Run) -> tuple[int, int]:
    """The least and the largest coordinate of a run."""
    ends = [(loop[0] - 1) * loop[X] for loop in run.loops]
    return run.x + sum(min(end, 0) for end in ends), run.x + sum(max(end, 0) for end in ends)


def uncovered(runs: Sequence[Run], length: int, most: int = 1 << 22) -> int | None:
    """A coordinate below `length` that runs cover not once; for messages, so only where it can be listed."""
    if length > most:
        return None
    seen = [0] * length
    for run in runs:
        points = [run.x]
        for loop in run.loops:
            points = [x + i * loop[X] for i in range(loop[0]) for x in points]
        for x in points:
            if not 0 <= x < length:
                return x
            seen[x] += 1
    return next((x for x, times in enumerate(seen) if times != 1), None)
