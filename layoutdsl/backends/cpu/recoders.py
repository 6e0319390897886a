"""Recodes of blocks of vectors, for the kernels of the cpu backend: the arithmetic of recodes.py on many codes.

4-bit codes are recoded around zero points, or given signs, by what stands beside them (`beside`). Codes of 8 to 32 bits
are recoded as they are read (`recoding`): narrow ones by a rule, wide ones in float64, which holds every value exactly,
so that the one rounding is that of the target's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from layoutdsl.backends.cpu.rules import COUNT, EXCEPTIONS, FLAGGED, HIGH, LOW, MASK, PLUS
from layoutdsl.backends.cpu.vectors import (
    BITS,
    INT,
    LLVM,
    LONG,
    Sides,
    added,
    filled,
    gathered,
    halved,
    lanes,
    many,
    parts,
    shifted,
    shuffled,
    splat,
)  # fmt: skip
from layoutdsl.codes import Code, code_named

# 4-bit codes ----------------------------------------------------------------------------------------------------------

_BYTES = lanes(8)


@intrinsic(prefer_literal=True)
def around_eight(_typing: Any, block: Any, recode: Any) -> Any:
    """Codes around the zero point 8: below it, 15 minus the code is all bits but the topmost turned around."""
    ones = filled(LLVM, 0x1111111111111111)

    def recoded(builder: Any, value: Any) -> Any:
        turns = builder.and_(shifted(builder, value, -3), ones)
        if recode.literal_value == "fp8_nibbles":
            turns = builder.xor(turns, ones)
        turns = builder.or_(turns, builder.or_(shifted(builder, turns, 1), shifted(builder, turns, 2)))
        return builder.xor(value, builder.xor(turns, filled(LLVM, 0x8888888888888888 - (1 << 64))))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.make_tuple(builder, sig.return_type, [recoded(builder, one) for one in parts(builder, args[0])])

    return block(block, recode), generate


def beside(
    recode: str, bits: int, width: int, steps: tuple[int, ...], *, odd: bool, rows: tuple[int, ...],
    columns: tuple[int, ...], vectors: int,
) -> Any:  # fmt: skip
    """A function that recodes a block by codes of a second tensor, of 4 or 8 bits, at the addresses of a row and a
    column; `width` bits are read at a time. `steps` says which of a word's codes stands beside each digit of the place;
    those below 0 lead to other words. odd: addresses are in codes, and the first may be inside of a byte."""
    far = sum(step < 0 for step in steps)
    sides = Sides(vectors, far, rows, columns)
    recoders = {"fp8_nibbles": _fp8, "plain_nibbles": _plain}

    @intrinsic
    def recoded(_typing: Any, block: Any, row: Any, column: Any, base: Any, plus: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            known: dict[tuple[tuple[int, int], ...], tuple[Any, Any]] = {}
            words = added(builder, sides, *args[1:3])
            raised = splat(builder, builder.trunc(args[4], ir.IntType(8)), BITS // 8)
            made = []
            for at, value in enumerate(parts(builder, args[0])):
                key = tuple(sides.of(at))
                if key not in known:
                    known[key] = found(builder, words[at], args[3], raised)
                function = recoders.get(recode)
                made.append(_signed(builder, value, *known[key]) if function is None
                            else _around(builder, value, known[key], function))  # fmt: skip
            return context.make_tuple(builder, sig.return_type, made)

        def found(builder: Any, words: Sequence[Any], base: Any, raised: Any) -> tuple[Any, Any]:
            """Bytes beside the even and the odd codes of a vector."""
            if width == BITS:
                whole = gathered(builder, words, LLVM)
                both = [builder.bitcast(halved(builder, shifted(builder, whole, by)), _BYTES) for by in (0, -4)]
            else:
                both = [filled(_BYTES, 0)] * 2
                for number, place in enumerate(words):
                    word = _word(builder, place, base, width, odd=odd)
                    more = _spread(builder, word, bits, steps, number, signs=recode == "fold_sign")
                    both = [builder.or_(one, other) for one, other in zip(both, more)]
            if recode != "fold_sign":
                both = [builder.add(one, raised) for one in both]
            return both[0], both[1]

        return block(block, row, column, base, plus), generate

    return recoded


def _word(builder: Any, place: Any, base: Any, width: int, *, odd: bool) -> Any:
    """The codes at a place, from the lowest bit of 64 on; with `odd` it is counted in codes from the base."""
    byte = builder.add(base, builder.lshr(place, ir.Constant(LONG, 1))) if odd else place
    word = builder.load(builder.inttoptr(byte, ir.IntType(width).as_pointer()), align=1)
    word = word if width == 64 else builder.zext(word, LONG)
    if not odd:
        return word
    half = builder.and_(place, ir.Constant(LONG, 1))
    return builder.lshr(word, builder.shl(half, ir.Constant(LONG, 2)))


def _spread(
    builder: Any, word: Any, bits: int, steps: Sequence[int], number: int, *, signs: bool
) -> tuple[Any, Any]:
    """The codes of a word as bytes beside the even and the odd codes of a vector, 0 beside those that another word has;
    with `signs` 8 for a negative number of e4m3, else 0."""
    count = 64 // bits
    kind = ir.VectorType(ir.IntType(8), 8)
    codes = builder.bitcast(word, kind)
    if bits == 4:
        pair = builder.and_(codes, filled(kind, 15)), builder.lshr(codes, filled(kind, 4))
        codes = shuffled(builder, *pair, [at // 2 + at % 2 * 8 for at in range(16)])
    if signs:
        negative = builder.icmp_unsigned(">", codes, filled(kind, 0x80))
        negative = builder.and_(negative, builder.icmp_unsigned("!=", codes, filled(kind, 0xFF)))
        codes = builder.select(negative, filled(kind, 8), filled(kind, 0))
    places: list[int] = []
    for place in range(1 << len(steps)):
        digits = [place >> at & 1 for at in range(len(steps))]
        other = [digit for digit, step in zip(digits, steps) if step < 0]
        mine = sum(digit << at for at, digit in enumerate(other)) == number
        places.append(sum(digit * max(step, 0) for digit, step in zip(digits, steps)) if mine else count)
    zeros = filled(codes.type, 0)
    return shuffled(builder, codes, zeros, places[0::2]), shuffled(builder, codes, zeros, places[1::2])


def _signed(builder: Any, value: Any, even: Any, odd: Any) -> Any:
    signs = builder.or_(builder.bitcast(even, LLVM), shifted(builder, builder.bitcast(odd, LLVM), 4))
    return builder.xor(value, signs)


def _around(builder: Any, value: Any, zeros: Sequence[Any], moved: Callable[..., tuple[Any, Any]]) -> Any:
    """Codes around zero points: what is not moved by its zero point is 15 less the code."""
    made = []
    for codes, zero in zip((value, shifted(builder, value, -4)), zeros):
        codes = builder.bitcast(halved(builder, codes), _BYTES)
        moves, by = moved(builder, codes, zero)
        mirrored = builder.sub(filled(_BYTES, 15), codes)
        made.append(builder.bitcast(builder.select(moves, by, mirrored), LLVM))
    return builder.or_(made[0], shifted(builder, made[1], 4))


def _fp8(builder: Any, codes: Any, zero: Any) -> tuple[Any, Any]:
    return builder.icmp_unsigned(">=", codes, zero), builder.sub(codes, zero)


def _plain(builder: Any, codes: Any, zero: Any) -> tuple[Any, Any]:
    sums = builder.add(codes, zero)
    return builder.icmp_unsigned("<", sums, filled(_BYTES, 16)), sums


# codes that are no numbers --------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def suspects(_typing: Any, block: Any, name: Any) -> Any:
    """Not 0 where some code of a block is NaN or infinite."""
    code = code_named(name.literal_value)
    kind = lanes(code.bits)
    least = 0x7F if code.name == "e4m3" else 0xFF if code.kind == "power" else _infinite(code)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        seen = filled(kind, 0)
        for value in parts(builder, args[0]):
            size = builder.and_(builder.bitcast(value, kind), filled(kind, (1 << code.bits - code.sign) - 1))
            bad = builder.icmp_unsigned(">=", size, filled(kind, least))
            seen = builder.or_(seen, builder.sext(bad, kind))
        whole = builder.bitcast(seen, ir.IntType(BITS))
        return builder.zext(builder.icmp_unsigned("!=", whole, ir.Constant(whole.type, 0)), LONG)

    return types.int64(block, name), generate


def _infinite(code: Code) -> int:
    """The magnitude whose exponent is all ones."""
    return ((1 << code.exponent) - 1) << code.mantissa


# codes that are recoded as they are read ------------------------------------------------------------------------------


def recoding(
    recode: str, source: str, target: str, *, vectors: int, pieces: int, rows: tuple[int, ...], columns: tuple[int, ...]
) -> Any:
    """A function that reads a block of target codes from the addresses of a row and a column, by what the recode is
    given; it gives back too what is refused (not 0) and how many values became 0, with what was before.

    Given are the address of a rule (rules.py), or a number: the power of two of `rescale` and `reciprocal`, the
    largest scale of `int16_scale` and `int16_steps`.
    """
    a, b = code_named(source), code_named(target)
    count, sides = BITS // b.bits, Sides(vectors, pieces, rows, columns)
    codes = ir.VectorType(ir.IntType(a.bits), count)
    given = types.int64 if recode == "rule" else types.float64
    what = LONG if recode == "rule" else ir.DoubleType()

    def function(module: Any) -> Any:
        """One vector's recode, a function of its own: many vectors of a block call it."""
        name = f"layoutdsl_{recode}_{source}_{target}"
        if name in module.globals:
            return module.globals[name]
        made = ir.Function(module, ir.FunctionType(ir.LiteralStructType([LLVM, LONG, LONG]), [codes, what]), name)
        made.linkage = "internal"
        made.attributes.add("noinline")
        builder = ir.IRBuilder(made.append_basic_block())
        numbers = _Numbers(builder, count)
        if recode == "rule":
            found, bad, zero = _ruled(builder, *made.args, b.bits, shift=max(b.mantissa - a.mantissa, 0))
        else:
            found, bad, zero = _computed(numbers, recode, made.args[0], splat(builder, made.args[1], count), a, b)
        results = builder.bitcast(found, LLVM), numbers.any(bad), numbers.how_many(zero)
        result = ir.Constant(made.function_type.return_type, ir.Undefined)
        for at, one in enumerate(results):
            result = builder.insert_value(result, one, at)
        builder.ret(result)
        return made

    @intrinsic
    def read(_typing: Any, row: Any, column: Any, rule: Any, refused: Any, lost: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            made, seen, gone = [], args[3], args[4]
            for places in added(builder, sides, *args[:2]):
                found = gathered(builder, places, codes)
                one = parts_of(builder, builder.call(function(builder.module), [found, args[2]]))
                made.append(one[0])
                seen, gone = builder.or_(seen, one[1]), builder.add(gone, one[2])
            block = context.make_tuple(builder, many(vectors), made)
            return context.make_tuple(builder, sig.return_type, [block, seen, gone])

        numbers = types.int64, types.int64
        return types.Tuple((many(vectors), *numbers))(row, column, given, *numbers), generate

    return read


def parts_of(builder: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, at) for at in range(len(value.type.elements))]


def _ruled(builder: Any, codes: Any, rule: Any, bits: int, *, shift: int) -> tuple[Any, Any, Any]:
    """Codes by a rule: (codes, refused, became 0)."""
    narrow, target = codes.type, ir.VectorType(ir.IntType(bits), codes.type.count)
    byte, wide = narrow.element.as_pointer(), target.element.as_pointer()

    def number(at: Any, offset: int, kind: Any) -> Any:
        """Some bits of an entry of the rule, in all codes' places."""
        entry = builder.add(builder.mul(at, ir.Constant(LONG, 8)), ir.Constant(LONG, offset))
        pointer = builder.inttoptr(builder.add(rule, entry), kind)
        return splat(builder, builder.load(pointer, align=1), narrow.count)

    mask, low, high = (number(ir.Constant(LONG, at), 0, byte) for at in (MASK, LOW, HIGH))
    size = builder.and_(codes, mask)
    steps = builder.shl(builder.zext(size, target) if bits > 8 else size, filled(target, shift))
    line = builder.add(steps, number(ir.Constant(LONG, PLUS), 0, wide))
    below = builder.icmp_unsigned("<", size, low)
    zero = builder.and_(below, builder.icmp_unsigned("!=", size, filled(narrow, 0)))
    made = cgutils.alloca_once_value(builder, builder.select(below, filled(target, 0), line))
    masks = [cgutils.alloca_once_value(builder, builder.sext(mask, narrow))
             for mask in (builder.icmp_unsigned(">", size, high), zero)]  # fmt: skip
    start = ir.Constant(LONG, EXCEPTIONS)
    for place, flags in ((COUNT, ()), (FLAGGED, tuple(zip(masks, (5, 6))))):
        count = builder.load(builder.inttoptr(builder.add(rule, ir.Constant(LONG, 8 * place)), LONG.as_pointer()))
        with cgutils.for_range(builder, count) as loop:
            at = builder.add(start, loop.index)
            same = builder.icmp_unsigned("==", size, number(at, 0, byte))
            builder.store(builder.select(same, number(at, 1, wide), builder.load(made)), made)
            for flag, offset in flags:
                builder.store(builder.select(same, number(at, offset, byte), builder.load(flag)), flag)
        start = builder.add(start, count)
    bad, zero = (builder.icmp_unsigned("!=", builder.load(flag), filled(narrow, 0)) for flag in masks)
    return builder.load(made), bad, zero


class _Numbers:
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


def _computed(numbers: _Numbers, recode: str, codes: Any, given: Any, a: Code, b: Code) -> tuple[Any, Any, Any]:
    """(codes, refused, became 0)"""
    builder = numbers.builder
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


def _decoded(numbers: _Numbers, word: Any, code: Code) -> tuple[Any, Any]:
    """Values, and which are none. A code's bits are those of a float64 whose exponent is off by a constant."""
    builder = numbers.builder
    size = builder.and_(word, numbers.long((1 << code.bits - 1) - 1))
    sign = builder.shl(builder.and_(word, numbers.long(1 << code.bits - 1)), numbers.long(64 - code.bits))
    near = numbers.numbers(builder.or_(builder.shl(size, numbers.long(52 - code.mantissa)), sign))
    values = builder.fmul(near, numbers.double(math.ldexp(1.0, 1023 - code.bias)))
    return values, builder.icmp_unsigned(">=", size, numbers.long(_infinite(code)))


def _encoded(numbers: _Numbers, values: Any, code: Code) -> tuple[Any, Any]:
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


def _whole(numbers: _Numbers, values: Any) -> tuple[Any, Any]:
    """The low 16 bits of the nearest whole numbers, and which values are none."""
    builder = numbers.builder
    bad = builder.fcmp_unordered(">=", numbers.size(values), numbers.double(math.inf))
    whole = numbers.rounded(values)
    turns = numbers.rounded(builder.fmul(whole, numbers.double(2.0**-16)))
    low = builder.fsub(whole, builder.fmul(turns, numbers.double(65536.0)))
    low = builder.select(bad, numbers.double(0.0), low)
    return builder.and_(builder.sext(builder.fptosi(low, numbers.ints), numbers.longs), numbers.long(0xFFFF)), bad


# the largest of many --------------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def larger(_typing: Any, most: Any, place: Any, name: Any, signs: Any) -> Any:
    """The larger of what has been found and the codes of the vector at an address: magnitudes, as codes less their
    signs, or values, as integers in their order. What is no number does not count."""
    code, with_signs = code_named(name.literal_value), signs.literal_value
    kind = lanes(code.bits)
    last = 0x7E if code.name == "e4m3" else _infinite(code) if code.kind == "float" and code.sign else -1
    compare = "icmp_signed" if with_signs else "icmp_unsigned"

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        codes = gathered(builder, [args[1]], kind)
        size = builder.and_(codes, filled(kind, (1 << code.bits - code.sign) - 1))
        known = builder.icmp_unsigned("<=", size, filled(kind, last))
        if with_signs:
            size = builder.select(builder.icmp_signed("<", codes, filled(kind, 0)), builder.neg(size), size)
        size = builder.select(known, size, filled(kind, -(1 << code.bits - 1) if with_signs else 0))
        while size.type.count > 1:
            count = size.type.count // 2
            low, high = (shuffled(builder, size, size, range(at, at + count)) for at in (0, count))
            size = builder.select(getattr(builder, compare)(">", low, high), low, high)
        best = builder.extract_element(size, ir.Constant(INT, 0))
        best = (builder.sext if with_signs else builder.zext)(best, LONG)
        return builder.select(builder.icmp_signed(">", best, args[0]), best, args[0])

    return types.int64(types.int64, types.int64, name, signs), generate
