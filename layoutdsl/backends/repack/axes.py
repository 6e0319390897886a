"""A program's codes as grids: lists of entries along n and along k, of which each pair is a code.

Addresses add up over axes, so that n + k entries say where n * k codes stand. Worked example: four columns of eight k
whose words go from `kw n {kp}` to `n kw {kp}`, beside a pad of four columns:

    entries along n      dst 0 8 16 24 32 40 48 56      src 0 8 16 24 - - - -      kind 0 0 0 0 1 1 1 1
    entries along k      dst 0 1 2 3 4 5 6 7            src 0 1 2 3 4 5 6 7        kind 0 0 0 0 0 0 0 0
    actions              of kinds (0, 0): DATA, of (1, 0): the code that pads

`written` are the grids that a program writes: targets in ascending order, each once. `listed` are all elements that
moves bring, also those that share a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutdsl.layout import Run
from layoutdsl.plan import Lookup, Move, Operand

DST, SRC, PART, KIND, BESIDE, AT = range(6)
"""Rows of an axis: the target's address and the source's (or, where it is gathered, the position in the order), the
part, what actions are looked up by, the address of an operand (or its position, where it is gathered), and the
coordinate."""

KEPT, DATA = -1, -2
"""Actions that are no code: what stands in the target stays; a code of the sources is recoded."""

FIRST, LAST, ALL = "first", "last", "all"
"""Which of the elements that share a target."""

MOST = 62
"""Pieces of a grid: they are bits of a kind."""

Axis = np.ndarray
"""int64 [6, entries]"""


@dataclass(frozen=True, eq=False)
class Grid:
    """`actions` [kinds along n, kinds along k] says what becomes of each pair."""

    n: Axis
    k: Axis
    actions: np.ndarray
    gather_n: Lookup | None = None
    gather_k: Lookup | None = None
    beside_n: Lookup | None = None
    beside_k: Lookup | None = None

    @property
    def lookups(self) -> Iterator[tuple[str, Axis, int, Lookup | None]]:
        """What kernels call a list of addresses, the axis and the row that it is made of, and how it is gathered."""
        yield "n_sources", self.n, SRC, self.gather_n
        yield "k_sources", self.k, SRC, self.gather_k
        yield "n_beside", self.n, BESIDE, self.beside_n
        yield "k_beside", self.k, BESIDE, self.beside_k


def written(moves: Sequence[Move], operand: Operand | None = None) -> list[Grid]:
    """Grids of all that moves write; mostly one."""
    made: list[list[_Piece]] = []
    for piece in _pieces(moves, operand, FIRST):
        fitting = next((pieces for pieces in made if _fit(*pieces, piece)), None)
        if fitting is None:
            made.append([piece])
        else:
            fitting.append(piece)
    return [_grid(pieces) for pieces in made]


def listed(moves: Sequence[Move], operand: Operand | None = None) -> Iterator[Grid]:
    """A grid for each move that brings data."""
    for piece in _pieces([move for move in moves if move.kind == "data"], operand, ALL):
        yield Grid(piece.n, piece.k, np.full((1, 1), DATA), *piece.lookups)


def shares(moves: Sequence[Move]) -> bool:
    """Whether some elements are compared with others that share their target."""
    runs = [run for move in moves if move.kind == "data" for run in (*move.n, *move.k)]
    return any(run.join or any(dst == 0 and src for _, _, dst, src in run.loops) for run in runs)


@dataclass(frozen=True, eq=False)
class _Piece:
    """A move, or that part of it along n of which the operand is in one move."""

    action: int
    n: Axis
    k: Axis
    lookups: tuple[Lookup | None, ...]


def _pieces(moves: Sequence[Move], operand: Operand | None, which: str) -> Iterator[_Piece]:
    for move in moves:
        chosen = LAST if move.kind == "value" and which == FIRST else which
        n, k = _axis(move.n, chosen), _axis(move.k, chosen)
        if not n.size or not k.size:
            continue
        action = move.pad if move.kind == "pad" else DATA
        if operand is None or move.kind != "data":
            yield _Piece(action, n, k, (move.gather_n, move.gather_k))
            continue
        for beside in operand.moves:
            found = _beside(n, _axis(beside.n, LAST)), _beside(k, _axis(beside.k, LAST))
            if found[0].size and found[1].size:
                lookups = move.gather_n, move.gather_k, beside.gather_n, beside.gather_k
                yield _Piece(action, *found, lookups)


def _axis(runs: Sequence[Run], which: str) -> Axis:
    found = [_elements(run, which) for run in runs]
    return np.concatenate(found, axis=1) if found else np.empty((6, 0), np.int64)


def _elements(run: Run, which: str) -> Axis:
    made = np.zeros((3, 1), np.int64)
    made[:, 0] = run.dst, run.src, run.x
    for count, dx, dst, src in run.loops:
        if not dst and not src:
            continue
        shared = {FIRST: [0], LAST: [count - 1], ALL: range(count)}[which]
        turns = np.arange(count) if dst else np.array(shared)
        steps = np.array([[dst], [src], [dx]]) * turns
        made = (made[:, None, :] + steps[:, :, None]).reshape(3, -1)
    if run.join and which == FIRST:
        made = made[:, :0]
    axis = np.zeros((6, made.shape[1]), np.int64)
    axis[[DST, SRC, AT]], axis[PART] = made, run.part
    return axis


def _beside(axis: Axis, operand: Axis) -> Axis:
    """The entries whose target an operand has as well, with its addresses."""
    order = np.argsort(operand[DST], kind="stable")
    at = np.searchsorted(operand[DST][order], axis[DST], side="right") - 1
    within = at >= 0
    within[within] = operand[DST][order][at[within]] == axis[DST][within]
    made = axis[:, within].copy()
    made[BESIDE] = operand[SRC][order][at[within]]
    return made


def _fit(*pieces: _Piece) -> bool:
    """Whether pieces agree on what stands along each axis, so that they can be one grid."""
    if len(pieces) > MOST:
        return False
    data = [piece for piece in pieces if piece.action == DATA]
    if len({piece.lookups for piece in data}) > 1:
        return False
    return _agree([piece.n for piece in data]) and _agree([piece.k for piece in data])


def _agree(axes: Sequence[Axis]) -> bool:
    if len(axes) < 2:
        return True
    every = np.concatenate(axes, axis=1)[[DST, SRC, PART, BESIDE]]
    return len(np.unique(every, axis=1).T) == len(np.unique(every[0]))


def _grid(pieces: Sequence[_Piece]) -> Grid:
    data = np.array([piece.action == DATA for piece in pieces])
    n, n_kinds = _joined([piece.n for piece in pieces], data)
    k, k_kinds = _joined([piece.k for piece in pieces], data)
    actions = np.full((len(n_kinds), len(k_kinds)), KEPT, np.int64)
    for at in np.argsort(data, kind="stable"):  # what brings data is written last
        actions[np.ix_(n_kinds >> at & 1 == 1, k_kinds >> at & 1 == 1)] = pieces[at].action
    first = pieces[int(data.argmax())]
    return Grid(n, k, actions, *first.lookups)


def _joined(axes: Sequence[Axis], data: np.ndarray) -> tuple[Axis, np.ndarray]:
    """One axis of several, by target, and its kinds: entries of one part that are in the same axes, which each kind has
    as bits."""
    every = np.concatenate(axes, axis=1)
    owner = np.repeat(np.arange(len(axes)), [axis.shape[1] for axis in axes])
    # Of entries with one target the first stands for all: one that brings data, where there is one.
    order = np.lexsort((~data[owner], every[DST]))
    made, bits = every[:, order], (1 << owner)[order]
    starts = np.flatnonzero(np.diff(made[DST], prepend=-1))
    made = made[:, starts]
    members = np.stack([np.bitwise_or.reduceat(bits, starts), made[PART]])
    kinds, which = np.unique(members, axis=1, return_inverse=True)
    made[KIND] = which.reshape(-1)
    return made, kinds[0]


def by_source(grid: Grid) -> Grid:
    """The grid as if its sources were its targets: what is looked at stands there once, in ascending order."""
    n, k = (axis[:, np.unique(axis[SRC], return_index=True)[1]] for axis in (grid.n, grid.k))
    n[DST], k[DST] = n[SRC], k[SRC]
    return Grid(n, k, grid.actions)


def paired(grid: Grid) -> Grid:
    """Every 4-bit target with its other half of a byte, which stays where the grid does not write it."""
    n, k = grid.n.copy(), grid.k.copy()
    if np.all(k[DST] % 2):  # odd sums are n's
        k[DST] -= 1
        n[DST] += 1
    n_kinds, k_kinds = grid.actions.shape
    if np.any(k[DST] % 2):
        actions = np.concatenate([grid.actions, np.full((n_kinds, 1), KEPT)], axis=1)
        return replace(grid, k=_with_halves(k, k_kinds), n=n, actions=actions)
    actions = np.concatenate([grid.actions, np.full((1, k_kinds), KEPT)])
    return replace(grid, n=_with_halves(n, n_kinds), k=k, actions=actions)


def _with_halves(axis: Axis, kind: int) -> Axis:
    lacking = np.setdiff1d(axis[DST] ^ 1, axis[DST])
    halves = np.zeros((6, len(lacking)), np.int64)
    halves[DST], halves[KIND] = lacking, kind
    every = np.concatenate([axis, halves], axis=1)
    return every[:, np.argsort(every[DST], kind="stable")]


def digits(n: Axis, k: Axis, most: int) -> str:
    """Which axis each bit of the target's address is of, from the lowest on, as far as whole digits of both go: "knk"
    where entries along k are neighbours, n's next ones two apart, and k's fours."""
    found = ""
    while len(found) < most:
        step = 1 << len(found)
        for letter, axis in (("n", n), ("k", k)):
            if _digit(axis[DST], found.count(letter)) == step:
                found += letter
                break
        else:
            break
    return found


def aligned(n: Axis, k: Axis, found: str) -> str:
    """As many of these digits as whole pieces of the target have, at multiples of their size."""
    while found:
        size = 1 << len(found)
        starts = [axis[DST][:: 1 << found.count(letter)] % size for letter, axis in (("n", n), ("k", k))]
        if all(np.all(start == start[0]) for start in starts) and (starts[0][0] + starts[1][0]) % size == 0:
            break
        found = found[:-1]
    return found


def _digit(dst: np.ndarray, bit: int) -> int | None:
    """How far apart two halves of each 2^(bit + 1) entries are, where all are the same."""
    if not len(dst) or len(dst) % (2 << bit):
        return None
    pairs = dst.reshape(-1, 2, 1 << bit)
    steps = pairs[:, 1] - pairs[:, 0]
    return int(steps.flat[0]) if np.all(steps == steps.flat[0]) else None

