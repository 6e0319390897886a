"""What config.json says of formats, parameters and layers, and that the files beside it are what it says.

The expected formats and precedences were taken from the libraries that write such files: compressed-tensors 0.20.1
(all presets and its matching of targets), GPTQModel's `dynamic`, ModelOpt's two ways to state its configuration.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Awq, CtInt, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp8, Nvfp4
from safetensors.torch import load_file, save_file

from layoutdsl import LayoutError, compile_plan
from layoutdsl.checkpoints.folder import read_folder
from layoutdsl.checkpoints.quantization import Declared, declared
from layoutdsl.library import load_spec
from layoutdsl.lint.run import lint

FIXTURES = Path(__file__).resolve().parent / "fixtures"
DOWN, GATE, Q = (f"model.layers.7.{name}" for name in ("mlp.down_proj", "mlp.gate_proj", "self_attn.q_proj"))


def of(_specs: tuple[str, ...] = (), **quantization: Any) -> Declared:
    return declared({"quantization_config": quantization}, _specs)


def refused(match: str, **quantization: Any) -> LayoutError:
    with pytest.raises(LayoutError, match=match) as caught:
        of(**quantization)
    return caught.value


def group(targets: list[str] | None = None, form: str | None = None, **weights: Any) -> dict[str, Any]:
    """A group of compressed-tensors; W4A16 where nothing else is said."""
    whole = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True} | weights
    return {"targets": ["Linear"] if targets is None else targets, "format": form, "weights": whole}


def compressed(form: str, *groups: dict[str, Any], **more: Any) -> Declared:
    named = {f"group_{at}": one for at, one in enumerate(groups)}
    return of(quant_method="compressed-tensors", format=form, config_groups=named, **more)


# --- presets and methods ----------------------------------------------------------------------------------------------

INT = {"type": "int", "strategy": "group", "group_size": 128}
FLOAT = {"type": "float", "symmetric": True, "group_size": None}
PRESETS = {
    "W4A16": ("pack-quantized", INT, "ct_int with bits=4, group=128, zero_points=false"),
    "W4A16_ASYM": ("pack-quantized", INT | {"symmetric": False}, "ct_int with bits=4, group=128, zero_points=true"),
    "W8A16": ("pack-quantized", INT | {"num_bits": 8}, "ct_int with bits=8, group=128, zero_points=false"),
    "FP8": ("float-quantized", FLOAT | {"num_bits": 8, "strategy": "tensor"}, "fp8 with scale=tensor"),
    "FP8_DYNAMIC": ("float-quantized", FLOAT | {"num_bits": 8, "strategy": "channel"}, "fp8 with scale=channel"),
    "FP8_BLOCK": (
        "float-quantized",
        FLOAT | {"num_bits": 8, "strategy": "block", "block_structure": [64, 128]},
        "fp8_block with group=128, block_n=64",
    ),
    "NVFP4A16": (
        "nvfp4-pack-quantized",
        FLOAT | {"strategy": "tensor_group", "group_size": 16},
        "nvfp4 with writer=compressed_tensors",
    ),
    "MXFP4A16": ("mxfp4-pack-quantized", FLOAT | {"group_size": 32}, "mxfp4 with writer=compressed_tensors"),
    "MXFP8A16": ("mxfp8-quantized", FLOAT | {"num_bits": 8, "group_size": 32}, "mxfp8 with its defaults"),
    "per channel": ("pack-quantized", INT | {"group_size": None}, "ct_int with bits=4, group=-1, zero_points=false"),
    "FP8 weights alone": (
        "naive-quantized",
        FLOAT | {"num_bits": 8, "strategy": "channel"},
        "fp8 with scale=channel",
    ),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_of_compressed_tensors(preset: str) -> None:
    form, weights, wanted = PRESETS[preset]
    found = compressed(form, group(form=form, **weights), ignore=["lm_head"])
    assert str(found) == wanted and str(found.of(DOWN)) == wanted
    assert found.of("lm_head") is None
    assert [(one.name, one.targets) for one in found.groups] == [("group_0", ("Linear",))]


METHODS = {
    "gptq with bits=4, group=128, zero_points=false, act_order=true": {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True},
    "gptq with bits=8, group=32, zero_points=true, zero_offset=0, act_order=false": {
        "quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False, "desc_act": False,
        "checkpoint_format": "gptq_v2"},
    "awq with group=64, zero_points=true": {
        "quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None},
    "fp8_block with group=128, block_n=64": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [64, 128]},
    "fp8 with scale=tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "mxfp4 with writer=gpt_oss": {"quant_method": "mxfp4"},
    "nvfp4 with writer=modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp8 with scale=channel": {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    "fp8_block with its defaults": {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"},
    "mxfp8 with its defaults": {"quant_method": "modelopt", "quant_algo": "MXFP8"},
}  # fmt: skip


@pytest.mark.parametrize("wanted", METHODS)
def test_other_methods(wanted: str) -> None:
    assert str(of(**METHODS[wanted])) == wanted


def test_a_null_says_nothing() -> None:
    assert str(of(quant_method="fp8", weight_block_size=None)) == "fp8 with scale=tensor"
    assert str(of(quant_method="gptq", bits=4, checkpoint_format=None)) == "gptq with bits=4"


@pytest.mark.parametrize(
    ("quantization", "says"),
    [
        ({"quant_method": "squeeze"}, "says quant_method: squeeze, which is no format"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "says quant_method: gptq, checkpoint_format: marlin"),
        ({"quant_method": "awq", "version": "gemv"}, "says quant_method: awq, version: gemv, which is no format"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_method: modelopt, quant_algo: W4A8_AWQ"),
        ({"sym": True}, "says none of quant_method, "),
        ({"bits": 4}, "says bits: 4, which is no format that a spec detects"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "int-quantized",
                "config_groups": {"a": group(num_bits=8, strategy="channel")},
            },
            "`config_groups.a` of quantization_config says .*format: int-quantized, .*strategy: channel, which is no",
        ),
    ],
)
def test_what_no_spec_detects_is_refused(quantization: dict[str, Any], says: str) -> None:
    error = refused(says, **quantization)
    assert error.help is not None
    assert error.help.startswith("known: awq, ct_int, fp8, fp8_block, gptq, mxfp4, mxfp8, nvfp4;")


def test_a_config_that_is_none_is_refused() -> None:
    with pytest.raises(LayoutError, match="has no `quantization_config`"):
        declared({})
    refused("no part of quantization_config quantizes weights", quant_method="compressed-tensors",
            config_groups={"attention": {"targets": ["LlamaAttention"], "weights": None}})  # fmt: skip
    refused("`config_groups.a` is 8, a mapping is needed", quant_method="compressed-tensors", config_groups={"a": 8})
    refused(r"`dynamic.\+:x` is \[\], a mapping is needed", quant_method="gptq", dynamic={"+:x": []})


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "gptq", "modules_to_not_convert": ["re:("]},
        {"quant_method": "gptq", "dynamic": {"-:(": {}}},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": group(["re:("])}},
    ],
)
def test_a_bad_pattern_is_refused_at_once(quantization: dict[str, Any]) -> None:
    refused(r"config.json: `re:\(` is no pattern", **quantization)


def test_a_parameter_that_the_format_lacks_is_refused_with_its_place() -> None:
    refused("config.json: parameter `bits` of `gptq` cannot be 3", quant_method="gptq", bits=3)
    refused(r"config.json: `dynamic.\+:x`: parameter `bits` of `gptq` cannot be 3", quant_method="gptq", bits=4,
            dynamic={"+:x": {"bits": 3}})  # fmt: skip


# --- layers -----------------------------------------------------------------------------------------------------------


def test_groups_of_several_formats() -> None:
    form, weights, _ = PRESETS["FP8_DYNAMIC"]
    found = compressed(
        "mixed-precision",
        group(["re:.*mlp.*"], form="pack-quantized"),
        group(["re:.*self_attn.*"], form=form, **weights),
        ignore=["lm_head", "re:.*mlp.gate$"],
    )
    assert str(found) == "ct_int with bits=4, group=128, zero_points=false; fp8 with scale=channel"
    assert found.of(DOWN) is found.groups[0] and found.of(Q) is found.groups[1]
    assert found.of("lm_head") is None and found.of("model.layers.7.mlp.gate") is None
    assert found.of("model.vision.proj") is None


MATCHES = [
    # targets of the groups, which groups get down, gate and q
    ([["Linear"], ["re:.*mlp.*"]], (1, 1, 0)),
    ([["re:.*mlp.*"], ["Linear"]], (0, 0, 1)),
    ([["re:.*mlp.*"], [DOWN], ["Linear"]], (1, 0, 2)),
    ([["Linear"], [DOWN, Q]], (1, 0, 1)),
    ([["re:.*proj"], ["re:.*mlp.*"]], (1, 1, 0)),  # of two patterns the first in the alphabet
    ([["re:.*mlp.*"], ["re:.*proj"]], (0, 0, 1)),
    ([["Linear"], ["Linear"]], (1, 1, 1)),  # a target said twice leads to the last
    ([["down_proj"], ["re:model.layers.7.mlp"]], (1, 1, None)),  # names are whole, patterns match from the start
    ([["Embedding"], ["re:.*down"]], (1, None, None)),
    ([["LlamaAttention"], ["Qwen3MoeLinear"]], (1, 1, 1)),
]


@pytest.mark.parametrize(("targets", "wanted"), MATCHES)
def test_precedence_is_that_of_compressed_tensors(targets: list[list[str]], wanted: tuple[int | None, ...]) -> None:
    found = compressed("pack-quantized", *(group(own, group_size=32 << at) for at, own in enumerate(targets)))
    got = [found.of(layer) for layer in (DOWN, GATE, Q)]
    assert [None if one is None else int(one.name.removeprefix("group_")) for one in got] == list(wanted)


def test_a_group_without_weights_leaves_its_layers_alone() -> None:
    found = compressed("pack-quantized", group(), {"targets": ["re:.*mlp.*"], "weights": None})
    assert found.of(DOWN) is None and found.of(Q) is found.groups[0]
    assert len(found.groups) == 1


@pytest.mark.parametrize("key", ["ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"])
def test_layers_left_out(key: str) -> None:
    entries = ["lm_head", "mlp.gate_proj", "model.layers.*.self_attn", "*vision*", "re:.*shared.*", "model.layers.3."]
    found = of(quant_method="awq", **{key: entries})
    out = ["lm_head", GATE, "model.layers.0.self_attn.q_proj", Q, "a.vision_tower.b", "x.shared_expert.y",
           "model.layers.3.mlp.down_proj", "model.lm_head"]  # fmt: skip
    assert [layer for layer in out if found.of(layer) is not None] == []
    assert all(found.of(layer) for layer in (DOWN, "lm_head2", "model.layers.33.mlp.down_proj", "mlp.gate_projection"))
    assert found.ignored == tuple(entries)


def test_gptqmodels_dynamic_overrides() -> None:
    found = of(
        quant_method="gptq", bits=4, group_size=128, sym=True, lm_head=False,
        dynamic={
            "-:.*gate_proj": {},
            r"+:model\.layers\.7\.mlp": {"bits": 8, "group_size": 32},
            "model.*q_proj": {"bits": 8, "group_size": 32},
            r"-:model\.layers\.7": {},  # too late: what stands first counts
            "other": {"damp": 0.1},
        },
    )  # fmt: skip
    assert str(found.of(DOWN)) == "gptq with bits=8, group=32, zero_points=false"
    assert found.of(DOWN) is found.of(Q) is found.groups[1]
    assert found.of(GATE) is None and found.of("model.layers.7.self_attn.o_proj") is None
    assert found.of("model.layers.6.mlp.up_proj") is found.of("other") is found.groups[0]
    assert len(found.groups) == 2 and found.groups[0].targets == ()
    assert found.of("lm_head") is None


def test_modelopts_layers_of_several_algorithms() -> None:
    layers = {DOWN: {"quant_algo": "NVFP4", "group_size": 16}, GATE: {"quant_algo": "NVFP4", "group_size": 16},
              Q: {"quant_algo": "FP8"}}  # fmt: skip
    found = of(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers,
               config_groups={"group_0": group([DOWN, GATE]), "group_1": group([Q], strategy="channel")})  # fmt: skip
    assert str(found) == "nvfp4 with writer=modelopt; fp8 with scale=tensor"
    assert found.of(DOWN) is found.of(GATE) is found.groups[0] and found.of(Q) is found.groups[1]
    assert found.groups[0].targets == (DOWN, GATE)
    assert found.of("model.layers.7.mlp.up_proj") is None


def test_modelopts_two_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(LayoutError, match="has no `quantization_config`"):
        declared(read_folder(tmp_path).config)
    beside = {
        "producer": {"name": "modelopt", "version": "0.29.0"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                         "exclude_modules": ["lm_head", "model.layers.0*", "*router"]},
    }  # fmt: skip
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    found = declared(read_folder(tmp_path).config)
    assert str(found) == "nvfp4 with writer=modelopt"
    assert [found.of(layer) is None for layer in ("lm_head", "model.layers.0.mlp.up", "x.router", DOWN)] == [
        True, True, True, False]  # fmt: skip

    own = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "producer": beside["producer"],
           "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {"num_bits": 8, "type": "float"},
                                         "weights": {"dynamic": False, "num_bits": 8, "type": "float"}}}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": own}))
    found = declared(read_folder(tmp_path).config)
    assert str(found) == "fp8 with scale=tensor" and found.of("lm_head") is None and found.of("x.router") is not None

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": []}')
    with pytest.raises(LayoutError, match=r"hf_quant_config\.json` has no mapping `quantization`"):
        read_folder(tmp_path)


def test_many_layers_are_looked_up_fast() -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.up" for layer in range(60) for expert in range(128)]
    found = compressed("pack-quantized", group(names), group(["re:.*gate"]), ignore=[f"{name}x" for name in names])
    assert all(found.of(name) is found.groups[0] for name in names)
    assert all(found.of(f"{name}x") is None for name in names)


# --- `detect` in a spec -----------------------------------------------------------------------------------------------

SPEC = """\
version: "1"
checkpoint: squeezed
doc: a format of one's own
source: made up for this test
detect: {DETECT}
params: {{scale: [1, 2], kind: {{values: [plain, rich], config: [squeeze.kind, kind], map: {{"0": plain, "1": rich}}}}}}
tensors:
  w: {{role: codes, dtype: float8_e4m3fn, order: "n, k"}}
value: w
try: [{{n: 16, k: 16}}]
"""


@pytest.fixture
def own(tmp_path: Path):
    def write(detect: str) -> tuple[str, ...]:
        (tmp_path / "squeezed.yaml").write_text(SPEC.format(DETECT=detect), encoding="utf-8")
        return (str(tmp_path),)

    return write


@pytest.mark.parametrize(
    ("detect", "quantization"),
    [
        ("{quant_method: squeeze}", {}),
        ("{quant_method: [press, squeeze]}", {}),
        ("[{quant_method: press}, {quant_method: squeeze}]", {}),
        ('{quant_method: squeeze, bits: "8", fast: "true"}', {"bits": 8, "fast": True}),
        ('{quant_method: squeeze, squeeze.*.way: "null", squeeze.kind: "*"}', {"squeeze": {"kind": 1}}),
        ('{quant_method: squeeze, level: ["null", low]}', {"level": "low"}),
        ("{quant_method: squeeze, steps.1: fold}", {"steps": ["turn", "fold"]}),
    ],
)
def test_alternatives(detect: str, quantization: dict[str, Any], own) -> None:
    specs = own(detect)
    assert {finding.name for finding in lint([specs[0]])[0]} <= {"unused-parameter"}
    assert of(specs, quant_method="squeeze", **quantization).groups[0].spec.name == "squeezed"


@pytest.mark.parametrize(
    ("detect", "quantization"),
    [
        ('{quant_method: squeeze, bits: "8"}', {"bits": 4}),
        ('{quant_method: squeeze, bits: "8"}', {}),
        ('{quant_method: squeeze, bits: "*"}', {"bits": None}),
        ('{quant_method: squeeze, bits: "null"}', {"bits": 8}),
        ("[{quant_method: press}, {quant_method: fold}]", {}),
        ("[]", {}),
    ],
)
def test_what_is_none_of_them(detect: str, quantization: dict[str, Any], own) -> None:
    with pytest.raises(LayoutError, match="is no format that a spec detects"):
        of(own(detect), quant_method="squeeze", **quantization)


def test_a_user_s_format_of_a_shipped_method_must_say_more(own) -> None:
    specs = own("{quant_method: gptq}")
    with pytest.raises(LayoutError, match="which several formats go by: squeezed, gptq") as caught:
        of(specs, quant_method="gptq")
    assert caught.value.help == "let each spec's `detect` name more entries"
    assert str(of(specs, quant_method="awq")) == "awq with its defaults"


def test_a_user_s_parameter_is_read_where_it_stands(own) -> None:
    specs = own("{quant_method: squeeze}")
    assert of(specs, quant_method="squeeze", kind=1, squeeze={"kind": 0}).groups[0].stated == {"kind": "plain"}
    assert of(specs, quant_method="squeeze", kind="rich").groups[0].stated == {"kind": "rich"}


@pytest.mark.parametrize(
    ("detect", "message", "help"),
    [
        ("[{a: b}, {}]", "expected a length of at least 1 in `detect`, found 0", None),
        ("{a: []}", "expected a length of at least 1 for `a`, found 0", None),
        ("{a: 4}", "expected text for `a`, found the integer `4`", 'quote it: "4"'),
        ("{a: [x, true]}", "expected text in `a`, found `true`", 'quote it: "true"'),
        ("[a]", "expected a mapping in `detect`, found text `a`", None),
        ("a", "expected a mapping for `detect`, found text `a`", None),
        ("{a: {b: c}}", "expected text for `a`, found a mapping", None),
    ],
)
def test_a_malformed_detect_is_reported_in_its_place(detect: str, message: str, help: str | None, own) -> None:
    with pytest.raises(LayoutError) as caught:
        load_spec(own(detect)[0] + "/squeezed.yaml")
    (found,) = caught.value.diagnostics
    assert (found.message, found.help) == (message, help)
    assert found.span is not None and found.span.line == 5


# --- files ------------------------------------------------------------------------------------------------------------

WRITTEN = {
    "w4a16": "ct_int",
    "w4a16_asym": "ct_int",
    "w8a16": "ct_int",
    "actorder": "ct_int",
    "fp8": "fp8",
    "fp8_dynamic": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4a16": "nvfp4",
    "mxfp4a16": "mxfp4",
    "mxfp8a16": "mxfp8",
    "gptq": "gptq",
    "gptq_desc_act": "gptq",
}
"""The end of a fixture's name -> the format in which it is written."""

READINGS = {one.spec: one for one in (Awq, CtInt, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp8, Nvfp4)}
FOLDERS = sorted(path.parent for path in FIXTURES.glob("*/config.json"))


def written(folder: Path) -> str | None:
    return WRITTEN.get(max((end for end in WRITTEN if folder.name.endswith("_" + end)), key=len, default=""))


def stored(tensor: torch.Tensor) -> np.ndarray:
    """As the decoders take a tensor: 16-bit floats and fp8 as their bits."""
    whole = {torch.bfloat16: torch.uint16, torch.float16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    return tensor.view(whole.get(tensor.dtype, tensor.dtype)).numpy()


def test_the_fixtures_hold_every_preset_of_compressed_tensors() -> None:
    assert {written(folder) for folder in FOLDERS} >= {"ct_int", "fp8", "fp8_block", "nvfp4", "mxfp4", "mxfp8"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_files_are_worth_what_the_declared_format_says(folder: Path) -> None:
    """Each layer's tensors, read as the format that config.json declares for it, give the library's own weights."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    found = declared(config)
    table = json.loads((FIXTURES / f"{folder.name}_decompressed.json").read_text())
    assert table
    for weight, wanted in table.items():
        layer = weight.removesuffix(".weight")
        declares = found.of(layer)
        assert declares is not None and declares.spec.name == (written(folder) or declares.spec.name)
        own = {name.removeprefix(layer + "."): t for name, t in tensors.items() if name.startswith(layer + ".")}
        known = {name for key, tensor in declares.spec.tensors.items()
                 for name in (key, tensor.name, *(case.name for case in tensor.cases))}  # fmt: skip
        assert set(own) <= known
        scale = next(own[name] for name in ("weight_scale", "weight_scale_inv", "scales") if name in own)
        dtype = str(scale.dtype).removeprefix("torch.")
        name = "weight_scale" if "weight_scale" in own else "weight_scale_inv"
        params = declares.stated | {"dtype": dtype, "scale_dtype": dtype, "scale_name": name}
        n, k = wanted["shape"]
        (value,) = READINGS[declares.spec.name](params).decode(
            {name: stored(tensor) for name, tensor in own.items()}, [n], k
        )
        rounded = torch.from_numpy(value).to(getattr(torch, wanted["dtype"]))
        data = rounded.contiguous().view(torch.uint8).numpy().tobytes()
        assert hashlib.sha256(data).hexdigest() == wanted["sha256"], weight
    left = {name.removesuffix(".weight") for name in tensors if name.endswith(("head.weight", "gate.weight"))}
    assert all(found.of(layer) is None for layer in left)


def test_input_scales_of_other_dtypes_and_conventions() -> None:
    """compressed-tensors keeps FP8's input scale in the model's dtype, and one over ModelOpt's for NVFP4."""
    sizes = {"n": 32, "k": 64}
    tensors = {
        "linear.weight": torch.zeros(32, 64, dtype=torch.float8_e4m3fn),
        "linear.weight_scale": torch.ones(32, 1),
    }
    params = {"input_scale": True, "source.input_dtype": "bfloat16", "target.input_dtype": "float32"}
    plan = compile_plan("fp8", "fp8", "linear", sizes, params=params)
    tensors["linear.input_scale"] = torch.tensor(0.375, dtype=torch.bfloat16)
    assert plan.run(tensors)["linear.input_scale"].equal(torch.tensor(0.375)) and not plan.losses

    params = {"input_scale": True, "source.writer": "modelopt", "target.writer": "compressed_tensors"}
    plan = compile_plan("nvfp4", "nvfp4", "linear", sizes, params=params)
    tensors = {
        name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for name, info in plan.input.items()
    }
    tensors |= {"linear.input_scale": torch.tensor(0.125), "linear.weight_scale_2": torch.tensor(0.25)}
    for backend in ("torch", "reference"):
        made = plan.run(tensors, backend=backend)
        assert made["linear.input_global_scale"].equal(torch.tensor(8.0))
        assert made["linear.weight_global_scale"].equal(torch.tensor(4.0))
    assert [name for name, _ in plan.losses] == ["linear.weight_global_scale", "linear.input_global_scale"]
