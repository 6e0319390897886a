"""Weights that are not quantized: a plan from `plain` to `plain` is a rank's slice of them, byte for byte."""

import pytest
import torch

from layoutdsl import LayoutError, compile_plan

WIDTHS = {"q": 96, "k": 32, "v": 64}
RANKS = 4
ROWS, COLUMNS = 64, 96


def random(dtype: str, *shape: int) -> torch.Tensor:
    """Every kind of number: any bits that are neither NaN nor infinite, zeros of both signs and subnormal ones too."""
    dice = torch.Generator().manual_seed(len(shape))
    whole = {2: torch.int16, 4: torch.int32}[getattr(torch, dtype).itemsize]
    bits = torch.randint(torch.iinfo(whole).min, torch.iinfo(whole).max, shape, generator=dice, dtype=whole)
    bits.view(-1)[:4] = torch.tensor([0, 1, torch.iinfo(whole).min, torch.iinfo(whole).min + 1], dtype=whole)
    made = bits.view(getattr(torch, dtype))
    return torch.where(made.isfinite(), made, torch.ones((), dtype=made.dtype))


def same(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal as bytes: -0.0 is not 0.0."""
    return made.dtype == wanted.dtype and torch.equal(made.view(torch.uint8), wanted.contiguous().view(torch.uint8))


def converted(module, sizes, tensors, params, rank=0, tp=RANKS):
    """Both backends agree, the way back leads back where nothing is cut, and the plan has no loss."""
    plan = compile_plan("plain", "plain", module, sizes, params=params, tp=tp, rank=rank)
    made = plan.run(tensors)
    slow = plan.run(tensors, backend="reference")
    assert set(plan.input) == set(tensors) and not plan.losses
    assert all(same(slow[name], tensor) for name, tensor in made.items())
    if tp == 1:
        back = plan.inverse().run(made)
        assert all(same(back[name], tensor) for name, tensor in tensors.items())
    return made


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("split", ["none", "n", "k"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_rank_s_slice_of_a_linear_layer(dtype: str, split: str, transposed: bool) -> None:
    weight, bias = random(dtype, ROWS, COLUMNS), random(dtype, ROWS)
    given = {"linear.weight": weight.T.contiguous() if transposed else weight, "linear.bias": bias}
    params = {"split": split, "dtype": dtype, "bias": True, "source.transposed": transposed, "target.transposed": False}
    for rank in range(RANKS):
        made = converted("linear", {"n": ROWS, "k": COLUMNS}, given, params, rank)
        rows = weight.chunk(RANKS)[rank] if split == "n" else weight
        wanted = weight.chunk(RANKS, dim=1)[rank] if split == "k" else rows
        assert same(made["linear.weight"], wanted)
        # Where ranks add up their outputs, one of them brings the bias.
        own = torch.zeros_like(bias) if split == "k" and rank else bias
        assert same(made["linear.bias"], bias.chunk(RANKS)[rank] if split == "n" else own)


@pytest.mark.parametrize("stored", ["apart", "stacked"])
def test_parts_of_their_own_widths(stored: str) -> None:
    parts = {name: random("bfloat16", width, COLUMNS) for name, width in WIDTHS.items()}
    biases = {name: random("bfloat16", width) for name, width in WIDTHS.items()}
    whole = {"linear.weight": torch.cat([*parts.values()]), "linear.bias": torch.cat([*biases.values()])}
    apart = {f"linear.{part}.weight": tensor for part, tensor in parts.items()}
    apart |= {f"linear.{part}.bias": tensor for part, tensor in biases.items()}
    params = {"bias": True, "source.parts": stored, "target.parts": "stacked"}
    sizes = {"n": tuple(WIDTHS.values()), "k": COLUMNS}
    given = apart if stored == "apart" else whole
    for rank in range(RANKS):
        made = converted("linear_fused", sizes, given, params, rank)
        assert same(made["linear.weight"], torch.cat([tensor.chunk(RANKS)[rank] for tensor in parts.values()]))
        assert same(made["linear.bias"], torch.cat([tensor.chunk(RANKS)[rank] for tensor in biases.values()]))


@pytest.mark.parametrize("stored", ["apart", "stacked", "alternating"])
@pytest.mark.parametrize("transposed", [False, True])
def test_experts(stored: str, transposed: bool) -> None:
    experts, inner, hidden = 3, 32, 48
    gate, up = (random("bfloat16", experts, inner, hidden) for _ in range(2))
    up = up.flip(0)
    down = random("bfloat16", experts, hidden, inner)
    files = {
        "apart": {"w13.gate.weight": gate, "w13.up.weight": up},
        "stacked": {"w13.weight": torch.cat([gate, up], dim=1)},
        "alternating": {"w13.weight": torch.stack([gate, up], dim=2).flatten(1, 2)},
    }[stored] | {"w2.weight": down}
    given = {name: tensor.mT.contiguous() if transposed else tensor for name, tensor in files.items()}
    params = {"source.parts": stored, "target.parts": "stacked", "source.transposed": transposed}
    params["target.transposed"] = False
    for rank in range(RANKS):
        made = converted("moe_gated", {"e": experts, "i": inner, "h": hidden}, given, params, rank)
        own = [tensor.chunk(RANKS, dim=1)[rank] for tensor in (gate, up)]
        assert same(made["w13.weight"], torch.cat(own, dim=1))
        assert same(made["w2.weight"], down.chunk(RANKS, dim=2)[rank])
    whole = converted("moe_gated", {"e": experts, "i": inner, "h": hidden}, given, params, tp=1)
    assert same(whole["w13.weight"], torch.cat([gate, up], dim=1))


def test_experts_without_a_gate() -> None:
    up, down = random("float16", 2, 32, 48), random("float16", 2, 48, 32)
    sizes = {"e": 2, "i": 32, "h": 48}
    for rank in range(RANKS):
        made = converted("moe_plain", sizes, {"w13.weight": up, "w2.weight": down}, {"dtype": "float16"}, rank)
        assert same(made["w13.weight"], up.chunk(RANKS, dim=1)[rank])
        assert same(made["w2.weight"], down.chunk(RANKS, dim=2)[rank])


def test_odd_sizes_and_the_way_back() -> None:
    given = {"linear.weight": random("bfloat16", 31, 17)}
    made = converted("linear", {"n": 31, "k": 17}, given, {"target.transposed": True}, tp=1)
    assert same(made["linear.weight"], given["linear.weight"].T)


@pytest.mark.parametrize(
    ("target", "params", "why"),
    [
        ("plain", {"source.dtype": "float32", "target.dtype": "bfloat16"}, "weights are never requantized"),
        ("fp8", {}, "the source has no scales"),
        ("marlin_int4_a16", {}, "the source has no scales"),
    ],
)
def test_no_weight_is_rounded_and_none_is_quantized(target: str, params: dict[str, str], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        compile_plan("plain", target, "linear", {"n": ROWS, "k": COLUMNS}, params=params)
