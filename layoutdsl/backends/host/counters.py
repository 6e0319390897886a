"""What a launch on the host counted: the memory accesses of its warps, line by line of the kernel.

An access is that of a warp: the n-th access of each of its lanes in one line, in one direction and of one width. A GPU
pays for it by the sectors and the wavefronts that it takes, not by the bytes that its lanes asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Sums over accesses of warps.

    accesses      how many
    wide          of these, how many with 16 bytes per lane
    bytes         that the lanes asked for
    transactions  lines of 128 bytes that were touched (global memory)
    sectors       sectors of 32 bytes that were touched (global memory); full ones where 32 * sectors == bytes
    conflicts     wavefronts beyond those that the width needs (shared memory): 0 without bank conflicts
    """

    accesses: int = 0
    wide: int = 0
    bytes: int = 0
    transactions: int = 0
    sectors: int = 0
    conflicts: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(_numbers(self), _numbers(other))))


@dataclass(frozen=True, order=True)
class Line:
    """Where accesses stand: a line of a file, the `space` (global, shared), the `way` (load, store), bytes per lane."""

    file: str
    line: int
    space: str
    way: str
    width: int


@dataclass(frozen=True)
class Counters:
    """The traffic of each line, and how many atomic accesses lanes made; these are in no line."""

    lines: tuple[tuple[Line, Traffic], ...] = ()
    atomics: int = 0

    @property
    def global_loads(self) -> Traffic:
        return self._sum("global", "load")

    @property
    def global_stores(self) -> Traffic:
        return self._sum("global", "store")

    @property
    def shared_loads(self) -> Traffic:
        return self._sum("shared", "load")

    @property
    def shared_stores(self) -> Traffic:
        return self._sum("shared", "store")

    def __add__(self, other: Counters) -> Counters:
        lines = dict(self.lines)
        for line, traffic in other.lines:
            lines[line] = lines.get(line, Traffic()) + traffic
        return Counters(tuple(sorted(lines.items(), key=lambda item: item[0])), self.atomics + other.atomics)

    def _sum(self, space: str, way: str) -> Traffic:
        return total(traffic for line, traffic in self.lines if (line.space, line.way) == (space, way))


def total(traffics: Iterable[Traffic]) -> Traffic:
    return sum(traffics, start=Traffic())


def _numbers(traffic: Traffic) -> tuple[int, ...]:
    return (traffic.accesses, traffic.wide, traffic.bytes, traffic.transactions, traffic.sectors, traffic.conflicts)
