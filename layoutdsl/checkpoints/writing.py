"""Safetensors files of tensors that are known beforehand and come in pieces, in any order, from several threads."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.checkpoints.direct import BLOCK, Direct
from layoutdsl.checkpoints.folder import DTYPES

if TYPE_CHECKING:
    import torch

_SPELLED = {name: (spelled, width) for spelled, (name, width) in DTYPES.items()}
CHUNK = 1 << 20
"""Bytes that are read back at a time."""

PART = 1 << 18
"""Bytes of one call that writes: for larger ones Linux looks for larger stretches of free memory, which took up to five
times as long."""

WHOLE = 1 << 30
"""The same where each call waits for the disk: as few as can be."""

Described = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> its dtype, as torch names it, and its shape."""


class Writer:
    """One such file, new or as an earlier run left it.

    Tensors of whole blocks stand first, each at the beginning of one, then wide elements before narrow ones, so that
    every tensor is aligned to its own width. What is written goes to the disk at once: nothing waits for `close` that
    could have gone before.
    """

    def __init__(self, path: Path, described: Described, metadata: Mapping[str, str]):
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self.path, self.places = path, dict[str, tuple[int, int]]()
        at = 0
        for name, size in sorted(_sizes(described), key=lambda one: _order(described, *one)):
            dtype, shape = described[name]
            spelled, _ = _SPELLED[dtype]
            header[name] = {"dtype": spelled, "shape": list(shape), "data_offsets": [at, at + size]}
            self.places[name] = at, size
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % BLOCK)
        self.head = len(text).to_bytes(8, "little") + text
        self.size = len(self.head) + at
        self.file, self.part = -1, PART
        self.direct: Direct | None = None

    def open(self) -> None:
        """The file with its header and room for all tensors."""
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        os.ftruncate(self.file, min(os.fstat(self.file).st_size, self.size))
        write_at(self.file, memoryview(self.head), 0)
        _reserve(self.file, self.size)
        self.direct = Direct(self.path)

    def join(self) -> None:
        """The file as another process has opened it. OSError where there is none.

        Two machines may write into one page at a time. A client of NFS that has all of a page in memory may send all of
        it, and with it bytes from before the other's; with O_DSYNC it sends what was written and nothing else.
        """
        self.part = WHOLE
        self.file = os.open(self.path, os.O_WRONLY | getattr(os, "O_DSYNC", 0) | getattr(os, "O_BINARY", 0))

    def put(self, name: str, at: int, data: memoryview) -> None:
        """Bytes of a tensor, from `at` on."""
        start, size = self.places[name]
        assert 0 <= at <= at + len(data) <= size, name
        start += len(self.head) + at
        begin, end = self.direct.write(data, start) if self.direct else (0, 0)
        write_at(self.file, data[:begin], start, self.part)
        write_at(self.file, data[end:], start + end, self.part)
        if not end:
            _send(self.file, start, len(data))

    def get(self, name: str, at: int, size: int) -> Iterator[bytes]:
        """So many bytes of a tensor, from `at` on, as they are in the file; in chunks, and fewer where it ends."""
        start = len(self.head) + self.places[name][0] + at
        with open(self.path, "rb", buffering=0) as file:
            file.seek(start)
            while size and (chunk := file.read(min(size, CHUNK))):
                size -= len(chunk)
                yield chunk

    def close(self) -> None:
        """Everything on disk."""
        os.ftruncate(self.file, self.size)
        os.fsync(self.file)
        self.abandon()

    def abandon(self) -> None:
        if self.direct:
            self.direct.close()
        if self.file >= 0:
            os.close(self.file)
        self.file, self.direct = -1, None


def _sizes(described: Described) -> Iterator[tuple[str, int]]:
    """(name, bytes) of each tensor."""
    for name, (dtype, shape) in described.items():
        yield name, math.prod(shape) * _SPELLED[dtype][1]


def _order(described: Described, name: str, size: int) -> tuple[bool, int, str]:
    return size % BLOCK != 0, -_SPELLED[described[name][0]][1], name


def write_at(file: int, data: memoryview, at: int, part: int = PART) -> None:
    """All of the data, from a byte of the file on."""
    done = 0
    while done < len(data):
        done += _pwrite(file, data[done : done + part], at + done)


_SEEKING = threading.Lock()


def _pwrite(file: int, data: memoryview, at: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(file, data, at)
    with _SEEKING:  # Windows
        os.lseek(file, at, os.SEEK_SET)
        return os.write(file, data)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, on the CPU."""
    import torch

    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _send(file: int, at: int, size: int) -> None:
    """Have the system begin to write a part of a file to the disk, where it can be asked to."""
    if _sync_file_range is not None:
        _sync_file_range(file, at, size, 2)  # SYNC_FILE_RANGE_WRITE: without waiting


def _of_libc() -> Any:
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_file_range = _of_libc()


def _reserve(handle: int, size: int) -> None:
    """Room for the whole file, so that a full disk is told now and not after an hour; where the file system can."""
    try:
        os.posix_fallocate(handle, 0, size)
    except AttributeError:
        return
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
