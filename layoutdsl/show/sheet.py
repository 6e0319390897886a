"""What stands at each address of a stored tensor: the inverse of resolve's views.

    sheet = picture_of(load_spec("gptq"), {"n": 8, "k": 16}).sheets[0]
    [(cell.n, cell.k) for cell in sheet.cells(8, 10)]        # [((1,), (0,)), ((1,), (1,))]

An address is the sum of one along n and one along k. So each axis is asked once for all its coordinates, and a stretch
of addresses is inverted by adding the two tables, whatever the digits are. What no element reaches is padding, of which
resolve says where it stands; that nothing is left over is asserted.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.layout import View
from layoutdsl.resolve import Matrix, Stored

WARP = 32

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """One stored code: the elements of the whole matrix that share it, or what it pads (`n`, `k`, `n and k`)."""

    address: int
    parts: Coordinates
    n: Coordinates
    k: Coordinates
    pad: str = ""


@dataclass(frozen=True)
class Digit:
    """A digit of an order: it counts `axis // weight % size`, and one more is `stride` codes on. `role` as in an order:
    stored, packed (inside a word) or shared (stride 0)."""

    name: str
    axis: str
    weight: int
    size: int
    top: bool
    stride: int
    role: str

    @property
    def formula(self) -> str:
        """What it is of its axis, as in `k // 8 % 2`."""
        below = f" // {self.weight}" if self.weight > 1 else ""
        return f"{self.axis}{below}" + ("" if self.top else f" % {self.size}")


@dataclass(frozen=True)
class Sheet:
    """A stored tensor of one matrix, its digits in their order, and which rank holds what of it.

    `ranks` is empty where the tensor is one rank's own; `group` is (place of input 0 in its group, inputs of a group).
    `key` names the tensor in its spec, `case` is the place of the case of it that holds.
    """

    name: str
    stored: Stored
    matrix: Matrix
    digits: tuple[Digit, ...]
    order: str
    ranks: tuple[Matrix, ...]
    group: tuple[int, int] | None
    warps: bool
    key: str
    case: int | None

    @property
    def role(self) -> str:
        return self.stored.role.replace("_", " ")

    @property
    def per_word(self) -> int:
        """Codes in one element of the tensor's dtype."""
        return DTYPE_BITS[self.stored.dtypes[0]] // self.stored.code.bits

    @property
    def word(self) -> str:
        """What an element of the tensor's dtype is called here."""
        return "element" if self.per_word == 1 else "byte" if DTYPE_BITS[self.stored.dtypes[0]] == 8 else "word"

    @property
    def words(self) -> int:
        """Words in a row: all dimensions but the last one number the rows."""
        return self.stored.shape[-1] if self.stored.shape else 1

    @property
    def rows(self) -> int:
        return math.prod(self.stored.shape[:-1])

    @property
    def parts(self) -> int:
        """How many fused parts the tensor holds."""
        return len(self.stored.parts)

    def shares(self, axis: str) -> bool:
        """Whether all coordinates of an axis share what is stored."""
        return all(digit.role == "shared" for digit in self.digits if digit.axis == axis)

    @property
    def is_drawn(self) -> bool:
        """A tensor that holds n and k themselves has no elements to draw."""
        return self.stored.role != "weight_shape"

    @property
    def tile(self) -> dict[str, int]:
        """The extents that all digits but each axis' first span."""
        return {axis: math.prod(d.size for d in self.digits if d.axis == axis and not d.top) for axis in "nk"}

    @cached_property
    def tile_words(self) -> int:
        """Words of a tile; 0 where a tile is not stored in one piece, or is no more than one word."""
        codes = math.prod(d.size for d in self.digits if d.stride and not d.top)
        apart = any(d.stride < codes for d in self.digits if d.stride and d.top and d.size > 1)
        return 0 if apart or codes <= self.per_word else codes // self.per_word

    @property
    def words_of_a_lane(self) -> int:
        """A warp of 32 lanes reads a kernel's tile in equal pieces of neighbouring words; 0 where it cannot."""
        return self.tile_words // WARP if self.warps and self.tile_words % WARP == 0 else 0

    def lane(self, address: int) -> int | None:
        each = self.words_of_a_lane
        return address // self.per_word % self.tile_words // each if each else None

    def place(self, address: int) -> tuple[Coordinates, int, int]:
        """The row (an index per dimension but the last), the word in it, the first bit in the word."""
        word, code = divmod(address, self.per_word)
        row, word = divmod(word, self.words)
        index: list[int] = []
        for extent in reversed(self.stored.shape[:-1]):
            row, at = divmod(row, extent)
            index.insert(0, at)
        return tuple(index), word, code * self.stored.code.bits

    def address(self, part: int, n: int, k: int) -> int:
        """Where an element of the whole matrix stands, its n counted inside its part."""
        n_view, k_view = self.stored.view(part)
        return n_view.at(n - self.matrix.n[part].start) + k_view.at(k - self.matrix.k.start)

    def cell(self, part: int, n: int, k: int) -> Cell:
        """The code of one element, where no two elements share one."""
        return Cell(self.address(part, n, k), (part,), (n,), (k,))

    def cells(self, first: int, end: int) -> list[Cell]:
        """What stands at the addresses from `first` to before `end`."""
        found: dict[int, Cell] = {}
        for parts, n_table, k_table, pad in self._blocks:
            order = self._sorted[id(k_table)]
            for n_address, n in n_table.items():
                for k_address in order[bisect_left(order, first - n_address) : bisect_left(order, end - n_address)]:
                    cell = Cell(n_address + k_address, parts, n, k_table[k_address], pad)
                    other = found.setdefault(cell.address, cell)
                    if other is not cell:
                        assert not (pad or other.pad), f"{self.name} pads {cell.address}, or pads it twice"
                        found[cell.address] = replace(other, parts=(*other.parts, *parts))
        assert len(found) == end - first, f"{self.name} holds nothing at some of the addresses {first} to {end - 1}"
        return [found[address] for address in range(first, end)]

    @cached_property
    def _blocks(self) -> list[tuple[Coordinates, dict[int, Coordinates], dict[int, Coordinates], str]]:
        """(parts, addresses along n, addresses along k, what it pads): each a product of two tables."""
        k_view = self.stored.k[0]
        k = _table(k_view, self.matrix.k.length, self.matrix.k.start)
        padded = (at for first, count in self.k_gaps for at in range(first, first + count))
        k_pad = dict.fromkeys(map(k_view.chain.at, padded), ())
        blocks: list[tuple[Coordinates, dict[int, Coordinates], dict[int, Coordinates], str]] = []
        for part, view in zip(self.stored.parts, self.stored.n):
            n = _table(view, self.matrix.n[part].length, self.matrix.n[part].start)
            blocks += [((part,), n, k, ""), ((), dict.fromkeys(n, ()), k_pad, "k")]
        for view, low, high in self.stored.n_gaps:
            n_pad = dict.fromkeys(map(view.at, range(low, low + high)), ())
            blocks += [((), n_pad, dict.fromkeys(k, ()), "n"), ((), n_pad, k_pad, "n and k")]
        return blocks

    @cached_property
    def _sorted(self) -> dict[int, list[int]]:
        return {id(k_table): sorted(k_table) for _, _, k_table, _ in self._blocks}

    @property
    def k_gaps(self) -> tuple[tuple[int, int], ...]:
        """(first, count) of what is padded along k, in front and behind; of a whole tensor its last unit may be."""
        stored, unit = self.stored, self.stored.k_unit
        if stored.k_gaps or unit is None:
            return stored.k_gaps
        end = -(-(stored.k[0].offset + self.matrix.k.length) // unit) * unit
        return ((end, stored.k_end - end),) if end < stored.k_end else ()

    def first_pad(self) -> int | None:
        """The first address that holds padding."""
        starts = [min(n) + min(k) for _, n, k, pad in self._blocks if pad and n and k]
        return min(starts, default=None)

    def ranks_of(self, cell: Cell) -> Coordinates:
        """The ranks that hold an element of a cell."""
        return tuple(
            rank
            for rank, held in enumerate(self.ranks)
            if any(_meets(cell.n, held.n[part].start, held.n[part].length) for part in cell.parts)
            and _meets(cell.k, held.k.start, held.k.length)
        )

    @property
    def groups(self) -> int:
        """How many groups the inputs belong to; 0 where none are known."""
        last = self.matrix.k.start + self.matrix.k.length - 1
        return (self.group_of(last) or 0) + 1 if self.group and self.matrix.k.length else 0

    def group_of(self, k: int) -> int | None:
        """The group along k of an input; a rank's own are counted from what it pads in front."""
        return (self.group[0] + k - self.matrix.k.start) // self.group[1] if self.group else None

    def groups_of(self, cell: Cell) -> Coordinates:
        """The groups that the elements of a cell belong to, the first and the last."""
        if not self.group or not cell.k or self.shares("k"):
            return ()
        return tuple(dict.fromkeys(group for k in (cell.k[0], cell.k[-1]) if (group := self.group_of(k)) is not None))


def _table(view: View, length: int, start: int) -> dict[int, Coordinates]:
    """Address -> the coordinates of the whole axis that stand there."""
    found: dict[int, list[int]] = {}
    for x in range(length):
        found.setdefault(view.at(x), []).append(start + x)
    return {address: tuple(coordinates) for address, coordinates in found.items()}


def _meets(coordinates: Coordinates, start: int, length: int) -> bool:
    at = bisect_left(coordinates, start)
    return at < len(coordinates) and coordinates[at] < start + length


# --- words about a cell -----------------------------------------------------------------------------------------------


def span(coordinates: Sequence[int], to: str = "-") -> str:
    """Coordinates in a word: `5`, `0-127`, and `0-12/4` for every fourth."""
    if len(coordinates) == 1:
        return str(coordinates[0])
    steps = {high - low for low, high in zip(coordinates, coordinates[1:])}
    if len(steps) > 1:
        return f"{coordinates[0]}{to}{coordinates[-1]}*"
    step = steps.pop()
    return f"{coordinates[0]}{to}{coordinates[-1]}" + (f"/{step}" if step > 1 else "")


def label(sheet: Sheet, cell: Cell, axes: Iterable[str] = "nk") -> str:
    """The elements of a cell, as short as can be: `37,18`, `3,0-127`, `.` for padding."""
    if cell.pad:
        return "."
    return ",".join(span(coordinates(cell, axis)) for axis in axes if not sheet.shares(axis)) or "all"


def coordinates(cell: Cell, axis: str) -> Coordinates:
    return cell.n if axis == "n" else cell.k


def hover(sheet: Sheet, cell: Cell) -> str:
    """All that is known of a cell: `n 37, k 18; row 1, word 86, bits 20 to 23; lane 21; group 0`."""
    return "; ".join(_facts(sheet, cell))


def _facts(sheet: Sheet, cell: Cell) -> Iterator[str]:
    if cell.pad:
        yield f"padding along {cell.pad}"
    else:
        named = [
            f"all {axis}" if sheet.shares(axis) else f"{axis} {span(coordinates(cell, axis), ' to ')}" for axis in "nk"
        ]
        yield ", ".join(named)
    row, word, bit = sheet.place(cell.address)
    at = [f"row {','.join(map(str, row))}"] if row else []
    bits = [f"bits {bit} to {bit + sheet.stored.code.bits - 1}"] if sheet.per_word > 1 else []
    yield ", ".join([*at, f"{sheet.word} {word}", *bits])
    if (lane := sheet.lane(cell.address)) is not None:
        yield f"lane {lane}"
    if groups := sheet.groups_of(cell):
        yield f"group {' to '.join(map(str, groups))}"
    if sheet.matrix.parts and cell.parts:
        yield ", ".join(sheet.matrix.parts[part] for part in cell.parts)
    if ranks := sheet.ranks_of(cell):
        yield f"rank {span(ranks, ' to ')}"


# --- what tells cells apart -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """What the colours or letters of a drawing mean: rank, part, group, lane or word, and the values in their order."""

    what: str = ""
    values: tuple[str, ...] = ()

    def of(self, sheet: Sheet, cell: Cell) -> int | None:
        """The place of a cell's value among the values; None for padding and where nothing is told apart."""
        return self._places.get(self.value(sheet, cell))

    def value(self, sheet: Sheet, cell: Cell) -> str:
        return _VALUES[self.what](sheet, cell) if self.what and not cell.pad else ""

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value: place for place, value in enumerate(self.values)}


def key_of(sheet: Sheet, cells: Iterable[Cell], *others: str) -> Key:
    """Ranks or parts, where the tensor has several; else groups, or one of `others`, where the cells have several."""
    real = [cell for cell in cells if not cell.pad]
    for what in ("rank", "part", "group", *others):
        values = tuple(dict.fromkeys(value for cell in real if (value := _VALUES[what](sheet, cell))))
        if len(values) > 1 or (values and what in ("rank", "part")):
            return Key(what, tuple(sorted(values, key=lambda value: [int(n) for n in re.findall("[0-9]+", value)])))
    return Key()


def _part(sheet: Sheet, cell: Cell) -> str:
    return sheet.matrix.parts[cell.parts[0]] if len(cell.parts) == 1 < sheet.parts else ""


def _lane(sheet: Sheet, cell: Cell) -> str:
    lane = sheet.lane(cell.address)
    return "" if lane is None else str(lane)


def _word(sheet: Sheet, cell: Cell) -> str:
    row, word, _ = sheet.place(cell.address)
    return " ".join(map(str, (*row, word))) if sheet.per_word > 1 else ""


_VALUES: dict[str, Callable[[Sheet, Cell], str]] = {
    "rank": lambda sheet, cell: span(ranks, " to ") if (ranks := sheet.ranks_of(cell)) else "",
    "part": _part,
    "group": lambda sheet, cell: " to ".join(map(str, sheet.groups_of(cell))),
    "lane": _lane,
    "word": _word,
}
