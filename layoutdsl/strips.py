"""Rows of neighbours that come again at regular steps: how bytes and codes are listed without listing each.

A strip stands for all its rows, and strips are joined without listing them: the cost depends on how many there are, not
on how long they are or how often they turn. With two sides, what is read and what is written, neighbours are
neighbours on both. Rows of 4 that begin where others end are one with them:

    >>> joined([Strip((0, 0), 4, ((2, (16, 8)),)), Strip((4, 4), 4, ((2, (16, 8)),))])
    (Strip(at=(0, 0), length=8, loops=((2, (16, 8)),)),)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import add

Place = tuple[int, ...]
"""An address per side: of the source alone, or of source and target."""

Loops = tuple[tuple[int, Place], ...]
"""(count, step per side), the least step first."""


@dataclass(frozen=True, slots=True, order=True)
class Strip:
    """`length` neighbours from `at` on, again at every step of the loops; with two sides, neighbours on both."""

    at: Place
    length: int
    loops: Loops = ()

    def starts(self) -> Iterator[Place]:
        """Where each row begins, the innermost loop turning first."""
        return zip(*map(self._column, range(len(self.at))))

    def _column(self, side: int) -> list[int]:
        found = [self.at[side]]
        for count, steps in reversed(self.loops):
            moves = [i * steps[side] for i in range(count)]
            found = [at + move for at in found for move in moves]
        return found


def moved(strip: Strip, by: Place) -> Strip:
    """The same rows, each so much further on each side."""
    return replace(strip, at=tuple(map(add, strip.at, by)))


def tidy(at: Place, length: int, loops: Iterable[tuple[int, Place]]) -> Strip:
    """A strip with as few loops as will do: neighbours go into its length, loops that continue one another are one."""
    kept: list[tuple[int, Place]] = []
    for count, steps in sorted(loops, key=lambda loop: loop[1]):
        if count == 1 or not any(steps):
            continue
        if len(set(steps)) == 1 and steps[0] <= length:
            length += (count - 1) * steps[0]
        elif kept and steps == tuple(kept[-1][0] * step for step in kept[-1][1]):
            kept[-1] = kept[-1][0] * count, kept[-1][1]
        else:
            kept.append((count, steps))
    return Strip(at, length, tuple(kept))


def joined(strips: Iterable[Strip]) -> tuple[Strip, ...]:
    """The same elements in as few strips as the two rules below find."""
    found = set(strips)
    while True:
        fewer = _continued(_touching(found))
        if len(fewer) == len(found):
            return tuple(sorted(fewer))
        found = fewer


def _touching(strips: Iterable[Strip]) -> set[Strip]:
    """Strips with the same loops whose rows touch, on all sides alike, become one."""
    alike: dict[tuple[Loops, Place], list[Strip]] = {}
    for strip in sorted(strips):
        alike.setdefault((strip.loops, tuple(a - strip.at[0] for a in strip.at)), []).append(strip)
    found: set[Strip] = set()
    for (loops, _), group in alike.items():
        at, end = group[0].at, group[0].at[0]
        for strip in group:
            if strip.at[0] > end:
                found.add(tidy(at, end - at[0], loops))
                at = strip.at
            end = max(end, strip.at[0] + strip.length)
        found.add(tidy(at, end - at[0], loops))
    return found


def _continued(strips: set[Strip]) -> set[Strip]:
    """A strip, or one row, that begins where a loop of another one would step next, becomes one with it."""
    found = set(strips)
    at_place: dict[tuple[Place, int], list[Strip]] = {}
    for strip in strips:
        at_place.setdefault((strip.at, strip.length), []).append(strip)
    for strip in sorted(strips):
        for at in range(len(strip.loops)):
            if strip not in found:
                break
            count, steps = strip.loops[at]
            rest = strip.loops[:at] + strip.loops[at + 1 :]
            end = tuple(a + count * step for a, step in zip(strip.at, steps))
            start = tuple(a - step for a, step in zip(strip.at, steps))
            for other in at_place.get((end, strip.length), ()):
                turns = _turns(other, rest, steps)
                if turns and other in found:
                    found -= {strip, other}
                    found.add(tidy(strip.at, strip.length, (*rest, (count + turns, steps))))
                    break
            else:
                row = Strip(start, strip.length, rest)
                if row in found:
                    found -= {strip, row}
                    found.add(tidy(start, strip.length, (*rest, (count + 1, steps))))
    return found


def _turns(strip: Strip, rest: Loops, steps: Place) -> int:
    """How often a strip takes these steps, its other loops being `rest`: 1 for a single row, 0 if they are others."""
    if strip.loops == rest:
        return 1
    own = [loop for loop in strip.loops if loop[1] == steps]
    return own[0][0] if own and tuple(loop for loop in strip.loops if loop[1] != steps) == rest else 0
