"""Bits to float64, one function per number format, by integer arithmetic.

Each takes an integer array of any shape (only the low bits of the format count) and
returns float64 of that shape. Codes that are no number become nan.
"""

import numpy as np


def _magnitude(bits, *, exponent, fraction, bias):
    """(1.fraction) * 2^(exponent - bias), or (0.fraction) * 2^(1 - bias) where exponent is 0."""
    e = bits >> fraction & (1 << exponent) - 1
    f = bits & (1 << fraction) - 1
    significand = np.where(e == 0, f, f + (1 << fraction)).astype(np.float64)
    return np.ldexp(significand, np.maximum(e, 1) - bias - fraction)


def _sign(bits, *, at):
    return np.where(bits >> at & 1, -1.0, 1.0)


def _integers(bits):
    return np.asarray(bits).astype(np.int64)


def e2m1(bits):
    """FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; every code is a number."""
    bits = _integers(bits)
    return _sign(bits, at=3) * _magnitude(bits, exponent=2, fraction=1, bias=1)


def e4m3fn(bits):
    """FP8 without infinities: only 0x7F and 0xFF are nan; the largest is 448."""
    bits = _integers(bits)
    value = _sign(bits, at=7) * _magnitude(bits, exponent=4, fraction=3, bias=7)
    return np.where(bits & 0x7F == 0x7F, np.nan, value)


def e8m0(bits):
    """A power of two, 2^(byte - 127); 0xFF is nan, and there is no zero."""
    bits = _integers(bits) & 0xFF
    return np.where(bits == 0xFF, np.nan, np.ldexp(1.0, bits - 127))


def f16(bits):
    bits = _integers(bits)
    return _ieee(bits, exponent=5, fraction=10)


def bf16(bits):
    bits = _integers(bits)
    return _ieee(bits, exponent=8, fraction=7)


def f32(bits):
    """Takes uint32 bits, or a float32 array, whose bits it then reads."""
    bits = np.asarray(bits)
    bits = _integers(bits.view(np.uint32) if bits.dtype == np.float32 else bits)
    return _ieee(bits, exponent=8, fraction=23)


def s0e5m3(bits):
    """NVFP4 scale of Marlin: the upper bits of a float16 whose sign is known to be +."""
    return f16((_integers(bits) & 0xFF) << 7)


def _ieee(bits, *, exponent, fraction):
    top = (1 << exponent) - 1
    value = _magnitude(bits, exponent=exponent, fraction=fraction, bias=top >> 1)
    special = np.where(bits & (1 << fraction) - 1, np.nan, np.inf)
    value = np.where(bits >> fraction & top == top, special, value)
    return _sign(bits, at=exponent + fraction) * value


FLOAT = {"float16": f16, "bfloat16": bf16, "float32": f32}
