"""What jobs are made of: one part of a program, what is done to its codes, where blocks of it are read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from layoutdsl.backends.cpu.axes import Carved, combined
from layoutdsl.backends.cpu.forms import Form, Job, Order, Spread, Table
from layoutdsl.backends.cpu.network import Block, Digit, Loop
from layoutdsl.backends.cpu.operands import Second, Unknown
from layoutdsl.backends.cpu.tables import NOTHING, affine, by_target, in_bytes, looked_up
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Lookup, Plan, Program, TensorInfo

MOVED = ("copy", "fp8_nibbles", "plain_nibbles", "fold_sign")
"""Recodes of vectors, between codes of the same width."""

READ = ("rule", "rescale", "reciprocal", "int16_scale", "int16_steps")
"""Recodes of vectors as they are read, from codes of another width maybe."""

RULED = ("rescale", "reciprocal", "offset", "nvfp4_scale")
"""Recodes that know nothing but the code: those of 8 bits follow a rule."""

AWAY = 1 << 40
"""What positions in an order count as: none lies beside another."""

Orders = tuple["Order | None", "Order | None"]
"""What n and k are looked up in."""

Make = Callable[[Sequence[Carved], Sequence[Carved]], "Job | None"]
Choice = tuple[Sequence[Digit], Make]
"""Digits to split off runs, and what makes a job of all runs that have them; None where it cannot."""


@dataclass(frozen=True, eq=False)
class Beside:
    """How what stands beside blocks is read, and where: along n and along k."""

    spread: Spread | None
    tables: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Making:
    """One part of a program. writes: whether it is written, not looked at alone."""

    plan: Plan
    program: Program
    recode: str
    second: Second | None
    part: int
    orders: Orders
    writes: bool = True

    @property
    def info(self) -> TensorInfo:
        return self.plan.output[self.program.output]

    @property
    def source(self) -> TensorInfo:
        return self.plan.input[self.program.sources[self.part]]

    @property
    def operand(self) -> TensorInfo | None:
        return self.plan.input[self.second.operand.sources[self.part]] if self.second is not None else None

    @property
    def bits(self) -> int:
        return code_named(self.info.code).bits

    @property
    def source_bits(self) -> int:
        return code_named(self.source.code).bits

    @property
    def refuses(self) -> bool:
        """Whether codes are copied some of which are NaN or infinite."""
        code = code_named(self.program.recode.source)
        finite = code.name in ("e2m1", "e8m0z") or code.kind not in ("float", "power")
        return self.recode == "copy" and not finite

    @property
    def counts(self) -> bool:
        """Whether values may become 0 that are counted."""
        return any(name == self.program.output for name, _ in self.plan.losses)

    @property
    def vectors(self) -> str:
        """How vectors are recoded; empty where they are not."""
        a, b = (code_named(name) for name in (self.program.recode.source, self.program.recode.target))
        known = b.kind == "power" or (b.kind == "float" and b.sign)
        if self.recode in MOVED or (self.recode == "offset" and b.bits == 4):
            return self.recode if a.bits == b.bits <= 64 else ""
        if self.second is not None:
            return ""
        if self.recode in RULED and a.bits == 8:
            return "rule"
        if self.recode in ("rescale", "reciprocal") and a.bits in (16, 32) and a.kind == "float" and known:
            return self.recode
        steps = self.plan.habits.int16 == "stepwise"
        return ("int16_steps" if steps else "int16_scale") if self.recode == "int16_scale" else ""

    def job(self, form: Form, tables: Sequence[Table], down: int, codes: int) -> Job:
        """A grid of blocks of so many codes, whose rows are those of one axis."""
        rows, columns = tables[down], tables[1 - down]
        codes *= len(rows.to) * len(columns.to)
        return Job(
            form, rows, columns, codes, max(codes * self.bits // 8, 1), part=self.part, recode=self.program.recode,
            source=self.program.sources[self.part] if self.program.sources else "",
            operand=self.operand.name if self.operand is not None else "",
            value=self.second.operand.plus if self.second is not None else self.program.recode.power,
        )  # fmt: skip

    # where blocks stand -----------------------------------------------------------------------------------------------

    def written(self, block: Block, axis: int, carved: Sequence[Carved]) -> np.ndarray | None:
        """Where blocks write their granules, in bytes; None where that is inside of one."""
        network, digits = block.network, block.digits
        steps = [digits[at].dst for at in network.written[network.writes :] if digits[at].axis == axis]
        return in_bytes(combined(by_target(carved)[0].dst, steps), self.bits)

    def read(self, block: Block, axis: int, carved: Sequence[Carved]) -> np.ndarray | None:
        """Where blocks read their granules, in bytes; positions where they are looked up."""
        network, digits = block.network, block.digits
        steps = [digit.src for at, digit in enumerate(digits) if digit.axis == axis and at >= network.reads]
        found = combined(by_target(carved)[0].src, steps)
        return found // AWAY if self.orders[axis] is not None else in_bytes(found, self.source_bits)

    def anywhere(self, axis: int, column: np.ndarray) -> np.ndarray:
        """All addresses in bytes that a column of what is read may lead to."""
        order = self.orders[axis]
        if order is None:
            return column
        found = in_bytes(looked_up(self.plan, order, column), self.source_bits)
        if found is None:
            raise Unknown
        return found

    def listed(self, orders: Sequence[Order | None]) -> tuple[tuple[Lookup, int, int] | None, ...]:
        """The orders of rows and columns, to be listed in bytes."""
        return (*((*order, self.source_bits) if order is not None else None for order in orders), None, None)

    def addresses(self, axis: int, carved: Sequence[Carved]) -> np.ndarray:
        """Those of the operand, in codes, in the order of targets."""
        assert self.second is not None
        order = by_target(carved)[1]
        return np.concatenate([self.second.beside(axis, self.part, one) for one in carved])[order]

    def beside(self, block: Block, carved: Sequence[Sequence[Carved]]) -> Beside | None:
        """None where what stands beside vectors is not at the same steps in all of them."""
        second, info, inside = self.second, self.operand, block.network.inside
        if second is None or info is None:
            return Beside(None, (NOTHING, NOTHING))
        columns = [self.addresses(axis, side) for axis, side in enumerate(carved)]
        numbers = [[at for at, digit in enumerate(block.digits) if digit.axis == axis] for axis in (0, 1)]
        steps = [0] * len(block.digits)
        for own, column in zip(numbers, columns):
            found = affine(column)
            if found is None:
                return None
            for at, step in zip(own, found):
                steps[at] = step
        spread = second.spread(steps, inside, columns)
        away = [[steps[at] for at in own if spread.leads_away(at, inside)] for own in numbers]
        tables = [combined(column[:, 0], own) for column, own in zip(columns, away)]
        last = sum(int(table.max()) for table in tables) * second.bits // 8
        if last + spread.width // 8 > info.codes * second.bits // 8:
            return None  # what is read at once would go beyond the tensor
        n, k = tables if spread.odd else (table * second.bits // 8 for table in tables)
        return Beside(spread, (n, k))


def loops_of(axis: int, run: Run) -> list[Loop]:
    return [(axis, count, dst, src) for count, _, dst, src in run.loops]
