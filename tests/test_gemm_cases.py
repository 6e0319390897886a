"""The harness of GEMMs holds itself: the kernel's tensors give the checkpoint's products, and what is wrong is seen."""

from __future__ import annotations

import gemm_cases
import numpy as np
import pytest
import torch
from gemm_cases import SOURCES, draw

SIZES = {
    "linear": {"n": 72, "k": 192},
    "linear_fused": {"n": (40, 24, 24), "k": 192},
    "moe_gated": {"e": 2, "i": 72, "h": 96},
    "moe_plain": {"e": 2, "i": 72, "h": 96},
}


def dtypes(name: str) -> tuple[str, ...]:
    return ("bfloat16",) if "mx" in name or name == "gpt_oss" else ("float16", "bfloat16")


CASES = [(name, dtype, module) for name in SOURCES for dtype in dtypes(name) for module in SIZES]


@pytest.mark.parametrize(("name", "dtype", "module"), CASES)
def test_the_plan_has_the_products(name: str, dtype: str, module: str) -> None:
    """Exact weights, gathered and padded as the duties say, are within the bound; a scale of the next group is not."""
    options = {"split": "n"} if module.startswith("linear") else {}
    case = draw(name, dtype, module, SIZES[module], tp=2, rank=1, params={"bias": True}, **options)
    for matrix in case.job.matrices:
        x = case.x(3, matrix.name)
        want = case.product(x, matrix.name, 0)
        assert np.isfinite(want.value).all() and np.abs(want.value).max() < 2.0**15
        n, k = case.padded(matrix.name)
        held, weight, order = case.extent(matrix.name, "k"), case.read(matrix.name, 0), case.order(matrix.name)
        assert weight.shape == (n, k)
        fed = np.zeros((3, k))
        fed[:, held.front : held.front + held.length] = case.multiplied(x if order is None else x[:, order])
        found = (fed @ weight.T)[:, case.columns(matrix.name)] + case.bias(matrix.name, 0)
        want.check(torch.from_numpy(found).to(case.dtype))
        with pytest.raises(AssertionError, match="are wrong"):
            want.check(torch.from_numpy(np.roll(found, 1, axis=1)).to(case.dtype))


@pytest.mark.parametrize("activation", gemm_cases.ACTIVATIONS)
def test_experts_in_float32_are_within_the_bound(activation: str) -> None:
    module = "moe_plain" if activation == "relu2" else "moe_gated"
    case = draw("u4b8", "float16", module, {"e": 6, "i": 72, "h": 96}, group=32, ep=2, ep_rank=1, params={"bias": True})
    rng = np.random.default_rng(2)
    ids, router = rng.permuted(np.tile(np.arange(6), (5, 1)), axis=1)[:, :2], rng.uniform(0, 1, (5, 2))
    places = {int(expert): at for at, expert in enumerate(case.job.held)}
    x = case.x(5, "w13")
    want = gemm_cases.experts(case, x, ids, router, activation, places=places)
    total = torch.zeros(5, 96)
    for token, slot in np.ndindex(*ids.shape):
        at = places.get(int(ids[token, slot]), -1)
        if at < 0:
            continue
        first = [torch.from_numpy(part).float() for part in case.parts("w13", at)]
        parts = (torch.cat(first) @ x[token].float() + torch.from_numpy(case.bias("w13", at)).float()).half().double()
        made = gemm_cases.ACTIVATIONS[activation](*np.split(parts.numpy(), len(first)))
        inner = torch.from_numpy(made).half().float()
        second = torch.from_numpy(case.weight("w2", at)).float() @ inner + torch.from_numpy(case.bias("w2", at)).float()
        total[token] += (second * router[token, slot]).half().float()
    want.check(total.half())
    with pytest.raises(AssertionError, match="are wrong"):
        want.check((total * 1.05).half())
