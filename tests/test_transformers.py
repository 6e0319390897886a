"""Loading through transformers' own `from_pretrained`: the model gets the bytes that `layoutdsl.load` yields."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, copied, same, source_of, written

from layoutdsl import LayoutError, MarlinMoE, Plan, compile_plan, load

pytest.importorskip("transformers")  # the extra `transformers`
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from layoutdsl.adapters.transformers import ToKernel, converter, converters, kernel_config, prepare
from layoutdsl.checkpoints.load import planned

Tensors = dict[str, torch.Tensor]


def loaded(folder: Path, **options: Any) -> Any:
    """The model; everything it has came from the checkpoint, and nothing in there is left."""
    config = kernel_config(str(folder), **options)
    model, report = AutoModelForCausalLM.from_pretrained(folder, config=config, output_loading_info=True)
    assert not any(report.values()), report
    return model


@pytest.mark.parametrize(
    "name",
    [
        "llama_gptq",
        "llama_gptq_desc_act",
        "llama_fp8_block",
        "qwen3_moe_w4a16_asym",
        "qwen3_moe_fp8",
        "qwen3_moe_nvfp4a16",
        "qwen3_moe_mxfp4a16",
    ],
)
def test_a_model_gets_what_load_yields(name: str) -> None:
    same(loaded(FIXTURES / name).state_dict(), dict(load(FIXTURES / name)))


def test_a_rank_gets_its_own() -> None:
    folder = FIXTURES / "qwen3_moe_w4a16"
    options = {"tp": 2, "ep": 2, "rank": 3, "target": "marlin_int4_a8fp8"}
    same(loaded(folder, **options).state_dict(), dict(load(folder, **options)))


def test_layers_that_differ_have_their_own_plans(tmp_path: Path) -> None:
    def finer(config: dict[str, Any]) -> None:
        first = config["quantization_config"]["config_groups"]["group_0"]
        other = copy.deepcopy(first) | {"targets": ["re:.*layers.1.self_attn.o_proj"]}
        other["weights"]["group_size"] = 32
        config["quantization_config"]["config_groups"] = {"group_0": other, "group_1": first}

    folder = copied("qwen3_moe_w4a16", tmp_path / "model", finer)
    tensors = source_of(folder)
    name = "model.layers.1.self_attn.o_proj.weight_scale"
    tensors[name] = tensors[name].repeat_interleave(4, dim=1)
    written(folder, tensors)
    conversion = planned(folder, rank=0)
    patterns = [one.source_patterns[0] for one in converters(conversion)]
    assert "self_attn.q_proj.weight_packed" in patterns
    assert {f"model.layers.{at}.self_attn.o_proj.weight_packed" for at in range(2)} <= {*patterns}
    same(loaded(folder).state_dict(), dict(load(folder)))


@pytest.mark.parametrize("name", ["qwen3_moe_w4a16_asym", "llama_gptq"])
def test_what_is_saved_is_the_checkpoint(name: str, tmp_path: Path) -> None:
    loaded(FIXTURES / name).save_pretrained(tmp_path)
    same(source_of(tmp_path), source_of(FIXTURES / name))
    same(dict(load(tmp_path)), dict(load(FIXTURES / name)))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("llama_gptq_desc_act", {}, "stay sorted by"),
        ("qwen3_moe_fp8", {}, "round_scale"),
        ("llama_gptq", {"tp": 2}, "only its slice"),
    ],
)
def test_what_would_not_be_the_checkpoint_is_not_saved(name: str, options: Any, match: str, tmp_path: Path) -> None:
    model = loaded(FIXTURES / name, **options)
    with pytest.raises(LayoutError, match=f"^LP370.*{match}"):
        model.save_pretrained(tmp_path)


def test_what_is_wrong_with_a_layer_ends_the_loading(tmp_path: Path) -> None:
    folder = copied("llama_gptq", tmp_path / "model")
    tensors = source_of(folder)
    tensors["model.layers.0.self_attn.o_proj.qzeros"] += 1
    written(folder, tensors)
    with pytest.raises(RuntimeError, match="conversion of the weights"):
        loaded(folder)


def test_a_converter_of_ones_own() -> None:
    """One plan, one converter, and the loader beneath `from_pretrained`."""
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 128}, params={"g_idx": False, "group": 32})
    made = torch.Generator().manual_seed(0)
    tensors = {
        "qweight": torch.randint(-(2**31), 2**31, (16, 64), generator=made).int(),
        "qzeros": torch.full((4, 8), 0x77777777, dtype=torch.int32),
        "scales": torch.rand(4, 64, generator=made).half(),
    }
    one = converter(
        plan,
        {f"proj.{name}": f"linear.{name}" for name in tensors},
        {"kernel.weight": "linear.weight", "kernel.weight_scale": "linear.weight_scale"},
    )
    given = {f"proj.{name}": [tensor] for name, tensor in tensors.items()}
    found = one.operations[0].convert(given, one.source_patterns, one.target_patterns)
    want = plan.run({f"linear.{name}": tensor for name, tensor in tensors.items()})
    same(found, {f"kernel.{name.removeprefix('linear.')}": tensor for name, tensor in want.items()})
    assert not given, "tensors that are not needed any more"


def test_without_a_quantizer_nothing_is_cast_in_silence() -> None:
    folder = FIXTURES / "llama_gptq"
    model = loaded(folder)
    conversion = planned(folder, rank=0)
    settings = LoadStateDictConfig(dtype=torch.float16, weight_mapping=converters(conversion))
    report, _ = convert_and_load_state_dict_in_model(model, source_of(folder), settings)
    assert len(report.conversion_errors) == sum(1 for _ in conversion.jobs())
    assert all("int32, expected float16" in text for text in report.conversion_errors.values())


def test_the_loader_copies_no_plan() -> None:
    for one in converters(planned(FIXTURES / "llama_gptq", rank=0)):
        (operation,) = copy.deepcopy(one).operations
        assert isinstance(operation, ToKernel) and operation is one.operations[0]


def test_modules_that_compute_take_their_tensors(tmp_path: Path) -> None:
    """transformers' layer calls its experts as MarlinMoE is called."""
    folder = FIXTURES / "qwen3_moe_w4a16"
    model = loaded(folder, modules=experts)
    want = dict(load(folder))
    same({name: one for name, one in model.state_dict().items() if not name.endswith("_extra_state")}, want)
    layer = model.model.layers[1].mlp.experts
    assert isinstance(layer, MarlinMoE)
    x, ids, router = torch.ones(2, 128, dtype=torch.bfloat16), torch.tensor([[0, 3], [1, 2]]), torch.full((2, 2), 0.5)
    alone = MarlinMoE(layer.plan, activation="silu")
    for name, tensor in alone.tensors.items():
        tensor.copy_(want[f"model.layers.1.mlp.experts.{name}"])
    assert torch.equal(layer(x, ids, router), alone(x, ids, router))
    model.save_pretrained(tmp_path)
    same(source_of(tmp_path), source_of(folder))


def experts(name: str, plan: Plan) -> torch.nn.Module | None:
    return MarlinMoE(plan, activation="silu", device="meta") if name.endswith("experts") else None


def test_a_module_without_the_tensors_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"^LP373.*`model.layers.0.self_attn.qkv_proj.weight`"):
        loaded(FIXTURES / "llama_gptq", modules=lambda name, plan: torch.nn.Module())


def test_what_the_model_has_already_is_left_alone() -> None:
    conversion = planned(FIXTURES / "llama_gptq", rank=0)
    model = loaded(FIXTURES / "llama_gptq")
    before = dict(model.named_modules())
    prepare(model, conversion)
    assert dict(model.named_modules()) == before
