"""`layoutdsl identify`: the format of a file of every format, told from its header; why not the others; what is open.

Files are fixtures that outside code wrote, and random ones in the shapes of every format's public definition (see
checkpoints.py), which knows nothing of layoutdsl.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Awq, CtInt, Format, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp8, Nvfp4
from safetensors.torch import save_file

from layoutdsl import LayoutError, convert
from layoutdsl.checkpoints.identify import Fit, Identified, identify
from layoutdsl.cli import main

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LAYER = "model.layers.0."
SIZES = {"self_attn.o_proj": (256, 512), "mlp.up_proj": (768, 256), "mlp.down_proj": (256, 768)}
"""layer -> n, k"""
FP8 = {"fp8": ("weight",), "fp8_block": ("weight",), "mxfp8": ("weight",), "nvfp4": ("weight_scale",)}
"""Tensors whose bytes are e4m3 numbers."""


def tensor(form: Format, name: str, array: np.ndarray) -> torch.Tensor:
    """An array of checkpoints.py as a file keeps it."""
    made = torch.from_numpy(np.asarray(array))
    if name in FP8.get(form.spec, ()):
        return made.view(torch.float8_e4m3fn)
    if array.dtype == np.uint16:
        scale = name == form.scale and form.spec in ("fp8", "fp8_block")
        return made.view(getattr(torch, form.scale_dtype if scale else form.dtype))
    return made


def drawn(form: Format, widths: list[int], k: int) -> dict[str, torch.Tensor]:
    found = form.draw(np.random.default_rng(5), widths, k)
    return {name: tensor(form, name, np.asarray(array)) for name, array in found.items()}


def saved(folder: Path, layers: dict[str, dict[str, torch.Tensor]], **others: torch.Tensor) -> Path:
    tensors = {f"{layer}.{name}": tensor for layer, own in layers.items() for name, tensor in own.items()}
    save_file({**{name: t.contiguous() for name, t in tensors.items()}, **others}, folder / "model.safetensors")
    return folder / "model.safetensors"


def model(folder: Path, form: Format, sizes: dict[str, tuple[int, int]] | None = None) -> Path:
    """A file of three layers, an embedding and a norm."""
    layers = {LAYER + layer: drawn(form, [n], k) for layer, (n, k) in (sizes or SIZES).items()}
    return saved(folder, layers, **{"embed.weight": torch.ones(8, 4), "norm.weight": torch.ones(4)})


def allows(fit: Fit, params: dict[str, Any]) -> bool:
    """Whether these are among the settings that a fit speaks of."""
    return any(
        all(
            {**fit.params, **other}.get(name, value) == value or value in fit.open.get(name, ())
            for name, value in params.items()
        )
        for other in ({}, *fit.others)
    )


def only(found: Identified, name: str) -> Fit:
    """The one fit, of that format, for all layers."""
    assert [fit.format for fit in found.fits] == [name], str(found)
    assert found.fits[0].layers == found.layers and name not in found.misses
    return found.fits[0]


# --- every format -----------------------------------------------------------------------------------------------------

FORMS = [
    Gptq({}),
    Gptq({"bits": 8, "group": 32, "dtype": "bfloat16"}),
    Gptq({"group": -1, "zero_points": True, "act_order": True}),
    Gptq({"group": 64, "qzeros": False, "g_idx": False}),
    Gptq({"group": 16, "zero_offset": 0, "bias": True}),
    Awq({}),
    Awq({"group": 32, "dtype": "bfloat16", "bias": True}),
    Awq({"group": -1}),
    CtInt({}),
    CtInt({"bits": 8, "group": 64}),
    CtInt({"zero_points": True, "group": -1, "shape_tensor": False}),
    CtInt({"bits": 8, "zero_points": True, "group": 32, "act_order": True, "dtype": "bfloat16"}),
    Fp8({}),
    Fp8({"scale": "tensor", "scale_dtype": "bfloat16", "input_scale": True}),
    Fp8Block({}),
    Fp8Block({"block_n": 64, "group": 32, "scale_name": "weight_scale", "scale_dtype": "float16"}),
    Mxfp8({}),
    Mxfp4({"writer": "compressed_tensors"}),
    Mxfp4({"writer": "gpt_oss", "bias": True}),
    Nvfp4({}),
    Nvfp4({"writer": "compressed_tensors", "bias": True}),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join([form.spec, *map(str, form.params.values())]))
def test_a_file_of_every_format(form: Format, tmp_path: Path) -> None:
    found = identify(model(tmp_path, form))
    assert (found.layers, found.shapes, found.rest) == (3, 3, 2)
    assert allows(only(found, form.spec), form.params), str(found)


@pytest.mark.parametrize(
    "form",
    [Gptq({"group": 32}), Awq({"group": 32}), CtInt({"group": 32}), Fp8Block({}), Nvfp4({})],
    ids=lambda form: form.spec,
)
def test_sizes_that_nothing_divides(form: Format, tmp_path: Path) -> None:
    fit = only(identify(model(tmp_path, form, {"a": (100, 132), "b": (120, 260)})), form.spec)
    assert allows(fit, form.params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_file_that_is_not_quantized(dtype: str, tmp_path: Path) -> None:
    layers = {LAYER + name: {"weight": torch.ones(size, dtype=getattr(torch, dtype))} for name, size in SIZES.items()}
    layers[LAYER + "mlp.up_proj"]["bias"] = torch.ones(768, dtype=getattr(torch, dtype))
    found = identify(saved(tmp_path, layers, **{"norm.weight": torch.ones(256), "inv_freq": torch.ones(64, 2)}))
    assert (found.layers, found.rest) == (3, 2)
    fit = only(found, "plain")
    assert (fit.params, fit.by_layer) == ({"dtype": dtype, "transposed": False}, ("bias",))  # the bias shows which is n
    weight = f"tensor `{LAYER}mlp.down_proj.weight` is {dtype} [256, 768], expected "
    assert found.misses["fp8"] == weight + "float8_e4m3fn"
    assert found.misses["gptq"] == f"layer `{LAYER}mlp.down_proj` has no tensor `qweight`"
    assert "dtype=bfloat16, transposed=false, bias by layer  fits all 3 layers" in str(found).replace(
        "float32", "bfloat16"
    )


def test_experts_apart_count_as_one_layer(tmp_path: Path) -> None:
    layers = {f"{LAYER}mlp.experts.{at}.{name}": drawn(CtInt({"group": 32}), [64], 128)
              for at in range(4) for name in ("gate_proj", "up_proj")}  # fmt: skip
    found = identify(saved(tmp_path, layers))
    assert (found.layers, found.shapes, found.rest) == (2, 1, 0)
    assert allows(only(found, "ct_int"), {"bits": 4, "group": 32})


@pytest.mark.parametrize(
    "form",
    [
        Gptq({"group": 32}),
        Fp8({}),
        Nvfp4({"writer": "compressed_tensors"}),
        Mxfp4({"writer": "gpt_oss", "bias": True}),
    ],
    ids=lambda form: form.spec,
)
def test_experts_in_one_tensor(form: Format, tmp_path: Path) -> None:
    """Named as gpt-oss names them: the tensor's name ends a word."""
    tensors = {}
    for name, (n, k) in {"gate_up_proj": (128, 64), "down_proj": (64, 96)}.items():
        own = drawn(form, [n], k)
        tensors |= {f"{LAYER}mlp.experts.{name}_{key}": torch.stack([tensor] * 3) for key, tensor in own.items()}
    save_file(tensors, tmp_path / "experts.safetensors")
    found = identify(tmp_path / "experts.safetensors")
    assert (found.layers, found.rest) == (2, 0)
    assert allows(only(found, form.spec), form.params)


@pytest.mark.parametrize(
    ("form", "widths"),
    [
        (Fp8({"scale": "part"}), [64, 32, 32]),
        (Fp8({"scale": "part"}), [96, 96]),
        (Nvfp4({"global_scale": "part"}), [64, 64]),
        (Fp8Block({}), [256, 128, 128]),
        (Mxfp8({}), [64, 64]),
    ],
)
def test_parts_in_one_tensor(form: Format, widths: list[int], tmp_path: Path) -> None:
    layers = {f"{LAYER}{at}.qkv_proj": drawn(form, widths, k) for at, k in enumerate((256, 512))}
    assert allows(only(identify(saved(tmp_path, layers)), form.spec), form.params)


WRITTEN = {
    "llama_w4a16_asym": ("ct_int", {"bits": 4, "group": 128, "zero_points": True, "dtype": "float16"}),
    "llama_w8a16": ("ct_int", {"bits": 8, "group": 128, "zero_points": False, "dtype": "bfloat16"}),
    "llama_fp8": ("fp8", {"scale": "tensor", "input_scale": True, "input_dtype": "bfloat16"}),
    "llama_fp8_dynamic": ("fp8", {"scale": "channel", "scale_dtype": "bfloat16"}),
    "llama_fp8_block": ("fp8_block", {"group": 128, "block_n": 128, "scale_name": "weight_scale"}),
    "llama_nvfp4a16": ("nvfp4", {"writer": "compressed_tensors"}),
    "llama_mxfp4a16": ("mxfp4", {"writer": "compressed_tensors"}),
    "llama_mxfp8a16": ("mxfp8", {}),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_library_wrote(name: str) -> None:
    found = identify(FIXTURES / name / "model.safetensors")
    spec, params = WRITTEN[name]
    fit = only(found, spec)
    assert found.layers == 7 and allows(fit, params) and fit.params.items() >= params.items()


# --- what the file does not say ---------------------------------------------------------------------------------------


def test_what_is_open_is_said(tmp_path: Path) -> None:
    found = identify(model(tmp_path, Gptq({})))
    assert str(found).splitlines()[1:5] == [
        "gptq  bits=4, group=128, dtype=float16, qzeros=true, g_idx=true  fits all 3 layers",
        "      zero_points=false or true: the file does not say",
        "      zero_offset=1 or 0: the file does not say",
        "      act_order=false or true: the file does not say",
    ]


def test_bits_and_group_go_together(tmp_path: Path) -> None:
    """Words of 8 codes of 4 bits look like words of 4 codes of 8 bits for half the inputs."""
    fit = only(identify(model(tmp_path, CtInt({"shape_tensor": False}))), "ct_int")
    assert fit.params["bits"] == 4 and fit.params["group"] == 128 and fit.others == ({"bits": 8, "group": 64},)
    fit = only(identify(model(tmp_path, CtInt({"bits": 8}))), "ct_int")
    assert fit.params["bits"] == 8 and fit.others == ({"bits": 4, "group": 256},)


def test_a_group_as_long_as_the_layer_may_be_longer(tmp_path: Path) -> None:
    fit = only(identify(model(tmp_path, Awq({}), {"a": (64, 128)})), "awq")
    assert set(fit.open["group"]) == {128, 256, 512, 1024, -1}
    fit = only(identify(model(tmp_path, Awq({}), {"a": (64, 128), "b": (64, 256)})), "awq")
    assert fit.params["group"] == 128


# --- files of several formats, files of none --------------------------------------------------------------------------


def test_layers_of_several_formats(tmp_path: Path) -> None:
    layers = {f"a.{at}": drawn(CtInt({}), [256], 256) for at in range(3)}
    layers |= {f"b.{at}": drawn(Fp8({}), [256], 256) for at in range(2)}
    found = identify(saved(tmp_path, layers))
    assert [(fit.format, fit.layers) for fit in found.fits] == [("ct_int", 3), ("fp8", 2)] and not found.odd
    assert "fits 3 of 5 layers" in str(found) and "fits 2 of 5 layers" in str(found)


def test_layers_of_several_parameters(tmp_path: Path) -> None:
    layers = {f"a.{at}": drawn(Gptq({"bits": 4}), [256], 256) for at in range(2)}
    layers |= {"b": drawn(Gptq({"bits": 8, "group": 32}), [256], 256)}
    found = identify(saved(tmp_path, layers))
    assert [(fit.params["bits"], fit.params["group"], fit.layers) for fit in found.fits] == [(4, 128, 2), (8, 32, 1)]


def test_a_layer_that_fits_none_is_named(tmp_path: Path) -> None:
    layers = {f"a.{at}": drawn(Gptq({}), [256], 256) for at in range(3)}
    del layers["a.1"]["scales"]
    layers["a.2"]["scales"] = torch.ones(7, 256, dtype=torch.float16)
    found = identify(saved(tmp_path, layers))
    assert [fit.layers for fit in found.fits] == [1]
    lacking = "layer `a.1` has no tensor `scales`"
    assert lacking in found.odd and "tensor `a.2.scales` is float16 [7, 256], expected [2, 256]" in " ".join(found.odd)
    assert f"fits none: {lacking}" in str(found).splitlines()


def test_the_nearest_miss(tmp_path: Path) -> None:
    own = drawn(Gptq({"bias": True}), [256], 256)
    found = identify(
        saved(tmp_path, {"a": {**own, "scales": own["scales"].float()}, "norm": {"weight": torch.ones(4)}})
    )
    assert not found.fits and not found.odd
    assert found.misses["gptq"] == "tensor `a.scales` is float32 [2, 256], expected float16"  # as the bias is
    assert found.misses["ct_int"] == "layer `a` has no tensor `weight_packed`"

    found = identify(saved(tmp_path, {"a": {**own, "lora": torch.ones(4)}}))
    assert found.misses["gptq"] == "tensor `a.lora` has no place in it"
    found = identify(saved(tmp_path, {"a": {**own, "bias": torch.ones(8, dtype=torch.float16)}}))
    assert found.misses["gptq"].startswith("tensor `a.bias` is float16 [8], expected [256] with ")
    assert "group=128" in found.misses["gptq"]


def test_a_file_without_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, {"norm": {"weight": torch.ones(4)}}, inv_freq=torch.ones(2, 2))
    assert main(["identify", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}: 0 layers, 2 other tensors"
    assert lines[1] == "not awq: no tensor has the name of its codes"


def test_an_empty_tensor_is_no_fault(tmp_path: Path) -> None:
    own = drawn(Gptq({}), [256], 256)
    found = identify(saved(tmp_path, {"a": {**own, "qweight": torch.ones(0, 256, dtype=torch.int32)}}))
    assert not found.fits and "`a.qweight` is int32 [0, 256], which no n" in found.misses["gptq"]
    found = identify(saved(tmp_path, {"a": {**own, "qweight": torch.ones((), dtype=torch.int32)}}))
    assert not found.fits


# --- the command ------------------------------------------------------------------------------------------------------

MLC = """\
version: "1"
checkpoint: mlc_q4f16
doc: MLC-LLM's q4f16_1 weights
source: mlc_llm/quantization/group_quantization.py
params: {group: [32]}
tensors:
  q_weight: {role: codes, dtype: uint32, code: u4b7, split: "k = g w:(group/8) kp:8", order: "n, g w {kp}"}
  q_scale: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "n, g (gi)"}
value: "q_weight * q_scale"
try: [{n: 64, k: 260}]
"""


def test_a_format_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = {f"a.{n}": {"q_weight": torch.ones(n, 36, dtype=torch.uint32), "q_scale": torch.ones(n, 9).half()}
              for n in (64, 96)}  # fmt: skip
    path = saved(tmp_path, layers)
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "mlc_q4f16.yaml").write_text(MLC)
    assert main(["identify", str(path), "--specs", str(tmp_path / "formats")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{path}: 2 layers (in 2 shapes), 0 other tensors", "mlc_q4f16  fits all 2 layers"]
    assert main(["identify", str(path)]) == 1
    assert " fits" not in capsys.readouterr().out


def test_the_command_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = FIXTURES / "linear_actorder" / "model.safetensors"
    assert main(["identify", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: 1 layer (in 1 shape), 0 other tensors",
        "ct_int  bits=4, group=128, dtype=bfloat16, zero_points=false, act_order=true, shape_tensor=true  "
        "fits the one layer",
        "not awq: layer `linear` has no tensor `qweight`",
        "not fp8: layer `linear` has no tensor `weight`",
        "not fp8_block: layer `linear` has no tensor `weight`",
        "not gptq: layer `linear` has no tensor `qweight`",
        "not mxfp4: tensor `linear.weight_packed` is int32 [128, 64], expected uint8",
        "not mxfp8: layer `linear` has no tensor `weight`",
        "not nvfp4: tensor `linear.weight_packed` is int32 [128, 64], expected uint8",
        "not plain: layer `linear` has no tensor `weight`",
    ]


def test_what_is_no_whole_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (FIXTURES / "linear_actorder" / "model.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for data, match in ((whole[:-1], "is truncated"), (whole[:20], "truncated or no safetensors"), (b"", "truncated"),
                        (json.dumps({}).encode() * 8, "truncated")):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(LayoutError, match=match):
            identify(path)
        assert main(["identify", str(path)]) == 1
        assert "LP213 bad-safetensors" in capsys.readouterr().err
    with pytest.raises(LayoutError, match="cannot be read: no such file"):
        identify(tmp_path / "none.safetensors")
    with pytest.raises(LayoutError, match="is no regular file"):
        identify(tmp_path)


def test_a_file_of_our_own_says_what_it_is(tmp_path: Path) -> None:
    convert(FIXTURES / "qwen3_moe_w4a16", tmp_path / "out", tp=2)
    found = identify(tmp_path / "out" / "rank-1" / "model.safetensors")
    assert not found.fits
    assert str(found).splitlines()[1] == "written by layoutdsl convert: rank 1 of 2, for marlin_int4_a16"
