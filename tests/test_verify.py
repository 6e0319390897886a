"""`layoutdsl verify`: what convert writes passes, and whatever is changed in it afterwards is found and named."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from converted import FIXTURES
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from layoutdsl import LayoutError, convert
from layoutdsl.checkpoints.verify import Verified, verify
from layoutdsl.cli import main

CASES = (
    ("llama_w4a16", 2, 1),
    ("llama_fp8", 2, 1),  # with input scales
    ("llama_gptq_desc_act", 2, 1),
    ("llama_nvfp4a16", 1, 1),
    ("qwen3_moe_w4a16_asym", 2, 2),
    ("qwen3_moe_mxfp4a16", 4, 1),
    ("llama_gptq_desc_act", 3, 1),
    ("llama_fp8_block", 8, 1),  # more ranks than key-value heads, whose heads cut blocks
    ("llama_fp8", 16, 1),  # ranks without a head
)
FILE = "model.safetensors"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@lru_cache
def kept(name: str, tp: int, ep: int, root: Path) -> Path:
    """A converted fixture; nothing may change it."""
    convert(FIXTURES / name, root / "model", tp=tp, ep=ep)
    return root / "model"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("verify")


@pytest.fixture
def made(root, tmp_path) -> Callable[[str, int, int], Path]:
    """A converted fixture to play with."""

    def fresh(name: str, tp: int = 1, ep: int = 1) -> Path:
        shutil.copytree(kept(name, tp, ep, root / f"{name}-{tp}-{ep}"), tmp_path / "model")
        return tmp_path / "model"

    return fresh


def changed(path: Path, change: Callable[[dict, dict], object]) -> None:
    """One rank's file with other tensors or metadata."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def refusal(dst: Path, name: str) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        verify(dst, against=FIXTURES / name)
    return caught.value


@pytest.mark.parametrize(("name", "tp", "ep"), CASES)
def test_what_convert_writes_is_verified(name: str, tp: int, ep: int, made) -> None:
    report = verify(made(name, tp, ep), against=FIXTURES / name)
    assert report.ranks == tuple(range(tp * ep)) and report.of == tp * ep
    assert report.weights > 390_000 and report.copies
    assert bool(report.lossy) == ("nvfp4" in name or "mxfp4" in name)
    assert bool(report.others) == (name in ("llama_fp8", "llama_gptq_desc_act"))


@pytest.mark.parametrize(("name", "tp", "ep"), CASES[:-1])
def test_every_flip_in_a_file_is_found(name: str, tp: int, ep: int, made) -> None:
    """One bit of one tensor, anywhere: the message has the rank and the unit or the tensor."""
    dst = made(name, tp, ep)
    dice = random.Random(name)
    for number in range(tp * ep):
        path = dst / f"rank-{number}" / FILE
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for _ in range(2):
            at = dice.randrange(start, len(data))
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1 << dice.randrange(8)]))
            error = refusal(dst, name)
            assert error.message.startswith((f"rank {number}, `model.", f"rank {number}: `")), error
            path.write_bytes(data)
    verify(dst, against=FIXTURES / name)


def test_a_difference_is_told_with_rank_unit_tensor_and_place(made) -> None:
    dst = made("qwen3_moe_w4a16_asym", 2, 2)

    def swap(tensors: dict, _: dict) -> None:
        scale = tensors["model.layers.0.mlp.experts.w2.weight_scale"]
        scale[1, 0, [0, 1]] = scale[1, 0, [1, 0]]

    changed(dst / "rank-3" / FILE, swap)
    error = refusal(dst, "qwen3_moe_w4a16_asym")
    assert error.message.startswith("rank 3, `model.layers.0.mlp.experts`: `w2.weight_scale` at expert 3, n 0, k 256: ")
    assert error.message.endswith("values differ") and error.diagnostics[0].code == "LP222"


def test_one_rank_alone_and_some_of_them(made, tmp_path) -> None:
    dst = made("llama_w4a16", 4)
    source = FIXTURES / "llama_w4a16"
    assert verify(dst / "rank-2", against=source).ranks == (2,)
    shutil.rmtree(dst / "rank-1")
    report = verify(dst, against=source)
    assert report.ranks == (0, 2, 3) and str(report).startswith("verified ranks 0,2..3 of 4: ")
    convert(source, tmp_path / "one", tp=4, rank=1)
    assert verify(tmp_path / "one", against=source).ranks == (1,)


def test_another_ranks_head_is_found(made) -> None:
    """Ranks 0 and 1 share a key-value head, 2 and 3 the next one; a file says which rank it is of."""
    dst = made("llama_w4a16", 8)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    other = load_file(dst / "rank-2" / FILE)[name]
    changed(dst / "rank-1" / FILE, lambda tensors, _: tensors.update({name: other}))
    assert "rank 1, `model.layers.0.self_attn.qkv_proj`: `qkv.weight" in refusal(dst, "llama_w4a16").message


MAP = (0, 1, 2, 3, 3, 0)


def test_experts_of_a_map(tmp_path) -> None:
    """Six places for four experts on four ranks: each rank must have those that the file's map gives it."""
    name, dst = "qwen3_moe_w4a16_asym", tmp_path / "model"
    done = convert(FIXTURES / name, dst, tp=2, ep=2, experts=MAP)
    assert "6 places for 4 experts" in str(done)
    report = verify(dst, against=FIXTURES / name)
    assert report.weights > verify(dst / "rank-0", against=FIXTURES / name).weights > 300_000
    w2 = load_file(dst / "rank-2" / FILE)["model.layers.0.mlp.experts.w2.weight"]
    assert torch.equal(w2[0], w2[1]) and not torch.equal(w2[0], w2[2])

    def swap(tensors: dict, _: dict) -> None:
        w2 = tensors["model.layers.0.mlp.experts.w2.weight"]
        w2[[0, 2]] = w2[[2, 0]]

    changed(dst / "rank-2" / FILE, swap)
    assert "rank 2, `model.layers.0.mlp.experts`: `w2.weight` at expert 3, n 0" in refusal(dst, name).message
    changed(dst / "rank-2" / FILE, swap)
    verify(dst, against=FIXTURES / name)
    changed(dst / "rank-2" / FILE, lambda _, metadata: metadata.update({"layoutdsl.experts": "[0, 1, 2, 3, 0, 3]"}))
    assert "have different maps of experts" in refusal(dst, name).message
    error = refusal(dst / "rank-2", name)
    assert "the plan of `model.layers.0.mlp.experts` has experts (3, 3, 0), the checkpoint (3, 0, 3)" in error.message
    changed(dst / "rank-2" / FILE, lambda _, metadata: metadata.pop("layoutdsl.experts"))
    assert "has places for experts 6, the checkpoint 0" in refusal(dst / "rank-2", name).message


def test_copied_tensors_are_compared(made) -> None:
    dst = made("llama_w4a16", 2)
    changed(dst / "rank-1" / FILE, lambda tensors, _: tensors["model.norm.weight"].add_(1))
    assert refusal(dst, "llama_w4a16").message.startswith("rank 1: `model.norm.weight` differs from the source in ")
    changed(dst / "rank-1" / FILE, lambda t, _: t.update({"model.norm.weight": t["model.norm.weight"].float()}))
    assert "`model.norm.weight` is float32 [256], in the source it is " in refusal(dst, "llama_w4a16").message


def test_missing_and_foreign_tensors_are_named(made) -> None:
    dst = made("llama_w4a16", 2)
    name = "model.layers.1.mlp.down_proj.weight_scale"
    changed(dst / "rank-0" / FILE, lambda tensors, _: tensors.pop(name))
    assert refusal(dst, "llama_w4a16").message == f"rank 0: tensor `{name}` is missing"
    dst = dst.rename(dst.with_name("other"))
    changed(dst / "rank-1" / FILE, lambda tensors, _: tensors.update(more=torch.zeros(1)))
    changed(dst / "rank-0" / FILE, lambda tensors, _: tensors.update({name: torch.zeros(2, 256)}))
    assert "`down.weight_scale` is float32 [2, 256], expected " in _without_more(dst).message


@pytest.mark.parametrize("alone", [False, True])
def test_a_second_file_of_a_rank_is_named(alone: bool, made) -> None:
    """A loader that takes every file of a folder would have its tensors."""
    dst = made("llama_w4a16", 2)
    other = dst / "rank-1" / "other.safetensors"
    shutil.copyfile(dst / "rank-1" / FILE, other)
    error = refusal(dst / "rank-1" if alone else dst, "llama_w4a16")
    assert error.message.startswith(f"rank 1: `{other}` stands beside {FILE}: ") and error.help
    assert error.diagnostics[0].code == "LP216"
    other.unlink()
    verify(dst, against=FIXTURES / "llama_w4a16")


def _without_more(dst: Path) -> LayoutError:
    error = refusal(dst, "llama_w4a16")
    assert error.message == "rank 1: tensor `more` is of no unit and not copied"
    changed(dst / "rank-1" / FILE, lambda tensors, _: tensors.pop("more"))
    return refusal(dst, "llama_w4a16")


def test_a_plan_of_another_rank_or_checkpoint_is_refused(made) -> None:
    dst = made("llama_w4a16", 2)
    rest = dst / "rank-1"
    changed(rest / FILE, lambda _, metadata: metadata.update({"layoutdsl.rank": "0"}))
    assert f"`{rest}` holds rank 0 of 2 x 1" in refusal(dst, "llama_w4a16").message
    assert (
        "rank 0 was not made of this checkpoint: the plan of `model.layers.0." in refusal(rest, "llama_w4a16").message
    )
    config = rest / "config.json"
    shutil.copyfile(FIXTURES / "llama_w8a16" / "config.json", config)
    assert f"`{config}` is not that of the source" in refusal(rest, "llama_w4a16").message
    assert "rank 0 was not made of this checkpoint: " in refusal(rest, "llama_w8a16").message


def test_a_plan_that_breaks_a_law_is_refused(made) -> None:
    dst = made("llama_w4a16")

    def edit(_: dict, metadata: dict) -> None:
        key = next(key for key in metadata if key.startswith("layoutdsl.plan."))
        plan = json.loads(metadata[key])
        plan["programs"][0]["moves"][0]["k"][0]["src"] += 1
        metadata[key] = json.dumps(plan)

    changed(dst / "rank-0" / FILE, edit)
    assert "the plan breaks the law `meaning`" in refusal(dst, "llama_w4a16").message


def test_a_folder_that_convert_has_not_written(made, tmp_path) -> None:
    assert "holds neither model.safetensors nor a folder rank-0" in refusal(tmp_path, "llama_w4a16").message
    dst = made("llama_w4a16")
    for key, value in (("units", "[]"), ("units", '{"a": "b"}'), ("tp", "two")):
        changed(dst / "rank-0" / FILE, lambda _, metadata, at=key, to=value: metadata.update({f"layoutdsl.{at}": to}))
        assert "do not say by which plans it was made" in refusal(dst, "llama_w4a16").message


def test_units_must_be_those_of_the_source(made) -> None:
    dst = made("llama_w4a16")

    def drop(_: dict, metadata: dict) -> None:
        units = json.loads(metadata["layoutdsl.units"])
        del units["model.layers.1.mlp"]
        metadata["layoutdsl.units"] = json.dumps(units)

    changed(dst / "rank-0" / FILE, drop)
    assert "unit `model.layers.1.mlp` is in `the source` and not in" in refusal(dst, "llama_w4a16").message


def test_the_command(made, capsys) -> None:
    dst = made("llama_nvfp4a16")
    source = str(FIXTURES / "llama_nvfp4a16")
    assert main(["verify", str(dst), "--against", source]) == 0
    lines = capsys.readouterr().out.splitlines()
    what = "393,216 weights equal the source's but for the losses below, 5 copied tensors are equal, "
    assert lines[0].startswith(f"verified rank 0 of 1: {what}")
    assert lines[1].startswith(
        "loss: block scales under 2^-13 of the largest become 0; the run counts them: none found"
    )
    assert "2^-24 of the scale: 3.7e-08 of a value at most: model.layers.0.self_attn.qkv_proj, " in lines[2]
    changed(dst / "rank-0" / FILE, lambda t, _: t["model.layers.0.mlp.down_proj.weight"].bitwise_xor_(1))
    assert main(["verify", str(dst), "--against", source]) == 1
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("LP222 value-differs: rank 0, `model.layers.0.mlp`: `down.weight` ")


def test_the_report_says_what_there_was() -> None:
    report = Verified((1,), 4, weights=1000, others=7, pads=2048, copies=0)
    assert str(report) == (
        "verified rank 1 of 4: 1,000 weights and 7 values beside them equal the source's, 2,048 pads are neutral, "
        "0.00 s\nnot there: rank 0,2..3"
    )
