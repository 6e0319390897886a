"""The laws of one program: where its moves stand, and that it writes each target element once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import NoReturn

from layoutdsl import laws
from layoutdsl.codes import code_named
from layoutdsl.layout import Chain, Run, View
from layoutdsl.plan import Lookup, Move, Operand, Program
from layoutdsl.prove.given import Given, Pair, broken
from layoutdsl.prove.moves import complete, join, positions, stand, unused
from layoutdsl.prove.pads import Pads, whole_groups
from layoutdsl.prove.value import MADE, keeps_value
from layoutdsl.resolve import Stored

GATHERED = "its addresses are not looked up in the order of"


def prove_program(given: Given, pair: Pair, target: Stored, program: Program) -> None:
    """All laws of the program that makes `target`."""
    keeps_value(given, pair, target, program)
    if program.recode.name == "shape":
        _states_shape(pair, target, program)
        return
    _Prover(given, pair, target, program).prove()


def _states_shape(pair: Pair, target: Stored, program: Program) -> None:
    n, k = sum(pair.matrix.n[part].length for part in target.parts), pair.matrix.k.length
    rest = (program.moves, program.sources, program.operands, program.fill)
    if program.values != (n, k) or any(rest):
        broken("value", f"the stored shape is [{n}, {k}]", target.name)


@lru_cache(maxsize=1 << 12)
def _written(runs: tuple[Run, ...]) -> int:
    return laws.DRAWN.written(runs)


class _Prover:
    def __init__(self, given: Given, pair: Pair, target: Stored, program: Program):
        self.given, self.pair, self.target, self.program = given, pair, target, program
        self.length = pair.matrix.k.length
        self.neutral = given.plan.habits.pads == "neutral"

    def prove(self) -> None:
        program, target = self.program, self.target
        if program.values:
            self._fail("value", "only a shape tensor has values")
        kind = "value" if program.recode.name in MADE else "data"
        brought = [move for move in program.moves if move.kind == kind]
        pads = [move for move in program.moves if move.kind == "pad"]
        if (*brought, *pads) != program.moves:
            self._fail("meaning", f"its moves must be {kind}, then pads")
        complete(self.pair, brought, target.parts, target.name)
        join(brought, target.name)
        if kind == "value":
            self._made(brought)
        else:
            self._moved(brought, target.role, program.sources)
        self._operands()
        filled, gaps = self._filled()
        Pads(self.given, self.pair, target, gaps, filled).prove(pads)
        self._once()

    def _fail(self, law: str, message: str) -> NoReturn:
        broken(law, message, self.target.name)

    # meaning ----------------------------------------------------------------------------------------------------------

    def _moved(self, moves: Sequence[Move], role: str, sources: Sequence[str], *, at_k: int | None = None) -> None:
        """Moves from the source tensors of a role; with `at_k` every k reads what stands there."""
        held = {part: self._holder(role, part) for part in self.target.parts}
        expected = tuple(held[part].name if part in held else "" for part in self.pair.parts)
        if tuple(sources) != expected:
            self._fail("meaning", f"its sources are {', '.join(filter(None, expected))}")
        for move in moves:
            if move.pad or move.reason:
                self._fail("neutral", "a data move states no pad")
            self._along_n(move, role, held)
            self._along_k(move, role, held, at_k)

    def _along_n(self, move: Move, role: str, held: dict[int, Stored]) -> None:
        stretches, name = self.pair.matrix.n, self.target.name
        order = self.given.inner_order(self.pair)
        if order is not None:
            views = [self._holder(role, part).view(part)[0] for part in self.pair.parts]
            self._looked_up(move.gather_n, order, views, [stretch.start for stretch in stretches])
        elif move.gather_n is not None:
            self._fail("meaning", "nothing is gathered along n")
        for run in move.n:
            source = positions(stretches[run.part].start) if order is not None else held[run.part].view(run.part)[0]
            stand((run,), self.target.view(run.part)[0], laws.DST, name, "n")
            stand((run,), source, laws.SRC, name, "n")

    def _along_k(self, move: Move, role: str, held: dict[int, Stored], at_k: int | None) -> None:
        parts, start = dict.fromkeys(run.part for run in move.n), self.pair.matrix.k.start
        order = self.given.orders[self.pair.matrix.name] if role == "codes" else None
        views = dict.fromkeys(held[part].view(part)[1] for part in parts)
        if order is not None:
            for view in views:
                self._looked_up(move.gather_k, order, [view], [start])
            views = dict.fromkeys([positions(start)])
        elif move.gather_k is not None:
            self._fail("meaning", "nothing is gathered along k")
        if at_k is not None:
            views = dict.fromkeys(View(Chain(()), base=view.at(at_k)) for view in views)
        targets = dict.fromkeys(self.target.view(part)[1] for part in parts)
        if at_k is not None:  # pads are counted from the first stored element
            targets = dict.fromkeys(View(view.chain) for view in targets)
        for view in targets:
            stand(move.k, view, laws.DST, self.target.name, "k")
        for view in views:
            stand(move.k, view, laws.SRC, self.target.name, "k")

    def _looked_up(self, lookup: Lookup | None, order: Stored, views: Sequence[View], starts: Sequence[int]) -> None:
        places = tuple((v.offset - v.step * start, v.step, v.base) for v, start in zip(views, starts))
        if lookup != Lookup(order.name, self.given.group("source"), views[0].chain.digits, places):
            self._fail("meaning", f"{GATHERED} `{order.name}`")

    def _holder(self, role: str, part: int) -> Stored:
        return self.pair.holder(role, part) or self._fail("meaning", f"the source has no {role}")

    def _made(self, moves: Sequence[Move]) -> None:
        name, recode = self.target.name, self.program.recode
        if self.program.sources:
            self._fail("meaning", "it has no source")
        group = recode.power if recode.name == "ramp" else 0
        counted = positions(self.pair.matrix.k.start % group if group else 0)
        for move in moves:
            if move.pad or move.reason or move.gather_n or move.gather_k:
                self._fail("meaning", "a value move states neither pad nor lookup")
            for run in move.n:
                stand((run,), self.target.view(run.part)[0], laws.DST, name, "n")
            unused(move.n, laws.SRC, name, "n")
            stand(move.k, self.target.k[0], laws.DST, name, "k")
            stand(move.k, counted, laws.SRC, name, "k")

    def _operands(self) -> None:
        recode = self.program.recode
        nibbles = {"fp8_nibbles": self.target.code, "plain_nibbles": code_named(recode.source)}.get(recode.name)
        needed = {"fold_sign": ["scale"], "int16_undo": ["global_scale"]}.get(recode.name, [])
        if nibbles is not None and nibbles.needs_zero_point and "zero_point" in self.pair.source:
            needed = ["zero_point"]
        if [operand.role for operand in self.program.operands] != needed:
            self._fail("value", f"the recode {recode.name} needs the operands {', '.join(needed) or 'none'}")
        for operand in self.program.operands:
            complete(self.pair, operand.moves, self.target.parts, self.target.name)
            self._operand(operand)

    def _operand(self, operand: Operand, *, at_k: int | None = None) -> None:
        first = self._holder(operand.role, self.target.parts[0])
        if (operand.code, operand.plus) != (first.code.name, first.plus):
            self._fail("value", f"the operand {operand.role} is {first.code.name} plus {first.plus}")
        if any(move.kind != "data" for move in operand.moves):
            self._fail("meaning", "an operand is moved as it is")
        join(operand.moves, self.target.name)
        self._moved(operand.moves, operand.role, operand.sources, at_k=at_k)

    # once -------------------------------------------------------------------------------------------------------------

    def _once(self) -> None:
        moves = [*self.program.moves, *(self.program.fill.moves if self.program.fill else ())]
        total = self.target.codes
        # Moves of the same n are one rectangle.
        rows = ((n, [move.k for move in same]) for n, same in groupby(moves, key=lambda move: move.n))
        if (sum(_written(n) * sum(map(_written, k)) for n, k in rows) - laws.DRAWN.series(1, total)) % laws.PRIME:
            wrong = laws.miswritten([(move.n, move.k) for move in moves], total)
            where, times = (f"code {wrong[0]}", wrong[1]) if wrong else ("some code", None)
            often = {None: "not exactly once", 0: "never", 1: f"beyond the {total} of the tensor"}.get(
                times, "twice or more"
            )
            self._fail("once", f"{where} is written {often}")

    # neutral ----------------------------------------------------------------------------------------------------------

    def _filled(self) -> tuple[int, list[tuple[int, int]]]:
        """Where pads end that lie in a group with a zero point of its own, and the pads along k that no fill makes."""
        fill, end, gaps = self.program.fill, self._zero_end(), self.target.k_gaps
        beside = [(first, min(first + count, end) - first) for first, count in gaps if first < end]
        outputs = any(self.pair.matrix.n[part].length for part in self.target.parts)
        if not beside or not outputs or "zero_point" not in self.pair.source:
            if fill is not None:
                self._fail("neutral", "there is no group whose zero point its pads could repeat")
            return end, list(gaps)
        if fill is None:
            first, count = beside[0]
            where = f"k {first} to {first + count - 1}"
            self._fail("neutral", f"{where} lies in a group with a zero point, which its pads must repeat")
        if fill.role != "zero_point":
            self._fail("neutral", "pads repeat a zero point")
        # They share the target's groups with real elements, and those lie inside the source's: so the group of such a
        # pad is that of the real element that is nearest.
        moves: list[Move] = []
        for first, count in beside:
            inside = [move for move in fill.moves if move.k and first <= move.k[0].x < first + count]
            complete(self.pair, inside, self.target.parts, self.target.name, (first, first + count))
            nearest = 0 if first < self.pair.matrix.k.front else self.length - 1
            self._operand(replace(fill, moves=tuple(inside)), at_k=nearest)
            moves += inside
        if len(moves) != len(fill.moves):
            self._fail("neutral", "pads are filled where a real element stands")
        taken = dict(beside)
        left = [(first + taken.get(first, 0), count - taken.get(first, 0)) for first, count in gaps]
        return end, [gap for gap in left if gap[1]]

    def _zero_end(self) -> int:
        """Where along k the groups of real weights end whose zero points pads must follow; 0: there are none."""
        zero, k = self.pair.first("target", "zero_point"), self.pair.matrix.k
        follows = (
            self.target.role == "codes" and self.target.code.kind == "integer" and self.neutral and self.given.pads
        )
        if zero is None or not follows or not k.length:
            return 0
        return int(min(self.target.k_end, whole_groups(k.front + k.length, zero.k_unit)))
