"""What the torch backend has in memory at most while it runs a plan, told without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from layoutdsl.backends.moves import shares
from layoutdsl.backends.torch.boxes import Box, boxes, in_halves
from layoutdsl.backends.torch.lower import lower, straight
from layoutdsl.codes import code_named
from layoutdsl.plan import Move, Plan, Program, TensorInfo

if TYPE_CHECKING:
    import torch

PIECE = 1 << 16
"""How many codes or words are worked on at once: as many as stay in a processor's cache."""

FAR = 16
"""As many times more on another device, where starting a step costs more than most steps."""

MOVED, RECODED = 48, 120
"""Bytes of indices and intermediate results for each code or word of a piece that is moved, and that is recoded."""

CHEAP = ("copy", "constant", "ramp", "shape", "fp8_nibbles", "plain_nibbles")
"""Recodes that cost no more than moving."""


def piece(device: torch.device) -> int:
    return PIECE if device.type == "cpu" else FAR * PIECE


def scratch(plan: Plan) -> int:
    """Bytes of intermediate results at most, on a CPU: those of a piece; of one expert the weights in act-order sorted,
    and a copy of the output of which elements share a place."""
    most = 0
    for program in plan.programs:
        info = plan.output[program.output]
        copied = _bytes(info) if shares(program) else 0
        most = max(most, copied + max(_sizes(plan, program, info), default=0))
    return most


def _sizes(plan: Plan, program: Program, info: TensorInfo) -> Iterator[int]:
    """Of each box."""
    each = MOVED if program.recode.name in CHEAP and not program.operands else RECODED
    for move in program.moves if program.recode.name != "shape" else ():
        looks_up = move.kind == "data" and move.gather_k is not None
        for box in boxes(move):
            yield each * min(_units(program, move, box, info), PIECE) + (
                _bytes(plan.input[program.sources[box.part]]) if looks_up else 0
            )


def _units(program: Program, move: Move, box: Box, info: TensorInfo) -> int:
    """Words of a box that has a launch, codes of another; none where whole bytes are filled."""
    bits = code_named(info.code).bits
    if move.kind == "pad" and not in_halves(box.last().target, bits):
        return 0
    plain = straight(move, box) if move.kind == "data" and not program.operands else None
    launch = lower(plain, bits) if plain is not None and program.recode.name in CHEAP else None
    return math.prod(box.sizes) if launch is None else math.prod(launch.around.sizes) << len(launch.digits)


def _bytes(info: TensorInfo) -> int:
    return info.codes * code_named(info.code).bits // 8
