"""Rows out of a file are those that listing them gives: read, mapped, or read where nothing can be mapped."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError
from layoutdsl.checkpoints import gather
from layoutdsl.checkpoints.folder import Entry, opened
from layoutdsl.strips import Strip

START = 104
"""Where the tensor begins in its file: behind a header."""


@st.composite
def strips(draw: st.DrawFn) -> Strip:
    """Rows that do not overlap in the source, and lie one after another in the target."""
    length = draw(st.integers(1, 40))
    extent, made, loops = length, length, []
    for _ in range(draw(st.integers(0, 3))):
        count, step = draw(st.integers(2, 5)), extent + draw(st.integers(0, 90))
        loops.append((count, (step, made)))
        extent, made = step * count, made * count
    return Strip((draw(st.integers(0, 70)), draw(st.integers(0, 30))), length, tuple(loops))


def size_of(strip: Strip, side: int) -> int:
    return strip.at[side] + strip.length + sum((count - 1) * steps[side] for count, steps in strip.loops)


def entry_of(path: Path, size: int) -> Entry:
    return Entry("x", path, "uint8", (size,), START, size)


@example(strip=Strip((3, 5), 4, ((2, (9, 4)), (5, (40, 8)), (3, (300, 40)))), gap=1 << 16, window=1 << 22, maps=True)
@settings(max_examples=150, deadline=None)
@given(
    strip=strips(),
    gap=st.sampled_from((0, 16, 80, 1 << 16)),
    window=st.sampled_from((1, 50, 300, 1 << 22)),
    maps=st.booleans(),
)
def test_rows_are_those_that_are_listed(
    strip: Strip, gap: int, window: int, maps: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytes((7 * at + at // 256) % 255 for at in range(size_of(strip, 0)))
    path = tmp_path_factory.getbasetemp() / "rows"
    path.write_bytes(b"\xff" * START + data)
    expected, into = bytearray(b"\xee" * size_of(strip, 1)), bytearray(b"\xee" * size_of(strip, 1))
    for source, target in strip.starts():
        expected[target : target + strip.length] = data[source : source + strip.length]
    entry = entry_of(path, len(data))
    with pytest.MonkeyPatch.context() as patch, opened(entry) as file:
        patch.setattr(gather, "GAP", gap)
        patch.setattr(gather, "WINDOW", window)
        if not maps:
            patch.setattr(gather, "mapped", lambda *of: None)
        gather.fill(file, entry, [strip], memoryview(into))
    assert into == expected


@pytest.mark.parametrize(("gap", "calls"), [(1 << 16, 0), (0, 512)])
def test_rows_that_are_near_are_not_read(
    gap: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of no more than so many bytes; what is mapped is no call."""
    rows, row = 512, 4096
    path, noted, mapped = tmp_path / "rows", [], gather.mapped
    path.write_bytes(bytes(START + rows * row))
    if not mapped_here(path):
        pytest.skip("no windows here")
    monkeypatch.setattr(gather, "GAP", gap)
    monkeypatch.setattr(gather, "WINDOW", 1 << 20)
    monkeypatch.setattr(gather, "read_at", lambda file, entry, at, into: noted.append(len(into)))
    found = []
    monkeypatch.setattr(gather, "mapped", lambda *of: found.append(of[2]) or mapped(*of))
    entry = entry_of(path, rows * row)
    with opened(entry) as file:
        gather.fill(file, entry, [Strip((96, 0), 96, ((rows, (row, 96)),))], memoryview(bytearray(rows * 96)))
    assert noted == [96] * calls
    assert sum(found) <= rows * row and all(size <= 1 << 20 for size in found)
    assert len(found) == (0 if calls else math.ceil(rows * row / (1 << 20)))


def mapped_here(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return gather.mapped(file, 0, 1) is not None


def test_a_file_that_ends_before_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(START + 1000))
    entry = entry_of(path, 64 * 4096)
    with pytest.raises(LayoutError, match="became shorter while it was read, at tensor `x`"), opened(entry) as file:
        gather.fill(file, entry, [Strip((0, 0), 8, ((64, (4096, 8)),))], memoryview(bytearray(512)))


@example(sizes=[8, 0, 16, 8], gaps=[0, 0, 0, 0], start=START, maps=True)
@example(sizes=[1 << 17, 8, 1 << 17], gaps=[0, 0, 8], start=START, maps=True)
@example(sizes=[4, 1 << 17, 8], gaps=[0, 0, 0], start=START + 4, maps=True)
@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.sampled_from((0, 1, 4, 8, 24, 4096, (1 << 16) - 8, 1 << 16, 1 << 17)), min_size=1, max_size=8),
    gaps=st.lists(st.sampled_from((0, 0, 0, 1, 8)), min_size=8, max_size=8),
    start=st.integers(START, START + 9),
    maps=st.booleans(),
)
def test_whole_tensors(
    sizes: list[int], gaps: list[int], start: int, maps: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neighbours together: each with its bytes, at an address that fits its place, and no more buffers than bytes."""
    path, entries, at = tmp_path_factory.getbasetemp() / "tensors", [], start
    for number, (size, gap) in enumerate(zip(sizes, gaps)):
        at += gap
        entries.append(Entry(str(number), path, "uint8", (size,), at, size))
        at += size
    data = bytes(place * 31 % 251 for place in range(1 << 12)) * (at // (1 << 12) + 1)
    path.write_bytes(data)
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        if not maps:
            patch.setattr(gather, "mapped", lambda *of: None)
        found = gather.wholes(reversed(entries), lambda size: taken.append(size) or aligned(size))
        for entry in entries:
            assert found[id(entry)] == data[entry.start : entry.start + entry.size]
            if entry.size and entry.start % gather.WIDEST == 0:
                assert torch.frombuffer(found[id(entry)], dtype=torch.uint8).data_ptr() % gather.WIDEST == 0
            begin, end = entry.size // 3, entry.size
            assert gather.stretch(entry, begin, end, aligned) == data[entry.start + begin : entry.start + end]
    assert sum(taken) <= sum(sizes)


def aligned(size: int) -> memoryview:
    return memoryview(torch.empty(size + 1, dtype=torch.uint8).numpy())[:size]


def test_neighbours_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each file one is opened, and tensors that lie next to each other are one read or one map."""
    entries = []
    for number in (0, 1):
        path = tmp_path / f"tensors-{number}"
        path.write_bytes(bytes(1 << 20))
        small = [Entry(f"{at}", path, "uint8", (8,), 104 + 8 * at, 8) for at in range(50)]
        large = [Entry(f"{at}", path, "uint8", (1 << 16,), 8192 + (at << 16), 1 << 16) for at in range(5)]
        entries += [*small, *large]
    reads, maps, opens, mapped = [], [], [], gather.mapped
    monkeypatch.setattr(gather, "read_at", lambda file, entry, at, into: reads.append(len(into)))
    monkeypatch.setattr(gather, "mapped", lambda *of: maps.append(of[2]) or mapped(*of))
    monkeypatch.setattr(gather, "opened", lambda entry: opens.append(entry.file) or opened(entry))
    gather.wholes(entries, aligned)
    assert len(opens) == 2 and maps == [5 << 16] * 2
    assert reads == ([400] * 2 if mapped_here(path) else [400, 5 << 16] * 2)
