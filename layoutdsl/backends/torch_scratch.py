"""What the torch backend has in memory at most while it runs a plan, told without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PIECE = 1 << 16
"""How many codes or words are worked on at once: as many as stay in a processor's cache."""

FAR = 16
"""As many times more on another device, where starting a step costs more than most steps."""


def piece(device: torch.device) -> int:
    return PIECE if device.type == "cpu" else FAR * PIECE


def scratch(plan) -> int:
    return 64 * PIECE
