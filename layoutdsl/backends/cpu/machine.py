"""Machine code of kernels, which is kept in files: what stands there is loaded with nothing of numba's, whose compiler
takes several times as long to start.

A file says what its code hashes to: one that was cut short is as good as none, and whoever reads one while another
process replaces it has the whole of either.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numpy as np
from llvmlite import binding

from layoutdsl.errors import LayoutError


class Code(NamedTuple):
    """An object file, and the name that its kernel has there."""

    symbol: str
    data: bytes


_RESULTS = ctypes.c_void_p(), ctypes.c_void_p()
"""What numba's functions return, and what they raise; a kernel has neither."""


class Kernel:
    """A kernel in memory. Other threads go on while it runs."""

    def __init__(self, code: Code):
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code.data))
        self._engine.finalize_object()
        address = self._engine.get_function_address(code.symbol)
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 6)(address)

        self._results = tuple(map(ctypes.addressof, _RESULTS))

    def __call__(self, jobs: int, places: int, found: int, scratch: int, first: int, last: int) -> None:
        """Make some turns of a table of jobs. All but the turns are addresses: of lists of int64, of which the one that
        is found has an entry for each turn, and of a thread's memory apart, which begins a line of the cache."""
        self._call(*self._results, jobs, places, found, scratch, first, last)


def address(array: np.ndarray) -> int:
    """Where an array begins, which is not empty: `array.ctypes.data` in a fraction of its time."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


def compiled(function: Any) -> Code:
    """The machine code of a function that numba has compiled, once."""
    if not hasattr(function, "overloads"):
        raise LayoutError(
            "numba compiles nothing in this process: NUMBA_DISABLE_JIT is set",
            code="LP335",
            name="numba-off",
            help="unset it, or take the backend `torch`",
        )
    ((signature, made),) = function.overloads.items()
    module = binding.parse_assembly(function.inspect_llvm(signature))
    return Code(made.fndesc.llvm_func_name, _machine().emit_object(module))


def kept(path: Path) -> Code | None:
    """What a file has; None where it is not there, or not whole."""
    try:
        known, symbol, data = path.read_bytes().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    return Code(symbol.decode(), data) if _hash(symbol, data) == known else None


def keep(path: Path, code: Code) -> None:
    """Raises OSError."""
    symbol = code.symbol.encode()
    replace(path, b"\n".join((_hash(symbol, code.data), symbol, code.data)))


def replace(path: Path, data: bytes) -> None:
    """A file with those bytes, at once. Raises OSError."""
    file, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(file, "wb") as whole:
            whole.write(data)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


@cache
def processor() -> str:
    """Whose machine code it is, and whose making."""
    return f"{binding.get_host_cpu_name()} {_features()} {binding.get_process_triple()} {llvmlite.__version__}"


def _hash(symbol: bytes, data: bytes) -> bytes:
    return hashlib.sha256(symbol + b"\n" + data).hexdigest().encode()


def _features() -> str:
    return binding.get_host_cpu_features().flatten()


def _machine() -> binding.TargetMachine:
    """A new one: an engine frees its own."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=_features(), opt=3, codemodel="jitdefault", jit=True
    )
