"""The conversion as compiled loops over packed words: one pass, nothing unpacked, all experts at once, over threads.

    jobs      a plan's moves as grids of blocks: vectors whose codes change places, elements, words that fill
    source    the text of the kernels that make them, which numba compiles; their machine code is kept on disk
    run       one run: checks, orders, reductions, then one call for each kernel

A kernel only tells that something is refused: then the torch backend is asked, which says where and why. It also takes
what is on another device, and plans that break a law.

With `out`, and for `amend`, what may be refused is looked at before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.cpu.inputs import Source
from layoutdsl.backends.cpu.prepared import prepared
from layoutdsl.backends.cpu.run import Refused, Run
from layoutdsl.backends.torch import backend as exact
from layoutdsl.backends.torch.pieces import scratch
from layoutdsl.plan import Lost, Plan

__all__ = ["amend", "run", "scratch"]


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    given = buffers.checked(plan, tensors)
    target = buffers.allocate(plan, tensors, out)
    if out is not None and _overlap(given, target):
        for name, made in run(plan, tensors, None, report).items():
            target[name].copy_(made.view(target[name].shape).view(target[name].dtype))
        return target
    begun = _begun(plan, given, target)
    if begun is None or not begun.known.whole:
        return exact.run(plan, tensors, out, report)
    try:
        begun.prepare()
        if out is not None:
            begun.verify(target)
        begun.write()
    except Refused:
        return exact.run(plan, tensors, out, report)
    if report is not None:
        report += begun.lost()
    return target


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    """Carry out a plan that writes only some places of its outputs: all others stay as `out` has them. Elements that
    share a place which another plan writes are compared with what stands there.

    Tensors are those of the plan, of its dtypes and shapes: to look again would take longer than to move a small one.
    """
    begun = None if _overlap(tensors, out) else _begun(plan, tensors, out)
    if begun is None:
        exact.amend(plan, tensors, out)
        return
    try:
        begun.prepare()
        begun.verify(out)
        begun.write()
    except Refused:
        exact.amend(plan, tensors, out)


def _begun(plan: Plan, given: Mapping, target: Mapping[str, torch.Tensor]) -> Run | None:
    """A run with its tensors; None where the kernels cannot have them."""
    known = prepared(plan)
    if known is None or buffers.device_of({**given, **target}).type != "cpu":
        return None
    sources = {name: Source(plan, plan.input[name], tensor) for name, tensor in given.items()}
    return Run(plan, known, sources, target)


def _overlap(given: Mapping, target: Mapping[str, torch.Tensor]) -> bool:
    """Whether an output shares memory with an input."""
    sources = [one for value in given.values() for one in ([value] if isinstance(value, torch.Tensor) else value)]
    spans = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in sources if isinstance(one, torch.Tensor)]
    ends = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in target.values()]
    return any(first < end and start < last for first, last in spans for start, end in ends)
