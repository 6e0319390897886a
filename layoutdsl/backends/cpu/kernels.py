"""Compiled kernels: one for each form, whose machine code is kept on disk."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from layoutdsl.backends import user_cache
from layoutdsl.backends.cpu import machine
from layoutdsl.backends.cpu.forms import Form
from layoutdsl.backends.cpu.machine import Kernel
from layoutdsl.backends.cpu.source import source

USED = ("arithmetic", "digits", "doubles", "memory", "nibbles", "recoding", "rules", "tiles", "turns", "vectors")
"""Modules whose text is part of what kernels are compiled from."""

if find_spec("numba") is None:  # it is imported by the text of a kernel that is compiled, and by nothing else
    raise ModuleNotFoundError("No module named 'numba'", name="numba")


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
    return b"".join([*texts, version("numba").encode(), machine.processor().encode()])


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
