"""Many files at once: each core that may be used has a process, which takes the next work as long as there is some.

The first process begins with what is stated in the files, the others with the proofs: each imports what its own work
needs. What is found depends on neither the number of processes nor who takes what. What one of them leaves undone,
because something failed there or because it was ended, the first one does.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from layoutdsl.lint import record
from layoutdsl.lint.outcome import Examined

FEWEST = 4
"""Files for which one more process is worth its start."""

_MOST_QUEUED = 4096
"""Files that wait in a pipe; it holds more bytes than their places take, on every system."""

_PLACE = struct.Struct("=I")


def examined(paths: Sequence[Path], specs: tuple[str, ...]) -> list[Examined]:
    """All there is to say of each file by itself."""
    from layoutdsl.lint.examine import STAGES

    work = [partial(stage, path, specs) for stage in STAGES for path in paths]
    found: dict[int, Examined] = {}
    more = _processes(len(paths)) - 1
    if more > 0:
        import layoutdsl.logical  # noqa: F401  # what all of them need is imported once

        with _queues(len(STAGES), len(paths)) as queues, _children(more, queues[::-1], work) as answers:
            found.update((at, work[at]()) for at in _places(queues))
            found.update(one for answer in answers for one in _answers(answer))
    every = iter([found[at] if at in found else do() for at, do in enumerate(work)])
    made = list(islice(every, len(paths)))
    for one, other in zip(cycle(made), every):
        one.add(other)
    return made


def _processes(files: int) -> int:
    """How many share the work. A process that has threads may not be doubled."""
    if not hasattr(os, "fork") or threading.active_count() > 1 or files > _MOST_QUEUED:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, files // FEWEST)


@contextmanager
def _queues(count: int, files: int) -> Iterator[list[int]]:
    """A pipe for each stage that holds the places of its work, from which each process takes one at a time."""
    readers: list[int] = []
    try:
        for stage in range(count):
            reader, writer = os.pipe()
            readers.append(reader)
            os.write(writer, b"".join(map(_PLACE.pack, range(stage * files, (stage + 1) * files))))
            os.close(writer)
        yield readers
    finally:
        for reader in readers:
            os.close(reader)


def _places(queues: Sequence[int]) -> Iterator[int]:
    for queue in queues:
        while len(taken := os.read(queue, _PLACE.size)) == _PLACE.size:
            yield _PLACE.unpack(taken)[0]


@contextmanager
def _children(count: int, queues: Sequence[int], work: Sequence[Callable[[], Examined]]) -> Iterator[list[int]]:
    """Processes that share the queues; each answers through a pipe of its own, and none outlives the block."""
    children: list[int] = []
    answers: list[int] = []
    try:
        for _ in range(count):
            reader, writer = os.pipe()
            answers.append(reader)
            with suppress(OSError):  # no more processes are allowed: fewer share the work
                if (child := os.fork()) == 0:
                    _child(queues, writer, work)
                children.append(child)
            os.close(writer)
        yield answers
    finally:
        for answer in answers:
            os.close(answer)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _child(queues: Sequence[int], answer: int, work: Sequence[Callable[[], Examined]]) -> None:
    """Work until none is left; nothing of the process that this one doubles may happen again, not even its end."""
    try:
        with os.fdopen(answer, "w", encoding="utf-8") as stream:
            for at in _places(queues):
                one = work[at]()
                if not one.faults:
                    stream.write(f"{at} {record.written(one)}\n")
    finally:
        os._exit(0)


def _answers(answer: int) -> Iterator[tuple[int, Examined]]:
    with os.fdopen(os.dup(answer), encoding="utf-8") as stream:
        for line in stream:
            at, _, text = line.rstrip("\n").partition(" ")
            if (one := record.read(text)) is not None:
                yield int(at), one
