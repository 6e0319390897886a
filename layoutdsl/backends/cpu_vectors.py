"""Vectors of 256 bits for the kernels of the cpu backend: loads, stores, and codes that change places.

Numba has no type for them, and what its compiler makes of loops over words is some times slower. LLVM turns them into
what the processor has: one register with AVX2, two with SSE or NEON.

What the functions do to the places of codes is said in cpu_routes.py. `exchange8(a, b)` makes of the bytes a0 a1 a2 a3
.. and b0 b1 b2 b3 .. the vectors a0 b0 a2 b2 .. and a1 b1 a3 b3 ..; `merge8(a, b)` makes a0 b0 a1 b1 .. and a8 b8 ..
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

BITS = 256
LANES = BITS // 64


class Vector(types.Type):
    """The type of a vector in numba."""

    def __init__(self) -> None:
        super().__init__(name="layoutdsl_vector")


vector = Vector()
_LLVM = ir.VectorType(ir.IntType(64), LANES)


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, _LLVM)


# operators ------------------------------------------------------------------------------------------------------------

_OPERATORS = {
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor", operator.add: "add",
    operator.lshift: "shl", operator.rshift: "lshr", operator.ior: "or_", operator.ixor: "xor", operator.iadd: "add",
}  # fmt: skip


def _operator(function: Callable[..., Any], instruction: str) -> None:
    """On 64 bits at a time; a number beside a vector stands for a vector of it."""

    class Template(ConcreteTemplate):
        key = function
        cases = [signature(vector, vector, vector), signature(vector, vector, types.uint64)]

    infer_global(function)(Template)

    @lower_builtin(function, vector, vector)
    def vectors(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args)

    @lower_builtin(function, vector, types.uint64)
    def number(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(args[0], _splat(builder, args[1]))


def _splat(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_LLVM, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(_LLVM, ir.Undefined), _indices([0] * LANES))


def _indices(places: Sequence[int]) -> Any:
    number = ir.IntType(32)
    return ir.Constant(ir.VectorType(number, len(places)), [ir.Constant(number, place) for place in places])


def _lanes(width: int) -> Any:
    return ir.VectorType(ir.IntType(width), BITS // width)


for _function, _instruction in _OPERATORS.items():
    _operator(_function, _instruction)


# loads and stores -----------------------------------------------------------------------------------------------------


def _loading(width: int) -> Any:
    """A load of pieces of that width, each from its own address."""

    def loaded(builder: Any, args: Any) -> Any:
        kind = ir.IntType(width) if width < BITS else _LLVM
        found = [builder.load(builder.inttoptr(address, kind.as_pointer()), align=1) for address in args]
        if width == BITS:
            return found[0]
        made = ir.Constant(_lanes(width), ir.Undefined)
        for at, piece in enumerate(found):
            made = builder.insert_element(made, piece, ir.Constant(ir.IntType(32), at))
        return builder.bitcast(made, _LLVM)

    return loaded


_load256, _load128, _load64, _load32 = map(_loading, (256, 128, 64, 32))


@intrinsic
def load256(_typing: Any, address: Any) -> Any:
    """The vector at an address, which needs no alignment."""
    return vector(types.int64), lambda _context, builder, _signature, args: _load256(builder, args)


@intrinsic
def load128(_typing: Any, a: Any, b: Any) -> Any:
    """A vector of two pieces."""
    return vector(types.int64, types.int64), lambda _context, builder, _signature, args: _load128(builder, args)


@intrinsic
def load64x4(_typing: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """A vector of four pieces."""
    return vector(*[types.int64] * 4), lambda _context, builder, _signature, args: _load64(builder, args)


@intrinsic
def load32x8(_typing: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """A vector of eight pieces."""
    return vector(*[types.int64] * 8), lambda _context, builder, _signature, args: _load32(builder, args)


def _storing(width: int, streams: tuple[int, ...] = ()) -> Any:
    """A store of pieces of that width, each to its own address; `streams` is LLVM's note that caches need not have
    them, which asks for alignment."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.IntType(width) if width < BITS else _LLVM
        pieces = [args[-1]]
        if width < BITS:
            split = builder.bitcast(args[-1], _lanes(width))
            pieces = [builder.extract_element(split, ir.Constant(ir.IntType(32), at)) for at in range(BITS // width)]
        for address, piece in zip(args, pieces):
            pointer = builder.inttoptr(address, kind.as_pointer())
            made = builder.store(piece, pointer, align=BITS // 8 if streams else 1)
            if streams:
                note = builder.module.add_metadata([ir.Constant(ir.IntType(32), value) for value in streams])
                made.set_metadata("nontemporal", note)
        return context.get_dummy_value()

    return generate


_store256, _stream256, _store128, _store64, _store32 = (
    _storing(256), _storing(256, (1,)), _storing(128), _storing(64), _storing(32)
)  # fmt: skip


@intrinsic
def store256(_typing: Any, address: Any, value: Any) -> Any:
    return types.void(types.int64, vector), _store256


@intrinsic
def stream256(_typing: Any, address: Any, value: Any) -> Any:
    """A store past the caches, to an address that is a multiple of 32."""
    return types.void(types.int64, vector), _stream256


@intrinsic
def store128(_typing: Any, a: Any, b: Any, value: Any) -> Any:
    return types.void(types.int64, types.int64, vector), _store128


@intrinsic
def store64x4(_typing: Any, a: Any, b: Any, c: Any, d: Any, value: Any) -> Any:
    return types.void(*[types.int64] * 4, vector), _store64


@intrinsic
def store32x8(_typing: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, value: Any) -> Any:
    return types.void(*[types.int64] * 8, vector), _store32


@intrinsic
def settle(_typing: Any) -> Any:
    """All stores before are seen by other threads."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


# codes that change places ---------------------------------------------------------------------------------------------


def _masks(builder: Any, value: Any, low: int) -> Any:
    return builder.and_(value, ir.Constant(_LLVM, [ir.Constant(ir.IntType(64), low)] * LANES))


def _shifted(builder: Any, value: Any, by: int) -> Any:
    amount = ir.Constant(_LLVM, [ir.Constant(ir.IntType(64), abs(by))] * LANES)
    return builder.shl(value, amount) if by > 0 else builder.lshr(value, amount)


LOW = 0x0F0F0F0F0F0F0F0F


def _nibbles(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The lower nibbles of a and b in each byte, and the upper ones."""
    differ = _masks(builder, builder.xor(_shifted(builder, a, -4), b), LOW)
    return builder.xor(a, _shifted(builder, differ, 4)), builder.xor(b, differ)


def _shuffled(builder: Any, width: int, a: Any, b: Any, places: Sequence[int]) -> Any:
    kind = _lanes(width)
    found = builder.shuffle_vector(builder.bitcast(a, kind), builder.bitcast(b, kind), _indices(places))
    return builder.bitcast(found, _LLVM)


def _exchange(width: int) -> Any:
    count = BITS // width

    @intrinsic
    def exchange(_typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if width < 8:
                made = _nibbles(builder, *args)
            else:
                low = [at if at % 2 == 0 else count + at - 1 for at in range(count)]
                made = tuple(_shuffled(builder, width, *args, [at + up for at in low]) for up in (0, 1))
            return context.make_tuple(builder, sig.return_type, made)

        return types.UniTuple(vector, 2)(vector, vector), generate

    return exchange


exchange4, exchange8, exchange16, exchange32, exchange64, exchange128 = map(_exchange, (4, 8, 16, 32, 64, 128))


def _merge(width: int) -> Any:
    count = 64 // width  # in half a lane

    @intrinsic
    def merge(_typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            low = [lane + at // 2 + 4 * count * (at % 2) for lane in (0, 2 * count) for at in range(2 * count)]
            made = tuple(_shuffled(builder, width, *args, [at + up for at in low]) for up in (0, count))
            return context.make_tuple(builder, sig.return_type, made)

        return types.UniTuple(vector, 2)(vector, vector), generate

    return merge


merge8, merge16, merge32, merge64 = map(_merge, (8, 16, 32, 64))


def arranged(width: int, order: Sequence[int]) -> Any:
    """A function that arranges the digits of the place in a lane, from that width on: for each, which of them it
    was."""
    count = 1 << len(order)
    places = [sum((at >> to & 1) << of for to, of in enumerate(order)) for at in range(count)]

    @intrinsic
    def arrange(_typing: Any, a: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            (value,) = args
            return _shuffled(builder, width, value, value, [lane + at for lane in (0, count) for at in places])

        return vector(vector), generate

    return arrange


def turned(first: int, second: int) -> Any:
    """A function that exchanges two digits of the place in a vector, given by their widths."""
    least, most = sorted((first, second))
    width = max(least, 8)
    count, other = BITS // width, most // width

    @intrinsic
    def turn(_typing: Any, a: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            (value,) = args
            if least >= 8:
                places = [at ^ (1 | other) if bool(at & 1) != bool(at & other) else at for at in range(count)]
                return _shuffled(builder, width, value, value, places)
            partner = _shuffled(builder, 8, value, value, [at ^ other for at in range(count)])
            low, _ = _nibbles(builder, value, partner)
            _, high = _nibbles(builder, partner, value)
            return _shuffled(builder, 8, low, high, [at + count * bool(at & other) for at in range(count)])

        return vector(vector), generate

    return turn


# operands -------------------------------------------------------------------------------------------------------------

_BYTES = ir.VectorType(ir.IntType(8), BITS // 8)


def spread(bits: int, steps: Sequence[int], number: int) -> Any:
    """A function from a word of some codes, of 4 or 8 bits, to bytes that stand beside the codes of a vector: those of
    its even places, and those of the odd ones. `steps` says how far each digit of the place moves on in the word; those
    below 0 lead to other words, of which this is that `number`, and where there is none of it bytes are 0."""
    count = 64 // bits
    places: list[int] = []
    for place in range(1 << len(steps)):
        digits = [place >> at & 1 for at in range(len(steps))]
        other = [digit for digit, step in zip(digits, steps) if step < 0]
        mine = sum(digit << at for at, digit in enumerate(other)) == number
        places.append(sum(digit * max(step, 0) for digit, step in zip(digits, steps)) if mine else count)
    both = places[0::2], places[1::2]

    @intrinsic
    def spread_word(_typing: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.VectorType(ir.IntType(8), 8)
            codes = builder.bitcast(args[0], kind)
            if bits == 4:
                nibbles = ir.Constant(kind, [ir.Constant(ir.IntType(8), 15)] * 8)
                shift = ir.Constant(kind, [ir.Constant(ir.IntType(8), 4)] * 8)
                pair = builder.and_(codes, nibbles), builder.lshr(codes, shift)
                codes = builder.shuffle_vector(*pair, _indices([at // 2 + at % 2 * 8 for at in range(16)]))
            zeros = ir.Constant(ir.VectorType(ir.IntType(8), count), None)
            made = [
                builder.bitcast(builder.shuffle_vector(codes, zeros, _indices(half)), _LLVM) for half in both
            ]
            return context.make_tuple(builder, sig.return_type, made)

        return types.UniTuple(vector, 2)(types.uint64), generate

    return spread_word


@intrinsic
def halves(_typing: Any, a: Any) -> Any:
    """The even and the odd 4-bit codes of a vector, as bytes."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = _masks(builder, args[0], LOW), _masks(builder, _shifted(builder, args[0], -4), LOW)
        return context.make_tuple(builder, sig.return_type, made)

    return types.UniTuple(vector, 2)(vector), generate


def _around(below: Callable[..., Any]) -> Any:
    """A recode of 4-bit codes around zero points, bytes beside the even and the odd ones: what is not shifted by its
    zero point is 15 less the code."""

    @intrinsic
    def recoded(_typing: Any, a: Any, even: Any, odd: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value, *zeros = args
            fifteen = ir.Constant(_BYTES, [ir.Constant(ir.IntType(8), 15)] * (BITS // 8))
            made = []
            for codes, zero in zip((value, _shifted(builder, value, -4)), zeros):
                codes = builder.bitcast(_masks(builder, codes, LOW), _BYTES)
                moves, moved = below(builder, codes, builder.bitcast(zero, _BYTES))
                made.append(builder.bitcast(builder.select(moves, moved, builder.sub(fifteen, codes)), _LLVM))
            return builder.or_(made[0], _shifted(builder, made[1], 4))

        return vector(vector, vector, vector), generate

    return recoded


def _fp8(builder: Any, codes: Any, zero: Any) -> tuple[Any, Any]:
    return builder.icmp_unsigned(">=", codes, zero), builder.sub(codes, zero)


def _plain(builder: Any, codes: Any, zero: Any) -> tuple[Any, Any]:
    sums = builder.add(codes, zero)
    sixteen = ir.Constant(_BYTES, [ir.Constant(ir.IntType(8), 16)] * (BITS // 8))
    return builder.icmp_unsigned("<", sums, sixteen), sums


fp8_nibbles, plain_nibbles = _around(_fp8), _around(_plain)


# to and from words ----------------------------------------------------------------------------------------------------


@intrinsic
def folded(_typing: Any, a: Any) -> Any:
    """All 64-bit words of a vector, or-ed."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        words = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), at)) for at in range(LANES)]
        made = words[0]
        for word in words[1:]:
            made = builder.or_(made, word)
        return made

    return types.uint64(vector), generate


@intrinsic
def splat(_typing: Any, a: Any) -> Any:
    """A vector of one 64-bit word."""
    return vector(types.uint64), lambda _context, builder, _signature, args: _splat(builder, args[0])
