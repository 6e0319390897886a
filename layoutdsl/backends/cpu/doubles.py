"""The arithmetic of recodes.py on many codes at a time, as instructions of LLVM: values are float64, which holds every
value of every code exactly, so that the one rounding is that of `encoded`. Only scales of 16 bits that become multiples
of the largest are divided in float32, of which twice as many are divided at a time (`_shares`)."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from layoutdsl.backends.cpu.vectors import INT, LONG, filled
from layoutdsl.codes import Code


class Numbers:
    """Vectors of 64 bits for each code, integers and numbers."""

    def __init__(self, builder: Any, count: int):
        self.builder = builder
        self.longs, self.doubles, self.ints = (ir.VectorType(one, count) for one in (LONG, ir.DoubleType(), INT))

    def long(self, value: int) -> Any:
        return filled(self.longs, value)

    def double(self, value: float) -> Any:
        return filled(self.doubles, value)

    def bits(self, values: Any) -> Any:
        return self.builder.bitcast(values, self.longs)

    def numbers(self, words: Any) -> Any:
        return self.builder.bitcast(words, self.doubles)

    def size(self, values: Any) -> Any:
        return self.numbers(self.builder.and_(self.bits(values), self.long((1 << 63) - 1)))

    def rounded(self, values: Any) -> Any:
        """To whole numbers, half to even."""
        kind = ir.FunctionType(self.doubles, [self.doubles])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.rint.v{self.longs.count}f64")
        return self.builder.call(function, [values])

    def any(self, chosen: Any) -> Any:
        mask = self._mask(chosen)
        return self.builder.zext(self.builder.icmp_unsigned("!=", mask, mask.type(0)), LONG)

    def how_many(self, chosen: Any) -> Any:
        return self.builder.ctpop(self.builder.zext(self._mask(chosen), LONG))

    def _mask(self, chosen: Any) -> Any:
        return self.builder.bitcast(chosen, ir.IntType(self.longs.count))


def computed(numbers: Numbers, recode: str, codes: Any, given: Any, a: Code, b: Code) -> tuple[Any, Any, Any]:
    """(codes, refused, became 0)"""
    builder = numbers.builder
    if recode == "int16_scale" and a.bits == 16:
        return _shares(numbers, codes, given, a)
    values, bad = _decoded(numbers, builder.zext(codes, numbers.longs), a)
    nothing = builder.fcmp_ordered("==", values, numbers.double(0.0))
    if recode == "rescale":
        made, no = _encoded(numbers, builder.fmul(values, given), b)
    elif recode == "reciprocal":
        made, no = _encoded(numbers, builder.fmul(builder.fdiv(numbers.double(1.0), values), given), b)
    elif recode == "int16_scale":
        made, no = _whole(numbers, builder.fdiv(builder.fmul(values, numbers.double(4096.0)), given))
    else:
        assert recode == "int16_steps", recode
        step, no = _encoded(numbers, builder.fdiv(values, given), a)
        steps, worse = _encoded(numbers, builder.fmul(_decoded(numbers, step, a)[0], numbers.double(4096.0)), a)
        made, worst = _whole(numbers, _decoded(numbers, steps, a)[0])
        no = builder.or_(no, builder.or_(worse, worst))
    if recode.startswith("int16"):
        none = builder.fcmp_ordered("==", given, numbers.double(0.0))
        made = builder.select(none, numbers.long(0), made)
        no = builder.and_(no, builder.not_(none))
    zero = builder.icmp_unsigned("!=", made, made)
    if b.name != "e8m0":  # whose code 0 is no 0
        size = builder.and_(made, numbers.long((1 << b.bits - b.sign) - 1))
        zero = builder.and_(builder.icmp_unsigned("==", size, numbers.long(0)), builder.not_(nothing))
    return builder.trunc(made, ir.VectorType(ir.IntType(b.bits), codes.type.count)), builder.or_(bad, no), zero


def _shares(numbers: Numbers, codes: Any, given: Any, a: Code) -> tuple[Any, Any, Any]:
    """What `computed` does for `int16_scale`. Halves of whole numbers are apart from a quotient of mantissas of at most
    11 bits by more than float32 rounds it, or equal to it; so the second rounding goes where the only one would."""
    builder, count = numbers.builder, numbers.longs.count
    ints, floats = numbers.ints, ir.VectorType(ir.FloatType(), count)
    word = builder.zext(codes, ints)
    size = builder.and_(word, filled(ints, 0x7FFF))
    sign = builder.shl(builder.and_(word, filled(ints, 0x8000)), filled(ints, 16))
    near = builder.bitcast(builder.or_(builder.shl(size, filled(ints, 23 - a.mantissa)), sign), floats)
    values = builder.fmul(near, filled(floats, math.ldexp(1.0, 127 - a.bias)))
    share = builder.fmul(builder.fdiv(values, builder.fptrunc(given, floats)), filled(floats, 4096.0))
    bad = builder.icmp_unsigned(">=", size, filled(ints, infinite(a)))
    none = builder.fcmp_ordered("==", given, numbers.double(0.0))
    share = builder.select(builder.or_(bad, none), filled(floats, 0.0), share)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(floats, [floats]), f"llvm.rint.v{count}f32"
    )
    made = builder.fptosi(builder.call(function, [share]), ints)
    nothing = builder.icmp_unsigned("==", size, filled(ints, 0))
    zero = builder.and_(builder.icmp_unsigned("==", made, filled(ints, 0)), builder.not_(nothing))
    return builder.trunc(made, ir.VectorType(ir.IntType(16), count)), bad, zero


def _decoded(numbers: Numbers, word: Any, code: Code) -> tuple[Any, Any]:
    """Values, and which are none. A code's bits are those of a float64 whose exponent is off by a constant."""
    builder = numbers.builder
    size = builder.and_(word, numbers.long((1 << code.bits - 1) - 1))
    sign = builder.shl(builder.and_(word, numbers.long(1 << code.bits - 1)), numbers.long(64 - code.bits))
    near = numbers.numbers(builder.or_(builder.shl(size, numbers.long(52 - code.mantissa)), sign))
    values = builder.fmul(near, numbers.double(math.ldexp(1.0, 1023 - code.bias)))
    return values, builder.icmp_unsigned(">=", size, numbers.long(infinite(code)))


def _encoded(numbers: Numbers, values: Any, code: Code) -> tuple[Any, Any]:
    """Codes, half to even, and which are refused."""
    builder, word, size = numbers.builder, numbers.bits(values), numbers.size(values)
    if code.kind == "power":
        made = builder.sub(builder.lshr(word, numbers.long(52)), numbers.long(1023 - 127))
        top = numbers.long(255 if code.name == "e8m0z" else 254)
        bad = builder.icmp_unsigned("!=", builder.and_(word, numbers.long((1 << 52) - 1)), numbers.long(0))
        bad = builder.or_(bad, builder.icmp_unsigned(">", made, top))
        nothing = builder.fcmp_ordered("==", values, numbers.double(0.0))
        return builder.select(nothing, numbers.long(0), made), builder.and_(bad, builder.not_(nothing))
    whole, least = numbers.bits(size), numbers.long((1024 - code.bias) << 52)
    power = builder.select(builder.icmp_unsigned(">", whole, least), whole, least)
    power = builder.and_(power, numbers.long(0x7FF << 52))
    # What is added has the target's least step as its own, so that the sum is rounded to it, half to even.
    raised = builder.add(power, numbers.long((52 - code.mantissa) << 52))
    steps = builder.sub(numbers.bits(builder.fadd(size, numbers.numbers(raised))), raised)
    above = builder.sub(builder.lshr(power, numbers.long(52)), numbers.long(1024 - code.bias))
    made = builder.add(steps, builder.shl(above, numbers.long(code.mantissa)))
    beyond = numbers.double(math.ldexp(1.0, math.frexp(code.top)[1]))
    top = numbers.long(code.encode(code.top))
    bad = builder.or_(builder.fcmp_unordered(">=", size, beyond), builder.icmp_unsigned(">", made, top))
    sign = builder.shl(builder.lshr(word, numbers.long(63)), numbers.long(code.bits - 1))
    return builder.or_(made, sign), bad


def _whole(numbers: Numbers, values: Any) -> tuple[Any, Any]:
    """The low 16 bits of the nearest whole numbers, and which values are none."""
    builder = numbers.builder
    bad = builder.fcmp_unordered(">=", numbers.size(values), numbers.double(math.inf))
    whole = numbers.rounded(values)
    turns = numbers.rounded(builder.fmul(whole, numbers.double(2.0**-16)))
    low = builder.fsub(whole, builder.fmul(turns, numbers.double(65536.0)))
    low = builder.select(bad, numbers.double(0.0), low)
    return builder.and_(builder.sext(builder.fptosi(low, numbers.ints), numbers.longs), numbers.long(0xFFFF)), bad


def infinite(code: Code) -> int:
    """The magnitude whose exponent is all ones."""
    return ((1 << code.exponent) - 1) << code.mantissa
