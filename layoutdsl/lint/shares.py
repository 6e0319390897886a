"""Many files at once: each core that may be used has a process, which takes the next file as long as there is one.

What is found depends on neither the number of processes nor who takes what. What one of them leaves undone, because
something failed there or because it was ended, the first one does.
"""

from __future__ import annotations

import gc
import os
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
    from layoutdsl.lint import examine

    found: dict[int, Examined] = {}
    more = _processes(len(paths)) - 1
    with _uncollected():
        if more > 0:
            examine.prepare(paths, specs)
            with _queue(len(paths)) as queue, _children(more, queue, paths, specs) as answers:
                found.update((at, examine.examined(paths[at], specs)) for at in _places(queue))
                found.update(one for answer in answers for one in _answers(answer))
        return [found[at] if at in found else examine.examined(path, specs) for at, path in enumerate(paths)]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without a collector of rings, which finds hardly any and takes a twentieth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _processes(files: int) -> int:
    """How many share the work. A process that has threads may not be doubled."""
    if not hasattr(os, "fork") or threading.active_count() > 1 or files > _MOST_QUEUED:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, files // FEWEST)


@contextmanager
def _queue(count: int) -> Iterator[int]:
    """A pipe that holds the places of all files, from which each process takes one at a time."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"".join(map(_PLACE.pack, range(count))))
        os.close(writer)
        yield reader
    finally:
        os.close(reader)


def _places(queue: int) -> Iterator[int]:
    while len(taken := os.read(queue, _PLACE.size)) == _PLACE.size:
        yield _PLACE.unpack(taken)[0]


@contextmanager
def _children(count: int, queue: int, paths: Sequence[Path], specs: tuple[str, ...]) -> Iterator[list[int]]:
    """Processes that share the queue; each answers through a pipe of its own, and none outlives the block."""
    children: list[int] = []
    answers: list[int] = []
    try:
        for _ in range(count):
            reader, writer = os.pipe()
            answers.append(reader)
            with suppress(OSError):  # no more processes are allowed: fewer share the work
                if (child := os.fork()) == 0:
                    _child(queue, writer, paths, specs)
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


def _child(queue: int, answer: int, paths: Sequence[Path], specs: tuple[str, ...]) -> None:
    """Work until no file is left; nothing of the process that this one doubles may happen again, not even its end."""
    from layoutdsl.lint import examine

    try:
        with os.fdopen(answer, "w", encoding="utf-8") as stream:
            for at in _places(queue):
                one = examine.examined(paths[at], specs)
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
