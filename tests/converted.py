"""Checkpoints that outside code wrote, and converted ones put together again from the tensors of all their ranks.

The kernels' tensors are read by tests/decoders/marlin.py; nothing here knows layoutdsl. The sizes of a matrix as stored
come from the shapes of its tensors, those of a model from its config.json.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import bits, nearest
from decoders import marlin
from decoders.numbers import FLOAT
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
NAMES = sorted(
    path.name.removesuffix("_decompressed.json")
    for path in FIXTURES.glob("*_decompressed.json")
    if path.name.startswith(("llama_", "qwen3_moe_"))
)
"""Checkpoints of whole models."""

Tensors = dict[str, torch.Tensor]
Change = Callable[[dict[str, Any]], object]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def source_of(folder: Path) -> Tensors:
    """Every tensor of a checkpoint."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def library(name: str) -> dict[str, Any]:
    """The digest of each quantized weight as the library that made it decompresses it."""
    return json.loads((FIXTURES / f"{name}_decompressed.json").read_text())


def splits(name: str) -> list[tuple[int, int]]:
    """(tensor-parallel, expert-parallel) ranks that can share a fixture: heads stay whole."""
    config = config_of(FIXTURES / name)
    tensor_parallel = [(tp, 1) for tp in (1, 2, 4) if config["num_key_value_heads"] % tp == 0]
    return tensor_parallel + ([(1, 2), (2, 2)] if "moe" in name else [])


SPLITS = [(name, tp, ep) for name in NAMES for tp, ep in splits(name)]


def copied(name: str, folder: Path, change: Change = lambda config: None) -> Path:
    """A copy of a fixture in one file, with its config.json changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written(folder, source_of(FIXTURES / name))
    config = config_of(FIXTURES / name)
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def written(folder: Path, tensors: Tensors) -> None:
    """All tensors of a checkpoint anew."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def unit(tensors: Mapping[str, torch.Tensor], name: str) -> Tensors:
    """The tensors below a name, by the rest of theirs."""
    return {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}


def packed(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Codes along the last axis, low bits first, into int32 words."""
    per = 32 // size
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per)).unflatten(-1, (-1, per))
    shifts = (np.arange(per) * size).astype(np.uint32)
    return torch.from_numpy(np.bitwise_or.reduce(padded.numpy().astype(np.uint32) << shifts, axis=-1).view(np.int32))


def drawn(
    folder: Path, *, bits: int, symmetric: bool, dtype: str, tied: bool = False, bias: bool = False,
    hidden: int = 320, inner: int = 448, heads: int = 10, head: int = 32,
) -> Path:  # fmt: skip
    """A checkpoint of random codes, zero points and scales in groups of 32; two kv heads."""
    made = torch.Generator().manual_seed(bits + symmetric)
    float16, group, q, kv = getattr(torch, dtype), 32, heads * head, 2 * head
    rows = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q),
            "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}  # fmt: skip
    layer = "model.layers.0"
    vectors = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    tables = ("model.embed_tokens", *(() if tied else ("lm_head",)))
    tensors = {f"{name}.weight": torch.randn(hidden, generator=made).to(float16) for name in vectors}
    tensors |= {f"{name}.weight": torch.randn(32, hidden, generator=made).to(float16) for name in tables}
    for part, (n, k) in rows.items():
        prefix = f"{layer}.{'self_attn' if part in 'qkvo' else 'mlp'}.{part}_proj"
        tensors[f"{prefix}.weight_packed"] = packed(torch.randint(1 << bits, (n, k), generator=made), bits)
        tensors[f"{prefix}.weight_scale"] = torch.randn(n, k // group, generator=made).to(float16)
        tensors[f"{prefix}.weight_shape"] = torch.tensor([n, k])
        if not symmetric:
            zeros = torch.randint(1 << bits, (k // group, n), generator=made)
            tensors[f"{prefix}.weight_zero_point"] = packed(zeros, bits).T
        if bias and part in "qkv":
            tensors[f"{prefix}.bias"] = torch.randn(n, generator=made).to(float16)
    weights = {"num_bits": bits, "group_size": group, "strategy": "group", "symmetric": symmetric, "type": "int"}
    config = {
        "architectures": ["Qwen2ForCausalLM" if bias else "LlamaForCausalLM"], "dtype": dtype, "head_dim": head,
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "num_hidden_layers": 1,
        "num_key_value_heads": 2, "tie_word_embeddings": tied,
        "quantization_config": {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "format": "pack-quantized", "ignore": ["lm_head"], "quant_method": "compressed-tensors",
        },
    }  # fmt: skip
    folder.mkdir()
    written(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# --- values -----------------------------------------------------------------------------------------------------------


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as the decoders take it: floats below 32 bits as their bits."""
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.view(torch.uint16 if tensor.element_size() == 2 else torch.uint8)
    return tensor.numpy()


def value_of(tensor: torch.Tensor) -> np.ndarray:
    """What floats are worth."""
    return FLOAT[str(tensor.dtype).removeprefix("torch.")](bits_of(tensor))


def digest(value: np.ndarray, dtype: str) -> dict[str, Any]:
    """As the fixtures record a weight: rounded once to its dtype, little-endian bytes."""
    data = bits(nearest(value, dtype), dtype).tobytes()
    return {"dtype": dtype, "shape": list(value.shape), "sha256": hashlib.sha256(data).hexdigest()}


def code_of(config: Mapping[str, Any]) -> str:
    """What a kernel makes of a checkpoint's codes, as decoders.marlin calls it."""
    stated = config["quantization_config"]
    if "config_groups" not in stated:
        return {4: "u4b8", 8: "u8b128"}[stated["bits"]]
    weights = stated["config_groups"]["group_0"]["weights"]
    codes = {("int", 4): "u4b8", ("int", 8): "u8b128", ("float", 4): "e2m1", ("float", 8): "e4m3"}
    return codes[weights["type"], weights["num_bits"]]


def decoded(tensors: Tensors, code: str, dtype: str) -> np.ndarray:
    """[n, k] as a kernel reads one matrix, padding included; inputs in the order that they are stored in."""
    if tensors["weight"].dtype != torch.int32:
        return value_of(tensors["weight"])
    rows, columns = tensors["weight"].shape
    code = code.partition("b")[0] if "zero_point" in tensors else code
    arrays = {name: bits_of(tensor) for name, tensor in tensors.items()}
    n = columns * 2 // marlin.BITS[code]
    return marlin.decode(arrays, n=n, k=rows * 16, code=code, activation=dtype, dtype=dtype)


class Converted:
    """A model from the tensors of all its ranks, tensor-parallel neighbours first.

    codes: part of a unit's name -> its code, where they differ.
    """

    def __init__(
        self, src: Path, ranks: Sequence[Tensors], tp: int, ep: int = 1, codes: Mapping[str, str] | None = None
    ):
        self.config, self.ranks, self.tp, self.ep = config_of(src), list(ranks), tp, ep
        assert len(self.ranks) == tp * ep
        self.dtype = self.config["dtype"]
        self.codes = codes or {"": code_of(self.config)}

    @staticmethod
    def of(src: Path, dst: Path, tp: int, ep: int = 1, **options: Any) -> Converted:
        """As `convert` wrote it."""
        homes = [f"rank-{rank}" for rank in range(tp * ep)]
        assert sorted(path.name for path in dst.iterdir()) == sorted(homes)
        return Converted(src, [load_file(dst / home / "model.safetensors") for home in homes], tp, ep, **options)

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each linear layer's weight under its name in the checkpoint."""
        heads, kv, head = (self.config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        widths = {"q": heads * head, "k": kv * head, "v": kv * head}
        for at in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{at}"
            yield from self.rows(f"{layer}.self_attn.{{}}_proj", "qkv_proj", widths)
            yield from self.columns(f"{layer}.self_attn.o_proj", heads * head)
            if f"{layer}.mlp.experts.w13.weight" in self.ranks[0]:
                yield from self.whole(f"{layer}.mlp.gate")
                yield from self.experts(f"{layer}.mlp.experts")
            else:
                inner = self.config["intermediate_size"]
                yield from self.rows(f"{layer}.mlp.{{}}_proj", "gate_up_proj", {"gate": inner, "up": inner})
                yield from self.columns(f"{layer}.mlp.down_proj", inner)

    def rows(self, template: str, fused: str, widths: Mapping[str, int]) -> Iterator[tuple[str, np.ndarray]]:
        """Parts whose outputs are shared out; all expert-parallel ranks hold the same."""
        name = template.rpartition(".")[0] + f".{fused}"
        for ranks in self.copies(name):
            found: dict[str, list[np.ndarray]] = {part: [] for part in widths}
            for rank in ranks:
                own, at = self.inputs_in_order(rank, name), 0
                for part, width in widths.items():
                    found[part].append(own[at : (at := at + width // self.tp)])
                assert not own[at:].any(), "padding is not zero"
        for part, values in found.items():
            yield f"{template.format(part)}.weight", np.concatenate(values)

    def inputs_in_order(self, rank: Tensors, name: str) -> np.ndarray:
        """[n, hidden] of one rank that holds all inputs."""
        hidden, own = self.config["hidden_size"], unit(rank, name)
        value, order = self.decoded(own, name), own.get("k_perm")
        assert not value[:, hidden:].any(), "padding is not zero"
        return value[:, :hidden] if order is None else value[:, np.argsort(order.numpy()[:hidden])]

    def columns(self, name: str, inputs: int) -> Iterator[tuple[str, np.ndarray]]:
        """One matrix whose inputs are shared out."""
        hidden, each = self.config["hidden_size"], inputs // self.tp
        for ranks in self.copies(name):
            value, seen = np.zeros((hidden, inputs)), np.zeros(inputs, int)
            for at, rank in enumerate(ranks):
                own = unit(rank, name)
                found = self.decoded(own, name)
                assert not found[hidden:].any() and not found[:, each:].any(), "padding is not zero"
                here = own["k_perm"].numpy()[:each] if "k_perm" in own else np.arange(at * each, (at + 1) * each)
                value[:, here] = found[:hidden, :each]
                seen[here] += 1
            assert (seen == 1).all(), "ranks do not share out the inputs"
        yield f"{name}.weight", value

    def whole(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """One matrix that every rank holds."""
        values = [self.decoded(unit(rank, name), name) for rank in self.ranks]
        assert all(np.array_equal(value, values[0]) for value in values)
        yield f"{name}.weight", values[0]

    def experts(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """Expert-parallel ranks hold experts, tensor-parallel ones rows of gate and up and columns of down."""
        hidden, each = self.config["hidden_size"], self.config["moe_intermediate_size"] // self.tp
        own_experts = self.config.get("num_experts", self.config.get("num_local_experts")) // self.ep
        for expert in range(own_experts * self.ep):
            found: dict[str, list[np.ndarray]] = {"gate": [], "up": [], "down": []}
            first = expert // own_experts * self.tp
            for rank in self.ranks[first : first + self.tp]:
                w13, w2 = (
                    self.decoded(self.expert(rank, f"{name}.{matrix}", expert % own_experts, own_experts), name)
                    for matrix in ("w13", "w2")
                )
                for part, value in zip(("gate", "up"), np.split(w13, 2)):
                    assert not value[each:].any() and not value[:, hidden:].any(), "padding is not zero"
                    found[part].append(value[:each, :hidden])
                assert not w2[hidden:].any() and not w2[:, each:].any(), "padding is not zero"
                found["down"].append(w2[:hidden, :each])
            for part, values in found.items():
                yield f"{name}.{expert}.{part}_proj.weight", np.concatenate(values, axis=int(part == "down"))

    def expert(self, rank: Tensors, name: str, at: int, count: int) -> Tensors:
        own = unit(rank, name)
        assert all(len(tensor) == count for tensor in own.values()), "an expert-parallel rank holds its own experts"
        return {key: tensor[at] for key, tensor in own.items()}

    def copies(self, name: str) -> Iterator[list[Tensors]]:
        """The tensor-parallel ranks of each expert-parallel one, which hold the same of `name`."""
        for ep_rank in range(self.ep):
            ranks = self.ranks[ep_rank * self.tp : (ep_rank + 1) * self.tp]
            for first, other in zip(self.ranks, ranks):
                a, b = unit(first, name), unit(other, name)
                assert a.keys() == b.keys() and all(torch.equal(bytes_of(a[key]), bytes_of(b[key])) for key in a)
            yield ranks

    def decoded(self, tensors: Tensors, name: str) -> np.ndarray:
        return decoded(tensors, next(code for part, code in self.codes.items() if part in name), self.dtype)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Names, dtypes, shapes and bytes are equal."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bytes_of(found[name]), bytes_of(tensor)), name
