"""Bytes out of files: whole tensors as the system keeps them; rows each by itself where they are far apart, copied out
of a mapped window where near.

    data = wholes(entries, take)             # all bytes of each tensor
    with opened(entry) as file:
        fill(file, entry, strips, into)      # strips of (byte of the tensor, byte of the buffer)

Half of the inputs of a matrix are a stripe of each of its rows, and the other half is another rank's. Read one by one,
narrow stripes cost a call each; read with what stands between them, they are copied twice, and by every rank. A window
of the file is mapped instead: its pages are those that the system keeps of the file for all processes of the machine,
so a disk gives them once, and only the stripes are copied. Where the system cannot map a window, or could not tell an
error of the disk in words, the window is read.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from layoutdsl.checkpoints.folder import Entry, opened, read_at, room
from layoutdsl.strips import Strip, moved

Take = Callable[[int], memoryview]
"""Gives a buffer of so many bytes."""

GAP = 1 << 16
"""Bytes between two rows up to which one window has both: a disk or a server gives them in less time than it takes to
ask once more."""

WINDOW = 1 << 22
"""Most bytes of a window. So many come on top of what is stated of a unit, while it is read."""

LEAST = 1 << 16
"""Bytes of a tensor from which on a map costs less than a copy."""

WIDEST = 8
"""Bytes of the widest element: a tensor in memory begins at a multiple of its width."""

POPULATE = 22
"""MADV_POPULATE_READ of Linux 5.14: all pages of a window at once, and an error of the disk as an error, where a read
of the mapped memory would end the process by a signal."""


def wholes(entries: Iterable[Entry], take: Take) -> dict[int, memoryview]:
    """All bytes of each tensor, by the `id` of its entry: mapped, or else read into what `take` gives. Those that lie
    next to each other are one stretch of their file.

    Raises LayoutError where a file does not give them.
    """
    of: dict[Path, list[Entry]] = {}
    for entry in entries:
        of.setdefault(entry.file, []).append(entry)
    found: dict[int, memoryview] = {}
    for inside in of.values():
        inside.sort(key=lambda entry: entry.start)
        with opened(inside[0]) as file:
            for run in _runs(inside):
                first, last = run[0], run[-1]
                data = _stretch(file, replace(first, size=last.start + last.size - first.start), take)
                for entry in run:
                    at = entry.start - first.start
                    found[id(entry)] = data[at : at + entry.size]
    return found


def _runs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Tensors in the order of a file, in stretches without gaps in which each is as aligned as in memory of its own."""
    run: list[Entry] = []
    for entry in entries:
        aligned = not (entry.start % WIDEST or (run and run[0].start % WIDEST))
        if run and not (aligned and entry.start == run[-1].start + run[-1].size):
            yield run
            run = []
        run.append(entry)
    yield run


def stretch(entry: Entry, begin: int, end: int, take: Take) -> memoryview:
    """The bytes [begin, end) of a tensor, in the same ways, wherever they begin."""
    with opened(entry) as file:
        return _stretch(file, replace(entry, start=entry.start + begin, size=end - begin), take, aligned=False)


def _stretch(file: FileIO, entry: Entry, take: Take, *, aligned: bool = True) -> memoryview:
    worth = entry.size >= LEAST and not (aligned and entry.start % WIDEST)
    if worth and (found := mapped(file, entry.start, entry.size)) is not None:
        return found
    into = take(entry.size)
    read_at(file, entry, 0, into)
    return into


def fill(file: FileIO, entry: Entry, strips: Iterable[Strip], into: memoryview) -> None:
    """Every row of the strips, from its byte of the tensor to its byte of the buffer.

    Raises LayoutError where the file does not give them.
    """
    for strip in strips:
        for part in _parts(strip):
            if part.loops:
                _copy(file, entry, part, into)
            else:
                source, target = part.at
                read_at(file, entry, source, into[target : target + part.length])


def _parts(strip: Strip) -> Iterator[Strip]:
    """The strip in parts: rows without a loop, and strips that fit a window."""
    if not strip.loops:
        yield strip
        return
    *rest, (count, steps) = strip.loops
    inner = replace(strip, loops=tuple(rest))
    together = (WINDOW - _extent(inner)) // steps[0] + 1 if _near(strip) else 1
    if together < 2:
        for turn in range(count):
            yield from _parts(moved(inner, tuple(turn * step for step in steps)))
        return
    for turn in range(0, count, together):
        turns = min(together, count - turn)
        yield moved(replace(inner, loops=(*rest, (turns, steps))), tuple(turn * step for step in steps))


def _near(strip: Strip) -> bool:
    """Whether no two neighbours are further apart than GAP."""
    extent = strip.length
    for count, (step, _) in strip.loops:
        if step - extent > GAP:
            return False
        extent += (count - 1) * step
    return True


def _extent(strip: Strip) -> int:
    """Bytes of the source from the first to the last, with what stands between."""
    return strip.length + sum((count - 1) * steps[0] for count, steps in strip.loops)


def _copy(file: FileIO, entry: Entry, strip: Strip, into: memoryview) -> None:
    size, (begin, target) = _extent(strip), strip.at
    if (found := mapped(file, entry.start + begin, size)) is None:
        found = memoryview(room(size))
        read_at(file, entry, begin, found)
    counts = [*(count for count, _ in reversed(strip.loops)), strip.length]
    given, made = ([*(steps[side] for _, steps in reversed(strip.loops)), 1] for side in (0, 1))
    source = torch.frombuffer(found, dtype=torch.uint8)
    torch.frombuffer(into, dtype=torch.uint8).as_strided(counts, made, target).copy_(source.as_strided(counts, given))


def mapped(file: FileIO, begin: int, size: int) -> memoryview | None:
    """Bytes of a file as the system keeps them; None where it cannot, or could not say that it failed."""
    if sys.platform != "linux":
        return None
    first = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with suppress(OSError, ValueError):  # a file system without maps, an older system, a file that ends before
        pages = mmap.mmap(file.fileno(), begin - first + size, access=mmap.ACCESS_COPY, offset=first)
        _populate(pages)
        return memoryview(pages)[begin - first :]
    return None


def _populate(pages: mmap.mmap) -> None:
    """All pages of a map. OSError where the disk does not give them, or the system cannot be asked."""
    if _madvise is None or _madvise(ctypes.addressof(ctypes.c_char.from_buffer(pages)), len(pages), POPULATE):
        raise OSError(ctypes.get_errno(), "the pages of a map are not there")


def _of_libc() -> Any:
    """The call of the C library: Python's own keeps its lock while the disk is waited for."""
    try:
        found = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


_madvise = _of_libc()
