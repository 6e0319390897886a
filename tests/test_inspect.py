"""`layoutdsl inspect`: what a checkpoint is and what would become of it, from config.json and headers alone."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from layoutdsl import LayoutError
from layoutdsl.checkpoints.inspect import inspect
from layoutdsl.cli import main

FIXTURES = Path(__file__).resolve().parent / "fixtures"
MOE = FIXTURES / "qwen3_moe_w4a16"


def test_all_of_it_stands_in_the_answer() -> None:
    found = inspect(MOE, tp=4)
    assert not found.refused
    assert {line.jobs[0].unit.key: (len(line.jobs), line.cells()[3]) for line in found.lines} == {
        "qkv": (2, "marlin_int4_a16"),
        "o": (2, "marlin_int4_a16"),
        "router": (2, "as it is"),
        "experts": (2, "marlin_int4_a16"),
    }
    sizes = {line.jobs[0].unit.key: line.cells()[2] for line in found.lines}
    assert sizes["qkv"] == "q 8 · kv 4 · d 64 · h 128" and sizes["o"] == "q 8 · d 64 · h 128"
    text = str(found)
    assert "Qwen3MoeForCausalLM, 109 tensors" in text and "3 files" in text
    assert "format: group_0: ct_int with bits=4, group=128" in text
    assert "left as they were: lm_head" in text
    size = sum(path.stat().st_size for path in MOE.glob("*.safetensors"))
    assert sum(entry.size for job in found.source.work.jobs for entry in job.entries) < size


def test_no_weight_is_read(tmp_path: Path) -> None:
    """Every byte of a weight is 0xff here."""
    for path in MOE.iterdir():
        data = path.read_bytes()
        if path.suffix == ".safetensors":
            header = 8 + int.from_bytes(data[:8], "little")
            data = data[:header] + b"\xff" * (len(data) - header)
        (tmp_path / path.name).write_bytes(data)
    assert str(inspect(tmp_path)).partition("\n")[2] == str(inspect(MOE)).partition("\n")[2]


def test_what_cannot_be_converted_is_said_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(MOE), "--ep", "8"]) == 1
    out = capsys.readouterr().out
    why = "axis `e` has 4 experts, too few for 8 expert-parallel ranks"
    assert f"not converted: model.layers.{{0..1}}.mlp.experts: {why}; `--tp 2 --ep 4` works" in out
    assert "on each of" not in out
    assert main(["inspect", str(MOE), "--tp", "8"]) == 0
    assert "on each of 8 ranks" in capsys.readouterr().out
    assert main(["inspect", str(MOE), "--tp", "4", "--to", "marlin_int8_a16"]) == 1
    assert capsys.readouterr().out.count("not converted: ") == 3  # each kind of quantized unit, not the router


def test_an_unquantized_model_has_nothing_to_convert(tmp_path: Path) -> None:
    config = json.loads((MOE / "config.json").read_text())
    del config["quantization_config"]
    tensors = {key: t for path in MOE.glob("*.safetensors") for key, t in load_file(path).items()}
    plain = {key: t for key, t in tensors.items() if not key.endswith(("_packed", "_scale", "_shape"))}
    for key, t in tensors.items():
        if key.endswith("weight_shape"):
            plain[key.replace("weight_shape", "weight")] = plain["model.norm.weight"].new_zeros(t.tolist())
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(plain, tmp_path / "model.safetensors")
    found = inspect(tmp_path, tp=2)
    assert {line.cells()[3] for line in found.lines} == {"as it is"}
    assert "format" not in str(found).splitlines()[1]


def test_a_broken_folder_is_refused(tmp_path: Path) -> None:
    shutil.copytree(MOE, tmp_path / "model")
    (tmp_path / "model" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(LayoutError, match=r"model-00002-of-00003\.safetensors"):
        inspect(tmp_path / "model")
