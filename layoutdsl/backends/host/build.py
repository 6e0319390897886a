"""Kernels compiled for this machine's CPU: libraries in the user's cache, each built once.

A source's library is small and links against the runtime's, which runs its kernels. A library's name holds the digest
of all that went into it (text, compiler, flags), and it appears under that name at once and complete: processes may
build the same one side by side, and one that is killed leaves nothing that another would load.

Refuses: to do without a C++ compiler (LP300), and what that does not compile (LP301).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, partial
from pathlib import Path

from layoutdsl.backends import user_cache
from layoutdsl.backends.kernel_sources import folder, joined
from layoutdsl.errors import LayoutError

COMPILERS = ("g++", "clang++")

FLAGS = (
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    "-ffp-contract=off",  # the same results on every CPU
    "-Wframe-larger-than=131072",  # half a fiber's stack: kernels/host/fibers.h
)
BUILDS = {
    "plain": (),
    "address": ("-fsanitize=address", "-fno-omit-frame-pointer"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
    "thread": ("-fsanitize=thread", "-fno-omit-frame-pointer"),
}
"""Kinds of build, with the flags of each: as it is, or with one of the sanitizers."""

_ERROR_LINES = 12

_KERNEL = re.compile(r"^ *LD_KERNEL\((\w+)", re.MULTILINE)


def kernel_library(source: str, build: str = "plain") -> Path:
    """The library of all kernels of a text that is not joined yet; built where it is not there."""
    runtime = runtime_library(build)
    text = joined(source)
    names = _KERNEL.findall(text)
    entries = "".join(f"LD_HOST_ENTRY({name})\n" for name in names)
    # Beside each other: the kernels find the runtime wherever the cache is moved to.
    link = (f"-L{runtime.parent}", f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN")
    flags = (*FLAGS, *BUILDS[build], f"-I{folder()}")
    return _library("_".join(names[:1]) or "kernels", f"{text}\nnamespace ld {{\n{entries}}}\n", flags, link)


def loadable(source: str, build: str) -> Path:
    """`kernel_library`, loaded. A file that cannot be, cut short by a full disk, say, is built anew, once."""
    _loaded(partial(runtime_library, build))
    return _loaded(partial(kernel_library, source, build))


def _loaded(library: Callable[[], Path]) -> Path:
    path = library()
    with suppress(OSError):
        ctypes.CDLL(str(path))
        return path
    path.unlink(missing_ok=True)
    path = library()
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise LayoutError(
            f"what `{compiler()[0]}` made cannot be loaded: {error}",
            code="LP301",
            name="does-not-compile",
            help="it must be a C++ compiler for this machine: g++ and not gcc, clang++ and not clang",
        ) from None
    return path


def runtime_library(build: str = "plain") -> Path:
    """The library that runs kernels; built where it is not there."""
    # ThreadSanitizer would report the runtime's own bookkeeping: instead the runtime tells it what kernels do.
    kind = ("-DLD_THREAD_SANITIZER",) if build == "thread" else BUILDS[build]
    return _library("runtime", '#include "runtime.cpp"\n', (*FLAGS, *kind, f"-I{folder() / 'host'}"), ())


def check_loaded(build: str) -> None:
    """Refuse a build whose sanitizer is not part of this process: loading it would end the process."""
    symbol = {"address": "__asan_init", "thread": "__tsan_init"}.get(build)
    if symbol is not None and not hasattr(ctypes.CDLL(None), symbol):
        raise LayoutError(
            f"build `{build}` needs its sanitizer loaded before Python",
            code="LP309",
            name="no-sanitizer",
            help="scripts/sanitizers starts Python that way",
        )


def compiler() -> tuple[str, ...]:
    """The command of a C++ compiler: that of CXX, or the first of COMPILERS that is installed."""
    try:
        asked = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise LayoutError(
            f"CXX is `{os.environ['CXX']}`, which is no command: {error}",
            code="LP300",
            name="no-compiler",
            help="name a C++ compiler in it, with its options if it needs some",
        ) from None
    for command in (asked,) if asked else ([name] for name in COMPILERS):
        if shutil.which(command[0]):
            return tuple(command)
    missing = " or ".join(f"`{name}`" for name in (asked[:1] or COMPILERS))
    raise LayoutError(
        f"running kernels on the CPU needs a C++ compiler, and there is no {missing}",
        code="LP300",
        name="no-compiler",
        help="install g++ or clang++, or name another compiler's command in CXX; every other backend does without",
    )


def _library(stem: str, text: str, flags: tuple[str, ...], link: tuple[str, ...]) -> Path:
    command = compiler()
    made_of = "\0".join((text, _headers(), _version(command), *command, *flags, *link))
    name = f"host_{stem}_{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    path = _folder() / name
    if not path.is_file():
        with tempfile.TemporaryDirectory(prefix=".building_", dir=path.parent) as place:
            made = Path(place) / name
            _compile([*command, *flags, "-x", "c++", "-", "-o", str(made), *link], text, stem)
            os.replace(made, path)
    return path


def _compile(command: list[str], text: str, stem: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    said = [line for line in lines if "error: " in line or "-Wframe-larger-than" in line]  # nothing else guards a stack
    made = Path(command[command.index("-o") + 1])
    if done.returncode == 0 and not said and made.is_file():
        return
    said = said or lines or [f"`{command[0]}` ended with status {done.returncode}, said nothing and made nothing"]
    raise LayoutError(
        f"`{stem}` does not compile:\n" + "\n".join(said[:_ERROR_LINES]),
        code="LP301",
        name="does-not-compile",
        help=f"what a kernel may use is declared in {folder() / 'device.cuh'}",
    )


@cache
def _version(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True).stdout


@lru_cache(maxsize=1)
def _headers() -> str:
    return "\0".join(path.read_text(encoding="utf-8") for path in sorted((folder() / "host").iterdir()))


@cache
def _folder() -> Path:
    """The user's cache or, where nothing can be written there, a folder for this run."""
    chosen = user_cache.folder()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=chosen).close()
    except OSError:
        return user_cache.temporary()
    return chosen
