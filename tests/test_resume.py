"""A conversion that goes on where another has ended: from the same files, by the same plans, with what is there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, ROOT, same
from safetensors.torch import load_file
from test_convert_failures import files, written

from layoutdsl import LayoutError, convert, load
from layoutdsl.checkpoints import making, pipeline, storing, units
from layoutdsl.checkpoints.folder import read_header
from layoutdsl.checkpoints.load import planned

NAME = "qwen3_moe_w4a16"


@pytest.fixture
def src(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(units, "SIZE", 4096)
    return Path(shutil.copytree(FIXTURES / NAME, tmp_path / "src"))


@pytest.fixture
def stopped(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output of which all is finished but for the copies."""
    with monkeypatch.context() as patch:
        read, run = making.Making.read, pipeline.Pipeline.run

        def refused(self: making.Making, work: Any) -> Any:
            if isinstance(work, units.Copy):
                raise RuntimeError("no further")
            return read(self, work)

        def copies_last(self: pipeline.Pipeline, works: Any) -> Any:
            return run(self, sorted(works, key=lambda work: isinstance(work, units.Copy)))

        patch.setattr(making.Making, "read", refused)
        patch.setattr(pipeline.Pipeline, "run", copies_last)
        with pytest.raises(RuntimeError):
            convert(src, tmp_path / "out", tp=2)
    return tmp_path / "out"


def expected(src: Path, folder: Path) -> dict[str, bytes]:
    convert(src, folder, tp=2)
    return files(folder)


def test_experts_are_units(src: Path) -> None:
    """The small ones of this model each; its attention and gates as they are."""
    names = [unit.name for unit in planned(src, tp=2).units if "experts" in unit.name]
    assert names == [f"model.layers.{at}.mlp.experts, expert {expert}" for at in range(2) for expert in range(4)]


def test_what_is_finished_is_not_made_again(src: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = expected(src, stopped.parent / "whole")
    redone = written(monkeypatch)
    convert(src, stopped, tp=2)
    assert files(stopped) == whole
    assert redone == [work.name for work in planned(src, tp=2).units if isinstance(work, units.Copy)]
    assert sorted(path.name for path in stopped.parent.iterdir()) == ["out", "src", "whole"]


def test_a_changed_file_is_read_anew(src: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its units alone; whatever its times say, if one of them differs."""
    path = sorted(src.glob("*.safetensors"))[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    seen = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    whole = expected(src, stopped.parent / "whole")
    redone = written(monkeypatch)
    convert(src, stopped, tp=2)
    works = planned(src, tp=2).units
    assert files(stopped) == whole
    assert set(redone) == {work.name for work in works if path.name in work.files or isinstance(work, units.Copy)}
    assert len(redone) < len(works)


def test_bytes_that_are_not_those_recorded_are_made_again(src: Path, stopped: Path, monkeypatch: Any) -> None:
    whole = expected(src, stopped.parent / "whole")
    path = stopped.parent / ".out.partial" / "out" / "rank-1" / storing.FILE
    begin = read_header(path)[0]["model.layers.1.mlp.experts.w13.weight"].start
    data = bytearray(path.read_bytes())
    data[begin] ^= 1
    path.write_bytes(data)
    redone = written(monkeypatch)
    convert(src, stopped, tp=2)
    assert files(stopped) == whole
    assert [name for name in redone if "experts" in name] == ["model.layers.1.mlp.experts, expert 0"]


@pytest.mark.parametrize("keep", [0, 1, 2, 40, -1, -30])
def test_a_torn_journal(keep: int, src: Path, stopped: Path) -> None:
    whole = expected(src, stopped.parent / "whole")
    journal = stopped.parent / ".out.partial" / "journal"
    journal.write_bytes(journal.read_bytes()[:keep])
    convert(src, stopped, tp=2)
    assert files(stopped) == whole


def test_other_arguments_are_refused(src: Path, stopped: Path) -> None:
    before = files(stopped.parent / ".out.partial")
    for options, told in (({"tp": 4}, "tp 2, now 4"), ({"tp": 2, "to": "marlin_int4_a8fp8"}, "kernels ")):
        with pytest.raises(LayoutError, match=rf"what another conversion finished: {told}") as caught:
            convert(src, stopped, **options)
        assert caught.value.diagnostics[0].code == "LP225" and "--restart" in str(caught.value.help)
    assert files(stopped.parent / ".out.partial") == before and not stopped.exists()
    convert(src, stopped, tp=4, restart=True)
    convert(src, stopped.parent / "whole", tp=4)
    assert files(stopped) == files(stopped.parent / "whole")


def test_a_restart_makes_all_anew(src: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redone = written(monkeypatch)
    convert(src, stopped, tp=2, restart=True)
    assert len(redone) == len(planned(src, tp=2).units)


HOLDING = """
import sys
from layoutdsl import convert
from layoutdsl.checkpoints import storing
put = storing.Store.put
def waiting(self, work, made):
    print("there", flush=True)
    sys.stdin.readline()
    storing.Store.put = put
    return put(self, work, made)
storing.Store.put = waiting
convert(sys.argv[1], sys.argv[2])
"""


@pytest.mark.skipif(os.name == "nt", reason="no flock")
def test_two_conversions_into_one_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(FIXTURES / NAME), str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin is not None and child.stdout is not None and child.stdout.readline() == "there\n"
        for options in ({}, {"restart": True}):
            with pytest.raises(LayoutError, match=r"another process is making `.*out`") as caught:
                convert(FIXTURES / NAME, tmp_path / "out", **options)
            assert caught.value.diagnostics[0].code == "LP226"
        child.communicate("go on\n" * 9)
    assert child.returncode == 0 and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_source_that_changes_meanwhile(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sorted(src.glob("*.safetensors"))[0]
    put = storing.Store.put

    def touching(self: storing.Store, work: Any, made: Any) -> Any:
        os.utime(path)
        return put(self, work, made)

    with monkeypatch.context() as patch:
        patch.setattr(storing.Store, "put", touching)
        with pytest.raises(LayoutError, match="was changed while it was read"):
            convert(src, tmp_path / "out", tp=2)
    convert(src, tmp_path / "out", tp=2)
    assert files(tmp_path / "out") == expected(src, tmp_path / "whole")


# ---------------------------------------------------------------- units, in every way that they are divided


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen3_moe_w4a16_asym", {"tp": 2, "ep": 2}),
        ("qwen3_moe_w4a16_asym", {"ep": 3, "experts": (0, 1, 2, 3, 3, 0)}),
        ("qwen3_moe_w4a16", {"ep": 3, "experts": (2, 0, 2, 3, 1, 0)}),
        ("qwen3_moe_nvfp4a16", {"tp": 2}),
        ("qwen3_moe_w4a16", {"tp": 2, "to": "marlin_int4_a8int8"}),  # one scale for all experts: they stay together
    ],
    ids=str,
)
def test_small_units_make_what_large_ones_make(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(FIXTURES / name, tmp_path / "large", **options)
    monkeypatch.setattr(units, "SIZE", 4096)
    convert(FIXTURES / name, tmp_path / "small", **options)
    assert files(tmp_path / "small") == files(tmp_path / "large")
    rank = options.get("tp", 1) * options.get("ep", 1) - 1
    stored = load_file(tmp_path / "large" / f"rank-{rank}" / "model.safetensors")
    load_options = {("target" if key == "to" else key): value for key, value in options.items()}
    same(dict(load(FIXTURES / name, rank=rank, **load_options)), stored)
    into = {key: torch.full_like(tensor, 1) for key, tensor in stored.items()}
    places = {key: tensor.data_ptr() for key, tensor in into.items()}
    given = dict(load(FIXTURES / name, rank=rank, into=into, **load_options))
    same(into, stored)
    assert {key: tensor.data_ptr() for key, tensor in given.items()} == places


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda into: into.pop("model.norm.weight"), "`into` lacks `model.norm.weight`"),
        (lambda into: into.update(other=torch.ones(1)), "`into` has `other`"),
        (lambda into: into.update({"model.norm.weight": torch.ones(3)}), r"is float32 \[3\], expected bfloat16"),
        (lambda into: into.update({"model.norm.weight": 3}), "of `into` is of type int"),
    ],
)
def test_storage_that_is_not_the_ranks(change: Any, told: str) -> None:
    into = {name: torch.empty_like(tensor) for name, tensor in load(FIXTURES / NAME, tp=2, rank=1)}
    change(into)
    with pytest.raises(LayoutError, match=told):
        load(FIXTURES / NAME, tp=2, rank=1, into=into)


def test_another_checkpoint_of_the_same_name(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of it is never taken for the one that was looked at, also where that one is back in the end."""
    other = Path(shutil.copytree(src, tmp_path / "other"))
    for path in other.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    link = tmp_path / "current"
    link.symlink_to("src")
    read = making.Making.read

    def swapped(self: making.Making, work: Any) -> Any:
        link.unlink()
        link.symlink_to("other")
        try:
            return read(self, work)
        finally:
            link.unlink()
            link.symlink_to("src")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "READERS", 1)
        patch.setattr(making.Making, "read", swapped)
        for use in (lambda: convert(link, tmp_path / "out", tp=2), lambda: list(load(link))):
            with pytest.raises(LayoutError, match="was changed while it was read") as caught:
                use()
            assert caught.value.diagnostics[0].code == "LP213"
    convert(link, tmp_path / "out", tp=2)
    assert files(tmp_path / "out") == expected(src, tmp_path / "whole")


def test_a_config_that_changes_meanwhile(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = storing.Store.put

    def replacing(self: storing.Store, work: Any, made: Any) -> Any:
        (src / "config.json").write_text("{}")
        return put(self, work, made)

    monkeypatch.setattr(storing.Store, "put", replacing)
    with pytest.raises(LayoutError, match=r"config\.json` was changed while it was read"):
        convert(src, tmp_path / "out", tp=2)


@pytest.mark.parametrize(
    "line",
    [
        b"1", b"[]", b'{"form":1}', b'{"form":1,"of":null}', b"{}", b'{"files":null}', b"[" * 100_000,
        b'{"unit":"x","plans":"","wrote":"","lost":[[1]]}', b'{"unit":[1]}',
        b'{"unit":"x","plans":"","wrote":"","lost":[["a","b","c","d"]]}',
    ],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 3])
def test_a_journal_that_is_none(at: int, line: bytes, src: Path, stopped: Path) -> None:
    """From a line that is not ours on, nothing of it counts."""
    journal = stopped.parent / ".out.partial" / "journal"
    lines = journal.read_bytes().split(b"\n")
    journal.write_bytes(b"\n".join([*lines[:at], line, *lines[at:]]))
    convert(src, stopped, tp=2)
    assert files(stopped) == expected(src, stopped.parent / "whole")


def test_what_lies_there_without_a_journal_is_no_output(src: Path, tmp_path: Path) -> None:
    left = tmp_path / ".out.partial" / "out" / "rank-3"
    left.mkdir(parents=True)
    (left / storing.FILE).write_bytes(b"left by a run that was killed before anything was finished")
    convert(src, tmp_path / "out", tp=2)
    assert files(tmp_path / "out") == expected(src, tmp_path / "whole")


def test_storage_that_cannot_hold_the_tensors(tmp_path: Path) -> None:
    first, second = "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight"
    for change, told in (
        (lambda tensors: {second: tensors[first]}, f"`{first}` and `{second}` of `into` share memory"),
        (lambda tensors: {first: tensors[first].to("meta")}, f"`{first}` of `into` is a meta tensor"),
        (lambda tensors: {first: [1]}, f"`{first}` of `into` is of type list"),
        (lambda tensors: {first: tensors[first][:1].expand(128)}, f"`{first}` of `into` is not contiguous"),
        (lambda tensors: {first: torch._neg_view(tensors[first])}, f"`{first}` of `into` is a negated view"),
        (lambda tensors: {first: torch.view_as_complex(torch.zeros(2, 2)).conj()}, f"`{first}` of `into` is complex64"),
        (lambda tensors: {first: torch.nn.UninitializedParameter()}, f"`{first}` of `into` is without memory"),
        (lambda tensors: {first: freed(tensors[first])}, f"`{first}` of `into` is without memory"),
    ):
        tensors = {name: torch.empty_like(tensor) for name, tensor in load(FIXTURES / NAME)}
        with pytest.raises(LayoutError, match=told):
            load(FIXTURES / NAME, into=tensors | change(tensors))
    for into in (5, torch.nn.Linear(2, 2)):
        with pytest.raises(LayoutError, match=f"LP166 no-tensor: `into` is a {type(into).__name__}, a mapping"):
            load(FIXTURES / NAME, into=into)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """Without its storage, as sharded and offloaded parameters are."""
    tensor.untyped_storage().resize_(0)
    return tensor


def test_storage_that_was_made_in_inference_mode() -> None:
    """Experts are written into parts of it, which torch refuses for such tensors as they are."""
    src = FIXTURES / "qwen3_moe_nvfp4a16"
    wanted = dict(load(src, ep=2, rank=1))
    with torch.inference_mode():
        into = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    given = dict(load(src, ep=2, rank=1, into=into))
    same(into, wanted)
    assert all(given[name] is tensor for name, tensor in into.items())
