"""What is written past the system's cache, with what is left to it, is the data; wherever it lies, and where disks or
file systems do not play along."""

import errno
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from layoutdsl.checkpoints import direct
from layoutdsl.checkpoints.direct import BLOCK, BUFFER, LEAST, Direct
from layoutdsl.checkpoints.writing import Writer, bytes_of

SIZE = 4 * BUFFER
DATA = bytes(at * 31 % 251 for at in range(1 << 16)) * (SIZE >> 16)


def memory(phase: int, size: int) -> memoryview:
    """So many bytes of the data, so far from the beginning of a page."""
    room = memoryview(mmap.mmap(-1, phase + size + BLOCK))[phase : phase + size]
    room[:] = DATA[:size]
    return room


def goes_past(path: Path) -> bool:
    """Whether the file system that tests are on has such a way."""
    path.write_bytes(bytes(2 * LEAST))
    file = Direct(path)
    begin, end = file.write(memory(0, LEAST), 0)
    file.close()
    return end > begin


@example(at=BLOCK, phase=0, size=LEAST)
@example(at=1, phase=1, size=SIZE)
@example(at=8, phase=64, size=2 * BUFFER + 3 * BLOCK)
@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 3 * BLOCK), phase=st.integers(0, BLOCK - 1), size=st.integers(0, SIZE))
def test_whole_blocks_are_written(at: int, phase: int, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "file"
    before = b"\xee" * (at + size + 2 * BLOCK)
    path.write_bytes(before)
    file, data = Direct(path), memory(phase, size)
    begin, end = file.write(data, at)
    file.close()
    if end:
        assert begin < BLOCK and len(data) - end < BLOCK and not (at + begin) % BLOCK and not (at + end) % BLOCK
    else:
        assert size < LEAST + 2 * BLOCK or not goes_past(path.with_name("another"))
    assert path.read_bytes() == before[: at + begin] + DATA[begin:end] + before[at + end :]


@pytest.mark.parametrize("phase", [0, 64])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_refuses_midway(
    phase: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told to be written is; the rest is the caller's."""
    path = tmp_path / "file"
    if not goes_past(path):
        pytest.skip("no such way here")
    path.write_bytes(bytes(SIZE))
    pwrite, calls = os.pwrite, []

    def once(file: int, data: memoryview, at: int) -> int:
        calls.append(at)
        if len(calls) > 1:
            raise OSError(number, "not like that")
        return pwrite(file, data[: BUFFER // 2], at)  # and the first call writes a part

    monkeypatch.setattr(direct.os, "pwrite", once)
    file = Direct(path)
    assert file.write(memory(phase, SIZE), 0) == (0, BUFFER // 2)
    file.close()
    assert calls == [0, BUFFER // 2]
    assert path.read_bytes() == DATA[: BUFFER // 2] + bytes(SIZE - BUFFER // 2)


def test_a_write_that_ends_within_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    if not goes_past(path):
        pytest.skip("no such way here")
    monkeypatch.setattr(direct.os, "pwrite", lambda file, data, at: BLOCK + 512)
    file = Direct(path)
    assert file.write(memory(0, SIZE), 0) == (0, BLOCK)
    file.close()


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*of: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    if not goes_past(path):
        pytest.skip("no such way here")
    monkeypatch.setattr(direct.os, "pwrite", full)
    file = Direct(path)
    with pytest.raises(OSError, match="No space left"):
        file.write(memory(0, SIZE), 0)
    file.close()


@pytest.mark.parametrize("flag", ["refused", "unknown"])
def test_without_such_a_way_nothing_is_written(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    open_ = os.open

    def refused(path: Path, flags: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    if flag == "unknown":
        monkeypatch.delattr(direct.os, "O_DIRECT", raising=False)
    else:
        monkeypatch.setattr(direct.os, "open", refused)
    file = Direct(path)
    monkeypatch.setattr(direct.os, "open", open_)
    assert file.write(memory(0, SIZE), 0) == (0, 0)
    file.close()
    assert path.read_bytes() == bytes(SIZE)


@pytest.mark.parametrize("past", [True, False])
def test_a_file_of_tensors_in_pieces(past: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks, odd sizes, pieces that begin and end anywhere: safetensors reads what was put."""
    if not past:
        monkeypatch.delattr(direct.os, "O_DIRECT", raising=False)
    described = {
        "odd": ("bfloat16", (70_001,)),
        "blocks": ("int32", (64, 4096)),
        "bytes": ("uint8", (BLOCK,)),
        "wide": ("int64", (3,)),
        "nothing": ("float32", (0, 7)),
    }
    sizes = {"odd": 140_002, "blocks": 1 << 20, "bytes": BLOCK, "wide": 24, "nothing": 0}
    writer = Writer(tmp_path / "model.safetensors", described, {"format": "pt"})
    places = {name: len(writer.head) + at for name, (at, size) in writer.places.items()}
    assert not any(places[name] % BLOCK for name in ("blocks", "bytes"))
    assert not places["wide"] % 8 and not places["odd"] % 2
    writer.open()
    for name, size in sizes.items():
        cuts = [0, size // 3 + 1, size // 2 + 5, size] if size > 100 else [0, size]
        for begin, end in zip(cuts, cuts[1:]):
            writer.put(name, begin, memory(begin % 97, size)[begin:end])
    writer.close()
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(described)
        for name, size in sizes.items():
            tensor = file.get_tensor(name)
            assert tuple(tensor.shape) == described[name][1]
            assert bytes_of(tensor) == DATA[:size]
