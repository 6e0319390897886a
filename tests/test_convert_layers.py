"""Checkpoints whose layers differ: some left unquantized, some of another format; by names, patterns or classes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converted import (
    FIXTURES,
    Change,
    Converted,
    Tensors,
    bits_of,
    config_of,
    copied,
    digest,
    library,
    same,
    source_of,
    value_of,
    written,
)
from decoders import marlin

from layoutdsl import LayoutError, convert, load, verify
from layoutdsl.checkpoints.load import planned

LAYER = "model.layers.0"


def unquantized(folder: Path, pattern: str) -> dict[str, torch.Tensor]:
    """Replace quantized layers of a copy by plain ones of random weights; these weights."""
    made = torch.Generator().manual_seed(len(pattern))
    name, config = folder.name, config_of(folder)
    tensors, plain = source_of(folder), {}
    for weight, recorded in library(name).items():
        layer = weight.removesuffix(".weight")
        if re.search(pattern, layer):
            tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{layer}.")}
            plain[weight] = torch.randn(recorded["shape"], generator=made).to(getattr(torch, config["dtype"]))
    assert plain
    written(folder, tensors | plain)
    return plain


def ignoring(*entries: str) -> Change:
    return lambda config: config["quantization_config"].update(ignore=["lm_head", "re:.*mlp.gate$", *entries])


def loaded(src: Path, tp: int, ep: int = 1, **options: Any) -> Converted:
    ranks = [dict(load(src, tp=tp, ep=ep, rank=rank)) for rank in range(tp * ep)]
    jobs = list(planned(src, tp=tp, ep=ep).jobs())
    plans = [{job.unit.name: json.loads(of[at].to_json()) for job, of in jobs} for at in range(tp * ep)]
    return Converted(src, ranks, tp, ep, plans=plans, **options)


def check(model: Converted, name: str, plain: Tensors) -> None:
    """Plain weights are what they were, all others are the library's."""
    found = {weight: value for weight, value in model.weights() if not weight.endswith("gate.weight")}
    for weight, tensor in plain.items():
        assert np.array_equal(found[weight], value_of(tensor)), weight
    for weight in found.keys() - plain.keys():
        assert digest(found[weight], model.dtype) == library(name)[weight], weight
    assert found.keys() == library(name).keys()


# ---------------------------------------------------------------- left as they were


LEFT = {
    "o_proj": ("llama_w4a16", ["re:.*o_proj$"], "o_proj", 2),
    "down_proj, by its last word": ("llama_fp8_dynamic", ["down_proj"], "down_proj", 2),
    "one layer's attention": ("llama_w4a16", ["model.layers.1.self_attn"], r"layers\.1\.self_attn", 2),
    "one layer, by names": (
        "llama_nvfp4a16",
        [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up")],
        "(gate|up)_proj",
        4,
    ),
    "qkv, by a pattern": ("llama_w4a16_asym", ["re:.*self_attn.[qkv]_proj"], "[qkv]_proj", 2),
    "experts": ("qwen3_moe_mxfp4a16", ["re:.*experts.*"], "experts", 2),
    "attention beside experts": ("qwen3_moe_w4a16", ["re:.*self_attn.*"], "self_attn", 2),
    "attention, heads that ranks do not divide": ("llama_w4a16", ["re:.*self_attn.*"], "self_attn", 3),
    "attention, ranks without a head": ("llama_fp8_block", ["re:.*self_attn.*"], "self_attn", 5),
    "one layer's experts": ("qwen3_moe_w4a16", ["model.layers.1.mlp.experts"], r"layers\.1\.mlp\.experts", 4),
}


@pytest.mark.parametrize("case", LEFT)
def test_layers_left_unquantized_are_sliced_like_the_others(case: str, tmp_path: Path) -> None:
    name, entries, pattern, tp = LEFT[case]
    src = copied(name, tmp_path / name, ignoring(*entries))
    plain = unquantized(src, pattern)
    for ep in (1, 2) if "experts" in pattern else (1,):
        model = loaded(src, tp, ep)
        check(model, name, plain)
        stored = sum(tensor.numel() * tensor.element_size() for rank in model.ranks for tensor in rank.values())
        assert convert(src, tmp_path / "out", tp=tp, ep=ep, dry_run=True).bytes == stored


@pytest.mark.parametrize(("name", "pattern"), [("llama_w4a16", "mlp"), ("qwen3_moe_mxfp4a16", "experts")])
def test_inner_features_that_ranks_do_not_divide(name: str, pattern: str, tmp_path: Path) -> None:
    """Of 512 a rank of three has one feature less; nothing is padded."""
    src = copied(name, tmp_path / name, ignoring(f"re:.*{pattern}.*"))
    plain = unquantized(src, pattern)
    convert(src, tmp_path / "out", tp=3)
    model = Converted.of(src, tmp_path / "out", 3)
    check(model, name, plain)
    unit = f"{LAYER}.mlp.experts" if pattern == "experts" else f"{LAYER}.mlp"
    assert [next(one["length"] for one in plan[unit]["extents"] if one["axis"] == "i") for plan in model.plans] == [
        171, 171, 170,
    ]  # fmt: skip
    verify(tmp_path / "out", against=src)
    for rank in range(3):
        same(dict(load(src, tp=3, rank=rank)), model.ranks[rank])
    # matrices that are converted apart meet at equal shares alone
    src = copied(name, tmp_path / "down" / name, ignoring("re:.*down_proj"))
    unquantized(src, "down_proj")
    with pytest.raises(LayoutError, match="512 elements, which 3 tensor-parallel ranks do not divide evenly"):
        load(src, tp=3, rank=0)


def test_parts_of_a_plain_layer_are_fused_and_bias_goes_with_them(tmp_path: Path) -> None:
    """Named and laid out like a quantized layer's: rows of q, k and v that are the rank's, then their biases."""
    name = "llama_w4a16_asym"

    def qwen(config: dict[str, Any]) -> None:
        config.update(architectures=["Qwen2ForCausalLM"])
        ignoring("re:.*self_attn.*")(config)

    src = copied(name, tmp_path / name, qwen)
    source = unquantized(src, "self_attn")
    prefix = "model.layers.0.self_attn"
    made = torch.Generator().manual_seed(1)
    for part, n in {"q": 256, "k": 128, "v": 128}.items():
        source[f"{prefix}.{part}_proj.bias"] = torch.randn(n, generator=made).to(torch.float16)
    written(src, source_of(src) | source)
    for rank in range(2):
        found = dict(load(src, tp=2, rank=rank))
        for kind in ("weight", "bias"):
            parts = [source[f"{prefix}.{part}_proj.{kind}"].chunk(2)[rank] for part in "qkv"]
            assert torch.equal(found[f"{prefix}.qkv_proj.{kind}"], torch.cat(parts))
        assert torch.equal(found[f"{prefix}.o_proj.weight"], source[f"{prefix}.o_proj.weight"].chunk(2, dim=1)[rank])


def test_plain_experts_are_stacked_and_shared_out(tmp_path: Path) -> None:
    src = copied("qwen3_moe_fp8_dynamic", tmp_path / "qwen3_moe_fp8_dynamic", ignoring("re:.*experts"))
    plain = unquantized(src, "experts")
    layer = "model.layers.0.mlp"
    for rank in range(4):
        found, (ep_rank, tp_rank) = dict(load(src, tp=2, ep=2, rank=rank)), divmod(rank, 2)
        assert torch.equal(found[f"{layer}.gate.weight"], source_of(src)[f"{layer}.gate.weight"])
        for at, expert in enumerate(range(2 * ep_rank, 2 * ep_rank + 2)):
            parts = [plain[f"{layer}.experts.{expert}.{part}_proj.weight"].chunk(2)[tp_rank] for part in ("gate", "up")]
            down = plain[f"{layer}.experts.{expert}.down_proj.weight"].chunk(2, dim=1)[tp_rank]
            assert torch.equal(found[f"{layer}.experts.w13.weight"][at], torch.cat(parts))
            assert torch.equal(found[f"{layer}.experts.w2.weight"][at], down)


def test_what_is_ignored_must_be_what_is_plain(tmp_path: Path) -> None:
    name, layer = "llama_w4a16_asym", "model.layers.0"

    def refused(src: Path, match: str) -> None:
        with pytest.raises(LayoutError, match=match):
            load(src)

    src = copied(name, tmp_path / name)
    unquantized(src, "down_proj")
    refused(src, f"declares `{layer}.mlp.down_proj` quantized, the files hold .* as float16")
    src = copied(name, tmp_path / name, ignoring("re:.*up_proj"))
    refused(src, f"leaves `{layer}.mlp.up_proj` unquantized, the files hold .*up_proj.weight_packed")
    unquantized(src, "up_proj")
    refused(src, "`.*gate_proj` is ct_int with .*, `.*up_proj` is not quantized, but both make up `.*gate_up_proj`")


# ---------------------------------------------------------------- matrices of one unit that differ


APART = {
    "down alone": ("llama_fp8_block", "(gate|up)_proj", "mlp", 8),
    "gate and up alone": ("llama_fp8_block", "down_proj", "mlp", 4),
    "gate and up of groups that ranks cut": ("llama_w4a16_asym", "down_proj", "mlp", 8),
    "down alone, in act-order": ("llama_gptq_desc_act", "(gate|up)_proj", "mlp", 2),
    "w2 of all experts left": ("qwen3_moe_w4a16", r"experts\.\d\.down_proj", "mlp.experts", 4),
    "w2 of all experts alone": ("qwen3_moe_fp8_block", r"experts\.\d\.(gate|up)_proj", "mlp.experts", 8),
}


@pytest.mark.parametrize("case", APART)
def test_matrices_of_two_formats_are_units_of_their_own(case: str, tmp_path: Path) -> None:
    name, pattern, unit, tp = APART[case]

    def change(config: dict[str, Any]) -> None:
        if "desc_act" in name:
            config["quantization_config"]["dynamic"] = {f"-:.*{pattern}": {}}
        else:
            ignoring(f"re:.*{pattern}")(config)

    src = copied(name, tmp_path / name, change)
    plain = unquantized(src, pattern)
    for ep in (1, 2) if "experts" in pattern else (1,):
        done = convert(src, tmp_path / f"{ep}", tp=tp, ep=ep)
        names = {one.name for row in done.rows for one in row.units if f".{unit}" in one.name} - {f"{LAYER}.mlp.gate"}
        matrices = ("w13", "w2") if "experts" in unit else ("gate_up_proj", "down_proj")
        assert {one for one in names if one.startswith(LAYER)} == {f"{LAYER}.{unit}.{matrix}" for matrix in matrices}
        model = Converted.of(src, tmp_path / f"{ep}", tp, ep)
        check(model, name, plain)
        verify(tmp_path / f"{ep}", against=src)
        for rank in {0, tp * ep - 1}:
            same(dict(load(src, tp=tp, ep=ep, rank=rank)), model.ranks[rank])


def test_matrices_of_which_one_has_a_bias(tmp_path: Path) -> None:
    name = "llama_w4a16_asym"
    src, bias = copied(name, tmp_path / name), torch.arange(256).to(torch.float16)
    written(src, source_of(src) | {f"{LAYER}.mlp.down_proj.bias": bias})
    done = convert(src, tmp_path / "out", tp=2)
    assert {f"{LAYER}.mlp.gate_up_proj", f"{LAYER}.mlp.down_proj"} <= {row.name for row in done.rows}
    model = Converted.of(src, tmp_path / "out", 2)
    check(model, name, {})
    found = [marlin.bias_bits(bits_of(rank[f"{LAYER}.mlp.down_proj.bias"]), n=256) for rank in model.ranks]
    assert np.array_equal(found[0], bits_of(bias)) and not found[1].any(), "one rank adds it, when all are added up"
    # config.json says nothing of biases: a wrong tensor elsewhere is told as before
    written(src, source_of(src) | {f"{LAYER}.mlp.down_proj.weight_scale": torch.ones(3, 2, dtype=torch.float16)})
    wrong = r"down_proj.weight_scale` of .* is float16 \[3, 2\], expected float16 \[256, 2\]"
    with pytest.raises(LayoutError, match=wrong):
        load(src)


# ---------------------------------------------------------------- two formats


def merged(folder: Path, first: str, second: str, pattern: str, targets: tuple[list[str], list[str]]) -> Path:
    """Layer 0 of `first`, with the linear layers that `pattern` finds from `second`; both groups, and their targets."""
    folder.mkdir()
    config, other = config_of(FIXTURES / first), config_of(FIXTURES / second)
    config["num_hidden_layers"] = 1
    tensors = dict(taken(first, lambda name: not re.search(pattern, name)))
    tensors |= dict(taken(second, lambda name: bool(re.search(pattern, name))))
    groups = [one["quantization_config"]["config_groups"]["group_0"] for one in (config, other)]
    for group, own in zip(groups, targets):
        group["targets"] = own
    config["quantization_config"] |= {
        "config_groups": {"group_0": groups[0], "group_1": groups[1]},
        "format": "mixed-precision",
    }
    written(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def taken(name: str, wanted: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for key, tensor in source_of(FIXTURES / name).items():
        if not key.startswith("model.layers.1.") and wanted(key):
            yield key, tensor


ATTENTION = [f"model.layers.0.self_attn.{part}_proj" for part in "qkvo"]
MERGED = {
    "patterns": (
        "llama_nvfp4a16", "llama_fp8_dynamic", "self_attn.*_proj", (["re:.*mlp.*"], ["re:.*self_attn.*"]),
        {"mlp": "e2m1", "self_attn": "e4m3"},
    ),
    "names before a class": (
        "llama_mxfp4a16", "llama_mxfp8a16", "self_attn.*_proj", (["Linear"], ATTENTION),
        {"mlp": "e2m1", "self_attn": "e4m3"},
    ),
    "a pattern before a class": (
        "llama_fp8", "llama_mxfp4a16", "down_proj", (["Linear"], ["re:.*down_proj$"]),
        {"down_proj": "e2m1", "": "e4m3"},
    ),
    "experts of their own": (
        "qwen3_moe_w4a16", "qwen3_moe_mxfp8a16", r"experts\.", (["Linear"], [r"re:.*experts\..*_proj$"]),
        {"experts": "e4m3", "": "u4b8"},
    ),
    "one format, two widths": (
        "qwen3_moe_w4a16", "qwen3_moe_w8a16", "self_attn.*_proj", (["re:.*experts.*"], ["re:.*self_attn.*"]),
        {"experts": "u4b8", "self_attn": "u8b128", "": ""},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MERGED)
def test_two_formats_in_one_checkpoint(case: str, tmp_path: Path) -> None:
    first, second, pattern, targets, codes = MERGED[case]
    src = merged(tmp_path / "src", first, second, pattern, targets)
    tp, ep = (2, 2) if "moe" in first else (2, 1)
    model = loaded(src, tp, ep, codes=codes)
    expected = {weight: recorded for weight, recorded in library(first).items() if not re.search(pattern, weight)}
    expected |= {weight: recorded for weight, recorded in library(second).items() if re.search(pattern, weight)}
    expected = {weight: recorded for weight, recorded in expected.items() if ".layers.0." in weight}
    found = {
        weight: digest(value, model.dtype) for weight, value in model.weights() if not weight.endswith("gate.weight")
    }
    assert found == expected
    done = convert(src, tmp_path / "out", tp=tp, ep=ep, dry_run=True)
    assert len(done.kernels) == 2 and "; " in done.format


def test_formats_mixed_otherwise_than_declared(tmp_path: Path) -> None:
    first, second, pattern, targets, _ = MERGED["patterns"]
    src = merged(tmp_path / "a", first, second, pattern, targets[::-1])
    with pytest.raises(LayoutError, match=r"self_attn.q_proj.weight_packed` is in no file") as caught:
        load(src)
    assert "nvfp4" in str(caught.value)
    # one layer that no group means counts as left unquantized
    src = merged(tmp_path / "b", first, second, pattern, (["re:.*mlp.*"], ATTENTION[:3]))
    with pytest.raises(LayoutError, match=r"config.json leaves `model.layers.0.self_attn.o_proj` unquantized"):
        load(src)
    # parts of one fused layer in two formats
    src = merged(tmp_path / "c", first, second, "up_proj", (["Linear"], ["re:.*up_proj"]))
    with pytest.raises(LayoutError, match=r"gate_proj` is nvfp4 .*, `.*up_proj` is fp8 .*, but both make up"):
        load(src)
