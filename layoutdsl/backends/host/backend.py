"""The cuda backend's kernels on this machine's CPU: compiled by a C++ compiler, every access checked and counted.

Slow, and for those who have no GPU: it shows that the kernels are right, and what a GPU would pay for their accesses.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.host.build import compiler
from layoutdsl.backends.host.launch import Launcher
from layoutdsl.backends.repack import run as repack_run
from layoutdsl.backends.repack.run import scratch
from layoutdsl.plan import Lost, Plan

__all__ = ["amend", "device", "run", "scratch"]


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    return repack_run.run(Launcher(), plan, tensors, out, report)


def device(wanted: str) -> str:
    """What is wanted; LayoutError where there is no compiler."""
    compiler()
    return wanted


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    repack_run.amend(Launcher(), plan, tensors, out)
