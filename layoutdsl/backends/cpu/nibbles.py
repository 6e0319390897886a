"""Recodes of blocks of 4-bit codes, for the kernels of the cpu backend: around zero points, or given signs, by what
stands beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from layoutdsl.backends.cpu.digits import halved, shifted
from layoutdsl.backends.cpu.vectors import (
    BITS,
    LLVM,
    LONG,
    Sides,
    added,
    filled,
    gathered,
    lanes,
    parts,
    shuffled,
    splat,
)

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


@intrinsic
def raised(_typing: Any, block: Any, by: Any, refused: Any) -> Any:
    """Codes with a number added; and not 0 where one does not fit, now or before."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number, bad, made = splat(builder, builder.trunc(args[1], ir.IntType(8)), BITS // 8), filled(_BYTES, 0), []
        for value in parts(builder, args[0]):
            halves = []
            for shift in (0, -4):
                codes = builder.bitcast(halved(builder, shifted(builder, value, shift)), _BYTES)
                codes = builder.add(codes, number)
                bad = builder.or_(bad, builder.and_(codes, filled(_BYTES, 0xF0)))
                halves.append(builder.bitcast(codes, LLVM))
            made.append(builder.or_(halves[0], shifted(builder, halves[1], 4)))
        whole = builder.bitcast(bad, ir.IntType(BITS))
        seen = builder.zext(builder.icmp_unsigned("!=", whole, ir.Constant(whole.type, 0)), LONG)
        block = context.make_tuple(builder, sig.return_type[0], made)
        return context.make_tuple(builder, sig.return_type, [block, builder.or_(args[2], seen)])

    return types.Tuple((block, types.int64))(block, types.int64, types.int64), generate


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
            words = added(builder, sides, *args[1:3])
            if recode == "fold_sign":
                return context.make_tuple(builder, sig.return_type, signed(builder, parts(builder, args[0]), words))
            known: dict[tuple[tuple[int, int], ...], tuple[Any, Any]] = {}
            raised = splat(builder, builder.trunc(args[4], ir.IntType(8)), BITS // 8)
            made = []
            for at, value in enumerate(parts(builder, args[0])):
                key = tuple(sides.of(at))
                if key not in known:
                    known[key] = found(builder, words[at], args[3], raised)
                made.append(_around(builder, value, known[key], recoders[recode]))
            return context.make_tuple(builder, sig.return_type, made)

        def signed(builder: Any, block: Sequence[Any], words: Sequence[Sequence[Any]]) -> list[Any]:
            """Each vector's codes with their signs, which all words of the block are asked for at once."""
            keys = [tuple(sides.of(at)) for at in range(vectors)]
            places = {key: place for at in range(vectors) for key, place in zip(keys[at], words[at])}
            numbers = {key: number for number, key in enumerate(places)}
            marks = _marks(builder, list(places.values()), width, 0x88 if steps[0] == 0 else 8)
            made = []
            for value, own in zip(block, keys):
                at = [numbers[own[number]] * (width // 8) + byte for number, byte in _stands(steps)]
                signs = builder.bitcast(shuffled(builder, marks, marks, at[0::2]), LLVM)
                if steps[0] != 0:
                    odd = builder.bitcast(shuffled(builder, marks, marks, at[1::2]), LLVM)
                    signs = builder.or_(signs, shifted(builder, odd, 4))
                made.append(builder.xor(value, signs))
            return made

        def found(builder: Any, words: Sequence[Any], base: Any, raised: Any) -> tuple[Any, Any]:
            """Bytes beside the even and the odd codes of a vector."""
            if width == BITS:
                whole = gathered(builder, words, LLVM)
                both = [builder.bitcast(halved(builder, shifted(builder, whole, by)), _BYTES) for by in (0, -4)]
            else:
                both = [filled(_BYTES, 0)] * 2
                for number, place in enumerate(words):
                    word = _word(builder, place, base, width, odd=odd)
                    more = _spread(builder, word, bits, steps, number)
                    both = [builder.or_(one, other) for one, other in zip(both, more)]
            return builder.add(both[0], raised), builder.add(both[1], raised)

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


def _stands(steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """For each place in a vector, which of its words has what stands beside it, and which code there that is."""
    for place in range(1 << len(steps)):
        digits = [place >> at & 1 for at in range(len(steps))]
        other = [digit for digit, step in zip(digits, steps) if step < 0]
        yield (
            sum(digit << at for at, digit in enumerate(other)),
            sum(digit * max(step, 0) for digit, step in zip(digits, steps)),
        )


def _spread(builder: Any, word: Any, bits: int, steps: Sequence[int], number: int) -> tuple[Any, Any]:
    """The codes of a word as bytes beside the even and the odd codes of a vector, 0 beside those that another word
    has."""
    count = 64 // bits
    kind = ir.VectorType(ir.IntType(8), 8)
    codes = builder.bitcast(word, kind)
    if bits == 4:
        pair = builder.and_(codes, filled(kind, 15)), builder.lshr(codes, filled(kind, 4))
        codes = shuffled(builder, *pair, [at // 2 + at % 2 * 8 for at in range(16)])
    places = [code if mine == number else count for mine, code in _stands(steps)]
    zeros = filled(codes.type, 0)
    return shuffled(builder, codes, zeros, places[0::2]), shuffled(builder, codes, zeros, places[1::2])


def _marks(builder: Any, places: Sequence[Any], width: int, mark: int) -> Any:
    """The codes of e4m3 of some words as bytes: the mark for a negative number, else 0."""
    count = 1 << (len(places) - 1).bit_length()
    kind = ir.VectorType(ir.IntType(8), count * width // 8)
    codes = gathered(builder, [*places, *places[:1] * (count - len(places))], kind)
    negative = builder.icmp_unsigned(">", codes, filled(kind, 0x80))
    negative = builder.and_(negative, builder.icmp_unsigned("!=", codes, filled(kind, 0xFF)))
    return builder.select(negative, filled(kind, mark), filled(kind, 0))


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


