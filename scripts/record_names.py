"""Write tests/fixtures/names: the parameters of transformers' own classes, which specs/names are tested against.

Each class is built on the meta device, in its own default sizes but for a few of a released model, with so few layers
that every kind of layer is there once or twice, and with 4 experts. ARCHITECTURE.json (ARCHITECTURE_VARIANT.json) holds

    config   what config.json says: whole numbers, truths, words and lists of words
    hub      name -> shape in the layout that save_pretrained writes, which is that of the released checkpoints;
             as two tables: weights of linear layers (experts and routers with them) and all others
    memory   the same for state_dict(), where it differs: experts are stacked, some names are changed
    mtp      the same for the layers that predict further tokens, which the class leaves out and the released
             checkpoints hold: built with transformers' MtpModel, named as its own table of renamings takes them

Nothing of layoutdsl is imported here. Needs an environment of its own:

    pip install torch==2.13.0 transformers==5.24.0
    python scripts/record_names.py
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)
from transformers.integrations.mxfp4 import Mxfp4GptOssExperts
from transformers.modeling_layers import MtpModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "names"

# File: what differs from the class's defaults. Sizes are those of a released model where the defaults would make
# matrices of different layers alike, or are no sizes of a model.
MODELS = {
    "LlamaForCausalLM": {"num_hidden_layers": 2, "intermediate_size": 14336, "num_key_value_heads": 8},
    "MistralForCausalLM": {"num_hidden_layers": 2},
    "Qwen2ForCausalLM": {"num_hidden_layers": 2, "intermediate_size": 13696, "num_key_value_heads": 4},
    "Qwen3ForCausalLM": {
        "num_hidden_layers": 2,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "GemmaForCausalLM": {"num_hidden_layers": 2},
    "Gemma2ForCausalLM": {"num_hidden_layers": 2},
    "Gemma3ForCausalLM": {"num_hidden_layers": 2},
    "PhiForCausalLM": {"num_hidden_layers": 2},
    "PhiForCausalLM_qk_norm": {"num_hidden_layers": 2, "qk_layernorm": True},
    "Phi3ForCausalLM": {"num_hidden_layers": 2, "num_key_value_heads": 8},
    "MixtralForCausalLM": {"num_hidden_layers": 2, "num_local_experts": 4},
    "Qwen2MoeForCausalLM": {"num_hidden_layers": 2, "num_experts": 4, "mlp_only_layers": [1]},
    "Qwen3MoeForCausalLM": {"num_hidden_layers": 2, "num_experts": 4, "mlp_only_layers": [1], "head_dim": 128},
    "Qwen3NextForCausalLM": {
        "num_hidden_layers": 3,
        "num_experts": 4,
        "layer_types": ["linear_attention", "full_attention", "full_attention"],
        "mlp_only_layers": [1],
        "num_mtp_layers": 1,
        "mtp_layer_types": ["full_attention"],
    },
    "DeepseekV2ForCausalLM": {
        "num_hidden_layers": 2,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 128,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
    },
    "DeepseekV2ForCausalLM_lite": {
        "num_hidden_layers": 2,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_attention_heads": 16,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
    },
    "DeepseekV3ForCausalLM": {"num_hidden_layers": 2, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "GlmForCausalLM": {"num_hidden_layers": 2},
    "Glm4ForCausalLM": {"num_hidden_layers": 2},
    "Glm4MoeForCausalLM": {
        "num_hidden_layers": 2,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "attention_bias": True,
    },
    "Glm4MoeForCausalLM_qk_norm": {
        "num_hidden_layers": 2,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    "GptOssForCausalLM": {"num_hidden_layers": 2, "num_local_experts": 4},
    "GptOssForCausalLM_mxfp4": {"num_hidden_layers": 2, "num_local_experts": 4},
    "NemotronHForCausalLM": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "hidden_size": 2688,
        "num_key_value_heads": 2,
        "mamba_num_heads": 64,
        "n_routed_experts": 4,
        "intermediate_size": 1856,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
    },
    "NemotronHForCausalLM_latent": {
        "layers_block_type": ["linear_attention", "moe", "full_attention"],
        "n_routed_experts": 4,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 2688,
        "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024,
        "num_nextn_predict_layers": 1,
    },
}

Tensors = dict[str, torch.Tensor]


def linear_weights(model: nn.Module) -> set[str]:
    """The names of all weights that are matrices of linear layers, experts' matrices among them."""
    found: set[str] = set()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.Linear) or kind.endswith(("TopKRouter", "TopkRouter")):
            found.add(f"{name}.weight")
        elif kind.endswith("Experts"):
            matrices = {key for key, value in module.state_dict().items() if value.dim() > 2}
            found |= {f"{name}.{key}" for key in matrices if not key.endswith("_scales")}
    return found


def as_saved(model: nn.Module, tensors: Tensors) -> Tensors:
    """The tensors in the layout that save_pretrained writes."""
    if model.config.tie_word_embeddings:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in model._tied_weights_keys}
    return revert_weight_conversion(model, tensors) if tensors else {}


def in_two_tables(tensors: Tensors, linear: set[str]) -> dict[str, dict[str, list[int]]]:
    tables: dict[str, dict[str, list[int]]] = {"linear": {}, "other": {}}
    for name, tensor in tensors.items():
        tables["linear" if name in linear else "other"][name] = list(tensor.shape)
    return tables


def both(model: nn.Module) -> dict[str, dict[str, dict[str, list[int]]]]:
    """The tables `hub` and, where it differs, `memory`."""
    memory = dict(model.state_dict())
    linear = linear_weights(model) & set(memory)
    hub = as_saved(model, memory)
    hub_linear = set(as_saved(model, {name: memory[name] for name in linear}))
    found = {"hub": in_two_tables(hub, hub_linear)}
    if set(hub) != set(memory):
        found["memory"] = in_two_tables(memory, linear)
    return found


def further_layers(model: nn.Module) -> dict[str, dict[str, list[int]]]:
    """The tables of the layers that predict further tokens, in the layout of the released checkpoints."""
    with torch.device("meta"):
        further = MtpModel(model, 1)
    own = {name: tensor for name, tensor in further.state_dict().items() if name.startswith("layers.")}
    linear = linear_weights(further) & set(own)

    # Qwen3-Next has them apart from its layers, the others as one layer more.
    layer = f"model.layers.{model.config.num_hidden_layers}"
    words = {"mtp_block": layer, "post_norm": f"{layer}.shared_head.norm"}
    words |= {word: f"{layer}.{word}" for word in ("enorm", "hnorm", "eh_proj")}
    if apart := any("mtp" in pattern for pattern in model._keys_to_ignore_on_load_unexpected):
        words = {"mtp_block": "mtp.layers.0", "post_norm": "mtp.norm", "eh_proj": "mtp.fc"}
        words |= {"enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden"}

    def named(tensors: Tensors) -> Tensors:
        found: Tensors = {}
        for name, tensor in tensors.items():
            word, _, rest = name.removeprefix("layers.0.").partition(".")
            found[f"{words[word]}.{rest}"] = tensor
        return revert_weight_conversion(model, found)

    hub, hub_linear = named(own), set(named({name: own[name] for name in linear}))
    conversions = further.get_weight_conversions(model)
    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    loaded = {rename_source_key(name, renamings, converters)[0] for name in hub}
    assert loaded == set(own), f"transformers would load {sorted(loaded ^ set(own))}"

    if not apart:  # the model's own embedding and head once more, which transformers passes over
        state = model.state_dict()
        hub[f"{layer}.embed_tokens.weight"] = state["model.embed_tokens.weight"]
        hub[f"{layer}.shared_head.head.weight"] = state["lm_head.weight"]
    return in_two_tables(hub, hub_linear)


def nemotron_further(model: nn.Module) -> dict[str, dict[str, list[int]]]:
    """The same for Nemotron-H, whose layers transformers does not build: an attention and an expert layer of the
    class, and around them what the headers of NVIDIA's released checkpoints list."""
    config, hidden = model.config, model.config.hidden_size
    with torch.device("meta"):
        config.layers_block_type, kept = config.mtp_layers_block_type, config.layers_block_type
        holder = nn.Module()
        holder.layers = nn.ModuleList(NemotronHBlock(config, layer_idx=at) for at in range(2))
        config.layers_block_type = kept
        first, last = holder.layers
        first.enorm, first.hnorm, last.final_layernorm = (type(first.norm)(hidden) for _ in range(3))
        first.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
    own = {f"mtp.{name}": tensor for name, tensor in holder.state_dict().items()}
    linear = {f"mtp.{name}": own[f"mtp.{name}"] for name in linear_weights(holder)}
    return in_two_tables(revert_weight_conversion(model, own), set(revert_weight_conversion(model, linear)))


def with_mxfp4(model: nn.Module) -> None:
    """Put the tensors of OpenAI's released checkpoints in the place of the experts' weights."""
    for layer in model.model.layers:
        experts = Mxfp4GptOssExperts(model.config)
        for name, stored in Mxfp4HfQuantizer.serialized_names.items():
            shape = getattr(experts, name).shape[:-1]
            groups = getattr(experts, name).shape[-1] // 16
            for key, extents in zip(stored, ((*shape, groups, 16), (*shape, groups)), strict=True):
                experts.register_buffer(key, torch.empty(extents, dtype=torch.uint8))
            delattr(experts, name)
        layer.mlp.experts = experts
    model.config.quantization_config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }


def recorded(file: str) -> dict[str, object]:
    architecture, _, variant = file.partition("_")
    cls = getattr(transformers, architecture)
    config = cls.config_class(**MODELS[file])
    with torch.device("meta"):
        model = cls(config)
        if variant == "mxfp4":
            with_mxfp4(model)
    tables = both(model)
    if architecture == "NemotronHForCausalLM" and config.num_nextn_predict_layers:
        tables["mtp"] = nemotron_further(model)
    elif getattr(config, "num_mtp_layers", 0):
        tables["mtp"] = further_layers(model)
    stated = {key: value for key, value in config.to_diff_dict().items() if is_plain(value) and "mtp" not in key}
    if variant == "latent":  # as NVIDIA's config.json has it; that of transformers has the list of layers alone
        del stated["layers_block_type"]
        stated |= {key: getattr(config, key) for key in ("num_hidden_layers", "hybrid_override_pattern")}
    return {"config": {"architectures": [architecture], **dict(sorted(stated.items()))}, **tables}


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(inner, (str, list)) for inner in value.values())
    if isinstance(value, list):
        return all(isinstance(inner, str) for inner in value)
    return value is None or isinstance(value, (bool, int, str))


def compact(value: object, indent: int = 0) -> str:
    """JSON with a line for each entry of an object; lists stay on one line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    pad = " " * (indent + 1)
    lines = (f"{pad}{json.dumps(key)}: {compact(inner, indent + 1)}" for key, inner in value.items())
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="NAME", help="which to write (default: all)")
    parser.add_argument("--out", type=Path, default=FIXTURES)
    options = parser.parse_args()
    if unknown := set(options.files) - set(MODELS):
        parser.error(f"unknown names {sorted(unknown)}; there are {[*MODELS]}")
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.files or MODELS:
        found = recorded(file)
        (options.out / f"{file}.json").write_text(compact(found) + "\n")
        sizes = {key: sum(map(len, found[key].values())) for key in ("hub", "memory", "mtp") if key in found}
        print(f"{file}: {', '.join(f'{size} of {key}' for key, size in sizes.items())}")


if __name__ == "__main__":
    main()
