"""Vectors of 256 bits for the kernels of the cpu backend: blocks of them are read, their codes change places, they are
written.

Numba has no type for them, and what its compiler makes of loops over words is some times slower. LLVM turns them into
what the processor has: one register with AVX2, two with SSE or NEON. A block is a tuple of vectors; what `exchange`,
`merge`, `arrange` and `swap` do to the places of its codes is said in routes.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from layoutdsl.backends.cpu.forms import LINE

BITS = 256
LANES = BITS // 64
LANE = 128


class Vector(types.Type):
    """The type of a vector in numba."""

    def __init__(self) -> None:
        super().__init__(name="layoutdsl_vector")


vector = Vector()
LLVM = ir.VectorType(ir.IntType(64), LANES)
INT, LONG = ir.IntType(32), ir.IntType(64)


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, LLVM)


def many(count: int) -> Any:
    """The type of a block of so many vectors."""
    return types.UniTuple(vector, count)


def parts(builder: Any, value: Any) -> list[Any]:
    """What a tuple has in it."""
    return [builder.extract_value(value, at) for at in range(value.type.count)]


def filled(kind: Any, value: int | float) -> Any:
    """A vector of one number."""
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def lanes(width: int) -> Any:
    return ir.VectorType(ir.IntType(width), BITS // width)


def shuffled(builder: Any, a: Any, b: Any, places: Sequence[int]) -> Any:
    kind = ir.VectorType(INT, len(places))
    return builder.shuffle_vector(a, b, ir.Constant(kind, [ir.Constant(INT, place) for place in places]))


def splat(builder: Any, value: Any, count: int) -> Any:
    """A vector of one value."""
    empty = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    one = builder.insert_element(empty, value, ir.Constant(INT, 0))
    return shuffled(builder, one, empty, [0] * count)


# addresses ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sides:
    """Which addresses of a row and of a column lead to the pieces of vectors: the number of a piece is 2^pieces times
    that of its vector, and more; its bits `rows` count through the row's addresses, `columns` through the column's."""

    vectors: int
    pieces: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def of(self, vector: int) -> Iterator[tuple[int, int]]:
        for piece in range(1 << self.pieces):
            number = vector << self.pieces | piece
            row, column = (
                sum((number >> bit & 1) << at for at, bit in enumerate(side)) for side in (self.rows, self.columns)
            )
            yield row, column


@intrinsic(prefer_literal=True)
def entries(_typing: Any, table: Any, index: Any, count: Any, base: Any) -> Any:
    """So many int64 of a table, those of one row or column, each added to a base."""
    number = count.literal_value

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], LONG.as_pointer())
        first = builder.mul(args[1], ir.Constant(LONG, number))
        places = (builder.gep(pointer, [builder.add(first, ir.Constant(LONG, at))]) for at in range(number))
        return context.make_tuple(builder, sig.return_type, [builder.add(builder.load(at), args[3]) for at in places])

    return types.UniTuple(types.int64, number)(types.int64, types.int64, count, types.int64), generate


@intrinsic
def through(_typing: Any, order: Any, places: Any) -> Any:
    """The entries of an order at some places."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], LONG.as_pointer())
        found = [builder.load(builder.gep(pointer, [place])) for place in parts(builder, args[1])]
        return context.make_tuple(builder, sig.return_type, found)

    return places(types.int64, places), generate


@intrinsic(prefer_literal=True)
def spaced(_typing: Any, base: Any, step: Any, count: Any) -> Any:
    """So many addresses from a base on."""
    number = count.literal_value

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        steps = (ir.Constant(LONG, at * step.literal_value) for at in range(number))
        return context.make_tuple(builder, sig.return_type, [builder.add(args[0], one) for one in steps])

    return types.UniTuple(types.int64, number)(types.int64, step, count), generate


def prefetching(vectors: int, pieces: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
    """A function that asks for what will be read from the addresses of a row and a column."""
    sides = Sides(vectors, pieces, rows, columns)

    @intrinsic
    def fetch(_typing: Any, row: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            pointer = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, INT, INT, INT])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            reads, near, data = (ir.Constant(INT, at) for at in (0, 3, 1))
            for places in added(builder, sides, *args):
                builder.call(function, [builder.inttoptr(places[0], pointer), reads, near, data])
            return context.get_dummy_value()

        return types.void(row, column), generate

    return fetch


def added(builder: Any, sides: Sides, rows: Any, columns: Any) -> list[list[Any]]:
    """The addresses of each vector's pieces."""
    row, column = parts(builder, rows), parts(builder, columns)
    return [[builder.add(row[a], column[b]) for a, b in sides.of(vector)] for vector in range(sides.vectors)]


# loads and stores -----------------------------------------------------------------------------------------------------


def gathered(builder: Any, places: Sequence[Any], kind: Any) -> Any:
    """A vector of some LLVM type, loaded in pieces from addresses that need no alignment."""
    if len(places) == 1:
        return builder.load(builder.inttoptr(places[0], kind.as_pointer()), align=1)
    piece = ir.IntType(kind.count * kind.element.width // len(places))
    found = ir.Constant(ir.VectorType(piece, len(places)), ir.Undefined)
    for at, place in enumerate(places):
        one = builder.load(builder.inttoptr(place, piece.as_pointer()), align=1)
        found = builder.insert_element(found, one, ir.Constant(INT, at))
    return builder.bitcast(found, kind)


def reading(vectors: int, pieces: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
    """A function that reads a block from the addresses of a row and a column."""
    sides = Sides(vectors, pieces, rows, columns)

    @intrinsic
    def read(_typing: Any, row: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            made = [gathered(builder, places, LLVM) for places in added(builder, sides, *args)]
            return context.make_tuple(builder, sig.return_type, made)

        return many(vectors)(row, column), generate

    return read


def writing(vectors: int, pieces: int, rows: tuple[int, ...], columns: tuple[int, ...], line: int = -1) -> Any:
    """A function that writes a block to the addresses of a row and a column: vectors that differ in the digit `line` of
    their number one after the other, since they make a line of the cache."""
    sides = Sides(vectors, pieces, rows, columns)
    apart = 0 if line < 0 else 1 << line
    order = sorted(range(vectors), key=lambda at: (at & ~apart, at))

    @intrinsic
    def write(_typing: Any, row: Any, column: Any, block: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            piece = ir.IntType(BITS >> pieces)
            places, values = added(builder, sides, *args[:2]), parts(builder, args[2])
            for at in order:
                split = builder.bitcast(values[at], ir.VectorType(piece, 1 << pieces)) if pieces else values[at]
                for number, place in enumerate(places[at]):
                    one = builder.extract_element(split, ir.Constant(INT, number)) if pieces else split
                    builder.store(one, builder.inttoptr(place, one.type.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(row, column, block), generate

    return write


def streaming(vectors: int, pieces: int, rows: tuple[int, ...], columns: tuple[int, ...], line: int = -1) -> Any:
    """The same past the caches, whole vectors at addresses that are multiples of 32."""
    sides = Sides(vectors, pieces, rows, columns)
    apart = 0 if line < 0 else 1 << line
    order = sorted(range(vectors), key=lambda at: (at & ~apart, at))

    @intrinsic
    def stream(_typing: Any, row: Any, column: Any, block: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            note = builder.module.add_metadata([ir.Constant(INT, 1)])
            places, values = added(builder, sides, *args[:2]), parts(builder, args[2])
            for at in order:
                pointer = builder.inttoptr(places[at][0], LLVM.as_pointer())
                builder.store(values[at], pointer, align=BITS // 8).set_metadata("nontemporal", note)
            return context.get_dummy_value()

        return types.void(row, column, block), generate

    return stream


@intrinsic
def settle(_typing: Any) -> Any:
    """All stores before are seen by other threads."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def aligned(_typing: Any) -> Any:
    """The stack of a kernel begins on a line of the cache, so that no vector that is kept there for want of a register
    lies on two: such kernels took twice the time where the caller's stack happened to stand badly."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.function.attributes.add("nounwind")  # llvmlite writes no alignment where it is the only attribute
        builder.function.attributes.alignstack = LINE
        return context.get_dummy_value()

    return types.void(), generate
