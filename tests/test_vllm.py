"""A layer as vLLM makes it: its parameters become those that vLLM leaves, byte for byte what vLLM recorded.

The shapes and names of tests/fixtures/vllm_layers.yaml were read in vLLM's sources, the bytes of tests/golden come from
its functions.
"""

import gc
import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from layoutdsl import LayoutError, conform, peer
from layoutdsl.adapters.vllm import process_weights
from layoutdsl.grammar import parse_expr

ROOT = Path(__file__).parent
FACTS = yaml.safe_load((ROOT / "fixtures" / "vllm_layers.yaml").read_text())["layers"]
GOLDEN = ROOT / "golden"
CASES = json.loads((GOLDEN / "index.json").read_text())["cases"]
DTYPE = torch.bfloat16


# --- layers out of the facts ------------------------------------------------------------------------------------------


def scope(fact: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Every size by its letter, with what vLLM pads to."""
    group = fact.get("group") or fact.get("params", {}).get("group", -1)
    if fact["kind"] == "moe":
        padded = peer.policy("moe_padded_intermediate", {"intermediate": sizes["i"], "group": group})
        return {**sizes, "I": padded["padded"]}
    n, k = sum(sizes["widths"]), sizes["k"]
    padded = peer.policy("padded_nk", {"n": n, "k": k, "group": group})
    return {**sizes, "n": n, "p": len(sizes["widths"]), "N": padded["padded_n"], "K": padded["padded_k"]}


def described(tensors: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {
        name: (
            DTYPE if dtype == "dtype" else getattr(torch, dtype),
            tuple(int(parse_expr(str(extent)).evaluate(known)) for extent in extents),
        )
        for name, (dtype, *extents) in tensors.items()
    }


def drawn(dtype: torch.dtype, shape: tuple[int, ...], fill: int | None, made: torch.Generator) -> torch.Tensor:
    if fill is not None:
        return torch.full(shape, fill, dtype=dtype)
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31, shape, generator=made).int()
    if dtype == torch.uint8:
        return torch.randint(100, 140, shape, generator=made).byte()
    if dtype == torch.float8_e4m3fn:
        return torch.randint(0x30, 0x60, shape, generator=made).byte().view(dtype)
    return (torch.rand(shape, generator=made) + 0.5).to(dtype)


def layer_of(fact: Mapping[str, Any], sizes: Mapping[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A layer after create_weights and loading, and the sizes."""
    layer, known, made = torch.nn.Module(), scope(fact, sizes), torch.Generator().manual_seed(0)
    for attribute, size in fact["attributes"].items():
        setattr(layer, attribute, DTYPE if size == "dtype" else known[size])
    for name, (dtype, shape) in described(fact["before"], known).items():
        tensor = drawn(dtype, shape, fact.get("fill", {}).get(name), made)
        layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return layer, known


def parameters(layer: torch.nn.Module) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {name: (one.dtype, tuple(one.shape)) for name, one in layer.named_parameters()}


SIZES = [
    pytest.param(fact, sizes, id=f"{fact['method']}-{fact['kind']}-{at}-{'-'.join(map(str, sizes.values()))}")
    for at, fact in enumerate(FACTS)
    for sizes in fact["sizes"]
]


@pytest.mark.parametrize(("fact", "sizes"), SIZES)
def test_a_layer_has_what_vllm_leaves(fact: dict[str, Any], sizes: dict[str, Any]) -> None:
    layer, known = layer_of(fact, sizes)
    stays = {name: one for name, one in layer.named_parameters() if name in fact.get("stays", ())}
    sources = [weakref.ref(one) for name, one in layer.named_parameters() if name not in stays]
    plan = process_weights(layer, fact["method"], params=fact.get("params"))
    gc.collect()
    assert not any(source() is not None for source in sources), "a source tensor is kept"
    found, wanted = parameters(layer), described(fact["after"], known)
    # One scale for all: vLLM has () or [1].
    squeezed = {name: (dtype, shape if shape != (1,) else wanted[name][1]) for name, (dtype, shape) in found.items()
                if name not in stays}  # fmt: skip
    assert squeezed == wanted
    assert all(layer.get_parameter(name) is one for name, one in stays.items())
    assert not any(one.requires_grad for one in layer.parameters())
    assert {duty.kind for duty in plan.duties} <= {"pad_input", "slice_output"}


def test_duties_say_what_is_padded() -> None:
    fact = next(fact for fact in FACTS if fact["method"] == "gptq" and fact["params"]["bits"] == 8)
    layer, _ = layer_of(fact, fact["sizes"][1])
    plan = process_weights(layer, "gptq", params=fact["params"])
    found = {duty.kind: (duty.rest, duty.length) for duty in plan.duties}
    assert found["pad_input"][0] == 256 - 208
    assert found["slice_output"][1] == 200


# --- bytes ------------------------------------------------------------------------------------------------------------

METHODS = {
    "gptq_int4": "gptq", "gptq_int8": "gptq", "awq_int4": "awq", "ct_int4": "compressed_tensors_int",
    "ct_int8": "compressed_tensors_int", "ct_int4_zp": "compressed_tensors_int", "fp8_tensor": "fp8",
    "fp8_tensor_fused": "fp8", "fp8_shard": "fp8", "fp8_channel": "fp8", "fp8_block": "fp8_block", "mxfp8": "mxfp8",
    "mxfp4": "mxfp4", "nvfp4": "modelopt_nvfp4", "nvfp4_nongated": "modelopt_nvfp4",
}  # fmt: skip
"""Of the recorded formats."""

BEFORE = {"weight_global_scale": "weight_scale_2"}
AFTER = {
    "gptq": {"weight": "qweight", "weight_scale": "scales"},
    "awq": {"weight": "qweight", "weight_scale": "scales", "zero_point": "qzeros"},
    "compressed_tensors_int": {"weight": "weight_packed", "zero_point": "weight_zero_point"},
    "fp8_block": {"weight_scale": "weight_scale_inv"},
}
"""Recorded names -> vLLM's, where they differ; a global scale has one name for dense layers, another for experts."""


def stated(case: Mapping[str, Any], method: str, groups: int) -> dict[str, Any]:
    """What the quantization config says; also whether vLLM left it at one scale where k is padded beyond a group."""
    if method == "fp8_block":
        return dict(zip(("block_n", "group"), case["block"]))
    if method not in ("gptq", "awq", "compressed_tensors_int"):
        return {}
    found = {"group": case["group"], "target.group": case["group"] if groups > 1 else -1}
    found |= {} if method == "awq" else {"bits": case["bits"]}
    return found | ({"zero_points": True} if case["format"] == "ct_int4_zp" else {})


def rounded_up(tensor: torch.Tensor, prefix: str, case: Mapping[str, Any]) -> torch.Tensor:
    """As vLLM has MXFP4's experts before they are loaded: of sizes that are rounded up, with zeros."""
    inner, hidden = (case["padded"][at] / case[at] for at in "IH")
    rows, columns = (inner, hidden) if prefix == "w13_" else (hidden, inner)
    parts = 2 if prefix == "w13_" and case["w13_order"] == "halves" else 1
    split = tensor.unflatten(1, (parts, -1))
    sizes = [round(split.shape[2] * rows), *(round(extent * columns) for extent in split.shape[3:])]
    made = tensor.new_zeros(*split.shape[:2], *sizes)
    made[tuple(slice(extent) for extent in split.shape)] = split
    return made.flatten(1, 2)


def recorded(case: Mapping[str, Any]) -> tuple[torch.nn.Module, str, dict[str, torch.Tensor]]:
    """The layer of a recorded case, its method, and what vLLM made of it, by vLLM's names."""
    method = "gpt_oss_mxfp4" if case.get("w13_order") == "interleaved" else METHODS[case["format"]]
    names = {"global_scale": "weight_scale_2" if case["kind"] == "moe" else "weight_global_scale"}
    names |= AFTER.get(method, {})
    rounds = case["kind"] == "moe" and case["format"] == "mxfp4"
    layer, wanted = torch.nn.Module(), {}
    for key, tensor in conform.read(GOLDEN, case).items():
        side, _, name = key.partition(".")
        prefix = next((prefix for prefix in ("w13_", "w2_") if name.startswith(prefix)), "")
        name = name.removeprefix(prefix)
        if side == "out":
            wanted[prefix + names.get(name, name)] = tensor
            continue
        tensor = rounded_up(tensor, prefix, case) if rounds else tensor
        layer.register_parameter(prefix + BEFORE.get(name, name), torch.nn.Parameter(tensor, requires_grad=False))
    layer.params_dtype = getattr(torch, case["param_dtype"])
    sizes = {**case, **case["padded"]} if rounds else case
    if case["kind"] == "moe":
        layer.local_num_experts, layer.intermediate_size_per_partition, layer.hidden_size = (sizes[at] for at in "EIH")
    else:
        layer.input_size_per_partition = case["K"]
        layer.output_partition_sizes = case["shards"] if isinstance(case.get("shards"), list) else [case["N"]]
    return layer, method, wanted


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_bytes_are_those_that_vllm_recorded(case: dict[str, Any]) -> None:
    layer, method, wanted = recorded(case)
    groups = max(
        one.shape[-2] for name, one in wanted.items() if name.endswith(("scale", "scales", "inv")) and one.ndim > 1
    )
    kernel = conform._table()["targets"][case["target"]][case["format"]]
    process_weights(layer, method, params=stated(case, method, groups), target=kernel, habits=peer.habits())
    found = {name: one.data for name, one in layer.named_parameters() if one.numel()}
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        got = found[name]
        assert got.dtype == want.dtype and (got.shape == want.shape or got.numel() == want.numel() == 1), name
        assert torch.equal(*(one.contiguous().reshape(-1).view(torch.uint8) for one in (got, want))), name


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(match: str, method: str = "gptq", params: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """LayoutError for the first GPTQ layer, changed, which stays as it was."""
    layer, _ = layer_of(FACTS[0], FACTS[0]["sizes"][0])
    for name, value in changes.items():
        if isinstance(value, torch.Tensor):
            layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        else:
            setattr(layer, name, value)
    before = dict(layer.named_parameters())
    with pytest.raises(LayoutError, match=match):
        process_weights(layer, method, params=FACTS[0]["params"] if params is None else params)
    after = dict(layer.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is one for name, one in before.items())


def test_what_is_no_method_is_refused() -> None:
    refused("^LP371.*`gptp`[^$]*did you mean `gptq`", method="gptp")


def test_a_layer_of_another_method_is_refused() -> None:
    refused("^LP372.*no tensors of `fp8`", method="fp8")
    refused("^LP372.*`linear.qweight` is int32 .*, expected int32", method="awq", params={"group": 128})


def test_a_layer_of_other_sizes_is_refused() -> None:
    refused(r"^LP372.*is int32 \[64, 256\], expected int32 \[128, 256\]", params={"bits": 8, "group": 128})
    refused("^LP372.*`linear", input_size_per_partition=256)
    refused("^LP372.*no attribute `params_dtype`", params_dtype=None)
    refused("^LP372.*no attribute `output_partition_sizes`", output_partition_sizes=None)


def test_a_tensor_too_many_or_too_few_is_refused() -> None:
    refused(r"^LP372.*`linear.bias` is bfloat16 \[8\], expected bfloat16 \[256\]", bias=torch.zeros(8, dtype=DTYPE))
    refused("^LP372.*no `linear.scales`", scales=torch.empty(0))


def test_zero_points_that_are_none_are_refused() -> None:
    refused("^LP170.*qzeros", qzeros=torch.zeros(4, 32, dtype=torch.int32))


def test_parts_whose_global_scales_differ_are_refused() -> None:
    """vLLM takes the largest for all, with a warning: the other parts' weights are then worth something else."""
    fact = next(fact for fact in FACTS if fact["method"] == "modelopt_nvfp4")
    layer, _ = layer_of(fact, fact["sizes"][1])
    layer.weight_scale_2.data[1] = 0.5
    with pytest.raises(LayoutError, match=r"^LP171"):
        process_weights(layer, "modelopt_nvfp4")
