"""`torch.ops.layoutdsl.gemm`: a GEMM that torch.compile, export and CUDA graphs see as one operator.

A matrix' facts are text (facts.py), its tensors are those of a plan. On CPU tensors the host runner carries it out.
"""

from __future__ import annotations

import torch

from layoutdsl.gemm import launch
from layoutdsl.gemm.checks import Stored
from layoutdsl.gemm.facts import Facts

DEVICES = ("cpu", "cuda")

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

torch.library.define(
    "layoutdsl::gemm",
    "(Tensor x, Tensor weight, Tensor scale, Tensor? zero_point, Tensor? global_scale, Tensor? bias, str facts)"
    " -> Tensor",
    tags=_TAGS,
)


@torch.library.impl("layoutdsl::gemm", DEVICES)
def _gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    global_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    facts: str,
) -> torch.Tensor:
    return launch.gemm(x, Stored(weight, scale, zero_point, global_scale, bias), Facts.of(facts))


@torch.library.register_fake("layoutdsl::gemm")
def _gemm_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    global_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    facts: str,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], Facts.of(facts).outputs))


gemm = torch.ops.layoutdsl.gemm.default
