"""The conversion as kernels on a GPU: generated from the plan, compiled by NVRTC, launched on torch's current stream.

Inputs and `out` stand on one GPU and are contiguous. What will not do is refused before anything is launched: no
driver, no NVRTC, a GPU that kernels are not compiled for, a tensor elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.cuda import toolkit
from layoutdsl.backends.cuda.launch import Launcher
from layoutdsl.backends.repack import run as repack_run
from layoutdsl.backends.repack.run import scratch
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Lost, Plan

__all__ = ["amend", "device", "run", "scratch"]


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    """Runs with an `out` may be captured in a CUDA graph, once one outside has compiled and loaded its kernels. What a
    replay refuses is not told."""
    return repack_run.run(_launcher(tensors, out), plan, tensors, out, report)


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    repack_run.amend(_launcher(tensors, out), plan, tensors, out)


def device(wanted: str) -> str:
    """A GPU: the one that is wanted, or else torch's current one."""
    _ready()
    return wanted if wanted.startswith("cuda") else "cuda"


@cache
def _ready() -> None:
    """LayoutError where no kernel can run on this machine."""
    toolkit.gpus()
    toolkit.check_torch(torch.__version__, torch.version.cuda)


def _launcher(tensors: Any, out: Any) -> Launcher:
    _ready()
    return Launcher(_gpu(tensors, out))


def _gpu(tensors: Any, out: Any) -> torch.device:
    """The GPU on which all tensors stand; LayoutError for one that stands elsewhere or is not contiguous."""
    found: torch.device | None = None
    for name, tensor in _tensors(tensors, out):
        if tensor.device.type != "cuda":
            raise LayoutError(
                f"{name} stands on {tensor.device}, the backend `cuda` needs it on a GPU",
                code="LP329",
                name="not-on-a-gpu",
                help="move it with .cuda(), or take the backend `cpu`",
            )
        found = found or tensor.device
        if tensor.device != found:
            raise LayoutError(
                f"{name} stands on {tensor.device}, others stand on {found}",
                code="LP165",
                name="mixed-devices",
                help="move them to one device first",
            )
        if not tensor.is_contiguous():
            raise LayoutError(
                f"{name} is not contiguous",
                code="LP330",
                name="not-contiguous",
                help="call .contiguous() on it, which copies it",
            )
    return found or torch.device("cuda", torch.cuda.current_device())


def _tensors(tensors: Any, out: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every dense tensor that is given, with what messages call it; what is none is refused later, in words."""
    for place, given in (("", tensors), (" of `out`", out)):
        for name, value in given.items() if isinstance(given, Mapping) else ():
            several = isinstance(value, list | tuple)
            for at, tensor in enumerate(value if several else [value]):
                if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                    yield f"`{name}`{place}{f', expert {at}' if several else ''}", tensor
