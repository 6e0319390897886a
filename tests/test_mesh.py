"""What a mesh, a group or torchrun's environment make of a process, and what they cannot say. Real processes are in
tests/test_many_ranks.py."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converted import FIXTURES
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from layoutdsl import LayoutError, Reload, cli, convert, load
from layoutdsl.adapters.state_dict import convert_state_dict
from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.mesh import Rank, of_environment, told

SRC = FIXTURES / "llama_w4a16"


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_without_a_mesh() -> None:
    assert told(None) == Rank(1, 1, 0)
    assert told(None, tp=4, ep=2, rank=5) == Rank(4, 2, 5)


@pytest.mark.parametrize("many", [{"tp": 2}, {"ep": 4}, {"tp": 2, "ep": 2}])
def test_one_of_several_ranks_is_said(many: dict[str, int]) -> None:
    """Else every process that forgets it would have the first one's tensors."""
    with pytest.raises(LayoutError, match="`rank` does not say which of") as refused:
        load(SRC, **many)
    assert refused.value.diagnostics[0].code == "LP110"


@pytest.mark.parametrize("use", [load, partial(Reload, {}), partial(convert, dst="nowhere", dry_run=True)])
@pytest.mark.parametrize("wrong", [2.0, "1", True, False, [1], "", torch.tensor(1.0)], ids=repr)
@pytest.mark.parametrize("name", ["tp", "ep", "rank"])
def test_what_is_no_number_of_ranks(name: str, wrong: Any, use: Any) -> None:
    with pytest.raises(LayoutError, match=rf"LP100 wrong-argument: `{name}` is .*, a whole number is needed"):
        use(SRC, **{"tp": 2, "rank": 0, name: wrong})


@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_any_whole_number_is_a_rank(kind: Any) -> None:
    found = dict(load(SRC, tp=kind(2), ep=kind(1), rank=kind(1)))
    assert all(torch.equal(tensor, found[name]) for name, tensor in load(SRC, tp=2, rank=1))


def test_a_job_of_one_is_one_rank(alone: None) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert told(mesh) == told(mesh["tp"]) == told(mesh.get_group("tp")) == Rank(1, 1, 0)
    expected = dict(load(SRC))
    for name, tensor in load(SRC, mesh=mesh):
        assert torch.equal(tensor, expected[name])
    assert len(Reload(expected, SRC, mesh=mesh).report.old) == len(expected)


def test_a_job_that_is_run_again(alone: None, tmp_path: Path) -> None:
    """Ranks that have made their folders are done; tests/test_publishing.py has the rest."""
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("ep", "tp"))
    assert [convert(SRC, tmp_path / "out", mesh=mesh).there for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (lambda: init_device_mesh("cpu", (1,)), "no dim named `tp` or `ep`: its dims have no names"),
        (lambda: init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "model")), "its dims are `dp`, `model`"),
        (lambda: "tp=2", "`mesh` is a str, expected a DeviceMesh or a ProcessGroup"),
        (lambda: distributed.GroupMember.NON_GROUP_MEMBER, "this process is not in the group"),
    ],
)
def test_a_mesh_that_does_not_say(alone: None, given: Any, match: str) -> None:
    for use in (
        lambda mesh: load(SRC, mesh=mesh),
        lambda mesh: convert(SRC, "nowhere", mesh=mesh),
        lambda mesh: Reload({}, SRC, mesh=mesh),
        lambda mesh: convert_state_dict({}, {}, mesh=mesh),
    ):
        with pytest.raises(LayoutError, match=match) as refused:
            use(given())
        assert refused.value.diagnostics[0].code == "LP228"


@pytest.mark.parametrize("more", [{"tp": 1}, {"rank": 0}, {"ep": 2}, {"ep": 2, "tp": 2}])
def test_a_rank_twice(alone: None, more: dict[str, int]) -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    with pytest.raises(LayoutError, match=f"`mesh` says which rank .*, and so does `({'|'.join(more)})`"):
        load(SRC, mesh=mesh, **more)
    with pytest.raises(LayoutError, match="`mesh` says which rank"):
        convert(SRC, "nowhere", mesh=mesh, **more)


def test_nothing_is_initialized() -> None:
    assert not distributed.is_initialized()
    with pytest.raises(LayoutError, match=r"torch\.distributed is not initialized"):
        load(SRC, mesh=object())


# ---------------------------------------------------------------- the environment


def test_torchrun_says_it() -> None:
    assert of_environment(2, 2, {"RANK": "3", "WORLD_SIZE": "4"}) == 3


@pytest.mark.parametrize(
    ("environment", "match"),
    [
        ({}, "RANK is ``, WORLD_SIZE ``"),
        ({"RANK": "1"}, "RANK is `1`, WORLD_SIZE ``"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK is `-1`"),
        ({"RANK": "1", "WORLD_SIZE": "8"}, "8 processes .* for 4 ranks, 2 tensor- times 2 expert-parallel"),
    ],
)
def test_an_environment_that_does_not(environment: dict[str, str], match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        of_environment(2, 2, environment)


def test_the_command_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(SRC), str(tmp_path / "out"), "--tp", "2", "--rank"]
    monkeypatch.delenv("RANK", raising=False)
    assert cli.main([*command, "env"]) == 1
    assert "LP228 mesh: the environment does not say which rank this process is" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main([*command, "env"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank-1"]
    capsys.readouterr()
    assert cli.main([*command, "env"]) == 0
    assert f"rank 1 of 2 is in {tmp_path / 'out'} already, by these plans" in capsys.readouterr().out
    assert cli.main([*command, "first"]) == 2
    assert "expected a number or env, found `first`" in capsys.readouterr().err


# ---------------------------------------------------------------- all check the same


@pytest.mark.parametrize(("name", "tp", "ep"), [("qwen3_moe_w4a16", 1, 5), ("llama_fp8_block", 5, 1)])
def test_what_one_rank_refuses_all_refuse(name: str, tp: int, ep: int) -> None:
    """Before a weight is read: ranks go on together or not at all, so that none waits for one that is gone."""

    def answer(rank: int) -> tuple[str, str]:
        try:
            planned(FIXTURES / name, tp=tp, ep=ep, rank=rank)
        except LayoutError as error:
            first = error.diagnostics[0]
            return first.code, first.message
        return "", ""

    assert len({answer(rank) for rank in range(tp * ep)}) == 1
