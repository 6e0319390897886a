"""Compiled kernels, and threads that share their turns."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numba
import numpy as np

from layoutdsl.backends import user_cache
from layoutdsl.backends.cpu import machine, turns
from layoutdsl.backends.cpu.forms import Form
from layoutdsl.backends.cpu.machine import Kernel
from layoutdsl.backends.cpu.source import source

SHARE, PIECES = 1 << 20, 4
"""Bytes for which another thread is worth its start; pieces for each, so that one that is held up is helped out."""

USED = ("arithmetic", "digits", "doubles", "memory", "nibbles", "recoding", "rules", "tiles", "turns", "vectors")
"""Modules whose text is part of what kernels are compiled from."""


@cache
def kernel(form: Form) -> Kernel:
    """The compiled kernel of a form, from the user's cache if it is there."""
    text = source(form)
    name = f"layoutdsl_{hashlib.sha256(text.encode() + _used()).hexdigest()[:16]}"
    code = machine.kept(user_cache.folder() / f"{name}.o")
    return Kernel(_compiled(name, text) if code is None else code)


def _compiled(name: str, text: str) -> machine.Code:
    """The machine code of a module's kernel, which is kept where it can be."""
    path = _written(text, f"{name}.py")
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    code = machine.compiled(module.kernel)
    with suppress(OSError):
        machine.keep(path.with_suffix(".o"), code)
    return code


@cache
def _used() -> bytes:
    """All that the machine code of a kernel depends on beside its text."""
    texts = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in USED]
    return b"".join([*texts, numba.__version__.encode(), machine.processor().encode()])


def share(made: Kernel, jobs: np.ndarray, places: np.ndarray, sizes: Sequence[int], threads: int) -> np.ndarray:
    """All turns of a table of jobs, of so many bytes each in all, among threads; what they found."""
    ends = jobs[:, turns.END]
    found = np.zeros(int(ends[-1]), dtype=np.int64)
    count = max(min(threads, sum(sizes) // SHARE), 1)
    if count == 1:
        made(jobs, places, found, 0, len(found))
        return found
    done = np.cumsum([0, *sizes])
    shares = np.linspace(0, done[-1], PIECES * count + 1)
    borders = np.interp(shares, done, np.concatenate([[0], ends])).round().astype(int).tolist()
    left = iter([(first, last) for first, last in zip(borders, borders[1:]) if first < last])

    def work() -> None:
        for first, last in left:
            made(jobs, places, found, first, last)

    # The thread that asks is one of them, and waits for none that has not begun: to wake one takes its time.
    others = [_pool(os.getpid(), count - 1).submit(work) for _ in range(count - 1)]
    work()
    for other in others:
        if not other.cancel():
            other.result()
    return found


@lru_cache(maxsize=4)
def _pool(_process: int, count: int) -> ThreadPoolExecutor:
    """Threads of a process: a fork of it has none."""
    return ThreadPoolExecutor(count, thread_name_prefix="layoutdsl")


def threads() -> int:
    return numba.get_num_threads()


def _written(text: str, name: str) -> Path:
    """A file with that text, in the user's cache or, where nothing can be written there, in a folder for this run."""
    try:
        return _file(user_cache.folder(), text, name)
    except OSError:
        return _file(user_cache.temporary(), text, name)


def _file(folder: Path, text: str, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        machine.replace(path, text.encode())
    return path
