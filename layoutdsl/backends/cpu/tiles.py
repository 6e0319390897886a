"""What kernels of the cpu backend ask a table of jobs (turns.py)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from layoutdsl.backends.cpu.memory import inlined
from layoutdsl.backends.cpu.turns import ACROSS, COLUMNS, END, HEIGHT, ROWS, TILES, WIDE, WIDTH


@intrinsic
def number(_typing: Any, jobs: Any, job: Any, column: Any) -> Any:
    """A number of a job."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        place = builder.add(builder.mul(args[1], ir.Constant(ir.IntType(64), WIDE)), args[2])
        return builder.load(builder.gep(pointer, [place]))

    return types.int64(types.int64, types.int64, types.int64), generate


@inlined
def tile(jobs: Any, job: Any, turn: Any) -> Any:
    """(expert, first row, end of rows, first column, end of columns) of a turn."""
    place = turn - (number(jobs, job - 1, END) if job else 0)
    tiles, across = number(jobs, job, TILES), number(jobs, job, ACROSS)
    expert, place = place // tiles, place % tiles
    top, left = place // across * number(jobs, job, HEIGHT), place % across * number(jobs, job, WIDTH)
    bottom = min(top + number(jobs, job, HEIGHT), number(jobs, job, ROWS))
    return expert, top, bottom, left, min(left + number(jobs, job, WIDTH), number(jobs, job, COLUMNS))
