"""What a kernel makes of matrices: the groups it may read each with, and the padded extents that its tiles allow.

A rank whose first elements end a group of the checkpoint is padded in front, so that all later borders of groups fall
on borders of the kernel's. Only an axis seen outside is cut so; inside a module ranks are cut where groups end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from layoutdsl.errors import LayoutError
from layoutdsl.model import Kernel, Tile
from layoutdsl.resolve.matrices import Matrix
from layoutdsl.resolve.params import Scope
from layoutdsl.resolve.tensors import Side, tensors

CHOICES = ("even", "finer groups", "uneven", "one group a rank", "front pad")
"""How a module is served, the plainest first."""

MOST_CHOICES = 512
"""Most ways to serve matrices of which the best is looked for."""


class Fit(NamedTuple):
    """A matrix as a kernel takes it: padded, and its group along k (0: one group)."""

    matrix: Matrix
    group: int

    @property
    def duties(self) -> int:
        """How many a caller has around this matrix: an input to pad, an output to slice."""
        m = self.matrix
        return (m.k.seen and (m.k.front or m.k.rest) > 0) + (m.n[0].seen and m.n_padded > m.n_widest)


def up(value: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-value // multiple) * multiple


# --- groups -----------------------------------------------------------------------------------------------------------


def stored_group(source: Side, matrix: Matrix) -> int:
    """Inputs in a group of the source; 0: one group."""
    stored = int(source.params.get("group", -1))
    return stored if 0 < stored < matrix.k.size else 0


def front_of(start: int, length: int, group: int, stored: int) -> int:
    """How many places a rank leaves empty in front, so that borders of stored groups are those of the kernel's."""
    if not group or not stored:
        return 0
    border = up(start, stored)
    return (start - border) % group if border < start + length else 0


def fronts(matrix: Matrix, group: int, stored: int) -> list[int]:
    """The same for every rank that holds something."""
    if not group or not stored:
        return []
    return [front_of(start, length, group, stored) for start, length in matrix.k.all() if length]


def is_inside(matrix: Matrix, stored: int) -> bool:
    """Whether each rank's inputs lie inside one group of the source."""
    if not stored:
        return True
    return all(start // stored == (start + length - 1) // stored for start, length in matrix.k.all() if length)


def groups_of(kernel: Kernel, source: Side, matrix: Matrix, given: int | None) -> tuple[int, ...]:
    """The groups along k with which the kernel may read a matrix (0: one group), the source's own first; only the one
    given, where one is. Raises LayoutError where there is none."""
    stored = stored_group(source, matrix)
    inside = is_inside(matrix, stored)
    own = int(source.params.get("group", -1))
    wanted = [given] if given is not None else list(_wanted(kernel, own, stored, inside))
    found = [max(group, 0) for group in wanted if _reads(kernel, matrix, group, stored, inside)]
    if not found:
        raise _unread(kernel, matrix, wanted[0], stored, inside)
    return tuple(dict.fromkeys(found))


def _wanted(kernel: Kernel, own: int, stored: int, inside: bool) -> Iterator[int]:
    accepted = kernel.accepts.groups
    if inside:
        if -1 in accepted:
            yield -1
            return
        yield from sorted({*accepted} & {own})
        yield from sorted(accepted, reverse=True)
        return
    yield stored
    yield from sorted((group for group in accepted if 0 < group < stored and stored % group == 0), reverse=True)


def _reads(kernel: Kernel, matrix: Matrix, group: int, stored: int, inside: bool) -> bool:
    """Whether the kernel can read the matrix with a group."""
    if group not in kernel.accepts.groups:
        return False
    if inside:
        return True
    return group > 0 and stored % group == 0 and (matrix.k.seen or not any(fronts(matrix, group, stored)))


def _unread(kernel: Kernel, matrix: Matrix, group: int, stored: int, inside: bool) -> LayoutError:
    """Why it cannot."""
    if group not in kernel.accepts.groups:
        return _not_taken(kernel, matrix, group)
    if not inside and (group < 0 or stored % group):
        return LayoutError(
            f"`{matrix.name}` has groups of {stored} along `{matrix.k.axis}`, which "
            f"{_shown(group)} of kernel `{kernel.name}` would join",
            code="LP124",
            name="groups-joined",
            help=f"the kernel's groups must divide {stored}; leave target.group out to keep them",
        )
    return _group_cut(kernel, matrix, group, stored)


def groups_nest(source: Side, target: Side, matrix: Matrix) -> None:
    """Refuse checkpoint groups of which neither divides the other: a scale would belong to parts of two groups."""
    have, want = (int(side.params.get("group", -1)) for side in (source, target))
    if 0 < have < matrix.k.size and 0 < want < matrix.k.size and have % want and want % have:
        raise LayoutError(
            f"`{matrix.name}` has groups of {have} along `{matrix.k.axis}`, which do not fit groups of {want} of "
            f"`{target.format.name}`",
            code="LP124",
            name="groups-joined",
            help=f"the target's groups must divide {have}; leave target.group out to keep them",
        )


def taken(kernel: Kernel, matrix: Matrix, group: int) -> int:
    """The group, -1 as 0, if the kernel takes it; else LayoutError."""
    if group not in kernel.accepts.groups:
        raise _not_taken(kernel, matrix, group)
    return max(group, 0)


def _not_taken(kernel: Kernel, matrix: Matrix, group: int) -> LayoutError:
    help = "it takes " + ", ".join("one group (-1)" if g == -1 else str(g) for g in kernel.accepts.groups)
    finer = max((g for g in kernel.accepts.groups if 0 < g < group and group % g == 0), default=0)
    if finer:
        help += f"; target.group={finer} repeats each scale for {group // finer} finer groups"
    return LayoutError(
        f"`{matrix.name}` has {_shown(group)} along `{matrix.k.axis}`, which kernel `{kernel.name}` does not take",
        code="LP123",
        name="group-not-taken",
        help=help,
    )


def _shown(group: int) -> str:
    return "one group" if group < 0 else f"groups of {group}"


def _group_cut(kernel: Kernel, matrix: Matrix, group: int, stored: int) -> LayoutError:
    k = matrix.k
    assert k.shared is not None
    at = next(start for start, length in k.all() if front_of(start, length, group, stored))
    finer = [g for g in kernel.accepts.groups if g > 0 and stored % g == 0 and not any(fronts(matrix, g, stored))]
    ways = [f"target.group={max(finer)} reads them as finer groups, exactly"] if finer else []
    fits = next(c for c in range(k.shared.ranks, 0, -1) if k.size % c == 0 and (c == 1 or k.size // c % group == 0))
    ways.append(f"{fits} tensor-parallel rank{'s keep' if fits > 1 else ' keeps'} every group whole")
    return LayoutError(
        f"`{matrix.name}`: {k.shared.ranks} tensor-parallel ranks cut axis `{k.axis}` of {k.size} elements at {at}, "
        f"through a group of {group}",
        code="LP122",
        name="group-cut",
        help="; ".join(ways),
    )


# --- extents ----------------------------------------------------------------------------------------------------------

Shape = tuple[tuple[int, ...], int, int]
"""Padded: n of each part, n of all, k."""


def worth(kernel: Kernel, matrix: Matrix, groups: Sequence[int], stored: int) -> list[int]:
    """Those of the groups, coarsest first, with which k is padded less by some tile than with every coarser one."""
    kept: dict[int, list[int]] = {}
    for group in groups:
        least = max(fronts(matrix, group, stored), default=0) + matrix.k.widest
        extents = [up(least, math.lcm(tile.k, max(group, 1))) for tile in kernel.accepts.tiles]
        if not any(all(map(int.__le__, other, extents)) for other in kept.values()):
            kept[group] = extents
    return list(kept)


def shapes(
    kernel: Kernel, found: Sequence[Matrix], groups: Sequence[int], stored: Sequence[int], tight: bool
) -> list[tuple[Shape, ...]]:
    """What the matrices may be padded to, once for each choice of tiles that no other one undercuts.

    stored: the source's groups. tight: whether a matrix may be padded less along an inner axis than the next one.
    """
    front = [max(fronts(m, group, own), default=0) for m, group, own in zip(found, groups, stored)]
    inner = [
        (writes, reads)
        for writes, m in enumerate(found)
        for reads, other in enumerate(found)
        if m.n[0].axis == other.k.axis and not m.n[0].seen
    ]
    are_few(kernel, found)
    every = product(kernel.accepts.tiles, repeat=len(found))
    made = {_shapes(found, tiles, groups, front, inner, tight): None for tiles in every}
    return [one for one in made if not any(other != one and _is_within(other, one) for other in made)]


def are_few(kernel: Kernel, found: Sequence[Matrix], groups: int = 1) -> None:
    """LayoutError where there are more ways to give each matrix a family of tiles, and one of so many sets of groups,
    than can be tried."""
    if len(kernel.accepts.tiles) ** len(found) * groups > MOST_CHOICES:
        raise LayoutError(
            f"`{kernel.name}` has {len(kernel.accepts.tiles)} families of tiles for each of {len(found)} matrices"
            + (f", and {groups} ways to group them" if groups > 1 else ""),
            code="LP127",
            name="too-many-choices",
            help=f"at most {MOST_CHOICES} ways are tried: convert fewer matrices at a time, with `only`",
        )


def fitted(
    found: Sequence[Matrix], groups: Sequence[int], stored: Sequence[int], padded: Sequence[Shape]
) -> tuple[Fit, ...]:
    """The matrices with these groups and padded to these extents."""
    return tuple(
        Fit(widened(m, *shape, front_of(m.k.start, m.k.length, group, own)), group)
        for m, group, own, shape in zip(found, groups, stored, padded)
    )


def _is_within(one: Sequence[Shape], other: Sequence[Shape]) -> bool:
    return all(a[1] <= b[1] and a[2] <= b[2] for a, b in zip(one, other))


def _shapes(
    found: Sequence[Matrix],
    tiles: Sequence[Tile],
    groups: Sequence[int],
    front: Sequence[int],
    inner: Sequence[tuple[int, int]],
    tight: bool,
) -> tuple[Shape, ...]:
    """The least extents with these tiles; front: the most that a rank leaves empty before its k; inner: which matrix
    writes the axis that which one reads."""
    n = [tile.n // math.gcd(tile.n, len(m.n)) if m.pad == "part" else tile.n for m, tile in zip(found, tiles)]
    k = [math.lcm(tile.k, max(group, 1)) for tile, group in zip(tiles, groups)]
    at_least = [m.k.widest + before for m, before in zip(found, front)]
    for writes, reads in inner:
        if tight:
            at_least[reads] = front[reads] + up(found[writes].n[0].widest, n[writes])
        else:
            n[writes] = k[reads] = math.lcm(n[writes], k[reads])
    made: list[Shape] = []
    for m, multiple, k_multiple, k_least in zip(found, n, k, at_least):
        if m.pad == "tail":
            parts = tuple(s.widest for s in m.n)
            made.append((parts, up(sum(parts), multiple), up(k_least, k_multiple)))
        else:
            parts = tuple(up(s.widest, multiple) for s in m.n)
            made.append((parts, sum(parts), up(k_least, k_multiple)))
    return tuple(made)


def widened(matrix: Matrix, parts: Sequence[int], n: int, k: int, front: int = 0) -> Matrix:
    """The matrix with padded extents: of each part, of all parts, and of k, with what is in front of it."""
    stretches = tuple(s._replace(padded=padded) for s, padded in zip(matrix.n, parts))
    return matrix._replace(n=stretches, k=matrix.k._replace(padded=k, front=front), n_padded=n)


def tile_of(kernel: Kernel, n: int, k: int) -> Tile | None:
    """The first tile family that padded extents fit."""
    return next((tile for tile in kernel.accepts.tiles if n % tile.n == 0 and k % tile.k == 0), None)


def stored_bytes(kernel: Kernel, params: Scope, matrix: Matrix, group: int) -> int:
    """Bytes of all tensors of one matrix as the kernel stores them, all experts of the rank together."""
    experts = matrix.experts[2] if matrix.experts else 1
    total = 0
    for tensor in tensors(Side(kernel, params, "padded"), matrix, group):
        total += tensor.codes * tensor.code.bits // 8 * (experts if tensor.experts == "each" else 1)
    return total


def cheapest(
    kernel: Kernel, params: Scope, found: Sequence[Matrix], groups: Sequence[int], stored: Sequence[int], tight: bool
) -> tuple[Fit, ...]:
    """Of all paddings with these groups the one that stores the fewest bytes, then that with the fewest duties."""
    ways = [fitted(found, groups, stored, one) for one in shapes(kernel, found, groups, stored, tight)]
    if len(ways) == 1:
        return ways[0]
    return min(
        ways,
        key=lambda chosen: (
            sum(stored_bytes(kernel, params, fit.matrix, fit.group) for fit in chosen),
            sum(fit.duties for fit in chosen),
            sum(fit.matrix.n_padded + fit.matrix.k.padded for fit in chosen),
        ),
    )


def named(found: Sequence[Matrix], groups: Sequence[int], stored: Sequence[int]) -> str:
    """Which of CHOICES serves the matrices so."""
    names = {CHOICES[0]}
    for m, group, own in zip(found, groups, stored):
        if any(fronts(m, group, own)):
            names.add("front pad")
        if own and not group and m.k.shared is not None and m.k.shared.grain and not m.k.seen:
            names.add("one group a rank")
        if 0 < group < own:
            names.add("finer groups")
        if any(len({length for _, length in s.all()}) > 1 for s in (m.k, *m.n)):
            names.add("uneven")
    return max(names, key=CHOICES.index)
