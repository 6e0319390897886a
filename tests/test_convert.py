"""`layoutdsl convert` on checkpoints that outside code wrote: what every rank's kernel reads is what they mean.

Kernel tensors are read by tests/decoders/marlin.py, checkpoints by the other decoders; both share nothing with
layoutdsl. How the ranks are put together is in converted.py.
"""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converted import (
    FIXTURES,
    SPLITS,
    Converted,
    bits_of,
    config_of,
    copied,
    decoded,
    digest,
    drawn,
    library,
    same,
    source_of,
    unit,
    value_of,
    written,
)
from decoders import ct_int, fp8, fp8_block, gptq, marlin, mxfp4, mxfp8, nvfp4
from decoders.numbers import f32
from safetensors import safe_open
from safetensors.torch import load_file

from layoutdsl import Plan, compile_plan, convert, load
from layoutdsl.checkpoints import progress, report

# ---------------------------------------------------------------- the library's own values


@lru_cache(maxsize=4)
def meant(name: str) -> dict[str, np.ndarray]:
    """Each quantized weight of a fixture, exactly, by the decoder of its format."""
    source, config = source_of(FIXTURES / name), config_of(FIXTURES / name)
    found = {}
    for weight, recorded in library(name).items():
        own = {key: bits_of(tensor) for key, tensor in unit(source, weight.removesuffix(".weight")).items()}
        n, k = recorded["shape"]
        found[weight] = original(own, config, {"n": n, "k": k})
    return found


def original(own: dict[str, np.ndarray], config: dict[str, Any], size: dict[str, int]) -> np.ndarray:
    dtype, stated = config["dtype"], config["quantization_config"]
    if stated["quant_method"] == "gptq":
        form = {"group": stated["group_size"], "bits": stated["bits"], "checkpoint_format": stated["checkpoint_format"]}
        return gptq.decode(own, **size, **form, dtype=dtype)
    weights = stated["config_groups"]["group_0"]["weights"]
    match stated["format"], weights["strategy"]:
        case "pack-quantized", _:
            return ct_int.decode(own, **size, group=weights["group_size"], bits=weights["num_bits"], dtype=dtype)
        case "float-quantized", "block":
            return fp8_block.decode(own, **size, block=weights["block_structure"], dtype=dtype)
        case "float-quantized", _:
            return fp8.decode(own, **size, dtype=dtype)
        case "mxfp4-pack-quantized", _:
            return mxfp4.decode(own, **size)
        case "mxfp8-quantized", _:
            return mxfp8.decode(own, **size)
    # The one loss: a kernel multiplies where the file divides, by a reciprocal that is rounded once to float32.
    inverse = (1 / f32(own["weight_global_scale"])).astype(np.float32)
    return nvfp4.decode(
        {"weight": own["weight_packed"], "weight_scale": own["weight_scale"], "weight_scale_2": inverse}, **size
    )


@pytest.mark.parametrize(("name", "tp", "ep"), SPLITS)
def test_every_value_of_every_rank_is_the_librarys(name: str, tp: int, ep: int, tmp_path: Path) -> None:
    src, dst = FIXTURES / name, tmp_path / "out"
    done = convert(src, dst, tp=tp, ep=ep)
    model, source = Converted.of(src, dst, tp, ep), source_of(src)
    found = dict(model.weights())
    router = {weight for weight in found if weight.endswith("mlp.gate.weight")}
    assert all(np.array_equal(found.pop(weight), value_of(source[weight])) for weight in router)
    assert {weight: digest(value, model.dtype) for weight, value in found.items()} == library(name)
    for weight, value in found.items():
        assert np.array_equal(value, meant(name)[weight]), f"{weight} is right only when it is rounded"

    whole = [key for key in source if key.endswith(("norm.weight", "embed_tokens.weight", "lm_head.weight"))]
    for rank in model.ranks:
        assert all(torch.equal(rank[key], source[key]) for key in whole)
    assert ("rounded once to float32" in str(done)) == ("nvfp4" in name)
    assert done.bytes == sum(tensor.numel() * tensor.element_size() for rank in model.ranks for tensor in rank.values())


def half(config: dict[str, Any]) -> None:
    """Twice as many heads of half the size, of the same weights."""
    double = {key: 2 * config[key] for key in ("num_attention_heads", "num_key_value_heads")}
    config.update(double, head_dim=config["head_dim"] // 2)


def one_key(config: dict[str, Any]) -> None:
    """All keys and values are one head's, four times as wide; so are queries."""
    heads = config["num_attention_heads"] // config["num_key_value_heads"]
    width = config["head_dim"] * config["num_key_value_heads"]
    config.update(num_attention_heads=heads, num_key_value_heads=1, head_dim=width)


HEADS = {
    "blocks cut, padded in front": ("llama_fp8_block", half, 3, "front pad"),
    "ranks without heads, groups cut": ("llama_w4a16_asym", half, 7, "uneven"),
    "one key-value head for all": ("llama_w4a16", one_key, 2, "even"),
    "one key-value head for two ranks of three": ("qwen3_moe_mxfp8a16", one_key, 3, "uneven"),
    "act-order": ("llama_gptq_desc_act", half, 5, "uneven"),
    "ranks without heads, input scales": ("llama_fp8", None, 16, "uneven"),
    "ranks without heads, act-order": ("llama_gptq_desc_act", None, 11, "uneven"),
    "ranks without heads, global scales": ("llama_nvfp4a16", None, 9, "uneven"),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_that_ranks_do_not_divide(case: str, tmp_path: Path) -> None:
    name, change, tp, choice = HEADS[case]
    src = copied(name, tmp_path / "src", change or (lambda config: None))
    convert(src, tmp_path / "out", tp=tp, verify=True)
    model = Converted.of(src, tmp_path / "out", tp)
    found = {weight: digest(value, model.dtype) for weight, value in model.weights() if ".gate.weight" not in weight}
    assert found == library(name)
    o = [plan["model.layers.0.self_attn.o_proj"] for plan in model.plans]
    assert o[0]["choice"] == choice
    lengths = [next(one["length"] for one in plan["extents"] if one["role"] == "k") for plan in o]
    assert (0 in lengths) == ("without heads" in case or "two ranks" in case)
    for rank in (0, tp // 2, tp - 1):
        same(dict(load(src, tp=tp, rank=rank)), model.ranks[rank])


def test_experts_that_have_several_places(tmp_path: Path) -> None:
    """Seven places for four experts, four on one expert-parallel rank and three on the other."""
    name, places = "qwen3_moe_nvfp4a16", (0, 1, 2, 3, 3, 1, 3)
    done = convert(FIXTURES / name, tmp_path / "out", tp=3, ep=2, experts=places, verify=True)
    assert "7 places for 4 experts" in str(done)
    model = Converted.of(FIXTURES / name, tmp_path / "out", 3, 2, experts=places)
    found = {weight: digest(value, model.dtype) for weight, value in model.weights() if ".gate.weight" not in weight}
    assert found == library(name)
    assert [len(rank["model.layers.0.mlp.experts.w2.weight"]) for rank in model.ranks] == [4, 4, 4, 3, 3, 3]


def test_the_map_of_experts_may_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from layoutdsl.cli import main

    (tmp_path / "map.json").write_text("[0, 1, 2,\n 3, 0]\n")
    (tmp_path / "words").write_text("none, one")
    command = ["convert", str(FIXTURES / "qwen3_moe_w4a16"), str(tmp_path / "out"), "--dry-run", "--experts-map"]
    for given in ("0,1,2,3,0", str(tmp_path / "map.json")):
        assert main([*command, given]) == 0
        assert "\n5 places for 4 experts, as the map of experts says\n" in capsys.readouterr().out
    for given, why in (("nowhere", "neither N,N,... nor a file"), (str(tmp_path / "words"), "expected one list")):
        assert main([*command, given]) == 2
        assert why in capsys.readouterr().err


def test_one_rank_alone_is_the_same_rank(tmp_path: Path) -> None:
    src = FIXTURES / "qwen3_moe_mxfp4a16"
    convert(src, tmp_path / "all", tp=2, ep=2)
    for rank in (2, 1):
        convert(src, tmp_path / "one", tp=2, ep=2, rank=rank)
        a, b = ((tmp_path / at / f"rank-{rank}" / "model.safetensors").read_bytes() for at in ("all", "one"))
        assert a == b
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["rank-1", "rank-2"]


def test_the_output_carries_its_plans(tmp_path: Path) -> None:
    src = FIXTURES / "qwen3_moe_w4a16"
    convert(src, tmp_path / "out", tp=2, ep=2)
    home = tmp_path / "out" / "rank-3"
    with safe_open(home / "model.safetensors", "pt") as file:
        metadata, names = file.metadata(), set(file.keys())
    units = json.loads(metadata["layoutdsl.units"])
    assert len(units) == 8 and len(set(units.values())) == 4  # two layers of units that have their plans in common
    for name, short in units.items():
        plan = Plan.from_json(metadata[f"layoutdsl.plan.{short}"])
        ep = 2 if "experts" in name else 1
        assert plan.digest.startswith(short)
        assert (plan.ranks.tp, plan.ranks.rank, plan.ranks.ep, plan.ranks.ep_rank) == (2, 1, ep, ep - 1)
        several = "experts" in name
        assert {f"{name}.{info.name if several else info.name.partition('.')[2]}" for info in plan.outputs} <= names
    stated = {key: metadata[key] for key in ("format", "layoutdsl.tp", "layoutdsl.ep", "layoutdsl.rank")}
    assert stated == {"format": "pt", "layoutdsl.tp": "2", "layoutdsl.ep": "2", "layoutdsl.rank": "3"}
    assert (home / "config.json").read_bytes() == (src / "config.json").read_bytes()


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_act_order_is_sorted_by_group(tp: int) -> None:
    tensors = load_file(FIXTURES / "linear_actorder" / "model.safetensors")
    value = np.zeros((128, 512))
    for rank in range(tp):
        plan = compile_plan(
            "ct_int", "marlin_int4_a16", "linear", {"n": 128, "k": 512}, tp=tp, rank=rank,
            params={"split": "k", "act_order": True, "dtype": "bfloat16", "group": 128},
        )  # fmt: skip
        made = unit(plan.run(tensors), "linear")
        order = made.pop("k_perm").numpy()
        value[:, order] += decoded(made, "u4b8", "bfloat16")[:, : len(order)]
        assert any(duty.kind == "gather_input" for duty in plan.duties)
    assert {"linear.weight": digest(value, "bfloat16")} == library("linear_actorder")


# ---------------------------------------------------------------- shapes that no tile divides


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "dtype"), [(4, "bfloat16"), (8, "float16")])
def test_padded_shapes_mean_the_same(bits: int, dtype: str, symmetric: bool, tp: int, tmp_path: Path) -> None:
    src = drawn(tmp_path / "src", bits=bits, symmetric=symmetric, dtype=dtype, tied=True)
    done = convert(src, tmp_path / "out", tp=tp)
    model, source = Converted.of(src, tmp_path / "out", tp), source_of(src)
    found = dict(model.weights())
    assert len(found) == 7
    for name, value in found.items():
        own = {key: bits_of(tensor) for key, tensor in unit(source, name.removesuffix(".weight")).items()}
        n, k = own["weight_shape"]
        assert np.array_equal(value, ct_int.decode(own, n=n, k=k, group=32, bits=bits, dtype=dtype)), name

    # The padding that the report counts is what the files hold beyond the checkpoint's own elements.
    expected = 0
    sizes = {
        "self_attn.qkv_proj": (448 // tp, 320),
        "self_attn.o_proj": (320, 320 // tp),
        "mlp.gate_up_proj": (896 // tp, 320),
        "mlp.down_proj": (320, 448 // tp),
    }
    for rank in model.ranks:
        for name, (n, k) in sizes.items():
            own = {"weight": n * k * bits // 8, "weight_scale": n * k // 32 * 2, "zero_point": n * k // 32 * bits // 8}
            for key, tensor in unit(rank, f"model.layers.0.{name}").items():
                expected += tensor.numel() * tensor.element_size() - own[key]
    assert done.padding == expected > 0
    assert re.search("duty: pad its input along q.*: .*model.layers.0.self_attn.o_proj", str(done))
    assert re.search("duty: the activation writes 64 zeros along i .*: model.layers.0.mlp down", str(done)) or tp == 2


def test_a_bias_is_found_in_the_files(tmp_path: Path) -> None:
    src = drawn(tmp_path / "src", bits=4, symmetric=True, dtype="bfloat16", bias=True)
    convert(src, tmp_path / "out", tp=2)
    source = source_of(src)
    for part, width in (("q", 320), ("k", 64), ("v", 64)):
        at = {"q": 0, "k": 160, "v": 192}[part]
        found = []
        for rank in Converted.of(src, tmp_path / "out", 2).ranks:
            stored = bits_of(rank["model.layers.0.self_attn.qkv_proj.bias"])
            found.append(marlin.bias_bits(stored, n=len(stored))[at : at + width // 2])
        assert np.array_equal(np.concatenate(found), bits_of(source[f"model.layers.0.self_attn.{part}_proj.bias"]))


# ---------------------------------------------------------------- other formats, by data alone


GPTQ = {"quant_method": "gptq", "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": None}
OTHERS = {
    "gptq": (
        "llama_w4a16_asym",
        {**GPTQ, "bits": 4, "sym": False, "checkpoint_format": "gptq_v2"},
        {"zero_points": True, "zero_offset": 0},
    ),
    "gptq, with qzeros and g_idx": ("llama_w8a16", {**GPTQ, "bits": 8, "sym": True, "desc_act": False}, {"bits": 8}),
    "gptq, without": ("llama_w8a16", {**GPTQ, "bits": 8, "sym": True}, {"bits": 8, "qzeros": False, "g_idx": False}),
    "gptq, experts": ("qwen3_moe_w4a16", {**GPTQ, "bits": 4, "sym": True, "modules_to_not_convert": ["gate"]}, {}),
    "awq": ("llama_w4a16_asym", AWQ, {}),
    "awq, experts": ("qwen3_moe_w4a16_asym", {**AWQ, "modules_to_not_convert": ["gate"]}, {}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_formats_of_the_same_weights_become_the_same_bytes(case: str, tmp_path: Path) -> None:
    name, quantization_config, params = OTHERS[case]
    src = copied(name, tmp_path / "src", lambda config: config.update(quantization_config=quantization_config))
    config = config_of(FIXTURES / name)
    weights = config["quantization_config"]["config_groups"]["group_0"]["weights"]
    stated = {"bits": weights["num_bits"], "zero_points": not weights["symmetric"], "dtype": config["dtype"]}
    params = {f"source.{key}": value for key, value in stated.items()} | {
        f"target.{key}": value for key, value in params.items()
    }
    tensors = source_of(src)
    for layer in [key.removesuffix(".weight_shape") for key in tensors if key.endswith(".weight_shape")]:
        own = unit(tensors, layer)
        n, k = own["weight_shape"].tolist()
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{layer}.")}
        plan = compile_plan("ct_int", case.split(",")[0], "linear", {"n": n, "k": k}, params=params)
        made = plan.run({f"linear.{key}": tensor for key, tensor in own.items()})
        tensors |= {f"{layer}.{key}": tensor for key, tensor in unit(made, "linear").items()}
    written(src, tensors)

    convert(src, tmp_path / "a", tp=2)
    convert(FIXTURES / name, tmp_path / "b", tp=2)
    for rank in ("rank-0", "rank-1"):
        same(*(load_file(tmp_path / folder / rank / "model.safetensors") for folder in "ab"))


def test_a_named_kernel_is_taken(tmp_path: Path) -> None:
    done = convert(FIXTURES / "llama_w4a16_asym", tmp_path / "out", to="marlin_int4_a8int8")
    assert done.kernels == ("marlin_int4_a8int8",) and not done.chosen
    assert re.search(r"loss: .*: model.layers.0.self_attn.qkv_proj, .*model.layers.0.mlp down", str(done))
    rank = load_file(tmp_path / "out" / "rank-0" / "model.safetensors")
    assert "model.layers.0.mlp.down_proj.input_global_scale" in rank


def test_of_several_kernels_the_first_that_takes_the_codes(tmp_path: Path) -> None:
    kernels = ["marlin_int8_a16", "marlin_int4_a8fp8", "marlin_int4_a16"]
    done = convert(FIXTURES / "llama_w4a16_asym", tmp_path / "out", to=kernels, dry_run=True)
    assert done.kernels == ("marlin_int4_a8fp8",)


# ---------------------------------------------------------------- the report and the command


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    dry = convert(FIXTURES / "llama_w4a16", tmp_path / "out", tp=2, dry_run=True)
    assert not (tmp_path / "out").exists()
    done = convert(FIXTURES / "llama_w4a16", tmp_path / "out", tp=2)
    assert (dry.bytes, dry.padding, dry.peak, dry.kernels) == (done.bytes, done.padding, done.peak, done.kernels)
    assert "would write 947.2 kB" in str(dry) and "wrote 947.2 kB" in str(done)


def test_the_command_prints_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from layoutdsl.cli import main

    source, out = str(FIXTURES / "qwen3_moe_w4a16"), str(tmp_path / "out")
    assert main(["convert", source, out, "--tp", "2", "--ep", "2"]) == 0
    text, progress = capsys.readouterr()
    assert progress == ""  # stderr is no terminal
    lines = text.splitlines()
    assert lines[1].startswith(
        "ranks 0 to 3 of 4 (2 tensor-parallel times 2 expert-parallel), to marlin_int4_a16: the first shipped kernel"
    )
    rows = {
        "self_attn.qkv_proj": "marlin_int4_a16  512 x 128      512 x 128",
        "self_attn.o_proj": "marlin_int4_a16  128 x 256      128 x 256",
        "mlp.gate": "as it is         4 x 128        4 x 128",
        "mlp.experts w13": "marlin_int4_a16  2 x 512 x 128  2 x 512 x 128",
        "mlp.experts w2": "marlin_int4_a16  2 x 128 x 256  2 x 128 x 256",
    }
    for name, shown in rows.items():
        (row,) = (line for line in lines if line.startswith(f"model.layers.{{0..1}}.{name} "))
        assert shown in row
    duty = "duty: add up the outputs of all tensor-parallel ranks: "
    assert f"{duty}model.layers.{{0..1}}.self_attn.o_proj, model.layers.{{0..1}}.mlp.experts w2" in lines
    assert any(line.startswith("copied whole to every rank: 11 tensors") for line in lines)

    assert main(["convert", source, out, "--tp", "2", "--ep", "2"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["convert", source, f"{out}2", "--tp", "2", "--rank", "1", "--to", "marlin_int4_a16", "--dry-run"]) == 0
    assert "rank 1 of 2, to marlin_int4_a16\n" in capsys.readouterr().out


def test_layers_fold_into_ranges() -> None:
    assert report.ranges([3, 0, 1, 2, 5, 7, 8]) == "{0..3,5,7..8}"
    assert report.ranges([4]) == "4"
    assert progress.in_bytes(999) == "999 B" and progress.in_bytes(1_500_000) == "1.5 MB"
