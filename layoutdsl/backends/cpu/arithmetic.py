"""The arithmetic of recodes.py for the kernels of the cpu backend, one code at a time.

Values are float64, which holds every value of every code exactly, so that the one rounding is that of `encoded`. What
cannot be held is told beside the result, never raised: a kernel goes on, and another backend says where and why.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from layoutdsl.backends.cpu.memory import inlined


@intrinsic
def as_float(_typing: Any, word: Any) -> Any:
    """The float64 of 64 bits."""
    return types.float64(types.uint64), lambda _context, builder, _sig, args: builder.bitcast(args[0], ir.DoubleType())


@intrinsic
def as_word(_typing: Any, value: Any) -> Any:
    """The bits of a float64."""
    return types.uint64(types.float64), lambda _context, builder, _sig, args: builder.bitcast(args[0], ir.IntType(64))


@inlined
def decoded(code: Any, exponents: Any, mantissas: Any, bias: Any) -> Any:
    """The value of a code with a sign, so many bits of exponent and of mantissa; infinite for NaN too."""
    exponent = (code >> mantissas) & ((1 << exponents) - 1)
    mantissa = code & ((1 << mantissas) - 1)
    if exponent == (1 << exponents) - 1:
        value = math.inf
    elif exponent == 0:
        value = float(mantissa) * as_float(np.uint64(1024 - bias - mantissas) << np.uint64(52))
    else:
        value = as_float(np.uint64((exponent - bias + 1023) << 52 | mantissa << (52 - mantissas)))
    return -value if (code >> (exponents + mantissas)) & 1 else value


@inlined
def encoded(value: Any, bits: Any, mantissas: Any, bias: Any, top: Any) -> Any:
    """(code, refused) of a float code with a sign, half to even; `top` is its largest."""
    word = as_word(value)
    exponent = max(int((word >> np.uint64(52)) & np.uint64(0x7FF)) - 1023 + bias, 1)
    # Times a power of two below, in a range where it is exact: the only rounding is that of rint, half to even.
    step = as_float(np.uint64(mantissas + bias + 1023 - exponent) << np.uint64(52))
    magnitude = abs(value)
    if not magnitude < math.inf:
        return 0, True
    code = int(np.rint(magnitude * step)) + ((exponent - 1) << mantissas)
    return code | int(word >> np.uint64(63)) << (bits - 1), code > top


@inlined
def encoded_power(value: Any, top: Any) -> Any:
    """(code, refused) of a power of two, or 0."""
    word = as_word(value)
    code = int(word >> np.uint64(52)) - 1023 + 127
    if value == 0:
        return 0, False
    return code, (word & np.uint64((1 << 52) - 1)) != 0 or code < 0 or code > top


@inlined
def whole(value: Any) -> Any:
    """(the low 16 bits, refused) of the nearest whole number, half to even."""
    if not abs(value) < math.inf:
        return 0, True
    return int(np.rint(value) % 65536.0) & 0xFFFF, False


@inlined
def negative(word: Any) -> Any:
    """8 in each byte of a word that is a negative number of e4m3, else 0."""
    low, high = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)
    rest = word & low
    return (word & (rest + low) & ((rest ^ low) + low) & high) >> np.uint64(4)
