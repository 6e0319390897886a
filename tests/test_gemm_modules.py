"""MarlinLinear and MarlinMoE on the host: what they compute against float64 of the checkpoint, tensors that stay where
they are, and everything that is refused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from gemm_cases import Case, draw, experts
from host_kernels import Launcher, Schedule

from layoutdsl import LayoutError, MarlinLinear, MarlinMoE, compile_plan
from layoutdsl.gemm import checks, launch, ops
from layoutdsl.gemm.checks import Stored
from layoutdsl.gemm.facts import Facts

# name -> code, dtype, module, sizes and options
LINEAR = {
    "n and k padded": ("u4b8", "float16", "linear", {"n": 200, "k": 200}, {"group": 32, "params": {"bias": True}}),
    "second of two ranks, inputs split": (
        "u4", "bfloat16", "linear", {"n": 72, "k": 384}, {"group": 64, "split": "k", "tp": 2, "rank": 1},
    ),
    "act-order, inputs split": (
        "u4b8", "float16", "linear", {"n": 64, "k": 256},
        {"group": 64, "split": "k", "tp": 2, "rank": 1, "params": {"act_order": True}},
    ),
    "act-order, odd rows": ("u4b8", "float16", "linear", {"n": 64, "k": 132}, {"params": {"act_order": True}}),
    "fused parts": (
        "e4m3", "bfloat16", "linear_fused", {"n": (80, 40, 24), "k": 96},
        {"split": "n", "tp": 2, "rank": 1, "params": {"bias": True, "scale": "part", "input_scale": True}},
    ),
    "gate and up": ("u8b128", "float16", "mlp_gated", {"i": 100, "h": 96}, {"only": ("gate_up",), "tp": 2}),
    "alternating": (
        "mxfp4", "bfloat16", "mlp_gated", {"i": 100, "h": 96},
        {"only": ("gate_up",), "stored": ("apart", "alternating")},
    ),
    "down": ("nvfp4", "float16", "mlp_gated", {"i": 100, "h": 96}, {"only": ("down",), "tp": 2, "rank": 1}),
    "padded in front": ("u4", "float16", "attention", {"q": 6, "kv": 3, "d": 40, "h": 64},
                        {"group": 64, "tp": 4, "rank": 1, "only": ("o",)}),
    "no heads": ("u4b8", "float16", "attention", {"q": 6, "kv": 3, "d": 40, "h": 64},
                 {"group": 64, "tp": 4, "rank": 3, "only": ("o",), "params": {"bias": True}}),
    "8 bits with zero points": ("u8", "bfloat16", "linear", {"n": 72, "k": 200}, {"group": 64}),
    "fp8 blocks": ("e4m3_blocks", "bfloat16", "linear", {"n": 130, "k": 200}, {"group": 64}),
    "INT8, inputs of no whole chunk": (
        "u4b8_s8", "float16", "linear", {"n": 72, "k": 300}, {"group": 64, "params": {"bias": True}},
    ),
    "INT8, one group, act-order": (
        "u8b128_s8", "bfloat16", "linear", {"n": 72, "k": 200}, {"group": -1, "params": {"act_order": True}},
    ),
    "FP8, padded in front": ("u4_e4m3", "float16", "attention", {"q": 6, "kv": 3, "d": 44, "h": 64},
                             {"group": 64, "tp": 4, "rank": 1, "only": ("o",)}),
    "FP8, powers of two": ("mxfp4_e4m3", "bfloat16", "linear", {"n": 72, "k": 96}, {}),
    "mxfp8": ("mxfp8", "bfloat16", "linear", {"n": 64, "k": 256}, {}),
}  # fmt: skip


@cache
def linear(name: str) -> tuple[Case, MarlinLinear]:
    code, dtype, module, sizes, options = LINEAR[name]
    case = draw(code, dtype, module, sizes, **options)
    return case, MarlinLinear(case.plan).load_checkpoint(case.tensors)


def x_of(case: Case, layer: MarlinLinear, rows: int) -> torch.Tensor:
    """As the caller has it: where other ranks hold more heads, NaNs stand in those that this one lacks."""
    x = case.x(rows, layer.matrix.name)
    return torch.nn.functional.pad(x, (0, layer.inputs - x.shape[1]), value=float("nan"))


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    case, layer = linear(name)
    for rows in (1, 5):
        x = x_of(case, layer, rows)
        given = x[:, : layer.matrix.facts.valid] if case.order(layer.matrix.name) is None else x
        want = case.product(given, layer.matrix.name)
        if name == "alternating":  # as its outputs are stored
            value, error = (np.stack(np.split(of, 2, 1), 2).reshape(of.shape) for of in (want.value, want.error))
            want = type(want)(value, error)
        want.check(layer(x))


def test_inputs_of_any_shape() -> None:
    case, layer = linear("n and k padded")
    x = case.x(6)
    y = layer(x)
    assert torch.equal(layer(x.reshape(2, 3, -1)), y.reshape(2, 3, -1))
    assert torch.equal(layer(x[0]), y[0])
    assert layer(x[:0]).shape == (0, 200)
    assert layer(x.reshape(2, 3, -1)[:, :0]).shape == (2, 0, 200)


@pytest.mark.parametrize("stride", [200, 208, 203])
@pytest.mark.parametrize("offset", [0, 8, 3])
@pytest.mark.parametrize("front", [0, 16, 5])
def test_inputs_are_read_where_they_lie(stride: int, offset: int, front: int) -> None:
    """In rows of whole 16 bytes; others are copied, to the same values in the same places."""
    around = torch.arange(4 * stride + 16, dtype=torch.float16) % 251
    x = around[offset : offset + 4 * stride].view(4, stride)[:, :200]
    rows, before = launch.readable(x, front)
    kept = stride % 8 == 0 and offset % 8 == 0 and front % 8 == 0
    assert (rows.data_ptr() == x.data_ptr()) == kept
    assert rows.stride(0) % 8 == 0 and rows.data_ptr() % 16 == 0 and before % 8 == 0
    padded = torch.cat((torch.zeros(4, before, dtype=x.dtype), rows), 1)
    assert torch.equal(padded[:, :front], torch.zeros(4, front)) and torch.equal(padded[:, front : front + 200], x)
    assert not padded[:, front + 200 :].any()


def test_odd_strides_give_the_same() -> None:
    case, layer = linear("n and k padded")
    x = case.x(3)
    wide = torch.full((3, 211), float("nan"), dtype=x.dtype)
    wide[:, 5:205] = x
    assert torch.equal(layer(wide[:, 5:205]), layer(x))
    assert torch.equal(layer(x[:1].expand(3, -1)), layer(x)[:1].expand(3, -1))
    assert torch.equal(layer(x.T.contiguous().T), layer(x))


def test_blocks_that_split_k_give_the_same_each_time() -> None:
    case = draw("u4b8", "float16", "linear", {"n": 64, "k": 2048}, group=128)
    layer = MarlinLinear(case.plan).load_checkpoint(case.tensors)
    stored, x, found = Stored(layer.weight, layer.weight_scale), case.x(5), []
    for schedule in (Schedule(), Schedule("random", "mixed", resident=3, seed=1)):
        found.append(launch.gemm(x, stored, layer.matrix.facts, launcher=Launcher(schedule), multiprocessors=100))
    assert torch.equal(*found)
    case.product(x).check(found[0])


# ---------------------------------------------------------------- tensors


def pointers(module: torch.nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in module.named_buffers()}


@pytest.mark.parametrize("name", ["act-order, inputs split", "fused parts", "down"])
def test_updates_are_a_full_run(name: str) -> None:
    code, dtype, module, sizes, options = LINEAR[name]
    case, other = (draw(code, dtype, module, sizes, **options, seed=seed) for seed in (0, 1))
    layer = MarlinLinear(case.plan).load_checkpoint(case.tensors)
    before, updates = pointers(layer), layer.updates()
    for key, tensor in reversed(other.tensors.items()):
        updates.update(key, tensor)
    assert not updates.missing and not updates.pending
    assert pointers(layer) == before
    for key, made in other.made.items():
        assert torch.equal(layer.tensors[key].view(-1, 1).view(torch.uint8), made.view(-1, 1).view(torch.uint8))


def test_update_of_one_tensor() -> None:
    case, layer = linear("n and k padded")
    layer = MarlinLinear(case.plan).load_checkpoint(case.tensors)
    x, before = case.x(2), pointers(layer)
    y = layer(x)
    assert "linear.weight_scale" in layer.update("linear.scales", case.tensors["linear.scales"] * 2).written
    layer.update("linear.bias", case.tensors["linear.bias"] * 2)
    assert torch.equal(layer(x), y * 2) and pointers(layer) == before
    with pytest.raises(LayoutError, match="waits for"):
        fused = linear("act-order, inputs split")
        fused[1].update("linear.qweight", fused[0].tensors["linear.qweight"])


def test_state_dict() -> None:
    case, layer = linear("fused parts")
    state = layer.state_dict()
    assert set(state) == {name.removeprefix("linear.") for name in case.plan.output} | {"_extra_state"}
    other = MarlinLinear(case.plan)
    before = pointers(other)
    model = torch.nn.Sequential(other)
    model.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()})
    x = case.x(2)
    assert torch.equal(other(x), layer(x)) and pointers(other) == before
    with pytest.raises(RuntimeError, match=r"`weight_scale` is torch.float16, expected torch.bfloat16"):
        other.load_state_dict(state | {"weight_scale": state["weight_scale"].half()})


def test_a_change_of_dtype_leaves_the_weights() -> None:
    case, layer = linear("mxfp8")
    x = case.x(2)
    y = layer(x)
    assert torch.equal(layer.half().to(torch.float32)(x), y) and layer.weight_scale.dtype == torch.float8_e8m0fnu


def test_what_ranks_do_together_is_called() -> None:
    """Where the plan wants it: the sum of outputs, and in act-order the inputs of all ranks."""
    code, dtype, module, sizes, options = LINEAR["act-order, inputs split"]
    cases = [draw(code, dtype, module, sizes, **options | {"rank": rank}) for rank in (0, 1)]
    x, whole = cases[0].x(3), []
    for case in cases:
        layer = MarlinLinear(case.plan, all_gather=lambda part: x, all_reduce=lambda part: whole.append(part) or part)
        layer.load_checkpoint(case.tensors)
        assert "add up" not in repr(layer)
        case.product(x).check(layer(x[:, :128]))
    assert len(whole) == 2
    alone = MarlinLinear(draw("u4b8", "float16", "linear", {"n": 64, "k": 128}).plan, all_reduce=whole.append)
    alone(torch.zeros(1, 128, dtype=torch.float16))
    assert len(whole) == 2


# ---------------------------------------------------------------- torch.compile


def test_compiled_linear() -> None:
    case, layer = linear("act-order, odd rows")
    compiled = torch.compile(
        lambda x: torch.relu(layer(x * 2)), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for rows in (3, 5):
        x = case.x(rows)
        assert torch.equal(compiled(x), torch.relu(layer(x * 2)))


def test_operators_are_sound() -> None:
    case, layer = linear("fused parts")
    tensors = (layer.weight, layer.weight_scale, None, None, layer.bias)
    torch.library.opcheck(ops.gemm, (case.x(3), *tensors, str(layer.matrix.facts)))


# ---------------------------------------------------------------- refused


def raised(call, *words: str, code: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    text = str(caught.value)
    assert caught.value.diagnostics[0].code == code, text
    assert caught.value.help and all(word in text for word in words), text


PLAIN = Facts.of("u4b8 float16 f16 float16 group=64 n=256 k=384 front=0 valid=380 columns=0:200")
X = torch.zeros(2, 380, dtype=torch.float16)


def stored(**changes) -> Stored:
    tensors = {"weight": torch.zeros(24, 512, dtype=torch.int32), "scale": torch.zeros(6, 256, dtype=torch.float16)}
    return Stored(**tensors | changes)


def test_inputs_that_are_refused() -> None:
    _, layer = linear("n and k padded")
    x = torch.zeros(2, 200, dtype=torch.float16)
    raised(lambda: layer(x.float()), "float32", "expected float16", code="LP342")
    raised(lambda: layer(x[:, :100]), "[2, 100]", "[..., 200]", code="LP342")
    raised(lambda: layer(torch.tensor(1.0).half()), "shape []", code="LP342")
    raised(lambda: layer(x.requires_grad_()), "no backward", code="LP355")
    with torch.no_grad():
        layer(x.requires_grad_())
    raised(lambda: launch.gemm(X.to("meta"), stored(), PLAIN), "meta", code="LP343")
    raised(lambda: launch.gemm(X.bfloat16(), stored(), PLAIN), "bfloat16", code="LP342")
    raised(lambda: launch.gemm(X[:, 1:], stored(), PLAIN), "[rows, 380]", code="LP342")
    raised(lambda: launch.gemm(X.to_sparse(), stored(), PLAIN), "dense", code="LP342")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": torch.zeros(24, 512, dtype=torch.int64)}, "`weight` is int64, expected int32"),
        ({"weight": torch.zeros(12, 512, dtype=torch.int32)}, "[12, 512]"),
        ({"weight": torch.zeros(512, 24, dtype=torch.int32).T}, "is not contiguous\n  = help: store its .contiguous()"),
        ({"weight": torch.zeros(24 * 512 + 1, dtype=torch.int32)[1:]}, "store its .clone()"),
        ({"scale": torch.zeros(6, 256, dtype=torch.bfloat16)}, "`scale` is bfloat16"),
        ({"scale": torch.zeros(1, 256, dtype=torch.float16)}, "1536 elements"),
        ({"zero_point": torch.zeros(6, 32, dtype=torch.int32)}, "have none"),
        ({"global_scale": torch.zeros(1)}, "have none"),
        ({"bias": torch.zeros(200, dtype=torch.float16)}, "[200]"),
        ({"weight": torch.zeros(24, 512, dtype=torch.int32, device="meta")}, "stands on meta"),
    ],
)
def test_tensors_that_are_refused(changes: dict, words: str) -> None:
    raised(lambda: launch.gemm(X, stored(**changes), PLAIN), words, code="LP349")


def test_zero_points_that_are_missing() -> None:
    facts = Facts.of(str(PLAIN).replace("u4b8", "u4"))
    raised(lambda: launch.gemm(X, stored(), facts), "`zero_point` is missing", code="LP349")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("u4b8", "n4b8", "weights of n4b8"),
        ("f16 float16 group", "bf16 float16 group", "bf16 activations"),
        ("f16 float16 group", "s8 float16 group", "s8 activations"),
        ("f16 float16 group", "s4 float16 group", "s4 activations"),
        ("group=64", "group=96", "groups of 96"),
        ("n=256", "n=200", "200 x 384"),
        ("k=384", "k=416", "256 x 416"),
        ("n=256", "n=0", "0 x 384"),
        ("valid=380", "valid=385", "385 inputs"),
        ("front=0", "front=8", "behind 8"),
        ("front=0", "front=-8", "behind -8"),
        ("0:200", "100:200", "outputs at"),
        ("0:200", "-1:200", "outputs at"),
        ("0:200", "0:-1", "outputs at"),
        ("k=384", "k=2305843009213693952", "below 2^24"),
        ("k=384", "k=16777216", "below 2^24"),
    ],
)
def test_facts_that_are_refused(old: str, new: str, words: str) -> None:
    facts = Facts.of(str(PLAIN).replace(old, new, 1))
    raised(lambda: launch.gemm(X, stored(), facts), "no kernel takes", words, code="LP344")


def test_machines_that_are_refused() -> None:
    raised(lambda: checks.gpu_fits(75, "f16"), "sm_75", "sm_80 or newer", code="LP343")
    raised(lambda: checks.gpu_fits(86, "e4m3"), "sm_86", "sm_89 or newer", "marlin_int4_a8int8", code="LP347")
    for capability in (80, 86, 89, 90, 100, 120):
        checks.gpu_fits(capability, "bf16")
        checks.gpu_fits(capability, "s8")
    checks.gpu_fits(89, "e4m3")
    raised(lambda: checks.grid_fits(2**31, 2**31), "blocks", code="LP342")


def test_plans_that_are_refused() -> None:
    plan = compile_plan("gptq", "ct_int", "linear", {"n": 64, "k": 128}, params={"bits": 4})
    raised(lambda: MarlinLinear(plan), "no GEMM reads the tensors of `ct_int`", code="LP340")
    sizes = {"q": 4, "kv": 2, "d": 64, "h": 256}
    plan = compile_plan("gptq", "marlin_int4_a16", "attention", sizes)
    raised(lambda: MarlinLinear(plan), "qkv, o", "only=", code="LP341")
    raised(lambda: MarlinMoE(plan, activation="silu"), "no experts", "MarlinLinear", code="LP341")
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 64, "h": 128})
    raised(lambda: MarlinLinear(plan), "2 experts", "MarlinMoE", code="LP341")
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 64, "h": 128}, only=("w2",))
    raised(lambda: MarlinMoE(plan, activation="silu"), "w2", "in one plan", code="LP341")


# ---------------------------------------------------------------- experts

MOE = {
    "every other expert elsewhere, bias": (
        "u4b8", "float16", "moe_gated", {"e": 8, "i": 72, "h": 96}, "silu",
        {"group": 32, "ep": 2, "ep_rank": 1, "params": {"bias": True}},
    ),
    "alternating": (
        "gpt_oss", "bfloat16", "moe_gated", {"e": 4, "i": 96, "h": 96}, "swiglu_oai",
        {"params": {"bias": True}, "tp": 2, "rank": 1, "stored": ("alternating", "alternating")},
    ),
    "without a gate": ("nvfp4", "bfloat16", "moe_plain", {"e": 4, "i": 70, "h": 96}, "relu2", {}),
    "act-order": (
        "u4b8", "float16", "moe_gated", {"e": 3, "i": 64, "h": 128}, "gelu_tanh",
        {"group": 32, "params": {"act_order": True}},
    ),
    "several places": (
        "u4", "float16", "moe_gated", {"e": 3, "i": 64, "h": 96}, "gelu",
        {"group": 32, "ep": 2, "ep_rank": 1, "slots": (0, 1, 2, 0, 1)},
    ),
    "INT8, act-order, inputs split": (
        "u4b8_s8", "float16", "moe_gated", {"e": 3, "i": 96, "h": 128}, "silu",
        {"group": 32, "params": {"act_order": True}, "tp": 2, "rank": 1},
    ),
    "INT8, one group": ("u8b128_s8", "bfloat16", "moe_gated", {"e": 3, "i": 72, "h": 96}, "gelu", {"group": -1}),
    "FP8": ("u4_e4m3", "bfloat16", "moe_gated", {"e": 3, "i": 64, "h": 128}, "silu", {"group": 64}),
    "FP8, powers of two, without a gate": (
        "mxfp4_e4m3", "bfloat16", "moe_plain", {"e": 4, "i": 70, "h": 96}, "relu2", {"ep": 2, "ep_rank": 1},
    ),
}  # fmt: skip


@cache
def mixture(name: str) -> tuple[Case, MarlinMoE]:
    code, dtype, module, sizes, activation, options = MOE[name]
    case = draw(code, dtype, module, sizes, **options)
    return case, MarlinMoE(case.plan, activation=activation).load_checkpoint(case.tensors)


def routed(case: Case, tokens: int, top_k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, dict[int, int]]:
    """ids, router weights, and which of the rank's experts each id is: unevenly drawn, so that some get no token."""
    rng, plan = np.random.default_rng(seed), case.plan
    count = plan.places or plan.experts[0]
    ids = np.stack([rng.permutation(count)[:top_k] for _ in range(tokens)])
    ids[:, 0] = np.where(np.arange(tokens) % 3 < 2, (count - 1), ids[:, 0])
    first = plan.experts[1]
    places = {first + at: at for at in range(plan.experts[2])}
    return torch.from_numpy(ids), torch.from_numpy(rng.uniform(0.1, 1, ids.shape).astype(np.float32)), places


@pytest.mark.parametrize("name", MOE)
def test_mixture(name: str) -> None:
    case, layer = mixture(name)
    for tokens, top_k in ((1, 1), (7, 2)):
        x = case.x(tokens, "w13") / 8  # so that no product leaves the range of float16
        ids, router, places = routed(case, tokens, top_k)
        want = experts(case, x, ids.numpy(), router.double().numpy(), layer.activation, places=places)
        want.check(layer(x, ids, router))
        want.check(layer(x.reshape(1, tokens, -1), ids.int(), router)[0])


def test_tokens_of_other_ranks_are_zeros() -> None:
    case, layer = mixture("every other expert elsewhere, bias")
    x = case.x(3, "w13")
    for ids in (torch.tensor([[0, 3]] * 3), torch.tensor([[-1, 8]] * 3), torch.tensor([[2**40, -(2**40)]] * 3)):
        assert not layer(x, ids, torch.ones(3, 2)).any()
    assert layer(x[:0], torch.zeros(0, 2).int(), torch.zeros(0, 2)).shape == (0, 96)
    assert not layer(x, torch.zeros(3, 0).int(), torch.zeros(3, 0)).any()


def test_update_of_one_expert() -> None:
    name = "every other expert elsewhere, bias"
    code, dtype, module, sizes, activation, options = MOE[name]
    case, other = (draw(code, dtype, module, sizes, **options, seed=seed) for seed in (0, 1))
    layer = MarlinMoE(case.plan, activation=activation).load_checkpoint(case.tensors)
    before, x, (ids, router, _) = pointers(layer), case.x(7, "w13"), routed(case, 7, 2)
    for key, tensor in other.tensors.items():
        for expert in range(8):
            layer.update(key, tensor[expert], expert=expert)
    assert pointers(layer) == before
    new = MarlinMoE(case.plan, activation=activation).load_checkpoint(other.tensors)
    assert torch.equal(layer(x, ids, router), new(x, ids, router))


def test_state_of_experts_is_what_the_loader_gives() -> None:
    case, layer = mixture("act-order")
    assert set(layer.state_dict()) == {*case.plan.output, "_extra_state"}
    other = MarlinMoE(case.plan, activation="gelu_tanh")
    other.load_state_dict(case.made)
    x, (ids, router, _) = case.x(3, "w13"), routed(case, 3, 2)
    assert torch.equal(other(x, ids, router), layer(x, ids, router))


def test_compiled_mixture() -> None:
    case, layer = mixture("every other expert elsewhere, bias")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, (ids, router, _) = case.x(3, "w13"), routed(case, 3, 2)
    assert torch.equal(compiled(x, ids, router), layer(x, ids, router))
    first, second = ([layer.get_buffer(path) if path else None for path in paths] for paths in layer._stored)
    sample = (x, ids, router, layer.expert_map, None, first, second, *layer._facts, 4, "silu", "split", 1.702, 7.0)
    torch.library.opcheck(ops.moe, sample)


def test_routing_that_is_refused() -> None:
    case, layer = mixture("every other expert elsewhere, bias")
    x, (ids, router, _) = case.x(3, "w13"), routed(case, 3, 2)
    raised(lambda: layer(x, ids.float(), router), "int32 or int64", code="LP356")
    raised(lambda: layer(x, ids, router.half()), "float32", code="LP356")
    raised(lambda: layer(x, ids[:2], router), "[2, 2]", code="LP356")
    raised(lambda: layer(x, ids[:, :1], router), "[3, 1]", code="LP356")
    raised(lambda: layer(x[:, :8], ids, router), "[..., 96]", code="LP342")
    raised(lambda: MarlinMoE(mixture("without a gate")[0].plan, activation="swiglu_oai"), "gate", code="LP361")
    raised(lambda: MarlinMoE(case.plan, activation="swish"), "`swish`", "silu", code="LP363")
