"""What the torch backend has in memory at most while it runs a plan, told without torch."""

from __future__ import annotations

from layoutdsl.codes import code_named
from layoutdsl.plan import Plan

TOTAL = ("fp8_nibbles", "plain_nibbles", "fold_sign")
"""Recodes of weights that refuse no code."""

PIECE = 1 << 20
"""How many elements are recoded or looked up at once."""

LOOKED_AT, RECODED = 4, 64
"""Bytes of intermediate results for each element whose code is looked at, and for each whose value is."""


def scratch(plan: Plan) -> int:
    """Bytes of intermediate results at most: of one expert at a time a 4-bit tensor unpacked on each side, operands at
    every element, and what a recode or a reduction makes of PIECE elements."""
    unpacked = max((info.codes for info in plan.inputs if code_named(info.code).bits == 4), default=0)
    most = 0
    for program in plan.programs:
        codes = plan.output[program.output].codes
        copies = code_named(plan.output[program.output].code).bits == 4
        size = (copies + len(program.operands)) * codes
        looked_at = program.recode.name in TOTAL or not copies  # no 4-bit code that is copied can be refused
        each = (LOOKED_AT if looked_at else 0) if program.recode.name in ("copy", *TOTAL) else RECODED
        size += each * min(codes, PIECE)
        most = max(most, size)
    return unpacked + most
