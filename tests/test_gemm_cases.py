"""The harness of GEMMs holds itself: the kernel's tensors give the checkpoint's products, and what is wrong is seen."""

from __future__ import annotations

import gemm_cases
import numpy as np
import pytest
import torch
from gemm_cases import SOURCES, Product, draw

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


@pytest.mark.parametrize("code", gemm_cases.TOPS)
def test_inner_activations_in_8_bits_are_within_the_bound(code: str) -> None:
    """Whatever they may be; and some are nearly as far off as it allows."""
    rng = np.random.default_rng(3)
    made = torch.from_numpy(rng.normal(size=(40, 500)) * np.logspace(-3, 2, 40)[:, None]).half()
    error = np.abs(made.double().numpy()) * rng.uniform(0, 0.2, made.shape)
    case = draw(f"u4b8_{'s8' if code == 'int8' else 'e4m3'}", "float16", "linear", {"n": 64, "k": 128})
    found = case.multiplied(made)
    for off in (0 * error, error):
        near = gemm_cases.requantized(Product(made.double().numpy() + rng.choice([-1, 1], off.shape) * off, off), code)
        near.check(found)
        assert np.max(np.abs(found - near.value) / near.error) > 0.9
    with pytest.raises(AssertionError, match="are wrong"):
        near.check(np.roll(found, 1, axis=0))


@pytest.mark.parametrize("name", ["u8b128_s8", "u4_e4m3"])
def test_what_is_wrong_with_8_bit_experts_is_seen(name: str) -> None:
    """The bound from the inner activations on is as narrow as with 16 bits; that from x on sees what is coarse."""
    case = draw(name, "bfloat16", "moe_gated", {"e": 4, "i": 256, "h": 128}, group=64)
    rng = np.random.default_rng(4)
    x, ids, router = case.x(6, "w13"), rng.integers(0, 4, (6, 1)), rng.uniform(0.5, 1, (6, 1))
    hidden = np.zeros((6, 256))
    for row, (expert,) in enumerate(ids):
        first = case.product(x[row : row + 1], "w13", expert).value
        hidden[row] = gemm_cases.silu(*np.split(first[0], 2))
    hidden = torch.from_numpy(hidden).bfloat16()
    whole, from_there = (gemm_cases.experts(case, x, ids, router, "silu", hidden=of) for of in (None, hidden))
    whole.check(from_there.value)
    assert np.linalg.norm(from_there.error) < 0.02 * np.linalg.norm(from_there.value)
    for bound in (whole, from_there):
        with pytest.raises(AssertionError, match="are wrong"):
            bound.check(np.roll(from_there.value, 1, axis=0))
    with pytest.raises(AssertionError, match="are wrong"):
        from_there.check(from_there.value * 1.05)
    with pytest.raises(AssertionError, match="are wrong"):
        gemm_cases.experts(case, x, ids, router, "silu", hidden=hidden * 1.05)
