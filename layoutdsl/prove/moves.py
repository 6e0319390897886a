"""Laws on moves: `meaning`, where their runs stand, and `complete`, that they bring each logical element once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from layoutdsl import laws
from layoutdsl.layout import Chain, Run, View
from layoutdsl.plan import Move
from layoutdsl.prove.given import Pair, broken

SIDES = {laws.DST: "target", laws.SRC: "source"}


def positions(start: int) -> View:
    """The view of a column that counts coordinates from `start`."""
    return View(Chain(((1, 0, 1),)), start)


def lie_within(runs: Iterable[Run], low: int, high: int, tensor: str, axis: str) -> None:
    """Runs go forward through [low, high), in order. Before all other laws: it bounds the numbers that these add up."""
    if (wrong := _astray(tuple(runs), low, high)) is not None:
        broken("meaning", wrong.format(axis=axis), tensor)


@lru_cache(maxsize=1 << 12)
def _astray(runs: tuple[Run, ...], low: int, high: int) -> str | None:
    """What is wrong with the order of runs, in words."""
    before = low - 1
    for run in runs:
        if run.x <= before:
            return f"the run along {{axis}} at {run.x} does not stand in order, from {low} on"
        before = run.x
        last, below = run.x, 0
        for count, step, _, _ in run.loops:
            if count < 2 or step <= below:
                return f"the loops along {{axis}} at {run.x} do not go forward, innermost first"
            last, below = last + (count - 1) * step, step
        if last >= high:
            return f"the run along {{axis}} from {run.x} to {last} goes beyond {low} to {high - 1}"
    return None


def in_order(runs: Sequence[Run], parts: Sequence[int], tensor: str) -> None:
    """The runs along n of one move belong to parts, in the order of these."""
    at = 0
    for run in runs:
        if run.part not in parts:
            broken("complete", f"part {run.part} does not belong here", tensor)
        if parts.index(run.part) < at:
            broken("meaning", "the runs along n do not stand in the order of their parts", tensor)
        at = parts.index(run.part)


def stand(runs: Iterable[Run], view: View, column: int, tensor: str, axis: str) -> None:
    """Law `meaning`: each run stands where its view says."""
    for run in runs:
        wrong = laws.follows(run, view, column)
        if wrong is not None:
            where = f"element {axis} {wrong} does not stand where the {SIDES[column]} spec puts it"
            broken("meaning", f"{where} ({view.at(wrong)})", tensor)


def unused(runs: Iterable[Run], column: int, tensor: str, axis: str) -> None:
    """A column that a move does not use is 0 throughout."""
    for run in runs:
        if laws.first(run, column) or any(loop[column] for loop in run.loops):
            broken("meaning", f"the run along {axis} at {run.x} has no {SIDES[column]}", tensor)


def complete(
    pair: Pair, moves: Sequence[Move], parts: Sequence[int], tensor: str, k: tuple[int, int] | None = None
) -> None:
    """Law `complete` on one rank: moves bring each element of the parts along n once, each move all of k."""
    low, high = k or (0, pair.matrix.k.length)
    if high == low or not any(pair.matrix.n[part].length for part in parts):
        if moves:
            broken("complete", "it moves what this rank does not hold", tensor)
        return
    by_part: dict[int, list[Run]] = {part: [] for part in parts}
    for move in moves:
        in_order(move.n, parts, tensor)
        for run in move.n:
            by_part[run.part].append(run)
        if any(run.part != -1 for run in move.k):
            broken("meaning", "a run along k belongs to no part", tensor)
        lie_within(move.k, low, high, tensor, "k")
        if not covers(move.k, low, high):
            broken("complete", f"{_where(move.k, low, high, 'k')} is not moved exactly once", tensor)
    for part, runs in by_part.items():
        length = pair.matrix.n[part].length
        lie_within(runs, 0, length, tensor, "n")
        if not covers(tuple(runs), 0, length):
            of = f" of part {pair.matrix.parts[part]}" if pair.matrix.parts else ""
            broken("complete", f"{_where(runs, 0, length, 'n')}{of} is not moved exactly once", tensor)


@lru_cache(maxsize=1 << 12)
def covers(runs: tuple[Run, ...], low: int, high: int) -> bool:
    """Whether the coordinates of runs are low, ..., high - 1, each once."""
    return laws.covers(runs, low, high, laws.DRAWN)


def _where(runs: Sequence[Run], low: int, high: int, axis: str) -> str:
    at = laws.uncovered(runs, low, high)
    return "some element" if at is None else f"{axis} {at}"


def join(moves: Sequence[Move], tensor: str) -> None:
    """A run joins exactly where an earlier one writes the element that all of it shares: it is compared with that."""
    for runs in (tuple([run for move in moves for run in move.n]), *(move.k for move in moves)):
        if (wrong := _misjoined(runs)) is not None:
            broken("once", wrong, tensor)


@lru_cache(maxsize=1 << 12)
def _misjoined(runs: tuple[Run, ...]) -> str | None:
    written: set[int] = set()
    for run in runs:
        shared = not any(loop[laws.DST] for loop in run.loops)
        if run.join != (shared and run.dst in written):
            what = "joins an element that none before it writes" if run.join else "writes an element anew"
            return f"the run at {run.x} {what}"
        if shared:
            written.add(run.dst)
    return None
