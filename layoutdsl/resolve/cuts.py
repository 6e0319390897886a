"""How ranks share an axis: in equal shares, at multiples of a grain, or by groups that some of them share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


def dealt(size: int, count: int, rank: int, grain: int) -> tuple[int, int]:
    """(start, length) of a rank's share: whole grains, as even as can be, the first ranks one more; the last grain may
    be short. A short one that is the only one left over goes to the last rank: then that is the widest, and by less.

        >>> [dealt(100, 3, rank, 12) for rank in range(3)]    # 9 grains
        [(0, 36), (36, 36), (72, 28)]
        >>> [dealt(100, 3, rank, 16) for rank in range(3)]    # 7 grains, the last of 4
        [(0, 32), (32, 32), (64, 36)]
    """
    if not grain:
        return rank * (size // count), size // count
    each, more = divmod(-(-size // grain), count)
    late = more == 1 and each > 0 and size % grain > 0
    first = rank * each + (0 if late else min(rank, more))
    one_more = rank == count - 1 if late else rank < more
    start, end = (min(at * grain, size) for at in (first, first + each + one_more))
    return start, end - start


@dataclass(frozen=True)
class Cut:
    """`ranks` share an axis of `size` elements at multiples of `grain`; with grain 0 in equal shares.

    With `groups` the axis is that many equal ones (query heads by their key-value head), and ranks are dealt whole
    groups. Where ranks outnumber groups, `sharing` of them share one (or as many as there are): its grains are dealt
    among them, or, with `copied`, each holds all of it. Ranks beyond hold nothing.

        >>> [Cut(8, 12, 1, groups=4, sharing=3).share(rank) for rank in range(4)]    # three heads for two ranks each
        [(0, 2), (2, 1), (3, 2), (5, 1)]
    """

    ranks: int
    size: int
    grain: int = 0
    groups: int = 0
    sharing: int = 1
    copied: bool = False

    def share(self, rank: int) -> tuple[int, int]:
        """(start, length) of what a rank holds."""
        if not self.groups:
            return dealt(self.size, self.ranks, rank, self.grain)
        each = self.size // self.groups
        if self.ranks <= self.groups:
            first, count = dealt(self.groups, self.ranks, rank, 1)
            return first * each, count * each
        group, slot = divmod(rank, self._share)
        if group >= self.groups:
            return self.size, 0
        if self.copied:
            return group * each, each
        start, length = dealt(each, self._share, slot, self.grain)
        return group * each + start, length

    @property
    def _share(self) -> int:
        """How many ranks share a group."""
        return min(max(self.ranks // self.groups, 1), self.sharing)

    @property
    def held(self) -> int:
        """How many ranks hold each element."""
        return self._share if self.copied else 1

    @property
    def widest(self) -> int:
        """The most that a rank holds: what does not divide has the first, or the last."""
        return max(self.share(0)[1], self.share(self.ranks - 1)[1])

    def all(self) -> tuple[tuple[int, int], ...]:
        """(start, length) of every rank."""
        return _all(self)


@lru_cache(maxsize=1024)
def _all(cut: Cut) -> tuple[tuple[int, int], ...]:
    return tuple(cut.share(rank) for rank in range(cut.ranks))
