"""`layoutdsl convert` on checkpoints that outside code wrote: what every rank's kernel reads is what they mean.

The kernel's tensors are read by tests/decoders/marlin.py, which shares nothing with layoutdsl. The sizes of a matrix as
stored come from the shapes of the tensors, never from the plan.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders import ct_int, marlin
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.checkpoints import report, run
from layoutdsl.checkpoints.convert import convert

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LAYER = "model.layers.{}"
FUSED = {"self_attn.qkv_proj": ("q", "k", "v"), "mlp.gate_up_proj": ("gate", "up")}
ROWS = ("self_attn.o_proj", "mlp.down_proj")
CODES = {(4, True): "u4b8", (4, False): "u4", (8, True): "u8b128", (8, False): "u8"}


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as the decoders take it: 16-bit floats as their bits."""
    return (tensor.view(torch.uint16) if tensor.element_size() == 2 else tensor).numpy()


def decoded(tensors: dict[str, torch.Tensor], *, bits: int, dtype: str) -> np.ndarray:
    """[n, k] as a Marlin kernel reads it, padding included."""
    rows, columns = tensors["weight"].shape
    code = CODES[bits, "zero_point" not in tensors]
    return marlin.decode(
        {name: bits_of(tensor) for name, tensor in tensors.items()},
        n=columns * 2 // bits, k=rows * 16, code=code, activation=dtype, dtype=dtype,
    )  # fmt: skip


def unit(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}


class Model:
    """A converted checkpoint, put together again from all its ranks."""

    def __init__(self, src: Path, dst: Path):
        self.config = json.loads((src / "config.json").read_text())
        weights = self.config["quantization_config"]["config_groups"]["group_0"]["weights"]
        self.bits, self.dtype = weights["num_bits"], self.config["dtype"]
        paths = sorted(dst.glob("rank-*"), key=lambda path: int(path.name.removeprefix("rank-")))
        self.ranks = [load_file(path / "model.safetensors") for path in paths]

    def width(self, part: str) -> int:
        heads = {"q": "num_attention_heads", "k": "num_key_value_heads", "v": "num_key_value_heads"}
        return self.config[heads[part]] * self.config["head_dim"] if part in heads else self.config["intermediate_size"]

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each quantized weight of the checkpoint, by the name that the library gives it."""
        hidden = self.config["hidden_size"]
        for layer in map(LAYER.format, range(self.config["num_hidden_layers"])):
            for name, parts in FUSED.items():
                block = name.split(".")[0]
                found: dict[str, list[np.ndarray]] = {part: [] for part in parts}
                for rank in self.ranks:
                    value, at = self.decoded(rank, f"{layer}.{name}"), 0
                    for part in parts:
                        length = self.width(part) // len(self.ranks)
                        found[part].append(value[at : at + length, :hidden])
                        at += length
                    assert not value[at:].any() and not value[:, hidden:].any(), "padding is not zero"
                for part in parts:
                    yield f"{layer}.{block}.{part}_proj.weight", np.concatenate(found[part])
            for name in ROWS:
                length = self.width("q" if name == "self_attn.o_proj" else "up") // len(self.ranks)
                values = [self.decoded(rank, f"{layer}.{name}") for rank in self.ranks]
                assert not any(v[hidden:].any() or v[:, length:].any() for v in values), "padding is not zero"
                yield f"{layer}.{name}.weight", np.concatenate([value[:hidden, :length] for value in values], axis=1)

    def decoded(self, rank: dict[str, torch.Tensor], name: str) -> np.ndarray:
        return decoded(unit(rank, name), bits=self.bits, dtype=self.dtype)


def digest(value: np.ndarray, dtype: str) -> dict[str, Any]:
    """As the fixtures record a weight: rounded once to its dtype, little-endian bytes."""
    rounded = torch.from_numpy(value.astype(np.float32)).to(getattr(torch, dtype))
    assert (value.astype(np.float32) == value).all(), "float32 would round a first time"
    data = rounded.contiguous().view(torch.uint8).numpy().tobytes()
    return {"dtype": dtype, "shape": list(value.shape), "sha256": hashlib.sha256(data).hexdigest()}


def library(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}_decompressed.json").read_text())


# ---------------------------------------------------------------- the library's own values


@pytest.mark.parametrize(
    ("name", "tp"),
    [("llama_w4a16", 1), ("llama_w4a16", 2), ("llama_w4a16", 4), ("llama_w4a16_asym", 1), ("llama_w4a16_asym", 2),
     ("llama_w8a16", 1), ("llama_w8a16", 2)],
)  # fmt: skip
def test_every_value_of_every_rank_is_the_librarys(name: str, tp: int, tmp_path: Path) -> None:
    src, dst = FIXTURES / name, tmp_path / "out"
    done = convert(src, dst, tp=tp, check=True)
    assert sorted(path.name for path in dst.iterdir()) == [f"rank-{rank}" for rank in range(tp)]

    model = Model(src, dst)
    assert {weight: digest(value, model.dtype) for weight, value in model.weights()} == library(name)

    source = {k: t for path in src.glob("*.safetensors") for k, t in load_file(path).items()}
    copied = {
        name: tensor
        for name, tensor in source.items()
        if name.endswith(("norm.weight", "tokens.weight", "head.weight"))
    }
    for rank in model.ranks:
        assert all(torch.equal(rank[name], tensor) for name, tensor in copied.items())
    assert done.checked is not None and not done.checked.left_out
    assert done.checked.values == sum(
        8 // model.bits * 4 * t.numel() for k, t in source.items() if k.endswith("_packed")
    )
    assert done.checked.tensors == tp * len(source)


def test_one_rank_alone_is_the_same_rank(tmp_path: Path) -> None:
    convert(FIXTURES / "llama_w4a16", tmp_path / "all", tp=2)
    convert(FIXTURES / "llama_w4a16", tmp_path / "one", tp=2, rank=1)
    convert(FIXTURES / "llama_w4a16", tmp_path / "one", tp=2, rank=0)
    for rank in ("rank-0", "rank-1"):
        a, b = ((tmp_path / folder / rank / "model.safetensors").read_bytes() for folder in ("all", "one"))
        assert a == b
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["rank-0", "rank-1"]


def test_the_output_carries_its_plans(tmp_path: Path) -> None:
    convert(FIXTURES / "llama_w4a16", tmp_path / "out", tp=2)
    home = tmp_path / "out" / "rank-1"
    with safe_open(home / "model.safetensors", "pt") as file:
        metadata = file.metadata()
        names = set(file.keys())
    units = json.loads(metadata["layoutdsl.units"])
    assert len(units) == 8 and len(set(units.values())) == 3  # units of one shape share a plan
    for name, short in units.items():
        plan = Plan.from_json(metadata[f"layoutdsl.plan.{short}"])
        assert plan.digest.startswith(short) and plan.ranks.rank == 1
        assert {f"{name}.{info.name.removeprefix('linear.')}" for info in plan.outputs} <= names
    assert (metadata["format"], metadata["layoutdsl.tp"], metadata["layoutdsl.rank"]) == ("pt", "2", "1")
    assert (home / "config.json").read_bytes() == (FIXTURES / "llama_w4a16" / "config.json").read_bytes()


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
        value[:, order] += decoded(made, bits=4, dtype="bfloat16")[:, : len(order)]
        assert any(duty.kind == "gather_input" for duty in plan.duties)
    assert {"linear.weight": digest(value, "bfloat16")} == library("linear_actorder")


# ---------------------------------------------------------------- shapes that no tile divides


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes along the last axis, low bits first, into int32 words."""
    per = 32 // bits
    padded = (
        torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per)).unflatten(-1, (-1, per)).numpy().astype(np.uint32)
    )
    shifts = (np.arange(per) * bits).astype(np.uint32)
    return torch.from_numpy(np.bitwise_or.reduce(padded << shifts, axis=-1).view(np.int32))


def checkpoint(folder: Path, *, bits: int, symmetric: bool, dtype: str, tied: bool = False, bias: bool = False) -> Path:
    """A checkpoint of random codes, zero points and scales: hidden 320, intermediate 448, 10 q and 2 kv heads of 32."""
    made = torch.Generator().manual_seed(bits + symmetric)
    float16 = getattr(torch, dtype)
    group, hidden, inner, kv = 32, 320, 448, 64
    rows = {"q": (320, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, 320),
            "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}  # fmt: skip
    tensors = {
        name: torch.randn(32, hidden, generator=made).to(float16)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    tensors["model.norm.weight"] = torch.randn(hidden, generator=made).to(float16)
    if tied:
        del tensors["lm_head.weight"]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{norm}.weight"] = torch.randn(hidden, generator=made).to(float16)
    for part, (n, k) in rows.items():
        block = "self_attn" if part in "qkvo" else "mlp"
        prefix = f"model.layers.0.{block}.{part}_proj"
        tensors[f"{prefix}.weight_packed"] = pack(torch.randint(1 << bits, (n, k), generator=made), bits)
        tensors[f"{prefix}.weight_scale"] = torch.randn(n, k // group, generator=made).to(float16)
        tensors[f"{prefix}.weight_shape"] = torch.tensor([n, k])
        if not symmetric:
            zeros = torch.randint(1 << bits, (k // group, n), generator=made)
            tensors[f"{prefix}.weight_zero_point"] = pack(zeros, bits).T.contiguous()
        if bias and part in "qkv":
            tensors[f"{prefix}.bias"] = torch.randn(n, generator=made).to(float16)
    weights = {"num_bits": bits, "group_size": group, "strategy": "group", "symmetric": symmetric, "type": "int"}
    config = {
        "architectures": ["Qwen2ForCausalLM" if bias else "LlamaForCausalLM"], "dtype": dtype, "head_dim": 32,
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 10, "num_hidden_layers": 1,
        "num_key_value_heads": 2, "tie_word_embeddings": tied,
        "quantization_config": {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "format": "pack-quantized", "ignore": ["lm_head"], "quant_method": "compressed-tensors",
        },
    }  # fmt: skip
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "dtype"), [(4, "bfloat16"), (8, "float16")])
def test_padded_shapes_mean_the_same(bits: int, dtype: str, symmetric: bool, tp: int, tmp_path: Path) -> None:
    src = checkpoint(tmp_path / "src", bits=bits, symmetric=symmetric, dtype=dtype, tied=True)
    done = convert(src, tmp_path / "out", tp=tp, check=True)
    source = load_file(src / "model.safetensors")
    count = 0
    for name, value in Model(src, tmp_path / "out").weights():
        own = {key: bits_of(tensor) for key, tensor in unit(source, name.removesuffix(".weight")).items()}
        n, k = own["weight_shape"]
        assert np.array_equal(value, ct_int.decode(own, n=n, k=k, group=32, bits=bits, dtype=dtype)), name
        count += 1
    assert count == 7

    # The padding that the report counts is what the files hold beyond the checkpoint's own elements.
    expected = 0
    sizes = {
        "self_attn.qkv_proj": (448 // tp, 320),
        "self_attn.o_proj": (320, 320 // tp),
        "mlp.gate_up_proj": (896 // tp, 320),
        "mlp.down_proj": (320, 448 // tp),
    }
    for rank in Model(src, tmp_path / "out").ranks:
        for name, (n, k) in sizes.items():
            own = {"weight": n * k * bits // 8, "weight_scale": n * k // 32 * 2, "zero_point": n * k // 32 * bits // 8}
            for key, tensor in unit(rank, f"model.layers.0.{name}").items():
                expected += tensor.numel() * tensor.element_size() - own[key]
    assert done.padding == expected > 0
    assert "duty: model.layers.0.mlp.down_proj: pad its input along k" in str(done) or tp == 1
    assert done.checked is not None and not done.checked.left_out


def test_a_bias_is_found_in_the_files(tmp_path: Path) -> None:
    src = checkpoint(tmp_path / "src", bits=4, symmetric=True, dtype="bfloat16", bias=True)
    convert(src, tmp_path / "out", tp=2, check=True)
    source = load_file(src / "model.safetensors")
    for part, width in (("q", 320), ("k", 64), ("v", 64)):
        at = {"q": 0, "k": 160, "v": 192}[part]
        found = []
        for rank in Model(src, tmp_path / "out").ranks:
            stored = bits_of(rank["model.layers.0.self_attn.qkv_proj.bias"])
            found.append(marlin.bias_bits(stored, n=len(stored))[at : at + width // 2])
        assert np.array_equal(np.concatenate(found), bits_of(source[f"model.layers.0.self_attn.{part}_proj.bias"]))


# ---------------------------------------------------------------- other formats, by data alone


GPTQ = {"quant_method": "gptq", "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": None}
OTHERS = {
    "gptq": ("llama_w4a16_asym", {**GPTQ, "bits": 4, "sym": False, "checkpoint_format": "gptq_v2"},
             {"zero_points": True, "zero_offset": 0}),
    "gptq, with qzeros and g_idx": ("llama_w8a16", {**GPTQ, "bits": 8, "sym": True, "desc_act": False}, {"bits": 8}),
    "gptq, without": ("llama_w8a16", {**GPTQ, "bits": 8, "sym": True}, {"bits": 8, "qzeros": False, "g_idx": False}),
    "awq": ("llama_w4a16_asym", AWQ, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_other_formats_of_the_same_weights_become_the_same_bytes(
    case: str, copy: Callable[..., Path], tmp_path: Path
) -> None:
    name, quantization_config, params = OTHERS[case]
    src = copy(name)
    config = json.loads((src / "config.json").read_text())
    weights = config["quantization_config"]["config_groups"]["group_0"]["weights"]
    stated = {"bits": weights["num_bits"], "zero_points": not weights["symmetric"], "dtype": config["dtype"]}
    source = {f"source.{key}": value for key, value in stated.items()}
    tensors = load_file(src / "model.safetensors")
    for layer in [key.removesuffix(".weight_shape") for key in tensors if key.endswith(".weight_shape")]:
        own = unit(tensors, layer)
        n, k = own["weight_shape"].tolist()
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{layer}.")}
        plan = compile_plan(
            "ct_int", case.split(",")[0], "linear", {"n": n, "k": k},
            params=source | {f"target.{key}": value for key, value in params.items()},
        )  # fmt: skip
        made = plan.run({f"linear.{key}": tensor for key, tensor in own.items()})
        tensors |= {f"{layer}.{key}": tensor for key, tensor in unit(made, "linear").items()}
    save_file(tensors, src / "model.safetensors")
    (src / "config.json").write_text(json.dumps({**config, "quantization_config": quantization_config}))

    done = convert(src, tmp_path / "a", tp=2, check=True)
    assert done.checked is not None and not done.checked.left_out
    convert(FIXTURES / name, tmp_path / "b", tp=2)
    for rank in ("rank-0", "rank-1"):
        a, b = (load_file(tmp_path / folder / rank / "model.safetensors") for folder in "ab")
        assert a.keys() == b.keys()
        assert all(a[key].dtype == b[key].dtype and a[key].equal(b[key]) for key in a)


# ---------------------------------------------------------------- what is not quantized


def unquantized(folder: Path, *layers: str, dtype: str = "float16") -> None:
    """Replace layers of a copied fixture by plain ones."""
    tensors = load_file(folder / "model.safetensors")
    for layer in layers:
        shape = tensors[f"{layer}.weight_shape"].tolist()
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{layer}.")}
        tensors[f"{layer}.weight"] = torch.ones(shape, dtype=getattr(torch, dtype))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("entry", ["model.layers.0.mlp.down_proj", "re:.*down_proj$", "down_proj"])
def test_ignored_layers_are_copied(entry: str, copy: Callable[..., Path], tmp_path: Path) -> None:
    src = copy("llama_w4a16_asym", lambda c: c["quantization_config"]["ignore"].append(entry))
    unquantized(src, "model.layers.0.mlp.down_proj")
    done = convert(src, tmp_path / "out", tp=2, check=True)
    for rank in Model(src, tmp_path / "out").ranks:
        assert rank["model.layers.0.mlp.down_proj.weight"].equal(torch.ones(256, 256, dtype=torch.float16))
    assert done.unquantized == ("model.layers.0.mlp.down_proj",)
    assert "not quantized, among those copied: model.layers.0.mlp.down_proj" in str(done)


def test_what_is_ignored_must_be_what_is_plain(copy: Callable[..., Path], tmp_path: Path) -> None:
    src = copy("llama_w4a16_asym")
    unquantized(src, "model.layers.0.mlp.down_proj")
    refused(src, tmp_path, "declares `model.layers.0.mlp.down_proj` quantized, the files hold .* as float16")
    src = copy("llama_w4a16_asym", lambda c: c["quantization_config"]["ignore"].append("re:.*up_proj"))
    refused(src, tmp_path, "leaves `model.layers.0.mlp.up_proj` unquantized, the files hold .*up_proj.weight_packed")
    unquantized(src, "model.layers.0.mlp.up_proj")
    refused(src, tmp_path, "`.*gate_proj` is quantized and `.*up_proj` is not, but both make up `.*gate_up_proj`")


# ---------------------------------------------------------------- refusals


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a fixture, with its config.json changed."""

    def copied(name: str, change: Callable[[dict[str, Any]], object] = lambda config: None) -> Path:
        folder = tmp_path / "src"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(FIXTURES / name, folder)
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return copied


def refused(src: Path, tmp_path: Path, match: str, **options: Any) -> LayoutError:
    """The conversion is refused with that sentence and nothing is left where it would have gone."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LayoutError, match=match) as caught:
        convert(src, tmp_path / "out", **{"tp": 2, **options})
    assert sorted(tmp_path.iterdir()) == before
    return caught.value


def quantization(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["quantization_config"].update(changes)


def weights(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(changes)


def second_group(config: dict[str, Any]) -> None:
    groups = config["quantization_config"]["config_groups"]
    groups["group_1"] = {**groups["group_0"], "weights": {**groups["group_0"]["weights"], "num_bits": 8}}


CONFIGS = {
    "not quantized": (lambda c: c.pop("quantization_config"), "has no `quantization_config`"),
    "unknown method": (
        quantization(quant_method="squeeze"),
        "says quant_method: squeeze, .* no format that a spec detects",
    ),
    "unknown architecture": (lambda c: c.update(architectures=["LamaForCausalLM"]), "did you mean `LlamaForCausalLM`"),
    "no architecture": (lambda c: c.pop("architectures"), "states no single architecture"),
    "no size": (lambda c: c.pop("hidden_size"), "config.json lacks `hidden_size`"),
    "size is text": (lambda c: c.update(hidden_size="256"), "config.json lacks `hidden_size`"),
    "wrong size": (lambda c: c.update(intermediate_size=320), r"is int32 \[512, 32\], expected int32 \[320, 32\]"),
    "more layers": (lambda c: c.update(num_hidden_layers=3), "`model.layers.2.input_layernorm.weight` is in no file"),
    "fewer layers": (
        lambda c: c.update(num_hidden_layers=1),
        "`model.layers.1.self_attn.k_proj.weight_shape` of .* none that names",
    ),
    "endless layers": (lambda c: c.update(num_hidden_layers=10**12), "config.json counts 1000000000000 of `layer`"),
    "no layers": (lambda c: c.update(num_hidden_layers=0), "config.json makes `layers` 0"),
    "other bits": (weights(num_bits=8), r"weight_packed` of .* is int32 \[512, 32\], expected int32 \[512, 64\]"),
    "odd bits": (weights(num_bits=3), "config.json: parameter `bits` of `ct_int` cannot be 3"),
    "other group": (weights(group_size=64), r"weight_scale` of .* is bfloat16 \[512, 2\], expected .* \[512, 4\]"),
    "one group": (weights(group_size=None), r"weight_scale` of .* is bfloat16 \[512, 2\], expected .* \[512, 1\]"),
    "zero points": (weights(symmetric=False), r"weight_zero_point` is in no file; expected int32 \[64, 2\]"),
    "act-order": (weights(actorder="group"), r"weight_g_idx` is in no file; expected int32 \[256\]"),
    "groups differ": (second_group, "`config_groups.group_0.weights.num_bits` is 4, `config_groups.group_1.*` is 8"),
    "bad pattern": (quantization(ignore=["re:("]), r"`re:\(` is no pattern"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_wrong_config_is_refused(case: str, copy: Callable[..., Path], tmp_path: Path) -> None:
    change, match = CONFIGS[case]
    refused(copy("llama_w4a16", change), tmp_path, match)


def test_a_missing_or_broken_config_is_refused(copy: Callable[..., Path], tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", tmp_path, "`.*nowhere` is no folder")
    src = copy("llama_w4a16")
    for text, match in (("{", "config.json` is no JSON"), ("[]", "holds a list, a JSON object is needed"),
                        ('{"a": 1, "a": 2}', "`a` stands twice")):  # fmt: skip
        (src / "config.json").write_text(text)
        refused(src, tmp_path, match)
    (src / "config.json").unlink()
    refused(src, tmp_path, "config.json` cannot be read: no such file")


@pytest.mark.parametrize(
    ("tp", "rank", "match"),
    [
        (3, None, "`.*qkv_proj`: axis `n` of part `q` has 512 elements, which 3 tensor-parallel ranks do not divide"),
        (8, None, "`.*qkv_proj`: axis `n` of part `k` has 4 heads of 64, which 8 tensor-parallel ranks do not divide"),
        (2, 2, "rank 2 of 2 tp ranks does not exist"),
        (0, None, "rank 0 of 0 tp ranks does not exist"),
    ],
)
def test_ranks_that_cannot_be_served(tp: int, rank: int | None, match: str, tmp_path: Path) -> None:
    refused(FIXTURES / "llama_w4a16", tmp_path, match, tp=tp, rank=rank)


def test_a_kernel_for_other_codes_is_refused(tmp_path: Path) -> None:
    refused(FIXTURES / "llama_w4a16", tmp_path, "weights are never requantized", to="marlin_int8_a16")
    refused(FIXTURES / "llama_w4a16", tmp_path, "there is no spec `marlin`", to="marlin")
    refused(FIXTURES / "llama_w4a16", tmp_path, "a kernel spec is needed", to="gptq")


def rewrite(path: Path, change: Callable[[dict[str, Any], bytes], object]) -> None:
    """Change a safetensors file: its header in place, its data where `change` returns bytes."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    changed = change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + (changed if isinstance(changed, bytes) else data))


def renamed(old: str, new: str) -> Callable[[dict[str, Any], bytes], None]:
    return lambda header, data: header.update({new: header.pop(old)})


SCALE, ATTN = "model.layers.0.mlp.up_proj.weight_scale", "model.layers.0.self_attn."
UNKNOWN = "is none that names `llama` know"
FILES = {
    "truncated": (lambda h, d: d[:-1], "is truncated: its header describes .* bytes, the file has"),
    "too long": (lambda h, d: d + b"x", "model.safetensors` is too long"),
    "renamed": (renamed(SCALE, SCALE.replace("up_", "uq_")), f"`model.layers.0.mlp.uq_proj.weight_scale` .*{UNKNOWN}"),
    "renamed part": (renamed(SCALE, SCALE + "s"), f"`model.layers.0.mlp.up_proj.weight_scales` .*{UNKNOWN}"),
    "layer beyond": (
        renamed(SCALE, SCALE.replace(".0.", ".7.")),
        f"`model.layers.7.mlp.up_proj.weight_scale` .*{UNKNOWN}",
    ),
    "other format": (renamed(SCALE, SCALE.removesuffix("_scale")), "up_proj.weight_scale` is in no file; expected"),
    "no norm": (renamed("model.norm.weight", ATTN + "rotary_emb.inv_freq"), "`model.norm.weight` is in no file"),
    "shape": (lambda h, d: h[SCALE].update(shape=[128, 4]), r"is float16 \[128, 4\], expected float16 \[256, 2\]"),
    "dtype": (lambda h, d: h[SCALE].update(dtype="I16"), "is int16 .* expected float16"),
    "unknown dtype": (lambda h, d: h[SCALE].update(dtype="F4"), "tensor `.*` has the unknown dtype `F4`"),
    "size": (lambda h, d: h[SCALE].update(shape=[256, 3]), r"is float16 \[256, 3\] in 1024 bytes, expected 1536"),
    "place": (lambda h, d: h[SCALE].update(data_offsets=[0, 1024]), "the bytes of tensor `.*` begin at .*, expected"),
    "negative": (lambda h, d: h[SCALE].update(shape=[-256, -2]), "lacks a dtype, a shape or its place"),
    "no place": (lambda h, d: h[SCALE].pop("data_offsets"), "lacks a dtype, a shape or its place"),
    "value": (lambda h, d: b"\x01" + d[1:], r"`model.layers.0.mlp.down_proj`: .*weight_shape.* \[256, 256\]"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_refused(case: str, copy: Callable[..., Path], tmp_path: Path) -> None:
    change, match = FILES[case]
    src = copy("llama_w4a16_asym")
    rewrite(src / "model.safetensors", change)
    refused(src, tmp_path, match)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 8, b"\x08\0\0\0\0\0\0\0not json", b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_safetensors_file_is_refused(raw: bytes, copy: Callable[..., Path], tmp_path: Path) -> None:
    src = copy("llama_w4a16_asym")
    (src / "model.safetensors").write_bytes(raw)
    refused(src, tmp_path, "model.safetensors` (is truncated or no safetensors file|is no JSON|holds a list)")


def test_an_index_that_lies_is_refused(copy: Callable[..., Path], tmp_path: Path) -> None:
    index, first = "model.safetensors.index.json", "model-00001-of-00002.safetensors"

    def change(edit: Callable[[dict[str, Any]], object]) -> Path:
        src = copy("llama_w4a16")
        data = json.loads((src / index).read_text())
        edit(data["weight_map"])
        (src / index).write_text(json.dumps(data))
        return src

    refused(
        change(lambda m: m.update({"lm_head.weight": first})),
        tmp_path,
        f"`lm_head.weight` stands in .*00002.*has it in `{first}`",
    )
    refused(change(lambda m: m.pop("model.norm.weight")), tmp_path, "`model.norm.weight` stands in .* has it nowhere")
    refused(
        change(lambda m: m.update(more=first)),
        tmp_path,
        f"has tensor `more` in `{first}`, whose header does not name it",
    )
    refused(change(lambda m: m.update(more="b.safetensors")), tmp_path, "names `b.safetensors`, which is not in")
    refused(
        change(lambda m: m.update(more="../src/b.safetensors")), tmp_path, "which is no safetensors file of this folder"
    )
    refused(change(lambda m: m.update(more=3)), tmp_path, "has no `weight_map` of tensors to files")
    src = copy("llama_w4a16")
    (src / first).unlink()
    refused(src, tmp_path, f"names `{first}`, which is not in")
    (src / index).unlink()
    (src / "consolidated.safetensors").write_bytes(b"")
    refused(src, tmp_path, "has 2 safetensors files .* and no model.safetensors.index.json")
    src = copy("llama_w4a16")
    shutil.copy(src / first, src / "model-00003.safetensors")
    data = json.loads((src / index).read_text())
    data["weight_map"]["model.norm.weight"] = "model-00003.safetensors"
    (src / index).write_text(json.dumps(data))
    refused(src, tmp_path, "stands in `model-00001-of-00002.safetensors` and in `model-00003.safetensors`")


def test_many_findings_are_one_report(copy: Callable[..., Path], tmp_path: Path) -> None:
    error = refused(copy("llama_w4a16", lambda c: c.update(num_hidden_layers=1)), tmp_path, "none that names")
    assert len(error.diagnostics) == 9
    assert error.diagnostics[-1].message == "and 15 more of this kind"


# ---------------------------------------------------------------- whole or not there


def test_an_output_that_is_there_is_not_touched(tmp_path: Path) -> None:
    src, dst = FIXTURES / "llama_w4a16_asym", tmp_path / "out"
    dst.mkdir()
    convert(src, dst, tp=1)  # an empty folder is fine
    before = (dst / "rank-0" / "model.safetensors").read_bytes()
    for options in ({}, {"rank": 0}):
        refused(src, tmp_path, "is there already", tp=1, **options)
    assert (dst / "rank-0" / "model.safetensors").read_bytes() == before
    shutil.rmtree(dst)
    dst.write_text("mine")
    refused(src, tmp_path, "is there already")
    assert dst.read_text() == "mine"


@pytest.mark.parametrize("fault", [RuntimeError("midway"), KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("at", [1, 7])
def test_a_failure_midway_leaves_nothing(
    fault: BaseException, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, count = run.Writer.write, [0]

    def failing(self: run.Writer, name: str, tensor: torch.Tensor) -> None:
        count[0] += 1
        if count[0] == at:
            raise fault
        write(self, name, tensor)

    monkeypatch.setattr(run.Writer, "write", failing)
    expected = LayoutError if isinstance(fault, OSError) else type(fault)
    with pytest.raises(expected, match=r"no space left on device" if expected is LayoutError else None):
        convert(FIXTURES / "llama_w4a16_asym", tmp_path / "deep" / "er" / "out", tp=2)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    convert(FIXTURES / "llama_w4a16_asym", tmp_path / "deep" / "er" / "out", tp=2)


def test_a_check_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = run.Writer.write

    def damaging(self: run.Writer, name: str, tensor: torch.Tensor) -> None:
        if name.endswith("o_proj.weight"):
            tensor = tensor.clone()
            tensor.view(-1)[77] ^= 1 << 13
        write(self, name, tensor)

    monkeypatch.setattr(run.Writer, "write", damaging)
    refused(
        FIXTURES / "llama_w4a16_asym", tmp_path, "check failed: `.*o_proj, rank 0, linear.weight_packed`", check=True
    )


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LayoutError, match=r"cannot write .*: (not a directory|file exists)"):
        convert(FIXTURES / "llama_w4a16_asym", tmp_path / "file" / "out", tp=1)
    assert (tmp_path / "file").read_text() == "mine"


STALLING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with Ctrl-C ignored
from layoutdsl.checkpoints import run
from layoutdsl.checkpoints.convert import convert
write, count = run.Writer.write, []
def stalling(self, name, tensor):
    write(self, name, tensor)
    count.append(name)
    if len(count) == int(sys.argv[3]):
        print("there", flush=True)
        time.sleep(60)
run.Writer.write = stalling
convert(sys.argv[1], sys.argv[2], tp=2)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize(("how", "at"), [("SIGKILL", 1), ("SIGINT", 17)])
def test_a_killed_run_leaves_no_final_name_and_can_be_repeated(how: str, at: int, tmp_path: Path) -> None:
    src, dst = FIXTURES / "llama_w4a16_asym", tmp_path / "out"
    command = [sys.executable, "-c", STALLING, str(src), str(dst), str(at)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"there\n"
        child.send_signal(getattr(signal, how))
        child.communicate()
    assert not dst.exists()
    assert how == "SIGKILL" or list(tmp_path.iterdir()) == []  # Ctrl-C cleans up; nothing can after the other
    convert(src, dst, tp=2, check=True)


# ---------------------------------------------------------------- names, specs and kernels of the user's own


def test_names_of_the_users_own(copy: Callable[..., Path], tmp_path: Path) -> None:
    src = copy("llama_w4a16_asym", lambda c: c.update(architectures=["MyModel"]))
    refused(src, tmp_path, "no names are known for the architecture `MyModel`")
    own = tmp_path / "own" / "names" / "mine.yaml"
    own.parent.mkdir(parents=True)
    text = (Path(__file__).resolve().parent.parent / "specs" / "names" / "llama.yaml").read_text()
    text = text.replace("[LlamaForCausalLM,", "[MyModel,").replace(".qkv_proj.", ".Wqkv.")
    own.write_text(text)
    convert(src, tmp_path / "out", tp=1, specs=[tmp_path / "own"])
    names = load_file(tmp_path / "out" / "rank-0" / "model.safetensors")
    assert "model.layers.0.self_attn.Wqkv.weight" in names
    shutil.rmtree(tmp_path / "out")

    for old, new, match in (
        ("count: {layer: layers}", "count: {layer: layer}", r"LD104[^\n]*`layer`\n *--> .*mine.yaml:\d+:"),
        ("{n: head}", "{x: head}", "unknown name `x`"),
        ("{part}_proj.{tensor}", "{port}_proj.{tensor}", "unknown name `port`"),
        ("mlp.down_proj.{tensor}", "mlp.down_proj", "the name lacks `{tensor}`"),
        ("hidden: hidden_size", "hidden: hidden_size +", "expected a number, a name"),
        ("model.norm.weight: always", "model.norm.weight: sometimes", "LD02"),
        ("{part}_proj.{tensor}", "qkv_proj.{tensor}", "two units take the tensor"),
        (".Wqkv.", ".o_proj.", "two tensors of the output have the name"),
        ("units:", "unit:", "did you mean `units`"),
    ):
        assert old in text
        own.write_text(text.replace(old, new))
        with pytest.raises(LayoutError) as caught:
            convert(src, tmp_path / "out", tp=1, specs=[tmp_path / "own"])
        assert re.search(match, str(caught.value)), str(caught.value)
        assert not (tmp_path / "out").exists()


def test_a_named_kernel_is_taken(tmp_path: Path) -> None:
    done = convert(FIXTURES / "llama_w4a16_asym", tmp_path / "out", tp=1, to="marlin_int4_a8int8", check=True)
    assert done.kernels == ("marlin_int4_a8int8",) and not done.chosen
    assert len(done.checked.left_out) == 4  # int16 scales are lossy, and the report says so
    assert "loss: model.layers.0.mlp.down_proj: int16_scale" in str(done)
    rank = load_file(tmp_path / "out" / "rank-0" / "model.safetensors")
    assert "model.layers.0.mlp.down_proj.input_global_scale" in rank


# ---------------------------------------------------------------- the report and the command


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path: Path) -> None:
    dry = convert(FIXTURES / "llama_w4a16", tmp_path / "out", tp=2, dry_run=True)
    assert not (tmp_path / "out").exists()
    done = convert(FIXTURES / "llama_w4a16", tmp_path / "out", tp=2)
    assert (dry.bytes, dry.padding, dry.peak, dry.kernels) == (done.bytes, done.padding, done.peak, done.kernels)
    stored = [load_file(path) for path in (tmp_path / "out").glob("*/*.safetensors")]
    assert done.bytes == sum(t.numel() * t.element_size() for rank in stored for t in rank.values())
    assert "would write 947.2 kB" in str(dry) and "wrote 947.2 kB" in str(done)


def test_the_command_prints_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from layoutdsl.cli import main

    source, out = str(FIXTURES / "llama_w4a16"), str(tmp_path / "out")
    assert main(["convert", source, out, "--tp", "2", "--check"]) == 0
    text, progress = capsys.readouterr()
    assert progress == ""  # stderr is no terminal
    lines = text.splitlines()
    assert lines[1].startswith("ranks 0 to 1 of 2, to marlin_int4_a16, the first shipped kernel")
    for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
        (row,) = (line for line in lines if line.startswith(f"model.layers.{{0..1}}.{name} "))
        assert "marlin_int4_a16" in row
    assert "duty: model.layers.{0..1}.mlp.down_proj: add up the outputs of all tensor-parallel ranks" in lines
    assert any("1,572,864 weights in 98 tensors" in line and "byte for byte" in line for line in lines)

    assert main(["convert", source, out, "--tp", "2"]) == 1
    assert "is there already" in capsys.readouterr().err


def test_layers_fold_into_ranges() -> None:
    assert report._ranges([3, 0, 1, 2, 5, 7, 8]) == "{0..3,5,7..8}"
    assert report._ranges([4]) == "4"
    assert report._bytes(999) == "999 B" and report._bytes(1_500_000) == "1.5 MB"
