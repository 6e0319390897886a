"""Kernels and their calls: one launch each, for all experts at once.

Kernels say nothing of sizes, so that ranks, layers and shapes share them; numbers and addresses make calls of them. An
address is named in a call's arguments and found by run.py:

    status, lost                    where a refusal is marked; how many values of each expert became 0
    to, from, beside                the output, the source and the operand
    addresses                       the table of the sources' addresses: a row per source, of one per expert
    n_columns, k_columns, actions   the grid's tables
    n_sources, k_sources            the source addresses of the entries, gathered where an axis is
    n_beside, k_beside              the operand's addresses, likewise
    keys                            what a reduction found
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from layoutdsl.backends.repack import axes, grid_kernels, row_kernels, tile_kernels
from layoutdsl.backends.repack.axes import DATA, DST, KEPT, KIND, SRC, Grid
from layoutdsl.backends.repack.text import WARPS
from layoutdsl.backends.repack.tiles import GROUPS, Tiles, groups, row

ALIGNED = 16
"""Bytes of the widest load and store: tensors of their own are at multiples of these."""

LANES = 5
"""Bits of a thread's number in its warp, which say what piece of the target it has."""

PIECES, BLOCKS = 1 << 30, 1 << 31
"""Most pieces of one expert in a call, and less than that many blocks for all of them."""

Source = tuple[str, int]
"""(input, first byte)"""


@dataclass(frozen=True)
class Kernel:
    """`name` is unique by the text; `source` includes what it uses of kernels/; `shared`: bytes of dynamic memory."""

    name: str
    source: str
    threads: int
    shared: int


@dataclass(frozen=True, eq=False)
class Call:
    """One launch of `blocks` blocks. `arguments`: numbers, and names of addresses; `sources`: the rows of their table,
    or the tensors of tiles; `grid`: what is gone through pair by pair."""

    kernel: Kernel
    blocks: int
    arguments: tuple[int | str, ...]
    experts: int
    output: str = ""
    reduction: str = ""
    sources: tuple[Source, ...] = ()
    grid: Grid | None = None


@dataclass(frozen=True)
class About:
    """What calls have in common: for how many experts, for which output and reduction, from tensors at multiples of
    `alignment`, and the numbers that kernels need to know."""

    experts: int
    alignment: int
    numbers: Mapping[str, int]
    output: str = ""
    reduction: str = ""

    def call(
        self, kernel: Kernel, blocks: int, names: Sequence[str], numbers: Mapping[str, int], sources: Sequence[Source],
        grid: Grid | None = None,
    ) -> Call:
        """`blocks`: of one expert."""
        known = {**self.numbers, "blocks_per_expert": blocks, **numbers}
        arguments = tuple(known.get(name, name) for name in names)
        sources = tuple(sources)
        return Call(kernel, blocks * self.experts, arguments, self.experts, self.output, self.reduction, sources, grid)


# ---- pair by pair


def looking(about: About, form: grid_kernels.Form, grid: Grid, sources: Sequence[Source]) -> Iterator[Call]:
    """Calls that go through every pair, along the axis first whose sources are nearer to each other."""
    n, k = (_step(np.unique(axis[SRC]), 0) for axis in (grid.n, grid.k))
    for part in _parts(grid.n, grid.k.shape[1], about.experts):
        within = replace(grid, n=part)
        yield _paired(about, form, within, part.shape[1] * grid.k.shape[1], {"k_first": int(k < n)}, sources)


def writing(
    about: About, form: grid_kernels.Form, grid: Grid, bits: int, sources: Sequence[Source]
) -> Iterator[Call]:
    """Calls that write a grid of target codes of `bits` bits, a piece per thread; the form's unit is theirs to say."""
    most = (min(4, about.alignment) * 8 // bits).bit_length() - 1
    unit = axes.aligned(grid.n, grid.k, axes.digits(grid.n, grid.k, most))
    if bits == 4 and not unit:
        grid = axes.paired(grid)
        unit = axes.aligned(grid.n, grid.k, axes.digits(grid.n, grid.k, 1))
    for part in _rectangles(grid, unit.count("n"), unit.count("k"), about.experts):
        order = axes.digits(part.n, part.k, len(unit) + LANES)
        kinds = part.actions[np.ix_(np.unique(part.n[KIND]), np.unique(part.k[KIND]))]
        numbers = {
            "kinds": part.actions.shape[1],
            "bits": len(order) - len(unit),
            "mask": sum(1 << at for at, letter in enumerate(order[len(unit) :]) if letter == "n"),
            "k_first": int(_step(part.k[DST], order.count("k")) < _step(part.n[DST], order.count("n"))),
        }
        whole = form.whole(unit, mixed=bool(np.any(kinds != DATA)))
        yield _paired(about, whole, part, part.n.shape[1] * part.k.shape[1] >> len(unit), numbers, sources)


def _paired(
    about: About, form: grid_kernels.Form, grid: Grid, pieces: int, numbers: Mapping[str, int],
    sources: Sequence[Source],
) -> Call:
    n, k = grid.n.shape[1], grid.k.shape[1]
    known = {
        **numbers,
        "experts": about.experts, "n_count": n, "k_count": k,
        "n_per_expert": n if grid.gather_n else 0, "k_per_expert": k if grid.gather_k else 0,
        "n_beside_per_expert": n if grid.beside_n else 0, "k_beside_per_expert": k if grid.beside_k else 0,
    }
    blocks = -(-pieces // grid_kernels.THREADS)
    return about.call(_grid_kernel(form), blocks, grid_kernels.parameters(form), known, sources, grid)


def _step(values: np.ndarray, taken: int) -> float:
    """How far the next digit of an axis goes, after so many."""
    at = 1 << taken
    return float(abs(values[at] - values[0])) if len(values) > at else math.inf


def _parts(n: np.ndarray, each: int, experts: int) -> list[np.ndarray]:
    """Entries along n, each with so many pieces, as calls can take them."""
    most = min(PIECES, (BLOCKS - 1) // experts * grid_kernels.THREADS)
    return np.array_split(n, -(-n.shape[1] * each // most), axis=1)


def _rectangles(grid: Grid, n_bits: int, k_bits: int, experts: int) -> Iterator[Grid]:
    """The grid without what it keeps, as whole pieces, as calls can take them."""
    live = grid.actions != KEPT
    n_blocks, k_blocks = grid.n.reshape(6, -1, 1 << n_bits), grid.k.reshape(6, -1, 1 << k_bits)
    wanted, which = np.unique(live[n_blocks[KIND]].any(axis=1), axis=0, return_inverse=True)
    for at, kinds in enumerate(wanted):
        k = k_blocks[:, kinds[k_blocks[KIND]].any(axis=1)]
        if not k.size:
            continue
        for part in _parts(n_blocks[:, which.reshape(-1) == at], k.shape[1], experts):
            yield replace(grid, n=part.reshape(6, -1), k=k.reshape(6, -1))


# ---- in tiles

_STEPS = ("first", "fast", "slow")
"""Of tiles: where the first is, and the steps to others."""


def along_rows(about: About, use: str, code: str, tiles: Tiles, bits: int, sources: Sequence[Source]) -> Call:
    """A call over the rows of tiles on one side (row_kernels.py)."""
    side, name = ("target", "to") if use == "fill" else ("source", "from")
    near, sizes, width, steps = _side(tiles, side, bits, about.alignment)
    found = {f"row{at}": 0 for at in range(GROUPS)} | steps
    found |= {"near": ((bits << near) // 8).bit_length() - 1, **{f"bits{at}": (*sizes, 0, 0)[at] for at in (0, 1)}}
    numbers = {f"{name}_{which}": number for which, number in found.items()}
    numbers["size"] = (bits << len(tiles.digits)) // 8
    form = row_kernels.Form(use, width, code)
    return _in_tiles(about, _rows_kernel(form), tiles, row_kernels.parameters(form), numbers, sources)


def moving(about: About, make: partial[tile_kernels.Form], tiles: Tiles, bits: int, sources: Sequence[Source]) -> Call:
    """A call that moves tiles, by a form that lacks its source and target (tile_kernels.py)."""
    numbers: dict[str, int] = {}
    rows: dict[str, tile_kernels.Rows] = {}
    for name, side in (("from", "source"), ("to", "target")):
        near, sizes, width, steps = _side(tiles, side, bits, about.alignment)
        rows[side] = tile_kernels.Rows(near, sizes, width)
        numbers |= {f"{name}_{which}": number for which, number in steps.items()}
    form = make(**rows)
    numbers |= {f"beside_{which}": getattr(tiles, which).beside for which in _STEPS}
    beside = [digit.beside for digit in sorted(tiles.digits, key=lambda digit: digit.target)]
    numbers |= {f"beside_digit{at}": step for at, step in enumerate(beside)}
    return _in_tiles(about, _tile_kernel(form), tiles, tile_kernels.parameters(form), numbers, sources)


def _side(tiles: Tiles, side: str, bits: int, alignment: int) -> tuple[int, tuple[int, ...], int, dict[str, int]]:
    """How the digits of one side lie in memory: how many are near, the groups of the others, how many bytes move at
    once, and all steps in bytes."""
    found = {which: getattr(getattr(tiles, which), side) * bits // 8 for which in _STEPS}
    steps = sorted(getattr(digit, side) for digit in tiles.digits)
    near = row(steps)
    sizes = groups(steps[near:])
    starts = [near + sum(sizes[:at]) for at in range(len(sizes))]
    found |= {f"row{at}": steps[start] * bits // 8 for at, start in enumerate(starts)}
    return near, tuple(sizes), math.gcd(alignment, (bits << near) // 8, *found.values()), found


def _in_tiles(
    about: About, kernel: Kernel, tiles: Tiles, names: Sequence[str], numbers: Mapping[str, int],
    sources: Sequence[Source],
) -> Call:
    count = tiles.counts[0] * tiles.counts[1]
    return about.call(kernel, -(-count // WARPS), names, {**numbers, "tiles": count, "fast": tiles.counts[0]}, sources)


@cache
def _grid_kernel(form: grid_kernels.Form) -> Kernel:
    return Kernel(*grid_kernels.named_text(form), grid_kernels.THREADS, 0)


@cache
def _rows_kernel(form: row_kernels.Form) -> Kernel:
    return Kernel(*row_kernels.named_text(form), WARPS * 32, 0)


@cache
def _tile_kernel(form: tile_kernels.Form) -> Kernel:
    return Kernel(*tile_kernels.named_text(form), WARPS * 32, tile_kernels.shared(form))
