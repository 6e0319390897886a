"""A conversion that ends midway: nothing under the final name, and the next run makes what an undisturbed one makes."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, copied

from layoutdsl import LayoutError, convert
from layoutdsl.checkpoints import run, writing

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


# ---------------------------------------------------------------- killed


# Reads (instant, destination) from its input, one a line, and forks for each a conversion that kills itself at that
# call of a function, Python's or the interpreter's own, counted from where output begins; at 0 not at all. It answers
# how the fork ended and, where it came so far, how many calls there were.
KILLED = """
import os, signal, sys
from layoutdsl.checkpoints import convert, load, report, run, writing
published = writing.published

def converted(src, dst, instant, out):
    calls = 0
    def called(frame, event, argument):
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1
            if calls == instant:
                os.kill(os.getpid(), signal.SIGKILL)
    def counted(final):
        sys.setprofile(called)
        return published(final)
    writing.published = counted
    convert.convert(src, dst, tp=2)
    sys.setprofile(None)
    os.write(out, str(calls).encode())

for line in sys.stdin:
    instant, dst = line.rstrip().split(" ", 1)
    back, out = os.pipe()
    child = os.fork()
    if not child:
        converted(sys.argv[1], dst, int(instant), out)
        os._exit(0)
    os.close(out)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, os.read(back, 100).decode() or 0, flush=True)
    os.close(back)
"""


@contextmanager
def killer() -> Iterator[Callable[[int, Path], tuple[int, int]]]:
    command = [sys.executable, "-c", KILLED, str(SRC)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None

        def ended(instant: int, dst: Path) -> tuple[int, int]:
            print(instant, dst, file=child.stdin, flush=True)
            status, calls = child.stdout.readline().split()
            return int(status), int(calls)

        yield ended
        child.stdin.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_run_killed_at_any_instant_leaves_no_final_name(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    dst, chance = tmp_path / "out", random.Random(20)
    with killer() as ended:
        status, calls = ended(0, tmp_path / "first")
        assert status == 0 and files(tmp_path / "first") == undisturbed
        spread = [chance.randint(calls * at // 14, calls * (at + 1) // 14) for at in range(14)]
        last = chance.sample(range(calls - 400, calls - 20), 6)  # as the output gets its name
        for instant in (*spread, *last):
            status, _ = ended(max(instant, 1), dst)
            assert status == -signal.SIGKILL
            if dst.exists():  # then all was done
                assert files(dst) == undisturbed
                dst.rename(tmp_path / f"whole-{instant}")
        left = list(tmp_path.glob(".out.*.partial"))
        assert len(left) + len(list(tmp_path.glob("whole-*"))) >= 18, "hardly any run was killed while it wrote"
        assert ended(0, dst)[0] == 0  # what lies about from before is in no one's way
    assert files(dst) == undisturbed
    assert sorted(tmp_path.glob(".out.*.partial")) == sorted(left)


STALLING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with Ctrl-C ignored
from layoutdsl import convert
from layoutdsl.checkpoints import run
write, count = run.Writer.write, []
def stalling(self, name, tensor):
    write(self, name, tensor)
    count.append(name)
    if len(count) == int(sys.argv[3]):
        print("there", flush=True)
        time.sleep(60)
run.Writer.write = stalling
convert(sys.argv[1], sys.argv[2], tp=2)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize(("how", "at"), [("SIGKILL", 1), ("SIGTERM", 9), ("SIGINT", 17)])
def test_a_run_stopped_from_outside(how: str, at: int, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    dst = tmp_path / "out"
    command = [sys.executable, "-c", STALLING, str(SRC), str(dst), str(at)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"there\n"
        child.send_signal(getattr(signal, how))
        child.communicate()
    assert not dst.exists()
    assert how != "SIGINT" or list(tmp_path.iterdir()) == []  # Ctrl-C cleans up; the others leave no time to
    convert(SRC, dst, tp=2)
    assert files(dst) == undisturbed


# ---------------------------------------------------------------- refused by the disk


def failing(monkeypatch: pytest.MonkeyPatch, fault: BaseException, at: int) -> None:
    """The n-th tensor cannot be written."""
    write, count = run.Writer.write, [0]

    def wrapped(self: run.Writer, name: str, tensor: torch.Tensor) -> None:
        count[0] += 1
        if count[0] == at:
            raise fault
        write(self, name, tensor)

    monkeypatch.setattr(run.Writer, "write", wrapped)


@pytest.mark.parametrize(
    "fault",
    [RuntimeError("midway"), KeyboardInterrupt(), MemoryError(), OSError(errno.ENOSPC, "No space left on device")],
)
@pytest.mark.parametrize("at", [1, 7])
def test_a_failure_midway_leaves_nothing(
    fault: BaseException, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    dst = tmp_path / "deep" / "er" / "out"
    with monkeypatch.context() as patch:
        failing(patch, fault, at)
        expected = LayoutError if isinstance(fault, OSError) else type(fault)
        with pytest.raises(expected, match="no space left on device" if expected is LayoutError else None):
            convert(SRC, dst, tp=2)
    assert list(tmp_path.iterdir()) == []
    convert(SRC, dst, tp=2)
    assert files(dst) == undisturbed


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
    made = run.Conversion.made
    if not reserving:
        monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(run.Conversion, "made", lambda *given, **options: worked.append(1) or made(*given, **options))
    with small_files(most), pytest.raises(LayoutError, match=r"cannot write .*out.*: file too large") as caught:
        convert(SRC, dst, tp=2)
    assert caught.value.help and list(tmp_path.iterdir()) == []
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
    assert list(tmp_path.iterdir()) == []


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
    for options in ({}, {"rank": 0}, {"dry_run": True}):
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


@pytest.mark.parametrize("at", [1, 12, 25])
def test_a_source_truncated_while_it_is_read(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    src = tmp_path / "src"
    src.mkdir()
    for path in SRC.iterdir():
        (src / path.name).write_bytes(path.read_bytes())
    data, write, count = src / "model.safetensors", run.Writer.write, [0]
    whole = data.read_bytes()

    def truncating(self: run.Writer, name: str, tensor: torch.Tensor) -> None:
        count[0] += 1
        if count[0] == at:
            os.truncate(data, 8 + int.from_bytes(whole[:8], "little") + 1000)
        write(self, name, tensor)

    with monkeypatch.context() as patch:
        patch.setattr(run.Writer, "write", truncating)
        with pytest.raises(LayoutError, match=r"safetensors` became shorter while it was read, at tensor `") as caught:
            convert(src, tmp_path / "out", tp=2)
    assert caught.value.help and [path.name for path in tmp_path.iterdir()] == ["src"]
    data.write_bytes(whole)
    convert(src, tmp_path / "out", tp=2)
    assert files(tmp_path / "out") == undisturbed


def test_a_source_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src = copied(NAME, tmp_path / "src")
    write = run.Writer.write

    def removing(self: run.Writer, name: str, tensor: torch.Tensor) -> None:
        (src / "model.safetensors").unlink(missing_ok=True)
        write(self, name, tensor)

    monkeypatch.setattr(run.Writer, "write", removing)
    with pytest.raises(LayoutError, match=r"model.safetensors`: tensor `.*` cannot be read: no such file"):
        convert(src, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]
    assert json.loads((src / "config.json").read_text())
