"""States of MarlinLinear and MarlinMoE: what they say of their plan, what is not taken, and modules made on `meta`."""

from __future__ import annotations

import copy

import pytest
import torch

from layoutdsl import LayoutError, MarlinLinear, MarlinMoE, Plan, compile_plan

PARAMS = {"group": 64, "split": "k", "qzeros": False, "g_idx": False}
SIZES = {"n": 128, "k": 320}
EXPERTS = {"e": 4, "i": 64, "h": 128}


def linear(kernel: str = "marlin_int4_a16", source: str = "gptq", **options) -> Plan:
    params = PARAMS if source == "gptq" else {"group": 64, "split": "k", "bits": 4}
    return compile_plan(source, kernel, "linear", SIZES, params=params | options.pop("params", {}), **options)


def mixture(**options) -> Plan:
    return compile_plan("gptq", "marlin_int4_a16", "moe_gated", EXPERTS,
                        params={"group": 64, "qzeros": False, "g_idx": False}, **options)  # fmt: skip


def drawn(plan: Plan, seed: int = 0) -> dict[str, torch.Tensor]:
    random, found = torch.Generator().manual_seed(seed), {}
    for info in plan.inputs:
        dtype = getattr(torch, info.dtypes[0])
        numbers = torch.randint(0, 2**31, info.full_shape, generator=random)
        found[info.name] = numbers.to(dtype) if dtype == torch.int32 else (numbers / 2**36).to(dtype)
    return found


def loaded(plan: Plan, seed: int = 0) -> MarlinMoE:
    return MarlinMoE(plan, activation="silu").load_checkpoint(drawn(plan, seed))


def refused(call, *words: str, code: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    text = str(caught.value)
    assert caught.value.diagnostics[0].code == code, text
    assert caught.value.help and all(word in text for word in words), text


# ---------------------------------------------------------------- of another plan


@pytest.mark.parametrize(
    "other",
    [
        linear("marlin_int4_a8fp8"),
        linear(tp=2),
        linear(tp=2, rank=1),
    ],
    ids=["activations", "half of it", "other half"],
)
def test_a_state_is_of_a_plan_that_stores_the_same(other: Plan) -> None:
    layer = MarlinLinear(linear())
    for given, into in ((MarlinLinear(other), layer), (layer, MarlinLinear(other))):
        with pytest.raises(RuntimeError, match=r"`0` was made by another plan: found `.*`, expected `.*`; .* load_che"):
            torch.nn.Sequential(into).load_state_dict(torch.nn.Sequential(given).state_dict(), strict=False)


def test_ranks_of_equal_shapes_are_told_apart() -> None:
    states = [MarlinLinear(linear(tp=2, rank=rank)).state_dict() for rank in (0, 1)]
    assert {name: tensor.shape for name, tensor in states[0].items() if name != "_extra_state"} == {
        name: tensor.shape for name, tensor in states[1].items() if name != "_extra_state"
    }
    with pytest.raises(RuntimeError, match=r"k=160:320/320"):
        MarlinLinear(linear(tp=2)).load_state_dict(states[1])
    with pytest.raises(RuntimeError, match=r"experts=2:4/4"):
        MarlinMoE(mixture(ep=2), activation="silu").load_state_dict(loaded(mixture(ep=2, ep_rank=1)).state_dict())


def test_a_state_does_not_depend_on_the_checkpoint_format() -> None:
    state = MarlinLinear(linear(source="ct_int")).state_dict()
    MarlinLinear(linear()).load_state_dict(state)


def test_states_without_a_word_of_their_plan() -> None:
    """The plain outputs of a run; anything else in that place is refused."""
    plan = linear()
    tensors = drawn(plan)
    want, layer = MarlinLinear(plan).load_checkpoint(tensors), MarlinLinear(plan)
    plain = {name.removeprefix("linear."): tensor for name, tensor in plan.run(tensors).items()}
    assert not any(layer.load_state_dict(plain))
    x = torch.rand(2, 320).half()
    assert torch.equal(layer(x), want(x)) and set(plain) == {"weight", "weight_scale"}
    for odd in (torch.zeros(3), torch.zeros(3, dtype=torch.uint8), {"plan": 1}):
        with pytest.raises(RuntimeError, match="another plan"):
            layer.load_state_dict(plain | {"_extra_state": odd})


def test_an_order_out_of_range() -> None:
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", SIZES, params={"group": 64, "act_order": True})
    layer = MarlinLinear(plan)
    state = layer.state_dict()
    (name,) = [name for name in state if name.startswith("k.") or "perm" in name]
    for wrong in (320, -1):
        order = torch.arange(320, dtype=torch.int32)
        order[3] = wrong
        with pytest.raises(RuntimeError, match="expected 0 to 319"):
            layer.load_state_dict(state | {name: order})


# ---------------------------------------------------------------- without data


def test_a_module_without_data_computes_nothing() -> None:
    plan = linear()
    layer, x = MarlinLinear(plan, device="meta"), torch.ones(3, 320).half()
    refused(lambda: layer(x), "x stands on cpu", "meta", "to_empty", code="LP343")
    refused(lambda: MarlinLinear(plan)(x.to("meta")), "x stands on meta", code="LP343")
    assert layer(x.to("meta")).is_meta
    for load in (layer.load_checkpoint, lambda given: layer.update("linear.scales", given["linear.scales"]),
                 lambda given: layer.updates()):  # fmt: skip
        refused(lambda load=load: load(drawn(plan)), "the module stands on meta", "to_empty", code="LP343")
    experts = MarlinMoE(mixture(ep=2), activation="silu", device="meta")
    routing = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)
    refused(lambda: experts(torch.ones(3, 128).half(), *routing), "meta", code="LP343")
    refused(lambda: loaded(mixture())(torch.ones(3, 128).half(), routing[0].to("meta"), routing[1]), code="LP343")


def same(found: MarlinMoE, want: MarlinMoE) -> bool:
    routing = torch.tensor([[2, 3], [0, 2], [1, 0]]), torch.ones(3, 2)
    x = torch.rand(3, 128, generator=torch.Generator().manual_seed(1)).half()
    return torch.equal(found.expert_map, want.expert_map) and torch.equal(found(x, *routing), want(x, *routing))


@pytest.fixture
def filled_with_rubbish(monkeypatch):
    """Memory that nobody wrote is never zeros here."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(3))


def test_a_mixture_made_without_data_has_its_map(filled_with_rubbish) -> None:
    plan = mixture(ep=2, ep_rank=1)
    want = loaded(plan)
    assert want.expert_map.tolist() == [-1, -1, 0, 1]

    def bare() -> MarlinMoE:
        return MarlinMoE(plan, activation="silu", device="meta")

    moved = bare().to_empty(device="cpu")
    moved.load_state_dict(want.state_dict())
    whole = torch.nn.Sequential(bare()).to_empty(device="cpu")
    whole.load_state_dict(torch.nn.Sequential(want).state_dict())
    assigned = bare()
    assigned.load_state_dict(want.state_dict(), assign=True)
    converted = [of.to_empty(device="cpu").load_checkpoint(drawn(plan)) for of in (bare(), copy.deepcopy(want))]
    for made in (moved, whole[0], assigned, *converted, copy.deepcopy(assigned)):
        assert same(made, want)


def test_a_map_keeps_its_place() -> None:
    """As a captured graph has it."""
    layer = loaded(mixture(ep=2))
    before = layer.expert_map.data_ptr()
    layer.load_state_dict(loaded(mixture(ep=2), seed=1).state_dict())
    assert layer.cpu().half().expert_map.data_ptr() == before and layer.expert_map.dtype == torch.int32
