"""Element codes: how many bits one stored element has and which value it stands for.

A code name is one of

    u4 u8              unsigned integer; its zero point is a tensor of its own (or 0)
    u4b8 u8b128        unsigned integer minus a fixed bias
    n4 n4b8            the nibble of 4-bit weights under FP8 activations: with zero point z (8 for n4b8) the integer q
                       is stored as q - z where q >= z, else as 15 - q
    int16 int32 int64  two's complement
    e2m1 e4m3          FP4 and FP8 (e4m3fn: no infinities, 0x7F and 0xFF are NaN)
    e8m0               a power of two, 2^(c - 127); 0xFF is NaN
    e8m0z              the same as Marlin reads it: code 0 is the value 0, and there is no NaN
    s0e5m3             the unsigned byte of Marlin's NVFP4 scales: the upper bits of a float16 without its sign
    s0e5m3b            the same as bf16 kernels read it: nothing below 2.0 except 0
    float16 bfloat16 float32

Every value is exact in a Python float, so `decode` never rounds; `encode` rounds once, half to even.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from layoutdsl.errors import LayoutError, did_you_mean

DTYPE_BITS = {
    "int8": 8,
    "uint8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64, "uint16": 16, "uint32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float8_e4m3fn": 8,
    "float8_e8m0fnu": 8,
}
"""Storage element types, named as torch names them, with their width in bits."""

CODE_OF_DTYPE = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float8_e4m3fn": "e4m3",
    "float8_e8m0fnu": "e8m0",
    "int32": "int32",
    "int64": "int64",
}
"""The code of a tensor that states none: its elements are plain numbers of their dtype."""


class Unrepresentable(ValueError):
    """A value that a code cannot hold; the text says why."""


@dataclass(frozen=True, slots=True)
class Code:
    """One element code. `kind` is integer, nibble, signed, float or power; fields that a kind does not use are 0."""

    name: str
    bits: int
    kind: str
    bias: int = 0
    exponent: int = 0
    mantissa: int = 0
    sign: bool = False
    top: float = math.inf
    floor: float = 0.0

    @property
    def is_weight_integer(self) -> bool:
        return self.kind in ("integer", "nibble")

    @property
    def needs_zero_point(self) -> bool:
        """Whether a value is only known together with a zero point."""
        return self.is_weight_integer and self.bias == 0

    def decode(self, code: int, zero: int | None = None) -> float:
        """Value of `code`; `zero` is the zero point of an integer code that carries one. NaN codes give nan."""
        if self.kind == "integer":
            return float(code - (self.bias if zero is None else zero))
        if self.kind == "nibble":
            z = self.bias if zero is None else zero
            return float(code if code < 16 - z else 15 - code - z)
        if self.kind == "signed":
            return float(code - (1 << self.bits) if code >> (self.bits - 1) else code)
        if self.kind == "power":
            if self.name == "e8m0z":
                return math.ldexp(1.0, code - 127) if code else 0.0
            return math.ldexp(1.0, code - 127) if code != 255 else math.nan
        return self._decode_float(code)

    def _decode_float(self, code: int) -> float:
        negative = self.sign and code >> (self.bits - 1)
        rest = code & ((1 << (self.exponent + self.mantissa)) - 1)
        exponent, mantissa = rest >> self.mantissa, rest & ((1 << self.mantissa) - 1)
        if self.name == "e4m3" and rest == 0x7F:
            return math.nan
        if exponent == (1 << self.exponent) - 1 and self.name not in ("e4m3", "e2m1"):
            return math.nan if mantissa else (-math.inf if negative else math.inf)
        whole = mantissa + ((1 << self.mantissa) if exponent else 0)
        value = math.ldexp(whole, max(exponent, 1) - self.bias - self.mantissa)
        if abs(value) < self.floor:
            value = 0.0
        return -value if negative else value

    def encode(self, value: float) -> int:
        """The code nearest to `value` (half to even). Raises Unrepresentable: NaN, infinity, overflow, a sign or a
        power that the code lacks. A value below `floor` becomes 0; a power of two of 2^-127, or 0, becomes code 0."""
        if math.isnan(value) or math.isinf(value):
            raise Unrepresentable("it is not a finite number")
        if self.kind == "power":
            mantissa, exponent = math.frexp(value)
            code = exponent - 1 + 127
            if value == 0:
                return 0
            if mantissa != 0.5 or not 0 <= code <= (255 if self.name == "e8m0z" else 254):
                shown = f"2^{exponent - 1}" if mantissa == 0.5 else repr(value)
                raise Unrepresentable(f"{shown} is no power of two that {self.name} holds")
            return code
        if self.kind != "float":
            return self._encode_integer(value)
        if math.copysign(1.0, value) < 0 and not self.sign:
            if value == 0:
                return 0
            raise Unrepresentable(f"{value!r} is negative and {self.name} has no sign")
        magnitude = abs(value)
        if magnitude < self.floor or magnitude == 0:
            return 1 << (self.bits - 1) if self.sign and math.copysign(1.0, value) < 0 else 0
        code = self._magnitude(magnitude)
        if code >= self._limit:
            raise Unrepresentable(f"{value!r} is beyond {self.top!r}, the largest {self.name}")
        return code | (1 << (self.bits - 1) if math.copysign(1.0, value) < 0 else 0)

    def _encode_integer(self, value: float) -> int:
        whole, low = round(value), -(1 << (self.bits - 1)) if self.kind == "signed" else -self.bias
        if whole != value or not low <= whole < low + (1 << self.bits):
            raise Unrepresentable(f"{value!r} is no integer that {self.name} holds")
        if self.kind == "nibble":
            return whole if whole >= 0 else 15 - self.bias - whole
        return whole - low if self.kind == "integer" else whole & ((1 << self.bits) - 1)

    def _magnitude(self, magnitude: float) -> int:
        _, exponent = math.frexp(magnitude)
        biased = max(exponent - 1 + self.bias, 1)
        whole = round(math.ldexp(magnitude, self.mantissa - (biased - self.bias)))
        return whole + ((biased - 1) << self.mantissa)

    @property
    def _limit(self) -> int:
        return self._magnitude(self.top) + 1


_FIXED = {
    code.name: code
    for code in (
        Code("n4", 4, "nibble"),
        Code("n4b8", 4, "nibble", bias=8),
        Code("int16", 16, "signed"),
        Code("int32", 32, "signed"),
        Code("int64", 64, "signed"),
        Code("e8m0", 8, "power"),
        Code("e8m0z", 8, "power"),
        Code("e2m1", 4, "float", bias=1, exponent=2, mantissa=1, sign=True, top=6.0),
        Code("e4m3", 8, "float", bias=7, exponent=4, mantissa=3, sign=True, top=448.0),
        Code("s0e5m3", 8, "float", bias=15, exponent=5, mantissa=3, top=61440.0),
        Code("s0e5m3b", 8, "float", bias=15, exponent=5, mantissa=3, top=61440.0, floor=2.0),
        Code("float16", 16, "float", bias=15, exponent=5, mantissa=10, sign=True, top=65504.0),
        Code("bfloat16", 16, "float", bias=127, exponent=8, mantissa=7, sign=True, top=math.ldexp(255.0, 120)),
        Code("float32", 32, "float", bias=127, exponent=8, mantissa=23, sign=True, top=math.ldexp(16777215.0, 104)),
    )
}


def meant(name: str, known: Iterable[str]) -> str | None:
    """A question that names the known code or dtype that was likely meant; one of other digits is another type."""
    digits = _digits(name)
    return did_you_mean(name, [one for one in known if not digits or _digits(one) == digits])


def _digits(name: str) -> list[str]:
    return sorted(filter(str.isdigit, name))


@cache
def code_named(name: str) -> Code:
    """The code of that name; LayoutError with a suggestion where there is none."""
    if name in _FIXED:
        return _FIXED[name]
    match = re.fullmatch(r"u([1-8])(?:b([0-9]{1,3}))?", name)
    if match is None or int(match[2] or 0) >= 1 << int(match[1]):
        known = sorted([*_FIXED, "u4", "u4b8", "u8", "u8b128"])
        raise LayoutError(
            f"`{name}` is no element code",
            code="LD310",
            name="unknown-code",
            help=meant(name, known) or f"codes: {', '.join(known)}",
        )
    return Code(name, int(match[1]), "integer", bias=int(match[2] or 0))


def samples(code: Code) -> Iterator[int]:
    """Codes that show every branch of `decode`: all of a small code, the extremes and neighbours of a wide one."""
    if code.bits <= 4:
        yield from range(1 << code.bits)
        return
    top = (1 << code.bits) - 1
    step = max(1, top // 7)
    yield from sorted({0, 1, 2, top, top - 1, (top >> 1), (top >> 1) + 1, *range(0, top, step)})
