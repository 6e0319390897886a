"""A conversion that ends midway: nothing under the final name, and the next run goes on and makes what an undisturbed
one makes."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from converted import FIXTURES, ROOT, copied

from layoutdsl import LayoutError, convert
from layoutdsl.checkpoints import making, run, storing, units, writing
from layoutdsl.checkpoints.load import planned

NAME = "llama_w4a16_asym"
SRC = FIXTURES / NAME


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    dst = tmp_path_factory.mktemp("undisturbed") / "out"
    convert(SRC, dst, tp=2)
    return files(dst)


# ---------------------------------------------------------------- stopped


CHILD = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with Ctrl-C ignored
from layoutdsl import convert
from layoutdsl.checkpoints import publishing, storing, units
units.SIZE = 4096
put, count = storing.Store.put, []
def counted(self, work, made):
    done = put(self, work, made)
    count.append(work)
    if len(count) == int(sys.argv[3]):
        print("there", flush=True)
        time.sleep(5)
    return done
storing.Store.put = counted
convert(sys.argv[1], sys.argv[2], tp=2)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize(("how", "at"), [("SIGKILL", 1), ("SIGTERM", 9), ("SIGINT", 17)])
def test_a_run_stopped_from_outside(
    how: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    dst = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, str(SRC), str(dst), str(at)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"there\n"
        child.send_signal(getattr(signal, how))
        _, told = child.communicate()
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    assert how != "SIGINT" or b"the same command goes on" in told
    monkeypatch.setattr(units, "SIZE", 4096)
    redone = written(monkeypatch)
    convert(SRC, dst, tp=2)
    assert files(dst) == undisturbed and [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(redone) <= len(list(planned(SRC, tp=2).units)) - at


def test_runs_killed_at_random_instants(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """`scripts/kill_convert` kills more of them."""
    command = [sys.executable, str(ROOT / "scripts" / "kill_convert"), "8", "--folder", str(tmp_path), "--seed", "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("killed 8 times"), done.stdout


# ---------------------------------------------------------------- refused by the disk


def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the units that are written from now on."""
    put, found = storing.Store.put, list[str]()

    def noted(self: storing.Store, work: Any, made: Any) -> Any:
        found.append(work.name)
        return put(self, work, made)

    monkeypatch.setattr(storing.Store, "put", noted)
    return found


def failing(monkeypatch: pytest.MonkeyPatch, fault: BaseException, at: int) -> None:
    """The n-th unit cannot be written; those before it are finished by then."""
    monkeypatch.setattr(units, "SIZE", 4096)
    put, count = storing.Store.put, [0]

    def wrapped(self: storing.Store, work: Any, made: Any) -> Any:
        count[0] += 1
        if count[0] >= at:
            raise fault
        return put(self, work, made)

    monkeypatch.setattr(storing.Store, "put", wrapped)


@pytest.mark.parametrize(
    "fault",
    [RuntimeError("midway"), KeyboardInterrupt(), MemoryError(), OSError(errno.ENOSPC, "No space left on device")],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("at", [1, 7])
def test_a_failure_midway_keeps_what_is_finished(
    fault: BaseException, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    dst, threads = tmp_path / "deep" / "er" / "out", threading.active_count()
    with monkeypatch.context() as patch:
        failing(patch, fault, at)
        expected = LayoutError if isinstance(fault, OSError) else type(fault)
        with pytest.raises(expected, match="no space left on device" if expected is LayoutError else None) as caught:
            convert(SRC, dst, tp=2)
    assert threading.active_count() == threads
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    if at == 1:
        assert list(tmp_path.iterdir()) == [] and "goes on" not in told
    else:
        assert [path.name for path in dst.parent.iterdir()] == [".out.partial"]
        assert f"kept in `{dst.parent / '.out.partial'}`: the same command goes on" in told
    monkeypatch.setattr(units, "SIZE", 4096)
    redone = written(monkeypatch)
    convert(SRC, dst, tp=2)
    assert files(dst) == undisturbed
    assert len(redone) == len(planned(SRC, tp=2).units) - (at - 1)


@pytest.mark.parametrize("fault", [RuntimeError("midway"), KeyboardInterrupt()], ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("stage", ["read", "make"])
def test_an_error_of_any_stage_ends_all(
    stage: str, fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, count, threads = getattr(making.Making, stage), [0], threading.active_count()

    def wrapped(*given: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            raise fault
        return done(*given, **options)

    monkeypatch.setattr(making.Making, stage, wrapped)
    with pytest.raises(type(fault)):
        convert(SRC, tmp_path / "out", tp=2)
    assert threading.active_count() == threads


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """The system refuses files above that size, as a disk does when it is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("reserving", [True, False])
@pytest.mark.parametrize("most", [100, 50_000, 130_000])
def test_a_disk_that_takes_no_more(
    most: int, reserving: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    """Refused by the system itself: as the room is reserved, or where that cannot be done, in the midst of the data."""
    dst, worked = tmp_path / "out", []
    made = making.Making.make
    if not reserving:
        monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(making.Making, "make", lambda *given, **options: worked.append(1) or made(*given, **options))
    with small_files(most), pytest.raises(LayoutError, match=r"cannot write .*out.*: file too large") as caught:
        convert(SRC, dst, tp=2)
    assert caught.value.help and not dst.exists()
    assert bool(list(tmp_path.iterdir())) == ("the same command goes on" in str(caught.value))
    assert not reserving or not list(tmp_path.iterdir())
    assert bool(worked) == (not reserving and most > 100), "a full disk is told before the work"
    convert(SRC, dst, tp=2)
    assert files(dst) == undisturbed


def test_no_room_for_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run.shutil, "copyfile", full)
    with pytest.raises(LayoutError, match=r"cannot write .*out.*: no space left on device"):
        convert(SRC, tmp_path / "out", tp=2)
    monkeypatch.undo()
    monkeypatch.setattr(writing.os, "posix_fallocate", full)
    with pytest.raises(LayoutError, match=r"cannot write .*out.*: no space left on device"):
        convert(SRC, tmp_path / "out", tp=2)
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    monkeypatch.undo()
    redone = written(monkeypatch)
    convert(SRC, tmp_path / "out", tp=2)
    assert not redone


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LayoutError, match=r"cannot write .*: (not a directory|file exists)"):
        convert(SRC, tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_that_is_there_is_not_touched(tmp_path: Path) -> None:
    dst = tmp_path / "out"
    dst.mkdir()
    convert(SRC, dst)  # an empty folder is fine
    before = files(dst)
    for options in ({}, {"rank": 0, "dtype": "bfloat16"}, {"dry_run": True}):
        with pytest.raises(LayoutError, match="is there already"):
            convert(SRC, dst, **options)
    assert files(dst) == before and [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("mine", "link"):
        with pytest.raises(LayoutError, match=f"`.*{name}` is there already"):
            convert(SRC, tmp_path / name)
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "link").is_symlink()


# ---------------------------------------------------------------- a source that changes


@pytest.mark.parametrize("at", [1, 6, 12])
def test_a_source_truncated_while_it_is_read(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    src = tmp_path / "src"
    src.mkdir()
    for path in SRC.iterdir():
        (src / path.name).write_bytes(path.read_bytes())
    data, read, count = src / "model.safetensors", making.Making.read, [0]
    whole = data.read_bytes()

    def truncating(self: making.Making, work: Any) -> Any:
        count[0] += 1
        if count[0] == at:
            os.truncate(data, 8 + int.from_bytes(whole[:8], "little") + 1000)
        return read(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(units, "SIZE", 4096)
        patch.setattr(making.Making, "read", truncating)
        with pytest.raises(LayoutError, match=r"safetensors` (was changed|became shorter) while it was") as caught:
            convert(src, tmp_path / "out", tp=2)
    assert caught.value.help and not (tmp_path / "out").exists()
    data.write_bytes(whole)
    convert(src, tmp_path / "out", tp=2)
    assert files(tmp_path / "out") == undisturbed


def test_a_source_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src = copied(NAME, tmp_path / "src")
    read = making.Making.read

    def removing(self: making.Making, work: Any) -> Any:
        (src / "model.safetensors").unlink(missing_ok=True)
        return read(self, work)

    monkeypatch.setattr(making.Making, "read", removing)
    with pytest.raises(LayoutError, match=r"model.safetensors`: tensor `.*` cannot be read: no such file"):
        convert(src, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]
    assert json.loads((src / "config.json").read_text())
