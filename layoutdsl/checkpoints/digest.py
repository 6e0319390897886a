"""A digest of bytes at the speed of memory, by which a later run tells whether they are what was written.

    digest = Digest()
    digest.update(data)         # in pieces of any size
    digest.hexdigest()

Rows of ROW bytes, as 64-bit words, are added up, each times an odd number of its own; SHA-256 of the sum and of the
length is the digest. A change within one row is always told, as odd numbers have inverses; changes in several are
missed once in 2^64. That tells what kills, disks and other writers leave. It is no seal: who wants to can make other
bytes of the same digest. SHA-256 of all bytes would take half of a conversion's time.
"""

from __future__ import annotations

import hashlib

import numpy as np

ROW = 1 << 18
"""Bytes; a row and the sum stay in a core's own cache. With smaller ones threads wait for the interpreter's lock."""


class Digest:
    def __init__(self, data: bytes | memoryview = b""):
        self._sum = np.zeros(ROW // 8, np.uint64)
        self._times = np.empty_like(self._sum)
        self._row, self._held = np.zeros(ROW, np.uint8), 0
        self._rows, self._size = 0, 0
        self.update(data)

    def update(self, data: bytes | memoryview) -> None:
        """Bytes that follow those before."""
        left = np.frombuffer(data, np.uint8)
        self._size += len(left)
        if self._held:
            left = self._fill(left)
        whole = len(left) // ROW * ROW
        for row in left[:whole].view(np.uint64).reshape(-1, ROW // 8):
            self._add(row)
        if whole < len(left):
            self._fill(left[whole:])

    def hexdigest(self) -> str:
        self._row[self._held :] = 0
        last = self._row.view(np.uint64) * _odd(self._rows)
        return hashlib.sha256((self._sum + last).tobytes() + self._size.to_bytes(8, "little")).hexdigest()

    def _fill(self, data: np.ndarray) -> np.ndarray:
        """Into the row that is begun; what does not fit is returned."""
        taken = min(ROW - self._held, len(data))
        self._row[self._held : self._held + taken] = data[:taken]
        self._held += taken
        if self._held == ROW:
            self._add(self._row.view(np.uint64))
            self._held = 0
        return data[taken:]

    def _add(self, row: np.ndarray) -> None:
        np.multiply(row, _odd(self._rows), out=self._times)
        np.add(self._sum, self._times, out=self._sum)
        self._rows += 1


def _odd(number: int) -> np.uint64:
    """An odd number for each row, as a splitmix64 generator gives them."""
    found = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
    found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    found = (found ^ found >> 27) * 0x94D049BB133111EB % 2**64
    return np.uint64(found ^ found >> 31 | 1)
