"""Where an output goes: what lies there already, what is beside it, and who else writes there."""

import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from converted import FIXTURES, copied
from test_convert_failures import failing, files

from layoutdsl import LayoutError, convert
from layoutdsl.checkpoints import making, publishing, storing
from layoutdsl.cli import main

SRC = FIXTURES / "qwen3_moe_w4a16"


def begun(dst: Path, **options: Any) -> None:
    """A conversion into it that ends after some units."""
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, RuntimeError("no further"), 9)
        with pytest.raises(RuntimeError):
            convert(SRC, dst, **{"tp": 2, **options})


def refused(dst: Path, match: str, code: str = "LP220", src: Path = SRC, **options: Any) -> LayoutError:
    """A conversion into it is refused, as is a dry run, and nothing changes by that."""
    before = everything(dst.parent)
    for dry in (True, False):
        with pytest.raises(LayoutError, match=match) as caught:
            convert(src, dst, dry_run=dry, **{"tp": 2, **options})
        assert caught.value.diagnostics[0].code == code and caught.value.help
    assert everything(dst.parent) == before
    return caught.value


def everything(folder: Path) -> dict[Path, Any]:
    """What is in a folder: the bytes of files, where links lead, nothing for a folder."""
    return {path: os.readlink(path) if path.is_symlink() else bytes_of(path) for path in folder.rglob("*")}


def bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


# ---------------------------------------------------------------- inside the checkpoint, and around it


@pytest.mark.parametrize("options", [{}, {"rank": 0}], ids=str)
@pytest.mark.parametrize("place", ["src/out", "src/deep/er/out", "link/out", "src/../src/out"])
def test_an_output_in_the_checkpoint(place: str, options: dict[str, int], tmp_path: Path) -> None:
    src = copied("qwen3_moe_w4a16", tmp_path / "src")
    (tmp_path / "link").symlink_to("src")
    refused(tmp_path / place, "are one in the other", src=src, **options)
    (tmp_path / "src-out").mkdir()
    convert(src, tmp_path / "src-out", tp=2, **options)


@pytest.mark.parametrize("place", [".", "src", "link"])
def test_a_rank_around_the_checkpoint(place: str, tmp_path: Path) -> None:
    src = copied("qwen3_moe_w4a16", tmp_path / "src")
    (tmp_path / "link").symlink_to(".")
    refused(tmp_path / place, "are one in the other", src=src, rank=0)
    refused(tmp_path / place, "is there already", src=src)


# ---------------------------------------------------------------- two at once

flock = pytest.mark.skipif(os.name == "nt", reason="no flock")
BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [({}, {"rank": 1}), ({"rank": 1}, {})], ids=str)


def busy_meanwhile(monkeypatch: pytest.MonkeyPatch, dst: Path, **options: Any) -> None:
    """As the next conversion is to write its first unit, another is refused."""
    put, lock, coming = storing.Store.put, threading.Lock(), [{}, {"restart": True}]

    def waiting(self: storing.Store, work: Any, made: Any) -> Any:
        with lock:
            while coming:
                refused(dst, r"another process is making `.*out", "LP226", **options, **coming.pop())
        return put(self, work, made)

    monkeypatch.setattr(storing.Store, "put", waiting)


@flock
@BOTH_WAYS
def test_all_ranks_and_one_of_them(
    first: dict[str, int], second: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(SRC, tmp_path / "expected", tp=2, **first)
    busy_meanwhile(monkeypatch, tmp_path / "out", **second)
    convert(SRC, tmp_path / "out", tp=2, **first)
    assert files(tmp_path / "out") == files(tmp_path / "expected")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "out"]


@flock
def test_an_output_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("out")
    busy_meanwhile(monkeypatch, tmp_path / "link", rank=0)
    convert(SRC, tmp_path / "out", tp=2)


@flock
@BOTH_WAYS
def test_all_ranks_and_one_of_them_that_begin_at_once(
    first: dict[str, int], second: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes its lock when the second has looked for it, and has not taken its own."""
    other = tmp_path / "out" / ".rank-1.partial" if first else tmp_path / ".out.partial"
    lock = publishing._lock
    with ExitStack() as stack:

        def late(partial: Path) -> int:
            monkeypatch.setattr(publishing, "_lock", lock)
            stack.enter_context(publishing._locked(other))
            return lock(partial)

        monkeypatch.setattr(publishing, "_lock", late)
        with pytest.raises(LayoutError, match=r"another process is making `.*out") as caught:
            convert(SRC, tmp_path / "out", tp=2, **second)
        assert caught.value.diagnostics[0].code == "LP226"
        assert [path for path in everything(tmp_path) if path.name != "out"] == [other, other / "lock"]


# ---------------------------------------------------------------- one after the other


@pytest.mark.parametrize("restart", [False, True])
def test_all_ranks_where_some_have_begun(restart: bool, tmp_path: Path) -> None:
    """What they have begun is hidden in the output: it is named, and they go on."""
    dst = tmp_path / "out"
    begun(dst, rank=0)
    begun(dst, rank=1)
    hidden = ", ".join(f"with `{dst}/.rank-{rank}.partial`, from which --rank {rank} goes on" for rank in range(2))
    error = refused(dst, "is there already", restart=restart)
    assert error.message == f"`{dst}` is there already, {hidden}"
    assert error.help == "name a new folder, or remove this one first"
    for rank in range(2):
        convert(SRC, dst, tp=2, rank=rank)
    convert(SRC, tmp_path / "expected", tp=2)
    assert files(dst) == files(tmp_path / "expected")


@pytest.mark.parametrize("restart", [False, True])
def test_a_rank_where_all_have_begun(restart: bool, tmp_path: Path) -> None:
    begun(tmp_path / "out")
    match = r"`.*/\.out\.partial` has what another conversion finished, into all of `.*/out`"
    refused(tmp_path / "out", match, "LP225", rank=0, restart=restart)
    convert(SRC, tmp_path / "out", tp=2)


@pytest.mark.parametrize("journal", ["", '{"form":1', "[]\n", '{"form":1,"of":null}\n'])
def test_what_is_not_recorded_is_no_output(journal: str, tmp_path: Path) -> None:
    """A run of more ranks was killed as it began its journal: its folders do not become part of the next one's."""
    begun(tmp_path / "out", tp=4)
    (tmp_path / ".out.partial" / "journal").write_text(journal)
    convert(SRC, tmp_path / "out", tp=2)
    convert(SRC, tmp_path / "expected", tp=2)
    assert files(tmp_path / "out") == files(tmp_path / "expected")


# ---------------------------------------------------------------- a rank that is there


def test_a_job_that_is_run_again(tmp_path: Path) -> None:
    """One rank has made its folder and the other has failed: the same commands go on, and what is made stays."""
    dst = tmp_path / "out"
    convert(SRC, dst, tp=2, rank=0)
    begun(dst, rank=1)
    before = stamps(dst / "rank-0")
    reports = [convert(SRC, dst, tp=2, rank=rank) for rank in range(2)]
    assert [(report.there, report.written) for report in reports] == [(True, False), (False, True)]
    assert f"rank 0 of 2 is in {dst} already, by these plans; `verify` compares its values\n" in str(reports[0])
    assert "is in" not in str(reports[1])
    assert stamps(dst / "rank-0") == before
    convert(SRC, tmp_path / "expected", tp=2)
    assert files(dst) == files(tmp_path / "expected")


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"restart": True}, {"verify": True}], ids=str)
def test_a_rank_is_there_however_it_was_made(options: dict[str, Any], tmp_path: Path) -> None:
    """Also by a conversion of all ranks; and what a run has left that was killed in its last moment is removed."""
    dst = tmp_path / "out"
    convert(SRC, dst, tp=2)
    left = dst / ".rank-1.partial"
    left.mkdir()
    (left / "journal").write_text("left")
    before = everything(dst / "rank-1")
    report = convert(SRC, dst, tp=2, rank=1, **options)
    assert report.there and not report.written
    assert report.verified.startswith("verified rank 1 of 2" if "verify" in options else "")
    assert bool(report.verified) == ("verify" in options)
    assert ("`verify` compares its values" in str(report)) == ("verify" not in options)
    assert everything(dst / "rank-1") == before and not left.exists()
    refused(dst, "is there already")


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda home: None, {"dtype": "float16"}),
        (lambda home: None, {"tp": 4}),
        (lambda home: (home / "more").write_text(""), {}),
        (lambda home: (home / "config.json").unlink(), {}),
        (lambda home: (home / "config.json").write_text("{}"), {}),
        (lambda home: (home / "model.safetensors").unlink(), {}),
        (lambda home: os.truncate(home / "model.safetensors", 200_000), {}),
        (lambda home: home.rename(home.with_name("mine")) and home.symlink_to("mine"), {}),
        (lambda home: os.utime(home / "model.safetensors", (1, 1)), {}),  # the checkpoint has been changed since
    ],
    ids=["dtype", "ranks", "more", "no config", "config", "no file", "size", "link", "older"],
)
def test_a_rank_that_is_not_quite_there(change: Any, options: dict[str, Any], tmp_path: Path) -> None:
    convert(SRC, tmp_path / "out", tp=2, rank=0)
    change(tmp_path / "out" / "rank-0")
    refused(tmp_path / "out", "rank-0` is there already", rank=0, **options)


def test_values_of_a_rank_that_is_there(tmp_path: Path) -> None:
    """They are held to nothing, unless it is asked for."""
    convert(SRC, tmp_path / "out", tp=2, rank=0)
    path = tmp_path / "out" / "rank-0" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert convert(SRC, tmp_path / "out", tp=2, rank=0).there
    with pytest.raises(LayoutError, match="rank 0") as caught:
        convert(SRC, tmp_path / "out", tp=2, rank=0, verify=True)
    assert caught.value.diagnostics[0].code == "LP222"
    assert path.read_bytes() == data


# ---------------------------------------------------------------- what no conversion has made


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("place", ["notes.txt", "mine/file", "out/notes.txt", "out/rank-0/other.safetensors"])
def test_what_no_conversion_has_made_stays(place: str, recorded: bool, restart: bool, tmp_path: Path) -> None:
    """It is not removed, and does not become part of the output."""
    begun(tmp_path / "out")
    partial = tmp_path / ".out.partial"
    if not recorded:
        (partial / "journal").unlink()
    (partial / place).parent.mkdir(exist_ok=True)
    (partial / place).write_text("mine")
    refused(tmp_path / "out", r"\.out\.partial/.*` is in the way: this conversion has not made it", restart=restart)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("place", ["", "out", "journal", "lock", "out/rank-0", "out/rank-0/model.safetensors"])
def test_no_link_is_followed(place: str, restart: bool, tmp_path: Path) -> None:
    """Also where what it leads to has the form of what a conversion makes."""
    begun(tmp_path / "out")
    link = tmp_path / ".out.partial" / place
    link.rename(tmp_path / "mine")
    link.symlink_to(tmp_path / "mine")
    refused(tmp_path / "out", f"`{link}` is in the way: this conversion has not made it", restart=restart)


def test_what_is_put_there_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(self: making.Making, work: Any) -> Any:
        (tmp_path / ".out.partial" / "out" / "notes.txt").write_text("mine")
        raise RuntimeError("no further")

    monkeypatch.setattr(making.Making, "read", stopping)
    with pytest.raises(RuntimeError):
        convert(SRC, tmp_path / "out", tp=2)
    assert files(tmp_path / ".out.partial") == {"out/notes.txt": b"mine"}


def test_beside_an_output_that_is_there(tmp_path: Path) -> None:
    """What a run has left that was killed after the output got its name is removed, and nothing else."""
    convert(SRC, tmp_path / "out", tp=2)
    (tmp_path / ".out.partial").mkdir()
    for name in ("journal", "notes.txt"):
        (tmp_path / ".out.partial" / name).write_text("left")
    with pytest.raises(LayoutError, match="is there already"):
        convert(SRC, tmp_path / "out", tp=2)
    assert files(tmp_path / ".out.partial") == {"notes.txt": b"left"}


@pytest.mark.parametrize("place", ["lock", "journal", "out/rank-0/config.json"])
def test_a_pipe_is_not_waited_for(place: str, tmp_path: Path) -> None:
    begun(tmp_path / "out")
    pipe = tmp_path / ".out.partial" / place
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    refused(tmp_path / "out", f"`{pipe}` is in the way: this conversion has not made it")
    if place != "journal":
        refused(tmp_path / "out", "has what another conversion finished", "LP225", rank=0)


def test_what_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is clearing up."""
    (tmp_path / ".out.partial").mkdir()
    monkeypatch.setattr(publishing.os, "walk", lambda place, **options: [(str(place), ["out"], ["journal"])])
    publishing.check_new(tmp_path / "out")


def test_a_pipe_in_place_of_a_rank_that_is_there(tmp_path: Path) -> None:
    convert(SRC, tmp_path / "out", tp=2, rank=0)
    for name in ("model.safetensors", "config.json"):
        path = tmp_path / "out" / "rank-0" / name
        path.rename(tmp_path / name)
        os.mkfifo(path)
        refused(tmp_path / "out", "rank-0` is there already", rank=0)
        (tmp_path / name).rename(path)


def test_a_folder_of_another_rank(tmp_path: Path) -> None:
    begun(tmp_path / "out")
    other = tmp_path / ".out.partial" / "out" / "rank-7"
    other.mkdir()
    with pytest.raises(LayoutError, match=r"`.*rank-7` is in the way: this conversion has not made it") as caught:
        convert(SRC, tmp_path / "out", tp=2)
    assert caught.value.diagnostics[0].code == "LP220" and other.is_dir() and not (tmp_path / "out").exists()
    other.rmdir()
    convert(SRC, tmp_path / "out", tp=2)


def test_other_weights_of_the_same_age(tmp_path: Path) -> None:
    """A checkpoint that took another's place, with times from before: what is there is not of it."""
    src = copied("qwen3_moe_w4a16", tmp_path / "src")
    other = copied("qwen3_moe_w4a16", tmp_path / "other")
    convert(src, tmp_path / "out", tp=2, rank=0)
    for path in other.iterdir():
        os.utime(path, (1, 1))
        path.replace(src / path.name)
    refused(tmp_path / "out", "rank-0` is there already", src=src, rank=0)


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_an_output_without_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(LayoutError, match="is no name that an output could get") as caught:
        convert(SRC, name, tp=2)
    assert caught.value.diagnostics[0].code == "LP220" and not list(tmp_path.rglob("*.partial"))
    if name == ".":
        convert(SRC, name, tp=2, rank=0)
        assert [path.name for path in Path().iterdir()] == ["rank-0"]


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)], ids=str)
def test_a_command_that_is_stopped_says_what_is_kept(
    stop: BaseException, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    failing(monkeypatch, stop, 9)
    try:
        found = main(["convert", str(SRC), str(tmp_path / "out"), "--tp", "2"])
    except SystemExit as end:
        found = end.code
    told = f"what is finished is kept in `{tmp_path / '.out.partial'}`: the same command goes on"
    assert found == status and capsys.readouterr().err.startswith(told)
