"""What the torch backend has in memory at most while it runs a plan, told without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdsl.backends.moves import shares
from layoutdsl.codes import code_named
from layoutdsl.plan import Plan, Program, TensorInfo

if TYPE_CHECKING:
    import torch

PIECE = 1 << 16
"""How many codes or words are worked on at once: as many as stay in a processor's cache."""

FAR = 16
"""As many times more on another device, where starting a step costs more than most steps."""

CHEAP = ("copy", "constant", "ramp", "fp8_nibbles", "plain_nibbles")
MOVED, RECODED = 48, 120
"""Bytes of indices and intermediate results for each code or word of a piece that is moved, and that is recoded.
CHEAP: recodes that cost no more than moving."""


def piece(device: torch.device) -> int:
    return PIECE if device.type == "cpu" else FAR * PIECE


def scratch(plan: Plan) -> int:
    """Bytes of intermediate results at most, on a CPU: those of a piece; of one expert the weights in act-order sorted,
    and a copy of the output of which elements share a place."""
    most = 0
    for program in plan.programs:
        info = plan.output[program.output]
        moved = program.recode.name in CHEAP and not program.operands
        size = (MOVED if moved else RECODED) * min(info.codes, PIECE)
        size += _bytes(info) if shares(program) else 0
        most = max(most, size + max((_bytes(plan.input[name]) for name in _sorted(program)), default=0))
    return most


def _sorted(program: Program) -> tuple[str, ...]:
    """The sources of which a sorted copy is made."""
    looks_up = any(move.gather_k is not None for move in program.moves)
    return tuple(name for name in program.sources if name and looks_up)


def _bytes(info: TensorInfo) -> int:
    return info.codes * code_named(info.code).bits // 8
