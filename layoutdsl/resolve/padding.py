"""What a kernel makes of a matrix: its group along k, and the padded extents with the fewest stored bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from layoutdsl.errors import LayoutError
from layoutdsl.model import Kernel, Tile
from layoutdsl.resolve.matrices import Matrix
from layoutdsl.resolve.params import Scope
from layoutdsl.resolve.tensors import Side, tensors

_PADDED: dict[tuple, tuple[Kernel, tuple[Matrix, ...]]] = {}
_MOST_KNOWN = 4096


def pad(kernel: Kernel, params: Scope, found: Sequence[Matrix], groups: Sequence[int]) -> tuple[Matrix, ...]:
    """The matrices padded to the kernel's tiles: of all tile families, the fewest stored bytes."""
    key = (id(kernel), tuple(params.items()), tuple(found), tuple(groups))
    if key not in _PADDED:
        if len(_PADDED) >= _MOST_KNOWN:
            _PADDED.clear()
        _PADDED[key] = kernel, _cheapest(kernel, params, found, groups)
    return _PADDED[key][1]


def _cheapest(kernel: Kernel, params: Scope, found: Sequence[Matrix], groups: Sequence[int]) -> tuple[Matrix, ...]:
    choices: dict[tuple[int, ...], tuple[Mapping[str, int], tuple[Tile, ...]]] = {}
    for tiles in _product([kernel.accepts.tiles] * len(found)):
        multiples: dict[str, int] = {}
        for matrix, tile, group in zip(found, tiles, groups):
            multiples[matrix.k.axis] = math.lcm(multiples.get(matrix.k.axis, 1), tile.k, max(group, 1))
            if matrix.pad == "part":
                share = tile.n // math.gcd(tile.n, len(matrix.n))
                multiples[matrix.n[0].axis] = math.lcm(multiples.get(matrix.n[0].axis, 1), share)
        extents = tuple(e for matrix, tile in zip(found, tiles) for e in _padded_extents(matrix, multiples, tile.n))
        choices.setdefault(extents, (multiples, tiles))
    # A choice that another one undercuts or equals in every extent cannot store less.
    least = [e for e in choices if not any(o != e and all(map(int.__le__, o, e)) for o in choices)]
    made = [tuple(padded_to(m, choices[e][0], tile.n) for m, tile in zip(found, choices[e][1])) for e in least]
    if len(made) == 1:
        return made[0]
    known: dict[tuple[Matrix, int], int] = {}

    def cost(padded: tuple[Matrix, ...]) -> tuple[int, int]:
        for key in zip(padded, groups):
            if key not in known:
                known[key] = stored_bytes(kernel, params, *key)
        return sum(known[key] for key in zip(padded, groups)), sum(
            matrix.n_padded + matrix.k.padded for matrix in padded
        )

    return min(made, key=cost)


def _padded_extents(matrix: Matrix, multiples: Mapping[str, int], n_tile: int) -> tuple[int, ...]:
    k = _up(matrix.k.widest, multiples[matrix.k.axis])
    if matrix.pad == "tail":
        return k, _up(matrix.n_widest, n_tile)
    return k, *(_up(s.widest, multiples[s.axis]) for s in matrix.n)


def _product(choices: Sequence[Sequence]) -> Iterator[tuple]:
    if not choices:
        yield ()
        return
    for first in choices[0]:
        for rest in _product(choices[1:]):
            yield (first, *rest)


def padded_to(matrix: Matrix, multiples: Mapping[str, int], n_tile: int) -> Matrix:
    k = replace(matrix.k, padded=_up(matrix.k.widest, multiples.get(matrix.k.axis, 1)))
    if matrix.pad == "tail":
        return replace(matrix, k=k, n_padded=_up(matrix.n_widest, n_tile))
    n = tuple(replace(s, padded=_up(s.widest, multiples.get(s.axis, 1))) for s in matrix.n)
    return replace(matrix, n=n, k=k, n_padded=sum(s.padded for s in n))


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def stored_bytes(kernel: Kernel, params: Scope, matrix: Matrix, group: int) -> int:
    """Bytes of all tensors of one matrix as the kernel stores them, all experts of the rank together."""
    experts = matrix.experts[2] if matrix.experts else 1
    total = 0
    for tensor in tensors(Side(kernel, params, "padded"), matrix, group):
        total += tensor.codes * tensor.code.bits // 8 * (experts if tensor.experts == "each" else 1)
    return total


def group_of(kernel: Kernel, source: Side, matrix: Matrix, given: int | None) -> int:
    """The kernel's group along k of one matrix (0: one group): the one given, else the source's own.

    Raises LayoutError where the kernel does not take it, or a rank's groups would not lie inside the source's.
    """
    stored = int(source.params.get("group", -1))
    whole = stored < 0 or stored >= matrix.k.size
    inside = whole or all(start // stored == (start + length - 1) // stored for start, length in matrix.k.all())
    accepted = kernel.accepts.groups
    group = given if given is not None else _own_group(accepted, stored, inside)
    taken(kernel, matrix, group)
    if inside:
        return max(group, 0)
    if group < 0 or stored % group:
        raise LayoutError(
            f"`{matrix.name}` has groups of {stored} along `{matrix.k.axis}`, which "
            f"{_shown(group)} of kernel `{kernel.name}` would join",
            code="LP124",
            name="groups-joined",
            help=f"the kernel's groups must divide {stored}; leave target.group out to keep them",
        )
    if matrix.k.cut and any(start % group for start, length in matrix.k.all() if length):
        raise _group_cut(matrix, group, [g for g in accepted if g > 0 and stored % g == 0 and matrix.k.length % g == 0])
    return group


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
    if group in kernel.accepts.groups:
        return max(group, 0)
    help = "it takes " + ", ".join("one group (-1)" if g == -1 else str(g) for g in kernel.accepts.groups)
    finer = max((g for g in kernel.accepts.groups if 0 < g < group and group % g == 0), default=0)
    if finer:
        help += f"; target.group={finer} repeats each scale for {group // finer} finer groups"
    raise LayoutError(
        f"`{matrix.name}` has {_shown(group)} along `{matrix.k.axis}`, which kernel `{kernel.name}` does not take",
        code="LP123",
        name="group-not-taken",
        help=help,
    )


def _shown(group: int) -> str:
    return "one group" if group < 0 else f"groups of {group}"


def _own_group(accepted: Sequence[int], stored: int, inside: bool) -> int:
    if inside and -1 in accepted:
        return -1
    return accepted[0] if inside and len(accepted) == 1 else stored


def _group_cut(matrix: Matrix, group: int, finer: Sequence[int]) -> LayoutError:
    k = matrix.k
    fits = next(c for c in range(k.size // k.length, 0, -1) if k.size % c == 0 and (c == 1 or k.size // c % group == 0))
    ways = [f"target.group={max(finer)} reads them as finer groups, exactly"] if finer else []
    ways.append(f"{fits} tensor-parallel rank{'s keep' if fits > 1 else ' keeps'} every group whole")
    return LayoutError(
        f"`{matrix.name}`: {k.size // k.length} tensor-parallel ranks cut axis `{k.axis}` of {k.size} elements "
        f"through a group of {group}: each holds {k.length}",
        code="LP122",
        name="group-cut",
        help="; ".join(ways),
    )
