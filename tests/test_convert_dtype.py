"""The kernel multiplies activations of the model's dtype, so its scales are of that dtype in every layer."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from converted import FIXTURES
from safetensors.torch import load_file

from layoutdsl import convert, load
from layoutdsl.checkpoints.verify import verify


def model(name: str, to: Path, **config: object) -> Path:
    shutil.copytree(FIXTURES / name, to)
    (to / "config.json").write_text(json.dumps(json.loads((to / "config.json").read_text()) | config))
    return to


def scales(folder: Path) -> set[torch.dtype]:
    found = load_file(folder / "rank-0" / "model.safetensors")
    return {tensor.dtype for name, tensor in found.items() if name.endswith("weight_scale")}


@pytest.mark.parametrize("stated", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama_fp8", "llama_fp8_dynamic", "qwen3_moe_fp8_block", "qwen3_moe_w4a16"])
def test_the_models_dtype_is_the_kernels(name: str, stated: str, tmp_path: Path) -> None:
    src = model(name, tmp_path / "model", dtype=stated)
    convert(src, tmp_path / "out", tp=2)
    assert scales(tmp_path / "out") == {getattr(torch, stated)}
    verify(tmp_path / "out", against=src)
    made = {tensor.dtype for name, tensor in load(src) if name.endswith("weight_scale")}
    assert made == {getattr(torch, stated)}


def test_another_dtype_can_be_asked_for(tmp_path: Path) -> None:
    src = FIXTURES / "llama_fp8"
    convert(src, tmp_path / "out", tp=2, dtype="float16")
    assert scales(tmp_path / "out") == {torch.float16}
    assert {t.dtype for name, t in load(src, dtype="float16") if name.endswith("weight_scale")} == {torch.float16}


def test_the_older_spelling_counts_as_well(tmp_path: Path) -> None:
    src = model("llama_fp8", tmp_path / "model", dtype=None, torch_dtype="torch.float16")
    convert(src, tmp_path / "out")
    assert scales(tmp_path / "out") == {torch.float16}


def test_nvfp4_keeps_every_scale_with_float16(tmp_path: Path) -> None:
    done = convert(FIXTURES / "llama_nvfp4a16", tmp_path / "out", dtype="float16")
    assert not any("become 0" in text for row in done.rows for plan in row.plans for _, text in plan.losses)


def test_the_backend_that_defines_the_result_converts_too(tmp_path: Path) -> None:
    for backend in ("torch", "reference"):
        convert(FIXTURES / "llama_w4a16_asym", tmp_path / backend, tp=2, backend=backend)
    for rank in ("rank-0", "rank-1"):
        one, other = (
            (tmp_path / backend / rank / "model.safetensors").read_bytes() for backend in ("torch", "reference")
        )
        assert one == other
