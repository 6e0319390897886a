"""Columns of addresses for tables: scaled to what a kernel counts in, and held against the sizes of their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layoutdsl.backends.cpu.axes import Carved, Points, points
from layoutdsl.backends.cpu.forms import Order, Table
from layoutdsl.backends.cpu.operands import Unknown
from layoutdsl.codes import code_named
from layoutdsl.plan import Plan, TensorInfo

NOTHING = np.zeros((1, 1), dtype=np.int64)


def by_target(carved: Sequence[Carved]) -> tuple[Points, np.ndarray]:
    """What stands around digits, in the order of its targets, and that order."""
    found = points(one.around for one in carved)
    order = np.argsort(found.dst, kind="stable")
    return Points(found.x[order], found.dst[order], found.src[order]), order


def in_bytes(column: np.ndarray, bits: int) -> np.ndarray | None:
    """Addresses of codes in bytes; None where one is inside of a byte."""
    if bits >= 8:
        return column * (bits // 8)
    return None if (column % 2).any() else column // 2


def in_units(column: np.ndarray, bits: int) -> np.ndarray:
    """Addresses of codes in bytes, those of 4-bit codes as they are."""
    return column * (bits // 8) if bits >= 8 else column


def nearest(column: np.ndarray) -> int:
    """The smallest step from one entry to the next, or more than any where there is but one."""
    steps = np.abs(np.diff(column[:, 0]))
    steps = steps[steps > 0]
    return int(steps.min()) if len(steps) else 1 << 62


def affine(column: np.ndarray) -> list[int] | None:
    """The step of each digit, where all entries have the same."""
    digits = column.shape[1].bit_length() - 1
    steps = [int(column[0, 1 << at] - column[0, 0]) for at in range(digits)]
    sums = np.zeros(1, dtype=np.int64)
    for step in steps:
        sums = np.concatenate([sums, sums + step])
    return steps if np.array_equal(column - column[:, :1], np.broadcast_to(sums, column.shape)) else None


def on_lines(tables: Sequence[Table]) -> bool:
    """Whether all blocks are written by whole lines of the cache, in vectors that lie in one."""
    return not any(bool((table.to % 32).any() or (table.to[:, 0] % 64).any()) for table in tables)


def parities_differ(tables: Sequence[Table]) -> bool:
    """Whether two 4-bit codes of a grid may stand in one byte."""
    return any(bool((table.to % 2 != table.to[0] % 2).any()) for table in tables)


def within(columns: Sequence[np.ndarray], info: TensorInfo, width: int, unit: int) -> None:
    """Raises Unknown where some sum of addresses, in units of so many bits, is not inside one expert's tensor: the
    kernels do not look."""
    low, high = sum(int(column.min()) for column in columns), sum(int(column.max()) for column in columns)
    if low < 0 or high * unit + width > info.codes * code_named(info.code).bits:
        raise Unknown


def looked_up(plan: Plan, order: Order, positions: np.ndarray) -> np.ndarray:
    """All addresses in codes that positions in an order may stand for. Raises Unknown where one is beyond the order."""
    count = plan.input[order[0].tensor].codes
    if positions.min() < 0 or positions.max() >= count:
        raise Unknown
    return addresses(order, np.arange(count, dtype=np.int64))


def addresses(order: Order, coordinates: np.ndarray) -> np.ndarray:
    """Where coordinates of a looked up axis stand, in codes."""
    lookup, part = order
    offset, step, base = lookup.views[part]
    x = coordinates * step + offset
    found = np.full_like(x, base)
    for weight, extent, stride in lookup.digits:
        found += (x // weight % extent if extent else x // weight) * stride
    return found


def word_of(code: int, bits: int) -> int:
    """64 bits of one code, as an int64 has them."""
    word = sum(code << at for at in range(0, 64, bits))
    return word - (1 << 64) if word >> 63 else word
