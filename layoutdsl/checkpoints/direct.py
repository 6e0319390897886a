"""Writing past the system's cache: a disk takes whole blocks from where they lie in memory, and nothing is copied.

    direct = Direct(path)
    begin, end = direct.write(data, at)     # the part of the data that is on its way; the rest is the caller's

What a conversion writes it does not read again: in the cache it would cost a copy, and crowd out what others read. Data
that does not lie in memory as its blocks lie in the file goes through a buffer. Where the system or the file system has
no such way, nothing is written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from errno import EINVAL, ENOTSUP
from pathlib import Path

BLOCK = 4096
"""Bytes; no disk has larger blocks, and memory is given in such pages."""

LEAST = 1 << 16
"""Bytes of data from which on it is worth a call that waits for the disk."""

BUFFER = 1 << 18
"""Bytes, of each thread that needs one."""


class Direct:
    """A file that is there, opened for this alone. Any thread may write."""

    def __init__(self, path: Path):
        self._file = -1
        self._own = threading.local()
        if hasattr(os, "O_DIRECT"):
            with suppress(OSError):  # a file system that has no such way
                self._file = os.open(path, os.O_WRONLY | os.O_DIRECT)

    def write(self, data: memoryview, at: int) -> tuple[int, int]:
        """Write all whole blocks of data that begins at a byte of the file. Returns the part that is written.

        OSError where the disk does not take them.
        """
        begin = -at % BLOCK
        size = (len(data) - begin) // BLOCK * BLOCK
        if self._file < 0 or size < LEAST:
            return 0, 0
        part = data[begin : begin + size]
        done = self._aligned(part, at + begin) if _address(part) % BLOCK == 0 else self._copied(part, at + begin)
        return begin, begin + done

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _copied(self, data: memoryview, at: int) -> int:
        if not hasattr(self._own, "buffer"):
            self._own.buffer = memoryview(mmap.mmap(-1, BUFFER))
        done = 0
        while done < len(data):
            part = data[done : done + BUFFER]
            self._own.buffer[: len(part)] = part
            count = self._aligned(self._own.buffer[: len(part)], at + done)
            done += count
            if count < len(part):
                break
        return done

    def _aligned(self, data: memoryview, at: int) -> int:
        """The bytes that were written: whole blocks, all of them unless the file system goes back on its word."""
        done = 0
        while done < len(data):
            try:
                count = os.pwrite(self._file, data[done:], at + done)
            except OSError as error:
                if error.errno in (EINVAL, ENOTSUP):
                    break
                raise
            done += count // BLOCK * BLOCK
            if count % BLOCK or not count:
                break
        return done


def _address(data: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))
