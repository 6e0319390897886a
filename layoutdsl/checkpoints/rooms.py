"""Memory that is used again: the system clears every page that it gives, and a conversion needs the same few sizes.

    with rooms.room(size) as room:
        room.take(1000)      # a buffer in it

A room that is given back is kept for the next that needs as many bytes, as long as all together hold the limit at most.
"""

from __future__ import annotations

import mmap
import threading

from layoutdsl.checkpoints.direct import BLOCK

ALIGNMENT = BLOCK
"""Of each buffer in a room, in bytes: as the disk takes it. What kernels write past the caches are lines of 64."""

GRAIN = 1 << 16
"""A room has a multiple of so many bytes, so that more of them are alike."""


class Room:
    """So many bytes, given out one buffer after another."""

    def __init__(self, size: int):
        self.size, self.at = size, 0
        self.data = memoryview(mmap.mmap(-1, size, **_PRIVATE)) if size else memoryview(b"")

    def take(self, size: int) -> memoryview:
        """The next bytes of it."""
        begin = self.at
        self.at += -(-size // ALIGNMENT) * ALIGNMENT
        assert begin + size <= self.size, "a room has bytes for all that it was asked for"
        return self.data[begin : begin + size]


_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def bytes_for(sizes: list[int]) -> int:
    """Bytes of a room for buffers of these sizes."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


class Rooms:
    """Rooms that hold `limit` bytes at most together, unless those that are in use alone hold more."""

    def __init__(self, limit: int):
        self.limit, self.held = limit, 0
        self._free: list[Room] = []
        self._lock = threading.Lock()

    def room(self, size: int) -> Room:
        """One that holds so many bytes, whatever stands in them."""
        size = -(-size // GRAIN) * GRAIN
        with self._lock:
            for at, room in enumerate(self._free):
                if room.size == size:
                    room.at = 0
                    return self._free.pop(at)
            while self._free and self.held + size > self.limit:
                self.held -= self._free.pop(0).size
            self.held += size
        return Room(size)

    def give_back(self, room: Room) -> None:
        """Nothing reads it any more."""
        with self._lock:
            self._free.append(room)
