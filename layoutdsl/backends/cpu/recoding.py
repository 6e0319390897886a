"""Recodes of blocks of vectors, for the kernels of the cpu backend: the arithmetic of arithmetic.py on many codes.

4-bit codes are recoded around zero points, or given signs, by what stands beside them (`beside`). Codes of 8 to 32 bits
are recoded as they are read (`recoding`): narrow ones by a rule, wide ones in float64, which holds every value exactly,
so that the one rounding is that of the target's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from layoutdsl.backends.cpu.doubles import Numbers, computed, infinite
from layoutdsl.backends.cpu.rules import COUNT, EXCEPTIONS, FILL, FLAGGED, HIGH, LAST, LOW, MASK, PLUS, REST, SAFE
from layoutdsl.backends.cpu.vectors import (
    BITS,
    INT,
    LLVM,
    LONG,
    Sides,
    added,
    filled,
    gathered,
    lanes,
    many,
    parts,
    shuffled,
    splat,
    vector,
)  # fmt: skip
from layoutdsl.codes import Code, code_named

# codes that are no numbers --------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def suspects(_typing: Any, block: Any, name: Any) -> Any:
    """Not 0 where some code of a block is NaN or infinite."""
    code = code_named(name.literal_value)
    kind = lanes(code.bits)
    least = 0x7F if code.name == "e4m3" else 0xFF if code.kind == "power" else infinite(code)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        seen = filled(kind, 0)
        for value in parts(builder, args[0]):
            size = builder.and_(builder.bitcast(value, kind), filled(kind, (1 << code.bits - code.sign) - 1))
            bad = builder.icmp_unsigned(">=", size, filled(kind, least))
            seen = builder.or_(seen, builder.sext(bad, kind))
        whole = builder.bitcast(seen, ir.IntType(BITS))
        return builder.zext(builder.icmp_unsigned("!=", whole, ir.Constant(whole.type, 0)), LONG)

    return types.int64(block, name), generate


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
        numbers = Numbers(builder, count)
        if recode == "rule":
            found, bad, zero = _ruled(builder, *made.args, b.bits, shift=max(b.mantissa - a.mantissa, 0))
        else:
            found, bad, zero = computed(numbers, recode, made.args[0], splat(builder, made.args[1], count), a, b)
        results = builder.bitcast(found, LLVM), numbers.any(bad), numbers.how_many(zero)
        result = ir.Constant(made.function_type.return_type, ir.Undefined)
        for at, one in enumerate(results):
            result = builder.insert_value(result, one, at)
        builder.ret(result)
        return made

    @intrinsic
    def read(_typing: Any, row: Any, column: Any, rule: Any, refused: Any, lost: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            read = [gathered(builder, places, codes) for places in added(builder, sides, *args[:2])]
            usual = _usual(builder, recode, a, b, read, args[2])
            if usual is None:
                return context.make_tuple(builder, sig.return_type, every(context, builder, read, *args[2:]))
            block, odd = context.make_tuple(builder, many(vectors), usual[0]), usual[1]
            results = [cgutils.alloca_once_value(builder, one) for one in (block, *args[3:])]
            with builder.if_then(odd, likely=False):
                for one, result in zip(every(context, builder, read, *args[2:]), results):
                    builder.store(one, result)
            return context.make_tuple(builder, sig.return_type, [builder.load(one) for one in results])

        def every(context: Any, builder: Any, read: Any, what: Any, seen: Any, gone: Any) -> Any:
            """All that the recode may find in codes."""
            made = []
            for found in read:
                one = parts_of(builder, builder.call(function(builder.module), [found, what]))
                made.append(one[0])
                seen, gone = builder.or_(seen, one[1]), builder.add(gone, one[2])
            return context.make_tuple(builder, many(vectors), made), seen, gone

        numbers = types.int64, types.int64
        return types.Tuple((many(vectors), *numbers))(row, column, given, *numbers), generate

    return read


def parts_of(builder: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, at) for at in range(len(value.type.elements))]


def _number(builder: Any, rule: Any, at: Any, offset: int, kind: Any) -> Any:
    """Some bits of an entry of a rule, in all codes' places."""
    entry = builder.add(builder.mul(at, ir.Constant(LONG, 8)), ir.Constant(LONG, offset))
    pointer = builder.inttoptr(builder.add(rule, entry), kind.element.as_pointer())
    return splat(builder, builder.load(pointer, align=1), kind.count)


def _ruled(builder: Any, codes: Any, rule: Any, bits: int, *, shift: int) -> tuple[Any, Any, Any]:
    """Codes by a rule: (codes, refused, became 0)."""
    byte = narrow = codes.type
    wide = target = ir.VectorType(ir.IntType(bits), codes.type.count)
    number = partial(_number, builder, rule)

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


# blocks of usual codes ------------------------------------------------------------------------------------------------


def _usual(
    builder: Any, recode: str, a: Code, b: Code, read: Sequence[Any], given: Any
) -> tuple[list[Any], Any] | None:
    """Vectors whose codes are but shifted, and whether some code is none of those; None for other recodes."""
    if recode == "rule":
        one = _on_the_line(builder, read[0].type, b.bits, given, shift=max(b.mantissa - a.mantissa, 0))
    elif recode == "rescale" and a == b and a.kind == "float" and a.bits == 16:
        one = _normal(builder, read[0].type, a, given)
    else:
        return None
    made, odd = [], filled(read[0].type, 0)
    for codes in read:
        found, other = one(codes)
        made.append(builder.bitcast(found, LLVM))
        odd = builder.or_(odd, builder.sext(other, odd.type))
    whole = builder.bitcast(odd, ir.IntType(odd.type.count * odd.type.element.width))
    return made, builder.icmp_unsigned("!=", whole, ir.Constant(whole.type, 0))


def _on_the_line(builder: Any, narrow: Any, bits: int, rule: Any, *, shift: int) -> Callable[[Any], tuple[Any, Any]]:
    wide = ir.VectorType(ir.IntType(bits), narrow.count)
    mask, safe, last, rest = (_number(builder, rule, LONG(at), 0, narrow) for at in (MASK, SAFE, LAST, REST))
    plus, fill = (_number(builder, rule, LONG(at), 0, wide) for at in (PLUS, FILL))

    def one(codes: Any) -> tuple[Any, Any]:
        size = builder.and_(codes, mask)
        steps = builder.shl(builder.zext(size, wide) if bits > 8 else size, filled(wide, shift))
        below = builder.icmp_unsigned("<", size, safe)
        other = builder.and_(below, builder.icmp_unsigned("!=", size, rest))
        other = builder.or_(other, builder.icmp_unsigned(">", size, last))
        return builder.select(below, fill, builder.add(steps, plus)), other

    return one


def _normal(builder: Any, kind: Any, code: Code, factor: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Normal numbers times a power of two that are normal then, and 0."""
    power = builder.sub(builder.lshr(builder.bitcast(factor, LONG), LONG(52)), LONG(1023))
    top = (1 << code.exponent) - 2
    least = _clamped(builder, builder.sub(LONG(1), power), 1, top + 1)
    most = _clamped(builder, builder.sub(LONG(top), power), 0, top)
    step = LONG(code.mantissa)
    bounds = builder.shl(least, step), builder.sub(builder.shl(builder.add(most, LONG(1)), step), LONG(1))
    low, high, by = (
        splat(builder, builder.trunc(one, kind.element), kind.count) for one in (*bounds, builder.shl(power, step))
    )

    def one(codes: Any) -> tuple[Any, Any]:
        size = builder.and_(codes, filled(kind, (1 << code.bits - 1) - 1))
        nothing = builder.icmp_signed("==", size, filled(kind, 0))
        other = builder.and_(builder.icmp_signed("<", size, low), builder.not_(nothing))
        other = builder.or_(other, builder.icmp_signed(">", size, high))
        return builder.add(codes, builder.select(nothing, filled(kind, 0), by)), other

    return one


def _clamped(builder: Any, value: Any, low: int, high: int) -> Any:
    value = builder.select(builder.icmp_signed("<", value, LONG(low)), LONG(low), value)
    return builder.select(builder.icmp_signed(">", value, LONG(high)), LONG(high), value)


# the largest of many --------------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def least(_typing: Any, name: Any, signs: Any) -> Any:
    """A vector of what no code is below."""
    code = code_named(name.literal_value)

    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        return builder.bitcast(filled(lanes(code.bits), _least(code, signs.literal_value)), LLVM)

    return vector(name, signs), generate


@intrinsic(prefer_literal=True)
def larger(_typing: Any, most: Any, place: Any, name: Any, signs: Any) -> Any:
    """The larger, lane by lane, of what has been found and the codes of the vector at an address: magnitudes, as codes
    less their signs; or values, as integers in their order, where what is no number does not count."""
    code, with_signs = code_named(name.literal_value), signs.literal_value
    kind = lanes(code.bits)
    last = 0x7E if code.name == "e4m3" else infinite(code) if code.kind == "float" and code.sign else -1

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        codes = gathered(builder, [args[1]], kind)
        size = builder.and_(codes, filled(kind, (1 << code.bits - code.sign) - 1))
        if with_signs:
            known = builder.icmp_unsigned("<=", size, filled(kind, last))
            size = builder.select(builder.icmp_signed("<", codes, filled(kind, 0)), builder.neg(size), size)
            size = builder.select(known, size, filled(kind, _least(code, with_signs)))
        return builder.bitcast(_larger(builder, builder.bitcast(args[0], kind), size, with_signs), LLVM)

    return vector(vector, types.int64, name, signs), generate


@intrinsic(prefer_literal=True)
def largest(_typing: Any, most: Any, name: Any, signs: Any) -> Any:
    """The largest of a vector's lanes."""
    code, with_signs = code_named(name.literal_value), signs.literal_value

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        size = builder.bitcast(args[0], lanes(code.bits))
        while size.type.count > 1:
            count = size.type.count // 2
            low, high = (shuffled(builder, size, size, range(at, at + count)) for at in (0, count))
            size = _larger(builder, low, high, with_signs)
        best = builder.extract_element(size, ir.Constant(INT, 0))
        return (builder.sext if with_signs else builder.zext)(best, LONG)

    return types.int64(vector, name, signs), generate


def _least(code: Code, signs: bool) -> int:
    return -(1 << code.bits - 1) if signs else 0


def _larger(builder: Any, a: Any, b: Any, signs: bool) -> Any:
    compare = builder.icmp_signed if signs else builder.icmp_unsigned
    return builder.select(compare(">", a, b), a, b)
