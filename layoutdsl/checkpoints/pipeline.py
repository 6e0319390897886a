"""Works that are read ahead and written behind in threads, while this one makes one of another, in their order.

    for work, done in Pipeline(read, make, write).run(works):
        ...     # it is written, and whatever `write` returned is `done`

All works that are under way together hold BUDGET bytes at most, or one work alone does that is larger. An error of any
stage ends all of them: it is raised here, and no thread is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

BUDGET = 192 << 20
"""Bytes that all works under way hold together, where no single one holds more."""

READERS = 4
WRITERS = 3
"""Threads of each stage. Of those that write two wait for the disk while one makes a digest."""


class Work(Protocol):
    """read: bytes that it holds until it is made; made: those that it holds from then on, until it is written."""

    @property
    def read(self) -> int: ...

    @property
    def made(self) -> int: ...


W = TypeVar("W", bound=Work)


def peak(works: Iterable[Work]) -> int:
    """Bytes that a pipeline holds at most with these works."""
    sizes = [work.read + work.made for work in works]
    return max(max(sizes, default=0), min(BUDGET, sum(sizes)))


@dataclass(frozen=True)
class Pipeline(Generic[W]):
    """read(work) and write(work, made) run in threads, make(work, given) in the caller's."""

    read: Callable[[W], Any]
    make: Callable[[W, Any], Any]
    write: Callable[[W, Any], Any]

    def run(self, works: Iterable[W]) -> Iterator[tuple[W, Any]]:
        """(work, what `write` returned), in order."""
        with ExitStack() as stack:
            readers, writers = ThreadPoolExecutor(READERS), ThreadPoolExecutor(WRITERS)
            stack.callback(writers.shutdown)  # what is made by then is written
            stack.callback(readers.shutdown, cancel_futures=True)
            yield from self._run(deque(works), readers, writers)

    def _run(
        self, coming: deque[W], readers: ThreadPoolExecutor, writers: ThreadPoolExecutor
    ) -> Iterator[tuple[W, Any]]:
        held = 0
        reading: deque[tuple[W, Future[Any]]] = deque()
        writing: deque[tuple[W, Future[Any]]] = deque()
        while coming or reading or writing:
            while coming and (not held or held + coming[0].read + coming[0].made <= BUDGET):
                work = coming.popleft()
                held += work.read + work.made
                reading.append((work, readers.submit(self.read, work)))
            waits = not reading
            if reading:
                work, given = reading.popleft()
                writing.append((work, writers.submit(self.write, work, self.make(work, given.result()))))
                held -= work.read
                del given  # its result counts no longer
            while writing and (waits or writing[0][1].done()):
                work, done = writing.popleft()
                held -= work.made
                waits = False
                yield work, done.result()
