"""Law `neutral`: the pads of a target are all that holds no element, and each has a true reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NoReturn

from layoutdsl import laws
from layoutdsl.layout import Run, View
from layoutdsl.plan import Move
from layoutdsl.prove.given import Given, Pair, broken
from layoutdsl.prove.moves import covers, in_order, lie_within, stand, unused
from layoutdsl.resolve import Stored


def whole_groups(length: int, unit: int | None) -> float:
    """Where the last group of real elements ends; without a unit one group is all."""
    return math.inf if unit is None else -(-length // unit) * unit


class Pads:
    """The pads of one target: first those of each stretch of n without outputs, along all k; then, for all outputs,
    those of each of the stretches `gaps` of k. `filled` is where pads end that are in a group with real elements."""

    def __init__(self, given: Given, pair: Pair, target: Stored, gaps: Sequence[tuple[int, int]], filled: int):
        self.given, self.pair, self.target = given, pair, target
        self.gaps, self.end, self.filled = gaps, target.k_end, filled
        k = pair.matrix.k
        self.real = k.front + k.length if k.length else 0
        self.neutral = given.plan.habits.pads == "neutral"

    def prove(self, moves: Sequence[Move]) -> None:
        for move in moves:
            if not move.n or not move.k or move.gather_n or move.gather_k:
                self._fail("meaning", "a pad has places and no source")
        gaps = self.target.n_gaps
        k_view = View(self.target.k[0].chain)
        for move, (view, first, count) in zip(moves, gaps):
            self._stands(move.n, view, (first, first + count), "n")
            self._covers(move.n, first, first + count, "n")
            self._stands(move.k, k_view, (0, self.end), "k")
            self._covers(move.k, 0, self.end, "k")
            self._neutral(move, 0, gap_n=True)
        beside = moves[len(gaps) :]
        for n, same in groupby(beside, key=lambda move: move.n):
            self._all_outputs(n)
            for move in same:
                self._neutral(move, move.k[0].x, gap_n=False)
        if len(moves) < len(gaps):
            self._fail("once", f"n {gaps[len(moves)][1]} holds no output and is not padded")
        if not any(self.pair.matrix.n[part].length for part in self.target.parts):
            if beside:
                self._fail("once", "a rank without outputs has no pads beside them")
            return
        k = [run for move in beside for run in move.k]
        for first, count in self.gaps:
            inside = [run for run in k if first <= run.x < first + count]
            self._stands(inside, k_view, (first, first + count), "k")
            self._covers(inside, first, first + count, "k")
        if any(not any(first <= run.x < first + count for first, count in self.gaps) for run in k):
            self._fail("once", "a pad along k stands where there is a real element")

    def _fail(self, law: str, message: str) -> NoReturn:
        broken(law, message, self.target.name)

    # where pads stand -------------------------------------------------------------------------------------------------

    def _stands(self, runs: Sequence[Run], view: View, within: tuple[int, int], axis: str, part: int = -1) -> None:
        name = self.target.name
        lie_within(runs, *within, name, axis)
        stand(runs, view, laws.DST, name, axis)
        unused(runs, laws.SRC, name, axis)
        if any(run.join or run.part != part for run in runs):
            belongs = f"part {part}" if part >= 0 else "no part"
            self._fail("meaning", f"a run of pads along {axis} belongs to {belongs} and joins none")

    def _all_outputs(self, n: Sequence[Run]) -> None:
        in_order(n, self.target.parts, self.target.name)
        for part in self.target.parts:
            runs, length = [run for run in n if run.part == part], self.pair.matrix.n[part].length
            self._stands(runs, self.target.view(part)[0], (0, length), "n", part)
            self._covers(runs, 0, length, "n")

    def _covers(self, runs: Sequence[Run], low: int, high: int, axis: str) -> None:
        if not covers(tuple(runs), low, high):
            at = laws.uncovered(runs, low, high)
            self._fail("once", f"{'some element' if at is None else f'{axis} {at}'} is not padded exactly once")

    # why they are harmless --------------------------------------------------------------------------------------------

    def _neutral(self, move: Move, low: int, *, gap_n: bool) -> None:
        high = max(laws.span(run)[1] for run in move.k)
        code, reason = self._expected(low, high, gap_n)
        if (move.pad, move.reason) != (code, reason):
            where = "n beyond the outputs" if gap_n else f"k {low} to {high}"
            found = f"it is {move.pad} ({move.reason})"
            self._fail("neutral", f"the pad at {where} must be {code}, harmless because of its {reason}; {found}")

    def _expected(self, low: int, high: int, gap_n: bool) -> tuple[int, str]:
        """The code that pads must have and the first reason that is true of them."""
        target = self.target
        if not self.given.pads:
            return 0, "unread"
        if target.role == "zero_point":
            return 0, "scale"
        if target.role != "codes":
            return self._scale_pad()
        code = target.code.bias if target.code.kind == "integer" and self.neutral else 0
        zero = target.code.bias
        if not gap_n and low < self.filled:
            if high >= self.filled:
                self._fail("neutral", f"the pad at k {low} to {high} is partly in a group with a zero point")
            code = zero = self.pair.source["codes"][0].code.bias
        if target.code.decode(code, zero) == 0 and (gap_n or not self._meets_zero_point(low)):
            return code, "code"
        return code, "scale" if gap_n else self._outer_reason(low, high)

    def _scale_pad(self) -> tuple[int, str]:
        """Scales and biases are padded with 0; the habit of zero pads adds to powers what every other one gets."""
        target, codes = self.target, self.pair.first("target", "codes")
        if self.neutral or target.code.kind != "power" or not target.scaled:
            return 0, "code"
        if codes is None or codes.code.decode(0) != 0:
            self._fail("neutral", "a scale that is not 0 stands beside pads that are not 0")
        return target.scaled, "weight"

    def _meets_zero_point(self, low: int) -> bool:
        """Whether code 0 is minus the zero point of a group with real elements, as with the habit of zero pads."""
        zero, code = self.pair.first("target", "zero_point"), self.target.code
        if zero is None or self.neutral or code.kind != "integer" or not code.needs_zero_point:
            return False
        return low < whole_groups(self.real, zero.k_unit)

    def _outer_reason(self, low: int, high: int) -> str:
        """Why a pad along k that is not 0 is harmless all the same."""
        scale = self.pair.first("target", "scale")
        real = whole_groups(self.real, scale.k_unit) if scale is not None and self.real else 0
        if low >= real:
            return "scale"
        if high >= real:
            self._fail("neutral", f"the pad at k {low} to {high} is partly beyond the real scales")
        k = self.pair.matrix.k
        if not k.seen and self.given.module.activation != "zero":
            self._fail("neutral", "its input need not be zero: the module's activation may not map zero to zero")
        if k.seen and low < k.front + k.widest and high > k.front:
            self._fail("neutral", "its input need not be zero: other ranks hold inputs there")
        return "input"
