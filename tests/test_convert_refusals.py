"""What a checkpoint cannot be: each refused before any output, by one error that names the place and the way out.

A case is a fixture, what is done to a copy of it, and a pattern for what the error must say: file, tensor, expected,
found. The way out is its help.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, Change, Tensors, copied, source_of, written

from layoutdsl import LayoutError, convert, load
from layoutdsl.checkpoints import folder, units
from layoutdsl.plan import Lost

FILE = r"`model\.safetensors`"


def refused(src: Path, tmp_path: Path, match: str, **options: Any) -> LayoutError:
    """The conversion is refused with that sentence and a way out, and nothing is left where it would have gone, but for
    what the sentence says is kept; a load is refused with the same."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LayoutError, match=match) as caught:
        convert(src, tmp_path / "out", **{"tp": 2, **options})
    error = caught.value
    said, kept, _ = str(error).partition(f"; what is finished is kept in `{tmp_path / '.out.partial'}`: ")
    assert sorted(tmp_path.iterdir()) == sorted([*before, *([tmp_path / ".out.partial"] if kept else [])])
    assert all(finding.code.startswith("LP") for finding in error.diagnostics)
    assert error.help, f"no way out: {error}"
    if not options:
        with pytest.raises(LayoutError) as loading:
            dict(load(src, tp=2, rank=0))
        assert str(loading.value) == said
    return error


# ---------------------------------------------------------------- config.json


def quantization(**changes: Any) -> Change:
    return lambda config: config["quantization_config"].update(changes)


def weights(**changes: Any) -> Change:
    return lambda config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(changes)


def config(**changes: Any) -> Change:
    return lambda config: config.update(changes)


def without(key: str) -> Change:
    return lambda config: config.pop(key)


CONFIGS = {
    "not quantized": ("llama_w4a16", without("quantization_config"), "no `?quantization_config`?"),
    "unknown method": (
        "llama_w4a16",
        quantization(quant_method="squeeze"),
        "says quant_method: squeeze, .* no format that a spec detects",
    ),
    "unknown architecture": (
        "llama_w4a16",
        config(architectures=["LamaForCausalLM"]),
        "no names are known .* `LamaForCausalLM`\n.*did you mean `LlamaForCausalLM`",
    ),
    "no architecture": ("llama_w4a16", without("architectures"), "states no single architecture"),
    "no size": ("llama_w4a16", without("hidden_size"), "config.json lacks `hidden_size`"),
    "size is text": ("llama_w4a16", config(hidden_size="256"), "config.json says .256. for `hidden_size`"),
    "wrong size": (
        "llama_w4a16",
        config(intermediate_size=320),
        r"gate_proj.weight_packed` of `model-00001-.*safetensors` is int32 \[512, 32\], expected int32 \[320, 32\]",
    ),
    "other hidden size": (
        "qwen3_moe_fp8_dynamic",
        config(hidden_size=256),
        r"weight\w*` of `model-.*` is float8_e4m3fn \[512, 128\], expected float8_e4m3fn \[512, 256\]",
    ),
    "more layers": ("llama_w4a16", config(num_hidden_layers=3), r"`model.layers.2.self_attn.\*_proj.\*` is in a file"),
    "fewer layers": (
        "llama_w4a16",
        config(num_hidden_layers=1),
        "`model.layers.1.self_attn.k_proj.weight_shape` of .* none that names",
    ),
    "endless layers": ("llama_w4a16", config(num_hidden_layers=10**12), "counts 1000000000000 of `layer`"),
    "no layers": ("llama_w4a16", config(num_hidden_layers=0), "config.json makes `layers` 0"),
    "more experts": (
        "qwen3_moe_w4a16_asym",
        config(num_local_experts=5),
        r"`model.layers.0.mlp.gate.weight` of `model.safetensors` is float16 \[4, 128\], expected float16 \[5, 128\]",
    ),
    "fewer experts": (
        "qwen3_moe_w4a16_asym",
        config(num_local_experts=3),
        r"`model.layers.0.mlp.experts.3.down_proj.weight_\w+` of `model.safetensors` is none that names `qwen_moe`",
    ),
    "endless experts": ("qwen3_moe_w4a16_asym", config(num_local_experts=10**12), "1000000000000"),
    "other bits": (
        "llama_w4a16",
        weights(num_bits=8),
        r"weight_packed` of .* is int32 \[512, 32\], expected int32 \[512, 64\]",
    ),
    "odd bits": ("llama_w4a16", weights(num_bits=3), "parameter `bits` of `ct_int` cannot be 3"),
    "other group": (
        "llama_w4a16",
        weights(group_size=64),
        r"weight_scale` of .* is bfloat16 \[512, 2\], expected .* \[512, 4\]",
    ),
    "group that k does not have": (
        "llama_w4a16",
        weights(group_size=96),
        r"weight_scale` of .* is bfloat16 \[512, 2\], expected .* \[512, 3\]",
    ),
    "one group": (
        "llama_w4a16",
        weights(group_size=None),
        r"weight_scale` of .* is bfloat16 \[512, 2\], expected .* \[512, 1\]",
    ),
    "zero points": (
        "qwen3_moe_w4a16",
        weights(symmetric=False),
        r"weight_zero_point` is in no file; expected int32 \[64, 1\]",
    ),
    "act-order": ("llama_w4a16", weights(actorder="group"), r"weight_g_idx` is in no file; expected int32 \[256\]"),
    "no act-order": (
        "llama_gptq_desc_act",
        quantization(desc_act=False),
        r"`model.layers.0.self_attn.qkv_proj`: .*g_idx",
    ),
    "bad pattern": ("llama_w4a16", quantization(ignore=["re:("]), r"`re:\(` is no pattern"),
    "per channel": (
        "llama_fp8",
        weights(strategy="channel"),
        r"weight_scale` of `model.safetensors` is bfloat16 \[1\], expected bfloat16 \[512, 1\]",
    ),
    "per tensor": (
        "qwen3_moe_fp8_dynamic",
        weights(strategy="tensor"),
        r"weight_scale` of `model-.*` is bfloat16 \[512, 1\], expected .* \[\]",
    ),
    "other blocks": ("llama_fp8_block", weights(block_structure=[64, 64]), "weight_scale"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_wrong_config_is_refused(case: str, tmp_path: Path) -> None:
    name, change, match = CONFIGS[case]
    src = tmp_path / "src"
    shutil.copytree(FIXTURES / name, src)
    stated = json.loads((src / "config.json").read_text())
    change(stated)
    (src / "config.json").write_text(json.dumps(stated))
    refused(src, tmp_path, match)


def test_a_missing_or_broken_config_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", tmp_path, "`.*nowhere` is no folder")
    src = copied("llama_w4a16", tmp_path / "src")
    for text, match in (("{", "config.json` is no JSON"), ("[]", "holds a list, a JSON object is needed"),
                        ('{"a": 1, "a": 2}', "`a` stands twice")):  # fmt: skip
        (src / "config.json").write_text(text)
        refused(src, tmp_path, match)
    (src / "config.json").unlink()
    refused(src, tmp_path, "config.json` cannot be read: no such file")


# ---------------------------------------------------------------- ranks and kernels


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ep": 5}, "`.*experts`: axis `e` has 4 experts, too few for 5 expert-parallel ranks"),
        ({"experts": (0, 1, 2)}, "`.*experts`: the map of experts has no place for expert 3; module `moe_gated` has 4"),
        ({"experts": (0, 1, 2, 3, 4)}, "`.*experts`: the map of experts has expert 4; module `moe_gated` has 4"),
        ({"experts": (0, 1, 2, 3, 0), "ep": 6}, "`.*experts`: axis `e` has 5 places for experts, too few for 6"),
        ({"tp": 2, "rank": 2}, "rank 2 of 2 ranks does not exist"),
        ({"tp": 2, "ep": 2, "rank": 4}, "rank 4 of 4 ranks does not exist"),
        ({"tp": 2, "rank": -1}, "rank -1 of 2 ranks does not exist"),
        ({"tp": 0}, "cannot have 0 tensor-parallel ranks"),
        ({"ep": -1}, "cannot have -1 expert-parallel ranks"),
        ({"tp": 0, "rank": 0}, "cannot have 0 tensor-parallel ranks"),
        ({"to": "marlin_int8_a16"}, "weights are never requantized"),
        ({"to": ["marlin_int8_a16", "marlin_fp8_a16"]}, "none of these kernels takes the codes of `ct_int`"),
        ({"to": "marlin"}, "there is no spec `marlin`"),
        ({"to": "gptq"}, "a kernel spec is needed"),
    ],
)
def test_what_cannot_be_served_is_refused(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    refused(FIXTURES / "qwen3_moe_w4a16", tmp_path, match, **options)


def test_a_map_of_experts_is_for_experts(tmp_path: Path) -> None:
    match = "the map of experts is for a model with experts; this checkpoint has none"
    refused(FIXTURES / "llama_w4a16", tmp_path, match, experts=(0, 1))


# ---------------------------------------------------------------- files


def rewrite(path: Path, change: Callable[[dict[str, Any], bytes], object]) -> None:
    """Change a safetensors file: its header in place, its data where `change` returns bytes."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    changed = change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + (changed if isinstance(changed, bytes) else data))


SCALE = "model.layers.0.mlp.up_proj.weight_scale"
FILES = {
    "truncated": (
        lambda h, d: d[:-1],
        "`.*model.safetensors` is truncated: its header describes .* bytes, the file has",
    ),
    "too long": (
        lambda h, d: d + b"x",
        "`.*model.safetensors` is too long: its header describes .* bytes, the file has",
    ),
    "unknown dtype": (lambda h, d: h[SCALE].update(dtype="F4"), f"tensor `{SCALE}` has the unknown dtype `F4`"),
    "size": (
        lambda h, d: h[SCALE].update(shape=[256, 3]),
        rf"model.safetensors`: tensor `{SCALE}` is float16 \[256, 3\] in 1024 bytes, expected 1536",
    ),
    "place": (
        lambda h, d: h[SCALE].update(data_offsets=[0, 1024]),
        "model.safetensors`: the bytes of tensor `.*` begin at .*, expected",
    ),
    "negative": (lambda h, d: h[SCALE].update(shape=[-256, -2]), f"`{SCALE}` lacks a dtype, a shape or its place"),
    "no place": (lambda h, d: h[SCALE].pop("data_offsets"), f"`{SCALE}` lacks a dtype, a shape or its place"),
    "value": (lambda h, d: b"\x01" + d[1:], r"`model.layers.0.mlp`: .*down.weight_shape.* \[256, 256\]"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_refused(case: str, tmp_path: Path) -> None:
    change, match = FILES[case]
    shutil.copytree(FIXTURES / "llama_w4a16_asym", tmp_path / "src")
    rewrite(tmp_path / "src" / "model.safetensors", change)
    refused(tmp_path / "src", tmp_path, match)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 8, b"\x08\0\0\0\0\0\0\0not json", b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_safetensors_file_is_refused(raw: bytes, tmp_path: Path) -> None:
    src = copied("llama_w4a16_asym", tmp_path / "src")
    (src / "model.safetensors").write_bytes(raw)
    refused(src, tmp_path, "model.safetensors` (is truncated or no safetensors file|is no JSON|holds a list)")


INDEX, FIRST = "model.safetensors.index.json", "model-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.update({"lm_head.weight": FIRST}), f"`lm_head.weight` stands in `.*00002.*has it in `{FIRST}`"),
        (lambda m: m.pop("model.norm.weight"), "`model.norm.weight` stands in `model-0.*has it nowhere"),
        (lambda m: m.update(more=FIRST), f"has tensor `more` in `{FIRST}`, whose header does not name it"),
        (lambda m: m.update(more="b.safetensors"), f"`{INDEX}` names `b.safetensors`, which is not in"),
        (lambda m: m.update(more="../src/b.safetensors"), "which is no safetensors file of this folder"),
        (lambda m: m.update(more=3), f"`.*{INDEX}` has no `weight_map` of tensors to files"),
    ],
)
def test_an_index_that_lies_is_refused(change: Callable[[dict], object], match: str, tmp_path: Path) -> None:
    src = tmp_path / "src"
    shutil.copytree(FIXTURES / "llama_w4a16", src)
    data = json.loads((src / INDEX).read_text())
    change(data["weight_map"])
    (src / INDEX).write_text(json.dumps(data))
    refused(src, tmp_path, match)


def test_an_index_without_its_files_is_refused(tmp_path: Path) -> None:
    src = tmp_path / "src"
    shutil.copytree(FIXTURES / "llama_w4a16", src)
    shutil.copy(src / FIRST, src / "model-00003.safetensors")
    data = json.loads((src / INDEX).read_text())
    data["weight_map"]["model.norm.weight"] = "model-00003.safetensors"
    (src / INDEX).write_text(json.dumps(data))
    refused(src, tmp_path, f"stands in `{FIRST}` and in `model-00003.safetensors`")
    (src / FIRST).unlink()
    refused(src, tmp_path, f"names `{FIRST}`, which is not in")
    (src / INDEX).unlink()
    refused(src, tmp_path, f"has 2 safetensors files .* and no {INDEX}")


# ---------------------------------------------------------------- tensors


def dropped(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def moved(old: str, new: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def doubled(old: str, new: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({new: tensors[old].clone()})


def made(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def dense_too(tensors: Tensors) -> None:
    for part in ("gate", "up", "down"):
        for key in ("weight_packed", "weight_scale"):
            tensors[f"{MLP}.{part}_proj.{key}"] = tensors[f"{EXPERTS}.0.{part}_proj.{key}"].clone()


def an_expert_unquantized(tensors: Tensors) -> None:
    for key in ("weight_packed", "weight_scale"):
        tensors.pop(f"{EXPERTS}.2.up_proj.{key}")
    tensors[f"{EXPERTS}.2.up_proj.weight"] = torch.ones(512, 128, dtype=torch.bfloat16)


LLAMA, MOE = "llama_w4a16_asym", "qwen3_moe_mxfp4a16"
ATTENTION, MLP, EXPERTS = "model.layers.0.self_attn", "model.layers.0.mlp", "model.layers.0.mlp.experts"
STRANGER = f"of {FILE} is none that names `llama` know"
TENSORS = {
    "misspelled layer": (
        LLAMA, moved(SCALE, SCALE.replace("up_", "uq_")),
        f"`model.layers.0.mlp.uq_proj.weight_scale` {STRANGER}\n.*did you mean `{SCALE}`",
    ),
    "misspelled tensor": (LLAMA, moved(SCALE, SCALE + "s"), f"`{SCALE}s` {STRANGER}\n.*did you mean `{SCALE}`"),
    "layer beyond": (
        LLAMA, moved(SCALE, SCALE.replace(".0.", ".7.")), f"`model.layers.7.mlp.up_proj.weight_scale` {STRANGER}",
    ),
    "a stranger": (LLAMA, doubled(SCALE, "model.layers.0.mlp.extra"), f"`model.layers.0.mlp.extra` {STRANGER}"),
    "a stranger of another format": (
        LLAMA, doubled(SCALE, SCALE.removesuffix("_scale") + "_scale_2"),
        "`model.layers.0.mlp.up_proj.weight_scale_2`",
    ),
    "a tensor of another format": (
        LLAMA, moved(SCALE, SCALE.removesuffix("_scale")), f"`{SCALE}` is in no file; expected",
    ),
    "no scale": (LLAMA, dropped(SCALE), rf"`{SCALE}` is in no file; expected float16 \[256, 2\]"),
    "no part": (
        LLAMA, lambda t: [t.pop(name) for name in list(t) if f"{ATTENTION}.k_proj." in name],
        f"tensor `{ATTENTION}.k_proj.weight_packed` is in no file",
    ),
    "no unit": (
        LLAMA, lambda t: [t.pop(name) for name in list(t) if "down_proj" in name],
        f"tensor `{MLP}.down_proj.weight_packed` is in no file",
    ),
    "no norm": (LLAMA, dropped("model.norm.weight"), "tensor `model.norm.weight` is in no file of `.*src`"),
    "no norm of a layer": (
        LLAMA, dropped("model.layers.0.input_layernorm.weight"),
        "tensor `model.layers.0.input_layernorm.weight` is in no file",
    ),
    "no norm of keys": (MOE, dropped(f"{ATTENTION}.k_norm.weight"), f"`{ATTENTION}.k_norm.weight` is in no file"),
    "no head": (LLAMA, dropped("lm_head.weight"), "`lm_head.weight` is in no file"),
    "shape": (
        LLAMA, made(SCALE, lambda t: t.reshape(128, 4)),
        rf"`{SCALE}` of {FILE} is float16 \[128, 4\], expected float16 \[256, 2\]",
    ),
    "dtype": (
        LLAMA, made(SCALE, lambda t: t.view(torch.int16)),
        rf"`{SCALE}` of {FILE} is int16 \[256, 2\], expected float16 \[256, 2\]",
    ),
    "dtype of one part": (
        LLAMA, made(SCALE, lambda t: t.to(torch.bfloat16)),
        rf"`{SCALE}` of {FILE} is bfloat16 \[256, 2\], expected float16 \[256, 2\]",
    ),
    "the same layer twice": (
        LLAMA, doubled(SCALE, SCALE.replace(".0.", ".00.")), f"tensors `{SCALE}` and `.*layers.00.*` are the same one",
    ),
    "the same expert twice": (
        MOE, doubled(f"{EXPERTS}.1.up_proj.weight_scale", f"{EXPERTS}.01.up_proj.weight_scale"),
        f"`{EXPERTS}.0?1.up_proj.weight_scale` and `{EXPERTS}.0?1.up_proj.weight_scale` are the same one",
    ),
    "no expert": (
        MOE, lambda t: [t.pop(name) for name in list(t) if f"{EXPERTS}.2." in name],
        f"tensor `{EXPERTS}.2.gate_proj.weight_packed` is in no file",
    ),
    "no scale of an expert": (
        MOE, dropped(f"{EXPERTS}.3.down_proj.weight_scale"),
        rf"tensor `{EXPERTS}.3.down_proj.weight_scale` is in no file; expected .* \[128, 16\]",
    ),
    "an expert too many": (
        MOE, doubled(f"{EXPERTS}.3.down_proj.weight_scale", f"{EXPERTS}.4.down_proj.weight_scale"),
        f"`{EXPERTS}.4.down_proj.weight_scale` of {FILE} is none that names `qwen_moe` know",
    ),
    "an expert of another shape": (
        MOE, made(f"{EXPERTS}.2.up_proj.weight_scale", lambda t: t.reshape(256, 8)),
        rf"`{EXPERTS}.2.up_proj.weight_scale` of {FILE} is \w+ \[256, 8\], expected .* \[512, 4\]",
    ),
    "an expert of another dtype": (
        MOE, made(f"{EXPERTS}.1.down_proj.weight_packed", lambda t: t.view(torch.int32)),
        rf"`{EXPERTS}.1.down_proj.weight_packed` of {FILE} is int32 \[128, 64\], expected uint8 \[128, 256\]",
    ),
    "an expert left unquantized": (
        MOE, an_expert_unquantized,
        rf"declares `{EXPERTS}.2.up_proj` quantized, the files hold `{EXPERTS}.2.up_proj.weight` of {FILE} as bfloat16",
    ),
    "dense and experts in one layer": (
        MOE, dense_too, rf"`{MLP}.*` and `{MLP}.*` exclude each other, but both are there",
    ),
    "neither dense nor experts": (
        MOE, lambda t: [t.pop(name) for name in list(t) if ".mlp." in name],
        rf"no tensor `{MLP}.*` is in a file of `.*src`",
    ),
    "no router": (MOE, dropped(f"{MLP}.gate.weight"), rf"no tensor `{MLP}.gate.\*` is in a file"),
    "router of another shape": (
        MOE, made(f"{MLP}.gate.weight", lambda t: t[:3]),
        rf"`{MLP}.gate.weight` of {FILE} is bfloat16 \[3, 128\], expected .* \[4, 128\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_a_wrong_tensor_is_refused(case: str, tmp_path: Path) -> None:
    name, change, match = TENSORS[case]
    src = copied(name, tmp_path / "src")
    tensors = source_of(src)
    change(tensors)
    written(src, tensors)
    refused(src, tmp_path, match)


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [("model.norm.weight", "model.norm.weight", [64, 4]), ("model.embed_tokens.weight", "embed", [64, 128])],
)
def test_a_copied_tensor_of_another_shape(name: str, tensor: str, shape: list[int], tmp_path: Path) -> None:
    """What is copied is not looked into: it goes to every rank as it is."""
    src = copied(LLAMA, tmp_path / "src")
    written(src, source_of(src) | {name: torch.zeros(shape)})
    assert list(dict(load(src))[name].shape) == shape


RANKS = [
    {"tp": 2, "rank": 1},
    {"ep": 2, "rank": 1},
    {"tp": 2, "ep": 2, "rank": 3},
    {"ep": 4, "rank": 3},
    {"ep": 2, "rank": 1, "experts": (0, 1, 2, 3, 3, 0)},
]
"""Ranks with the last of four experts, as most of which it is another one than in the checkpoint."""

EXPERT = "model.layers.0.mlp.experts.3"


@pytest.mark.parametrize("size", [1, units.SIZE], ids=["each", "all"])
@pytest.mark.parametrize("target", ["marlin_int4_a16", "marlin_int4_a8int8"])
@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_an_expert_has_its_number_in_the_checkpoint(
    backend: str, target: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every rank, whichever of the rank's experts it is. Those of the second target stay together."""
    monkeypatch.setattr(units, "SIZE", size)
    src = copied("qwen3_moe_w4a16", tmp_path / "model")
    tensors = source_of(src)
    tensors[f"{EXPERT}.up_proj.weight_scale"][-1, -1] = 1e30
    written(src, tensors)
    with pytest.raises(LayoutError) as whole:
        convert(src, tmp_path / "out", to=target, dtype="float16", backend=backend)
    assert "`w13.up.weight_scale` at expert 3, part up, n 511, k 0: 1.0002555" in whole.value.message
    for ranks in RANKS:
        with pytest.raises(LayoutError) as told:
            dict(load(src, target=target, dtype="float16", backend=backend, **ranks))
        assert whole.value.message.startswith(told.value.message), ranks


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


def as_gptq(tensors: Tensors) -> Tensors:
    """Those of compressed-tensors as GPTQ would have them."""
    tensors = dict(tensors)
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        layer, (n, words) = name.removesuffix(".weight_packed"), tensors.pop(name).shape
        del tensors[f"{layer}.weight_scale"], tensors[f"{layer}.weight_shape"]
        k = 8 * words
        tensors[f"{layer}.qweight"] = torch.zeros(k // 8, n, dtype=torch.int32)
        tensors[f"{layer}.qzeros"] = torch.full((k // 32, n // 8), 0x77777777, dtype=torch.int32)
        tensors[f"{layer}.scales"] = torch.ones(k // 32, n, dtype=torch.float16)
        tensors[f"{layer}.g_idx"] = torch.arange(k, dtype=torch.int32) // 32
    return tensors


@pytest.mark.parametrize("size", [1, units.SIZE], ids=["each", "all"])
def test_an_expert_that_is_refused_as_it_is_read(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of a checkpoint's inputs is looked at where a rank's slice is made of it."""
    monkeypatch.setattr(units, "SIZE", size)
    src = copied("qwen3_moe_w4a16", tmp_path / "model", config(quantization_config=GPTQ))
    tensors = as_gptq(source_of(src))
    tensors[f"{EXPERT}.down_proj.g_idx"][-1] = 3
    written(src, tensors)
    for ranks in ({}, *RANKS):
        with pytest.raises(LayoutError, match=r"`w2\.g_idx` at expert 3, n 0, k 511: it is 3, expected 15"):
            dict(load(src, **ranks))


def test_what_an_expert_lost_is_told_by_its_number_in_the_checkpoint(tmp_path: Path) -> None:
    src = copied("qwen3_moe_nvfp4a16", tmp_path / "model")
    tensors = source_of(src)
    tensors[f"{EXPERT}.down_proj.weight_scale"].view(torch.uint8)[:3, -1] = 1
    written(src, tensors)
    of = tensors[f"{EXPERT}.down_proj.weight_scale"].numel()
    for at, ranks in enumerate(RANKS):
        lost = convert(src, tmp_path / f"out-{at}", **ranks).lost["model.layers.0.mlp.experts"]
        assert {*lost} == {Lost("w2.weight_scale", 3, 3, of // ranks.get("tp", 1))}, ranks


def test_a_checkpoint_without_quantized_layers(tmp_path: Path) -> None:
    src = copied(LLAMA, tmp_path / "src", without("quantization_config"))
    tensors = {}
    for name, tensor in source_of(src).items():
        layer, _, kind = name.rpartition(".")
        if kind == "weight_shape":
            tensors[f"{layer}.weight"] = torch.ones(tensor.tolist(), dtype=torch.float16)
        elif kind == "weight":
            tensors[name] = tensor
    written(src, tensors)
    refused(src, tmp_path, "no layer of `.*src` is quantized", tp=1)


def test_many_findings_are_one_report(tmp_path: Path) -> None:
    src = copied("llama_w4a16", tmp_path / "src", config(num_hidden_layers=1))
    error = refused(src, tmp_path, "none that names")
    assert len(error.diagnostics) == 9
    assert error.diagnostics[-1].message == "and 15 more of this kind"


def test_the_command_says_it_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from layoutdsl.cli import main

    src = copied(MOE, tmp_path / "src")
    tensors = source_of(src)
    tensors.pop(f"{EXPERTS}.3.down_proj.weight_scale")
    written(src, tensors)
    assert main(["convert", str(src), str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("LP217 missing-tensor: tensor `")
    assert "Traceback" not in said.err and not (tmp_path / "out").exists()


# ---------------------------------------------------------------- what a stranger would try


def edited(name: str, to: Path, **config: object) -> Path:
    """A copy of a fixture with other entries in config.json."""
    shutil.copytree(FIXTURES / name, to)
    (to / "config.json").write_text(json.dumps(json.loads((to / "config.json").read_text()) | config))
    return to


def test_a_kernel_without_the_models_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="parameter `dtype` of `marlin_mxfp4_a16` cannot be float16"):
        convert(edited("llama_mxfp4a16", tmp_path / "model", dtype="float16"), tmp_path / "out", tp=2)
    assert not (tmp_path / "out").exists()


def test_numbers_of_ranks_that_no_model_has_are_refused_at_once(tmp_path: Path) -> None:
    for how in ({"tp": 100_000_000}, {"ep": 100_000_000}, {"tp": 0}, {"tp": 70_000, "rank": 1}):
        with pytest.raises(LayoutError, match="-parallel ranks"):
            convert(FIXTURES / "llama_w4a16", tmp_path / "out", **how)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_keeps_nobody_waiting(name: str, tmp_path: Path) -> None:
    src = edited("llama_w8a16", tmp_path / "model")
    (src / name).unlink()
    os.mkfifo(src / name)
    with pytest.raises(LayoutError):
        convert(src, tmp_path / "out")


@pytest.mark.parametrize("dtype", [["F16"], {"F16": 1}, 7, None])
def test_a_dtype_that_is_no_word_is_refused(dtype: object, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    header = json.dumps({"weight": {"dtype": dtype, "shape": [1], "data_offsets": [0, 2]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(LayoutError, match="tensor `weight` lacks a dtype"):
        folder.read_header(file)


@pytest.mark.parametrize("device", ["nope", "cuda:99", 5.5])
def test_a_device_that_is_not_there_is_refused_before_anything(device: object) -> None:
    with pytest.raises(LayoutError, match="cannot be used"):
        load(FIXTURES / "llama_w4a16", device=device)
