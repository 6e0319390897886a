"""Inputs that a plan accepts, of any size in little time: random codes, scales as quantizers make them, no NaN.

What a plan's checks ask for is kept: zero points of symmetric weights, the order of g_idx, the stored shape.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from layoutdsl.codes import Code, code_named
from layoutdsl.plan import Check, Plan, TensorInfo


def inputs(plan: Plan, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every input by name; the experts of one are stacked."""
    dice = np.random.default_rng(seed)
    checks = {check.tensor: check for check in plan.checks if check.kind != "same"}
    return {info.name: _tensor(plan, info, checks.get(info.name), dice) for info in plan.inputs}


def outputs(plan: Plan) -> dict[str, torch.Tensor]:
    """Storage for every output, touched: a new page costs more than what is written to it."""
    made = {info.name: torch.empty(info.full_shape, dtype=_dtype(info)) for info in plan.outputs}
    for tensor in made.values():
        tensor.reshape(-1).view(torch.uint8).fill_(1)
    return made


def _tensor(plan: Plan, info: TensorInfo, check: Check | None, dice: np.random.Generator) -> torch.Tensor:
    copies = 1 if info.shared or not info.experts else info.experts
    made = _codes(plan, info, check, copies, dice).contiguous().view(_dtype(info)).reshape(info.full_shape)
    return made.clone()  # numpy asks for huge pages, which tensors of a loader do not have


def _codes(
    plan: Plan, info: TensorInfo, check: Check | None, copies: int, dice: np.random.Generator
) -> torch.Tensor:
    """The codes of all copies, packed, in a tensor of any dtype."""
    code, count = code_named(info.code), copies * info.codes
    if info.role == "act_order":
        return torch.cat([_groups(plan, info, check, copy) for copy in range(copies)])
    if info.role == "weight_shape":
        return torch.tensor(check.expect if check else (0, 0), dtype=_dtype(info)).repeat(copies)
    if check is not None:
        return torch.full((count * code.bits // 8,), check.expect[0] * (17 if code.bits == 4 else 1)).to(torch.uint8)
    if code.bits <= 8:
        return _small(info.role, code, torch.from_numpy(_bytes(count * code.bits // 8, dice)))
    low, high = {"scale": (1e-3, 2e-2), "global_scale": (1e-4, 2e-4)}.get(info.role, (-1.0, 1.0))
    if info.role == "global_scale":  # those of the parts of a matrix must agree
        return torch.linspace(low, high, count).to(_dtype(info))
    drawn = torch.from_numpy(dice.uniform(low, high, count).astype(np.float32))
    made = [p.recode.target for p in plan.programs if info.name in p.sources]
    if any(code_named(target).kind == "power" for target in made):
        drawn = drawn.log2().floor().exp2()
    return drawn.to(_dtype(info))


def _bytes(count: int, dice: np.random.Generator) -> np.ndarray:
    return dice.integers(0, 1 << 64, -(-count // 8), dtype=np.uint64).view(np.uint8)[:count]


def _small(role: str, code: Code, drawn: torch.Tensor) -> torch.Tensor:
    """Codes of 4 and 8 bits from random bytes."""
    if role == "zero_point":  # around the middle, and such that v1 of GPTQ may add one
        return (drawn & 0x77) + 0x44 if code.bits == 4 else (drawn & 0x3F) + 0x60
    if code.kind == "power":
        return (drawn & 0x0F) + 110
    if role == "scale":
        return (drawn & 0x1F) + 0x50
    return torch.where(drawn & 0x7F == 0x7F, 0x30, drawn) if code.name == "e4m3" else drawn


def _groups(plan: Plan, info: TensorInfo, check: Check | None, copy: int) -> torch.Tensor:
    """The group of each k: in file order, or shuffled, for all parts of a matrix alike."""
    params = dict(plan.source.params)
    group, start = check.expect if check else (max(int(params["group"]), 0), 0)
    groups = [(start + k) // group if group else 0 for k in range(info.codes)]
    if params["act_order"]:
        random.Random(f"{info.name.partition('.')[0]} {copy}").shuffle(groups)
    return torch.tensor(groups, dtype=_dtype(info))


def _dtype(info: TensorInfo) -> torch.dtype:
    return getattr(torch, info.dtypes[0])
