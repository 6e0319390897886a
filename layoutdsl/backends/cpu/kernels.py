"""Compiled kernels, and threads that share their turns."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numba
import numpy as np

from layoutdsl.backends.cpu import arithmetic, digits, doubles, memory, nibbles, recoding, rules, turns, vectors
from layoutdsl.backends.cpu.forms import Form
from layoutdsl.backends.cpu.source import source

SHARE, PIECES = 1 << 21, 4
"""Bytes for which another thread is worth its start; pieces for each, so that one that is held up is helped out."""

Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], None]


@cache
def kernel(form: Form) -> Kernel:
    """The compiled kernel of a form, from a file of its own: numba keeps what it has compiled beside it."""
    text = source(form)
    name = f"layoutdsl_{hashlib.sha256(text.encode() + _used()).hexdigest()[:16]}"
    spec = spec_from_file_location(name, _written(text, f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


@cache
def _used() -> bytes:
    """The text of what kernels call: numba would not notice that it has changed."""
    modules = arithmetic, digits, doubles, memory, nibbles, recoding, rules, turns, vectors
    return b"".join(Path(module.__file__ or "").read_bytes() for module in modules)


def share(made: Kernel, jobs: np.ndarray, places: np.ndarray, sizes: Sequence[int], threads: int) -> np.ndarray:
    """All turns of a table of jobs, of so many bytes each in all, among threads; what they found."""
    ends = jobs[:, turns.END]
    found = np.zeros(int(ends[-1]), dtype=np.int64)
    done = np.cumsum(sizes)
    count = max(min(threads, int(done[-1]) // SHARE), 1)
    if count == 1:
        made(jobs, places, found, 0, len(found))
        return found
    shares = np.linspace(0, done[-1], PIECES * count + 1)
    borders = np.interp(shares, np.concatenate([[0], done]), np.concatenate([[0], ends])).round().astype(int).tolist()
    firsts = [(first, last) for first, last in zip(borders, borders[1:]) if first < last]
    list(_pool(os.getpid(), count).map(lambda turns: made(jobs, places, found, *turns), firsts))
    return found


@lru_cache(maxsize=4)
def _pool(_process: int, count: int) -> ThreadPoolExecutor:
    """Threads of a process: a fork of it has none."""
    return ThreadPoolExecutor(count, thread_name_prefix="layoutdsl")


def threads() -> int:
    return numba.get_num_threads()


def _written(text: str, name: str) -> Path:
    """A file with that text, in the user's cache or, where nothing can be written there, in a folder for this run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "layoutdsl"
    try:
        return _file(folder, text, name)
    except OSError:
        return _file(_temporary(), text, name)


def _file(folder: Path, text: str, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    return path


@lru_cache(maxsize=1)
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="layoutdsl-"))
