"""Loads and stores of whole words at addresses, for the kernels of the cpu backend. Addresses need no alignment.

Numba's arrays would do the same, but for a check of each index for wrapping, and one type for each shape of argument.
Nothing here is checked: tables.py holds all addresses against the sizes of their tensors.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _load(bits: int) -> Any:
    @intrinsic
    def load(_typing: Any, address: Any) -> Any:
        """The word at an address, as a uint64."""

        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            found = builder.load(pointer, align=1)
            return found if bits == 64 else builder.zext(found, ir.IntType(64))

        return types.uint64(types.int64), generate

    return load


def _store(bits: int) -> Any:
    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> Any:
        """Write the low bits of a uint64 at an address."""

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            word = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            builder.store(word, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return store


_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

entry = numba.njit(f"void({', '.join(['int64'] * 6)})", **_OPTIONS)
"""Decorates a kernel: it is compiled at once, for machine.py alone."""

inlined = numba.njit(**_OPTIONS)
"""Decorates what kernels alone call."""

load8, load16, load32, load64 = map(_load, (8, 16, 32, 64))
store8, store16, store32, store64 = map(_store, (8, 16, 32, 64))


@intrinsic
def at(_typing: Any, table: Any, index: Any) -> Any:
    """An entry of a table of int64."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return types.int64(types.int64, types.int64), generate


@inlined
def got(base: Any, place: Any) -> Any:
    """The 4-bit code at a place, counted in codes."""
    return numba.int64(load8(base + (place >> 1))) >> ((place & 1) << 2) & 15


@inlined
def put(base: Any, place: Any, code: Any) -> None:
    """A 4-bit code beside the other one of its byte."""
    address, shift = base + (place >> 1), (place & 1) << 2
    store8(address, numba.uint64(numba.int64(load8(address)) & (240 >> shift) | code << shift))
