"""Recodes of blocks of vectors, for the kernels of the cpu backend: the arithmetic of arithmetic.py on many codes.

4-bit codes are recoded around zero points, or given signs, by what stands beside them (`beside`). Codes of 8 to 32 bits
are recoded as they are read (`recoding`): narrow ones by a rule, wide ones in float64, which holds every value exactly,
so that the one rounding is that of the target's code.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from layoutdsl.backends.cpu.doubles import Numbers, computed, infinite
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
    lanes,
    many,
    parts,
    shuffled,
    splat,
)  # fmt: skip
from layoutdsl.codes import code_named

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


# the largest of many --------------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def larger(_typing: Any, most: Any, place: Any, name: Any, signs: Any) -> Any:
    """The larger of what has been found and the codes of the vector at an address: magnitudes, as codes less their
    signs, or values, as integers in their order. What is no number does not count."""
    code, with_signs = code_named(name.literal_value), signs.literal_value
    kind = lanes(code.bits)
    last = 0x7E if code.name == "e4m3" else infinite(code) if code.kind == "float" and code.sign else -1
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
