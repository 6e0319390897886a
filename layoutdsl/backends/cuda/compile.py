"""CUDA kernels compiled by NVRTC, for any arch and without a GPU; what was compiled once is kept in the user's cache.

    >>> compiled(kernel, "sm_90a").code[:4]
    b'\\x7fELF'

A kernel's text has everything in it and no header of CUDA is read, so a toolkit that happens to be installed cannot
mix with ours, and the text, the options and NVRTC's version are all that a compiled kernel depends on. The cache is
cuda.core's: files are written beside their place and renamed, so many processes may share it, and one that is killed
leaves nothing half written.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cuda.core import Program, ProgramOptions
from cuda.core._utils.cuda_utils import CUDAError
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

from layoutdsl.backends import kernel_sources, user_cache
from layoutdsl.backends.cuda.toolkit import check_arch, compiler
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    from layoutdsl.backends.repack.lower import Kernel


@dataclass(frozen=True)
class Cubin:
    """What a GPU loads of one kernel. cached: it was compiled before. kept: it is in the cache now."""

    code: bytes
    cached: bool
    kept: bool = True


def compiled(kernel: Kernel, arch: str) -> Cubin:
    """A kernel for one arch, from the cache or else compiled now and kept there, where it can be written.

    LayoutError: NVRTC is not installed, the arch is not one that kernels are compiled for, our own CUDA sources are not
    there, or NVRTC refuses the text.
    """
    check_arch(arch)
    headers()
    # Multiplications and additions stay apart: a fused one rounds once, and the bytes would be other than the CPU's.
    options = ProgramOptions(name="kernel.cu", arch=arch, fma=False)
    text = kernel_sources.joined(kernel.source)
    key = make_program_cache_key(code=text, code_type="c++", options=options, target_type="cubin")
    store = _store(folder())
    code = None if store is None else store.get(key)
    if code is not None:
        return Cubin(code, cached=True)
    code = _compile(kernel.name, text, options)
    return Cubin(code, cached=False, kept=_is_kept(store, key, code))


def headers() -> Path:
    """The folder of our CUDA sources, with `device.cuh`, which every kernel includes. LayoutError where it is not."""
    found = kernel_sources.folder()
    if (found / "device.cuh").is_file():
        return found
    raise LayoutError(
        f"`{found}` has no device.cuh, which every CUDA kernel includes",
        code="LP328",
        name="no-headers",
        help="pip install --force-reinstall --no-deps layoutdsl",
    )


def folder() -> Path:
    """Where compiled kernels are kept."""
    return user_cache.folder() / "cuda"


def check_cache() -> Path:
    """That folder; LayoutError where kernels cannot be kept there."""
    place = folder()
    there = next(path for path in (place, *place.parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return place
    raise LayoutError(
        f"{place} cannot be written, so that each process compiles its kernels anew",
        code="LP331",
        name="cache-not-writable",
        help="let XDG_CACHE_HOME name a folder that can",
    )


@lru_cache(maxsize=4)
def _store(folder: Path) -> FileStreamProgramCache | None:
    """None where the folder cannot be made or written; then each process compiles what it needs."""
    try:
        return FileStreamProgramCache(folder)
    except OSError:
        return None


def _is_kept(store: FileStreamProgramCache | None, key: bytes, code: bytes) -> bool:
    if store is None:
        return False
    try:
        store[key] = code
    except OSError:  # a full disk, say: the kernel is there nevertheless
        return False
    return True


def _compile(name: str, text: str, options: ProgramOptions) -> bytes:
    try:
        return bytes(Program(text, "c++", options).compile("cubin").code)
    except CUDAError as error:
        log = str(error).replace("\0", "").partition("compilation log:")[2].strip() or str(error)
        version = ".".join(map(str, compiler().version))
        raise LayoutError(
            f"NVRTC {version} does not compile kernel `{name}` for {options.arch}:\n{log}",
            code="LP327",
            name="does-not-compile",
            help="the text is `layoutdsl plan --emit cuda`; where a plan of ours made it, please report it",
        ) from None
