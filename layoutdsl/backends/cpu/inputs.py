"""Tensors of a run as addresses and as arrays of bytes, expert by expert, with no work for each of many experts that
come stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from layoutdsl.plan import Plan, TensorInfo


class Source:
    """An input in memory: one after the other, or apart."""

    def __init__(self, plan: Plan, info: TensorInfo, given: torch.Tensor | Sequence[torch.Tensor]):
        self.info, self.experts = info, plan.source_experts
        self.shared = not info.experts or info.shared
        if isinstance(given, torch.Tensor):
            self.kept = [given.contiguous()]
            stride = 0 if self.shared else self.kept[0].nbytes // info.experts
            experts = [0] if self.shared else self.experts
            self.addresses = self.kept[0].data_ptr() + stride * np.asarray(experts, dtype=np.int64)
        else:
            self.kept = [given[expert].contiguous() for expert in self.experts]
            self.addresses = np.array([tensor.data_ptr() for tensor in self.kept], dtype=np.int64)
        self.stacked = isinstance(given, torch.Tensor)

    def codes(self, bits: int) -> list[np.ndarray]:
        """Arrays [experts, codes] of unsigned numbers of so many bits, which hold all experts that the plan reads."""
        found = [array_of(tensor).view(f"uint{bits}") for tensor in self.kept]
        if self.shared or not self.stacked:
            return [one.reshape(1, -1) for one in found]
        rows = found[0].reshape(self.info.experts, -1)
        if isinstance(self.experts, range):
            return [rows[self.experts.start : self.experts.stop]]
        return [rows[expert][None] for expert in self.experts]


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def targets(tensor: torch.Tensor, copies: int) -> np.ndarray:
    """The address of an output for each expert."""
    first, size = tensor.data_ptr(), tensor.nbytes // copies
    return np.array([first + size * at for at in range(copies)], dtype=np.int64)
