"""Operations on blocks of vectors that bring codes to other places, for the kernels of the cpu backend: routes.py says
what each of them does, and finds which are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.extending import intrinsic

from layoutdsl.backends.cpu.vectors import BITS, LANE, LLVM, filled, lanes, parts, shuffled


def shifted(builder: Any, value: Any, by: int) -> Any:
    amount = filled(LLVM, abs(by))
    return builder.shl(value, amount) if by > 0 else builder.lshr(value, amount)


def halved(builder: Any, value: Any) -> Any:
    """The lower four bits of all bytes."""
    return builder.and_(value, filled(LLVM, 0x0F0F0F0F0F0F0F0F))


def _nibbles(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The lower nibbles of a and b in each byte, and the upper ones."""
    differ = halved(builder, builder.xor(shifted(builder, a, -4), b))
    return builder.xor(a, shifted(builder, differ, 4)), builder.xor(b, differ)


def _placed(builder: Any, width: int, a: Any, b: Any, places: Sequence[int]) -> Any:
    """Codes of that width, of two vectors, by their places."""
    kind = lanes(width)
    return builder.bitcast(shuffled(builder, builder.bitcast(a, kind), builder.bitcast(b, kind), places), LLVM)


def _exchanged(builder: Any, width: int, a: Any, b: Any) -> tuple[Any, Any]:
    if width < 8:
        return _nibbles(builder, a, b)
    count = BITS // width
    low = [at if at % 2 == 0 else count + at - 1 for at in range(count)]
    return _placed(builder, width, a, b, low), _placed(builder, width, a, b, [at + 1 for at in low])


def _merged(builder: Any, width: int, a: Any, b: Any) -> tuple[Any, Any]:
    half = LANE // width // 2
    low = [lane + at // 2 + 4 * half * (at % 2) for lane in (0, 2 * half) for at in range(2 * half)]
    return _placed(builder, width, a, b, low), _placed(builder, width, a, b, [at + half for at in low])


def _pairwise(function: Any) -> Any:
    """An operation on a digit of the place, of some width, and one of the vectors' number."""

    @intrinsic(prefer_literal=True)
    def paired(_typing: Any, block: Any, width: Any, digit: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            made, bit = parts(builder, args[0]), 1 << digit.literal_value
            for at in range(len(made)):
                if not at & bit:
                    made[at], made[at | bit] = function(builder, width.literal_value, made[at], made[at | bit])
            return context.make_tuple(builder, sig.return_type, made)

        return block(block, width, digit), generate

    return paired


exchange, merge = _pairwise(_exchanged), _pairwise(_merged)


@intrinsic(prefer_literal=True)
def swap(_typing: Any, block: Any, first: Any, second: Any) -> Any:
    """Exchange two digits of the place, given by their widths."""
    least, most = sorted((first.literal_value, second.literal_value))
    width = max(least, 8)
    count, other = BITS // width, most // width

    def swapped(builder: Any, value: Any) -> Any:
        if least >= 8:
            places = [at ^ (1 | other) if bool(at & 1) != bool(at & other) else at for at in range(count)]
            return _placed(builder, width, value, value, places)
        partner = _placed(builder, 8, value, value, [at ^ other for at in range(count)])
        low, _ = _nibbles(builder, value, partner)
        _, high = _nibbles(builder, partner, value)
        return _placed(builder, 8, low, high, [at + count * bool(at & other) for at in range(count)])

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = [swapped(builder, value) for value in parts(builder, args[0])]
        return context.make_tuple(builder, sig.return_type, made)

    return block(block, first, second), generate


def arranging(width: int, order: tuple[int, ...]) -> Any:
    """A function that arranges the digits of the place in a lane, from that width on: for each, which of them it
    was."""
    count = 1 << len(order)
    places = [sum((at >> to & 1) << of for to, of in enumerate(order)) for at in range(count)]

    @intrinsic
    def arrange(_typing: Any, block: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            both = [lane + at for lane in (0, count) for at in places]
            made = [_placed(builder, width, value, value, both) for value in parts(builder, args[0])]
            return context.make_tuple(builder, sig.return_type, made)

        return block(block), generate

    return arrange
