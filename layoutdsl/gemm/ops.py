"""`torch.ops.layoutdsl.gemm` and `.moe`: what torch.compile, export and CUDA graphs see as one operator each.

A matrix' facts are text (facts.py), its tensors are those of a plan: weight, scale, zero point, global scale, bias. On
CPU tensors the host runner carries it out.
"""

from __future__ import annotations

import torch

from layoutdsl.gemm import checks, launch
from layoutdsl.gemm.checks import Stored
from layoutdsl.gemm.facts import Facts
from layoutdsl.gemm.mixture import Activation, Experts, mixture

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
    checks.no_gradient(x, scale, global_scale, bias)
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
    checks.one_device(x, weight, scale, zero_point, global_scale, bias)
    checks.no_gradient(x, scale, global_scale, bias)
    return x.new_empty((x.shape[0], _checked(facts).outputs))


torch.library.define(
    "layoutdsl::moe",
    "(Tensor x, Tensor ids, Tensor router, Tensor? expert_map, Tensor? order, Tensor?[] first, Tensor?[] second, "
    "str first_facts, str second_facts, int experts, str activation, str parts, float alpha, float limit) -> Tensor",
    tags=_TAGS,
)


@torch.library.impl("layoutdsl::moe", DEVICES)
def _moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    router: torch.Tensor,
    expert_map: torch.Tensor | None,
    order: torch.Tensor | None,
    first: list[torch.Tensor | None],
    second: list[torch.Tensor | None],
    first_facts: str,
    second_facts: str,
    experts: int,
    activation: str,
    parts: str,
    alpha: float,
    limit: float,
) -> torch.Tensor:
    checks.no_gradient(x, router, *first, *second)
    held = Experts(experts, Stored(*first), Stored(*second), expert_map, order)  # pyright: ignore[reportArgumentType]
    between = Activation(activation, parts, alpha, limit)  # pyright: ignore[reportArgumentType]
    return mixture(x, ids, router, held, _checked(first_facts), _checked(second_facts), between)


@torch.library.register_fake("layoutdsl::moe")
def _moe_shape(
    x: torch.Tensor,
    ids: torch.Tensor,
    router: torch.Tensor,
    expert_map: torch.Tensor | None,
    order: torch.Tensor | None,
    first: list[torch.Tensor | None],
    second: list[torch.Tensor | None],
    first_facts: str,
    second_facts: str,
    experts: int,
    activation: str,
    parts: str,
    alpha: float,
    limit: float,
) -> torch.Tensor:
    checks.one_device(x, ids, router, expert_map, order, *first, *second)
    checks.no_gradient(x, router, *first, *second)
    return x.new_empty((x.shape[0], _checked(second_facts).outputs))


def _checked(text: str) -> Facts:
    facts = Facts.of(text)
    checks.facts_fit(facts)
    return facts


gemm = torch.ops.layoutdsl.gemm.default
moe = torch.ops.layoutdsl.moe.default
