"""The kinds of kernels that the cpu backend has, without their numbers, and the jobs that give them theirs.

A form says nothing of sizes: programs of other ranks, layers and shapes share its kernel. A job is a grid of blocks of
one output and one source tensor, for all experts: the block in row i and column j has its target at rows.to[i] +
columns.to[j], and its source likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutdsl.backends.cpu.network import Network
from layoutdsl.plan import Lookup
from layoutdsl.recodes import Recode

REFUSED, LOST = 62, 61
"""The bits of an entry of a table of codes that say that one is refused, and that its value becomes 0; of what a turn
has found the former says that something is refused, below it stands how many values became 0."""

SIGNED = 62
"""The bit of a largest magnitude that says that some code has a sign."""

LINE = 64
"""Bytes of a line of the cache."""

STAGED = 1024
"""Bytes of a row of the source that are copied together with those of other rows: as they lie, a whole number of pages
apart, a processor's cache would have room for few of them."""

Order = tuple[Lookup, int]
"""What an axis is looked up in, and which of its views a part has."""


FAR = -1


@dataclass(frozen=True)
class Spread:
    """A second tensor's codes beside those of a vector. `width` bits are read of it at a time: a vector of what stands
    beside, or a word that has all of it. `steps` says which code of the word stands beside each digit of the place; of
    a FAR digit it is in another word, and of a digit of the vector's number it is either there (0) or in another.
    odd: a word may begin inside a byte."""

    bits: int
    width: int
    steps: tuple[int, ...]
    odd: bool = False

    def leads_away(self, digit: int, inside: int) -> bool:
        """Whether what stands beside a digit is in another word."""
        return self.steps[digit] == FAR or (digit >= inside and self.steps[digit] != 0)


@dataclass(frozen=True)
class Moving:
    """Blocks of vectors whose codes change places. down: the axis of the rows (0 is n).

    recode: copy, or what is done to a vector once it is read: offset of 4-bit codes, fp8_nibbles, plain_nibbles or
    fold_sign, around 8 where there is no operand; or what its codes, of another width maybe, are read by: rule,
    rescale, reciprocal, int16_scale or int16_steps. refuses: whether some codes that are copied are no numbers.
    counts: values that become 0.

    looks_up: whether n is found through an order. sorts: what first sorts a panel, which the blocks are taken from.
    staged: whether the panel's rows, that lie apart, are copied together before, STAGED bytes at a time.
    """

    network: Network
    down: int
    recode: str
    source: str
    target: str
    refuses: bool = False
    counts: bool = False
    operand: Spread | None = None
    looks_up: bool = False
    sorts: Network | None = None
    staged: bool = False


@dataclass(frozen=True)
class Single:
    """One element after the other, or the two of a byte. how: write, value (the source's address is the code) or
    compare (with what stands at the target). operand: the code of what stands beside.

    pair: `rows` or `columns`, whose first digit makes two 4-bit codes a byte; without, each is put beside what is
    there. looks_up: whether the source's rows and columns, and the operand's, are found through an order. counts:
    values that become 0.
    """

    how: str
    recode: str
    source: str
    target: str
    operand: str = ""
    stepwise: bool = False
    pair: str = ""
    looks_up: tuple[bool, ...] = (False,) * 4
    counts: bool = False


@dataclass(frozen=True)
class Filling:
    """Words of a constant; of 4 bits, put beside what is there."""

    bits: int


@dataclass(frozen=True)
class Largest:
    """The largest magnitude of a code, as the code without its sign, and whether one has a sign (SIGNED); what is no
    number is the largest. With `signs` the largest value of a number, as an integer in their order. vectors: whether a
    row and a column lead to a vector of them, not to one."""

    source: str
    signs: bool
    vectors: bool = False
    looks_up: tuple[bool, ...] = (False,) * 4


Form = Moving | Single | Filling | Largest


@dataclass(frozen=True, eq=False)
class Table:
    """One side of a grid: int64 addresses of targets, sources and operands, [entries, combinations of the block's
    digits], in bytes, or in codes where these have 4 bits and are taken one by one."""

    to: np.ndarray
    of: np.ndarray
    by: np.ndarray


@dataclass(frozen=True, eq=False)
class Job:
    """A grid of blocks of one part. Which axis the rows are does not count here. source, operand: of which inputs.
    recode: what its codes become; value: what fills, or is added to a zero point. height, width: of a tile. orders: of
    the source's rows and columns, and of the operand's, with the bits of a code there, or 0 where codes are counted.
    panel: where its vectors are sorted to, and where from; scratch: its bytes. lines: it writes whole lines of the
    cache, where its tensor begins with one."""

    form: Form
    rows: Table
    columns: Table
    codes: int
    bytes: int
    source: str = ""
    operand: str = ""
    part: int = -1
    recode: Recode | None = None
    value: int = 0
    height: int = 1
    width: int = 1
    orders: tuple[tuple[Lookup, int, int] | None, ...] = (None,) * 4
    panel: Table | None = None
    scratch: int = 0
    lines: bool = False
    apart: bool = False
    """Whether its bytes are also other jobs'."""
    serial: bool = False
    """Whether its bytes are also its own, of another turn."""
