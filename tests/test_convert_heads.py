"""Attention that is more than q, k, v and o: latent, and with a gate beside each head's queries; on ranks that do not
divide the heads. Kernel tensors are read by tests/decoders/marlin.py, what a rank must hold is said here by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converted import Tensors, bits_of, decoded, source_of, unit, written
from decoders import fp8
from safetensors.torch import load_file

from layoutdsl import convert, load, verify

HIDDEN, INNER, LAYER = 256, 192, "model.layers.0"
FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
    },
    "ignore": ["lm_head"],
}
MLP = {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
COMMON = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1, "dtype": "bfloat16",
    "tie_word_embeddings": True, "quantization_config": FP8,
}  # fmt: skip


def folder(path: Path, config: Mapping[str, Any], layers: Mapping[str, tuple[int, int]], norms: list[str]) -> Path:
    """One layer of random FP8 weights with a scale for each output."""
    made = torch.Generator().manual_seed(len(layers))
    names = ["model.norm.weight", *(f"{LAYER}.{name}.weight" for name in norms)]
    tensors: Tensors = {name: torch.randn(HIDDEN, generator=made).to(torch.bfloat16) for name in names}
    tensors["model.embed_tokens.weight"] = torch.randn(8, HIDDEN, generator=made).to(torch.bfloat16)
    for name, (n, k) in layers.items():
        codes = torch.randint(0, 127, (n, k), generator=made, dtype=torch.uint8)
        tensors[f"{LAYER}.{name}.weight"] = codes.view(torch.float8_e4m3fn)
        tensors[f"{LAYER}.{name}.weight_scale"] = torch.rand(n, 1, generator=made).to(torch.bfloat16)
    path.mkdir()
    written(path, tensors)
    (path / "config.json").write_text(json.dumps({**COMMON, **config}))
    return path


def rows(heads: range, width: int) -> list[int]:
    return [head * width + at for head in heads for at in range(width)]


class Ranks:
    """Every rank's file, and what the source means."""

    def __init__(self, src: Path, dst: Path, tp: int):
        convert(src, dst, tp=tp)
        verify(dst, against=src)
        self.source = source_of(src)
        self.ranks = [load_file(dst / f"rank-{rank}" / "model.safetensors") for rank in range(tp)]
        for rank, stored in enumerate(self.ranks):
            loaded = dict(load(src, tp=tp, rank=rank))
            assert loaded.keys() == stored.keys()
            assert all(torch.equal(loaded[name].float(), stored[name].float()) for name in stored)

    def meant(self, name: str) -> np.ndarray:
        own = {key: bits_of(tensor) for key, tensor in unit(self.source, f"{LAYER}.{name}").items()}
        n, k = own["weight"].shape
        return fp8.decode(own, n=n, k=k, dtype="bfloat16")

    def check(self, rank: int, name: str, held: np.ndarray) -> None:
        """A rank holds that, and zeros around it."""
        found = decoded(unit(self.ranks[rank], f"{LAYER}.{name}"), "e4m3", "bfloat16")
        n, k = held.shape
        assert np.array_equal(found[:n, :k], held), f"{name} of rank {rank}"
        found[:n, :k] = 0
        assert not found.any(), "padding is not zero"


@pytest.mark.parametrize("latent_queries", [True, False])
def test_latent_attention(latent_queries: bool, tmp_path: Path) -> None:
    """Five heads on two ranks, and on three: what makes the latents is whole on each."""
    heads, nope, rope, value, latent, q_latent = 5, 32, 16, 32, 128, 192 if latent_queries else None
    config = {
        "architectures": ["DeepseekV2ForCausalLM"], "num_attention_heads": heads, "q_lora_rank": q_latent,
        "kv_lora_rank": latent, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value,
    }  # fmt: skip
    width, attention = nope + rope, "self_attn"
    queries = {f"{attention}.q_proj": (heads * width, HIDDEN)}
    if q_latent:
        queries = {f"{attention}.q_a_proj": (q_latent, HIDDEN), f"{attention}.q_b_proj": (heads * width, q_latent)}
    layers = queries | {
        f"{attention}.kv_a_proj_with_mqa": (latent + rope, HIDDEN),
        f"{attention}.kv_b_proj": (heads * (nope + value), latent),
        f"{attention}.o_proj": (HIDDEN, heads * value),
    }
    norms = ["input_layernorm", "post_attention_layernorm", f"{attention}.kv_a_layernorm"]
    norms += [f"{attention}.q_a_layernorm"] if q_latent else []
    src = folder(tmp_path / "src", config, layers | MLP, norms)
    for tp, shares in ((2, [range(3), range(3, 5)]), (3, [range(2), range(2, 4), range(4, 5)])):
        ranks = Ranks(src, tmp_path / f"{tp}", tp)
        for rank, own in enumerate(shares):
            for whole in ("kv_a_proj_with_mqa", *(("q_a_proj",) if q_latent else ())):
                ranks.check(rank, f"{attention}.{whole}", ranks.meant(f"{attention}.{whole}"))
            q = f"{attention}.{'q_b_proj' if q_latent else 'q_proj'}"
            ranks.check(rank, q, ranks.meant(q)[rows(own, width)])
            ranks.check(rank, f"{attention}.kv_b_proj", ranks.meant(f"{attention}.kv_b_proj")[rows(own, nope + value)])
            ranks.check(rank, f"{attention}.o_proj", ranks.meant(f"{attention}.o_proj")[:, rows(own, value)])


def test_queries_with_a_gate(tmp_path: Path) -> None:
    """Six query heads of twice the width, two key-value heads: on four ranks two share a key-value head, one of them
    with two of its queries; five ranks share alike, the last holds none."""
    heads, keys, head, attention = 6, 2, 32, "self_attn"
    config = {
        "architectures": ["Qwen3NextForCausalLM"], "num_attention_heads": heads, "num_key_value_heads": keys,
        "head_dim": head,
    }  # fmt: skip
    layers = {
        f"{attention}.q_proj": (heads * 2 * head, HIDDEN),
        f"{attention}.k_proj": (keys * head, HIDDEN),
        f"{attention}.v_proj": (keys * head, HIDDEN),
        f"{attention}.o_proj": (HIDDEN, heads * head),
    }
    norms = ["input_layernorm", "post_attention_layernorm", f"{attention}.q_norm", f"{attention}.k_norm"]
    src = folder(tmp_path / "src", config, layers | MLP, norms)
    four = [(range(2), range(1)), (range(2, 3), range(1)), (range(3, 5), range(1, 2)), (range(5, 6), range(1, 2))]
    for tp, shares in ((4, four), (5, [*four, (range(0), range(0))])):
        ranks = Ranks(src, tmp_path / f"{tp}", tp)
        for rank, (own, key) in enumerate(shares):
            q = ranks.meant(f"{attention}.q_proj")[rows(own, 2 * head)]
            k, v = (ranks.meant(f"{attention}.{part}_proj")[rows(key, head)] for part in "kv")
            found = decoded(unit(ranks.ranks[rank], f"{LAYER}.{attention}.qkv_proj"), "e4m3", "bfloat16")
            most = 2 * 2 * head  # of two query heads
            for start, part in ((0, q), (most, k), (most + head, v)):
                assert np.array_equal(found[start : start + len(part), :HIDDEN], part)
                found[start : start + len(part), :HIDDEN] = 0
            assert not found.any(), "padding is not zero"
            ranks.check(rank, f"{attention}.o_proj", ranks.meant(f"{attention}.o_proj")[:, rows(own, head)])
