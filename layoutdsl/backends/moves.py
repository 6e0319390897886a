"""What can be said of a program's moves without walking them."""

from __future__ import annotations

import math

from layoutdsl.plan import Program


def writes(program: Program) -> int:
    """How many codes of its output a program writes: all of them, where its plan is whole and proven."""
    moves = (*program.moves, *(program.fill.moves if program.fill else ()))
    found = [
        math.prod(loop[0] for side in (n, k) for loop in side.loops if loop[2])
        for move in moves for n in move.n for k in move.k if not (n.join or k.join)
    ]
    return sum(found) or len(program.values)


def shares(program: Program) -> bool:
    """Whether some elements are compared with others that share their target."""
    return any(
        run.join or any(loop[2] == 0 and loop[3] for loop in run.loops)
        for move in program.moves if move.kind == "data" for run in (*move.n, *move.k)
    )
