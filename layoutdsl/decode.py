"""What a format's tensors mean, computed from its spec alone: no plan, no move and no recode is looked at.

    for block in decode(Side(format, params, "whole"), matrix, tensors):
        block.values    # float64: what the rows block.n of the part block.part are worth at the inputs block.k

A weight is worth its code, less its zero point, times each of its scales; no spec says anything else (finding LD501).
The first of these is here called its level.

Values are exact. A level has at most 9 significant bits, or 24 where the weights are floats without scales; a scale has
up to 24 (float32), and where there are two, the other one has 4 (e4m3, s0e5m3) or 16 (int16). With 9 + 16 + 24 = 49
every product of a shipped format fits the 53 bits of float64, and its exponent is far from both ends. Two exceptions:
a scale that is stored as its reciprocal divides, which is rounded once; and two float32 scales, which no shipped format
has, would leave room for levels of 5 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from layoutdsl.backends.buffers import flat
from layoutdsl.backends.torch.recodes import STORED
from layoutdsl.codes import Code
from layoutdsl.errors import LayoutError
from layoutdsl.layout import View
from layoutdsl.resolve import Matrix, Side, Stored, tensors

PIECE = 1 << 20
"""How many elements are looked up at once; bounds the memory, about 80 bytes for each."""

SCALES = ("scale", "global_scale")
GROUPED = ("scale", "zero_point")
"""Roles whose element is found through the order of an act-order checkpoint."""

VALUED = ("codes", "zero_point", *SCALES, "bias", "input_scale")
"""Roles whose elements are worth something."""


@dataclass(frozen=True)
class Block:
    """Some rows of one part. `n` and `k` count over all ranks, `n` inside the part; `values` is float64 [n, k]."""

    part: int
    n: torch.Tensor
    k: torch.Tensor
    values: torch.Tensor


def decode(
    side: Side,
    matrix: Matrix,
    given: Mapping[str, torch.Tensor],
    group: int | None = None,
    *,
    k_perm: torch.Tensor | None = None,
) -> Iterator[Block]:
    """The values of one matrix of one expert, on the part of it that the rank holds, some rows at a time.

    given: the side's tensors by the names of a plan. group: of a kernel, where it is not the parameter. k_perm: which
    input of the whole matrix each stored one is (int32 [k]), where a kernel has them sorted by group; columns come in
    the order of the checkpoint all the same. Raises LayoutError for a missing tensor and one of another size, and for
    a g_idx that names a group which is not there.
    """
    reading = Reading(tensors(side, matrix, group), given, _group(side, group))
    k = torch.arange(matrix.k.length, device=reading.device)
    inputs = k + matrix.k.start
    if k_perm is not None:
        inputs, k = k_perm.to(torch.int64).sort()
    for part, stretch in enumerate(matrix.n):
        n = torch.arange(stretch.length, device=reading.device)
        window = reading.at(part, n, k)
        for rows in window.blocks():
            yield Block(part, n[rows] + stretch.start, inputs, window.values(rows))


def _group(side: Side, group: int | None) -> int:
    return max(int(side.params.get("group", -1)) if group is None else group, 0)


class Reading:
    """One matrix of one expert on one side: `at` gives what is stored at any coordinates, counted from the rank's first
    row of a part and its first input."""

    def __init__(self, found: Iterable[Stored], given: Mapping[str, torch.Tensor], group: int):
        self.roles: dict[str, list[Stored]] = {}
        self.carriers: dict[str, torch.Tensor] = {}
        self.group = group
        for stored in found:
            self.roles.setdefault(stored.role, []).append(stored)
            if stored.role != "weight_shape":
                self.carriers[stored.name] = _carrier(stored, given)

    @property
    def device(self) -> torch.device:
        return next(iter(self.carriers.values())).device

    def holder(self, role: str, part: int) -> Stored | None:
        """The tensor of a role that holds a part; None where the format has none."""
        return next((stored for stored in self.roles.get(role, ()) if part in stored.parts), None)

    def at(self, part: int, n: torch.Tensor, k: torch.Tensor) -> Window:
        """What is stored of a part at the rows `n` and the inputs `k` (int64, of any order)."""
        found = [self.holder(role, part) for role in VALUED]
        planes = [self.plane(stored, part, n, self._columns(stored, part, k)) for stored in found if stored is not None]
        return Window({plane.stored.role: plane for plane in planes}, len(n), len(k))

    def plane(self, stored: Stored, part: int, n: torch.Tensor, columns: torch.Tensor) -> Plane:
        """The codes of one tensor at the rows `n`, its addresses along k being `columns`."""
        return Plane(stored, self.carriers[stored.name], places(stored.view(part)[0], n), columns)

    def groups(self, part: int, k: torch.Tensor) -> torch.Tensor:
        """The group of each of some inputs, as an act-order checkpoint states it; int64."""
        stored = self.holder("act_order", part)
        assert stored is not None
        return self.carriers[stored.name].index_select(0, places(stored.view(part)[1], k)).to(torch.int64)

    def _columns(self, stored: Stored, part: int, k: torch.Tensor) -> torch.Tensor:
        view, order = stored.view(part)[1], self.holder("act_order", part)
        if stored.role not in GROUPED or order is None:
            return places(view, k)
        groups = self.groups(part, k)
        first = groups * max(self.group, 1)
        bad = (first < 0) | (first >= (stored.k_end if self.group else 1))
        if bad.any():
            at = int(bad.to(torch.uint8).argmax())
            raise LayoutError(
                f"`{order.name}` puts input {int(k[at])} into group {int(groups[at])}, which `{stored.name}` has not",
                code="LP172",
                name="unequal-groups",
                help="check the group size and the file",
            )
        return places(View(view.chain, base=view.base), first)


def _carrier(stored: Stored, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The codes of a tensor, flat; codes of 4 bits as bytes of two."""
    if stored.name not in given:
        raise LayoutError(
            f"tensor `{stored.name}` is missing",
            code="LP161",
            name="missing-tensor",
            help=f"expected {' or '.join(stored.dtypes)} of shape {list(stored.shape)}",
        )
    found = flat(given[stored.name])
    if found.numel() * 8 != stored.codes * stored.code.bits:
        raise LayoutError(
            f"`{stored.name}` has {found.numel()} bytes, expected {stored.codes * stored.code.bits // 8}",
            code="LP162",
            name="wrong-shape",
            help=f"expected {' or '.join(stored.dtypes)} of shape {list(stored.shape)}, of one expert",
        )
    return found if stored.code.bits == 4 else found.view(STORED[stored.code.bits])


def places(view: View, x: torch.Tensor) -> torch.Tensor:
    """The addresses of many coordinates: View.at for each element of an int64 tensor."""
    x = x * view.step + view.offset
    found = torch.full_like(x, view.base)
    for weight, extent, stride in view.chain.digits:
        if stride:
            found += (x // weight % extent if extent else x // weight) * stride
    return found


def distinct(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct elements of x in their order, and for each of x where it stands among them."""
    return torch.unique(x, return_inverse=True)  # pyright: ignore


class Plane:
    """The codes of one tensor at some rows and columns, of which those that share an element are looked up once.

    `meets`: which element each column has; equal numbers, equal elements.
    """

    def __init__(self, stored: Stored, carrier: torch.Tensor, n: torch.Tensor, k: torch.Tensor):
        self.stored, self.carrier, self.meets = stored, carrier, k
        apart, spread = distinct(k)
        self.spread = spread if len(apart) < len(k) else None
        # Twice as fast as with 64 bits, which very large tensors need.
        index = torch.int32 if stored.codes < 1 << 31 else torch.int64
        self.n, self.k = n.to(index), (k if self.spread is None else apart).to(index)

    def codes(self, rows: slice) -> torch.Tensor:
        """Codes [rows, columns], in the carriers of the torch backend."""
        at = (self.n[rows].unsqueeze(1) + self.k).reshape(-1)
        if self.stored.code.bits == 4:
            found = self.carrier.index_select(0, at >> 1)
            found >>= (at & 1).to(torch.uint8) << 2
            found &= 15
        else:
            found = self.carrier.index_select(0, at)
        found = found.view(len(self.n[rows]), len(self.k))
        return found if self.spread is None else found.index_select(1, self.spread)


class Window:
    """What stands at some rows of a part and some inputs; `rows` is a slice of them."""

    def __init__(self, planes: Mapping[str, Plane], n: int, k: int):
        self.planes, self.n, self.k = planes, n, k

    def blocks(self) -> Iterator[slice]:
        """All rows, as many at a time as PIECE allows."""
        step = max(PIECE // max(self.k, 1), 1)
        yield from (slice(first, min(first + step, self.n)) for first in range(0, self.n, step))

    def levels(self, rows: slice) -> torch.Tensor:
        """Codes less their zero points, [rows, k]. float32 holds them all; float64 for integers of 32 bits."""
        plane, zero = self.planes["codes"], self.planes.get("zero_point")
        code, codes = plane.stored.code, plane.codes(rows)
        if zero is None:
            return numbers(code, codes, torch.float64 if code.kind == "signed" else torch.float32)
        point = zero.codes(rows).to(torch.float32) + zero.stored.plus
        codes = codes.to(torch.float32)
        if code.kind == "nibble":
            return torch.where(codes < 16 - point, codes, 15 - codes - point)
        return codes - point

    def scales(self, rows: slice) -> torch.Tensor:
        """The product of the scales of each weight, float64 [rows, k]."""
        shape, device = (rows.stop - rows.start, self.k), self.planes["codes"].carrier.device
        return product(self._scales(rows), torch.ones(shape, dtype=torch.float64, device=device))

    def worth(self, role: str, rows: slice) -> torch.Tensor:
        """What the elements of one role are worth by themselves, float64 [rows, k]."""
        plane = self.planes[role]
        return product([(plane.stored, plane.codes(rows))])

    def values(self, rows: slice) -> torch.Tensor:
        """What the weights are worth, float64 [rows, k]."""
        return product(self._scales(rows), self.levels(rows).to(torch.float64))

    def _scales(self, rows: slice) -> Iterator[tuple[Stored, torch.Tensor]]:
        planes = [self.planes[role] for role in SCALES if role in self.planes]
        yield from ((plane.stored, plane.codes(rows)) for plane in planes)


def product(factors: Iterable[tuple[Stored, torch.Tensor]], of: torch.Tensor | float = 1.0) -> torch.Tensor:
    """`of` times what codes are worth as elements of their tensors, float64. What divides does so last, once."""
    above, below = torch.as_tensor(of, dtype=torch.float64), None
    for stored, codes in factors:
        values = numbers(stored.code, codes, torch.float64)
        if stored.reciprocal:
            below = values * 2.0**stored.scaled * (1.0 if below is None else below)
        else:
            above = above * (values * 2.0**-stored.scaled)
    return above if below is None else above / below


def numbers(code: Code, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What codes decode to without a zero point, in a dtype that holds it."""
    if code.bits <= 8:
        values = _table(code, dtype).to(codes.device)
        return values.index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)
    if code.kind == "float":
        return codes.view(getattr(torch, code.name)).to(dtype)
    return codes.to(dtype)


@lru_cache(maxsize=64)
def _table(code: Code, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([code.decode(at) for at in range(1 << code.bits)], dtype=dtype)


# --- padding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pad:
    """Stored elements of one tensor that no logical element owns. Coordinates count on from the rank's first row of the
    part and its first input; what is in front of it counts down from -1."""

    tensor: Stored
    part: int
    n: torch.Tensor
    k: torch.Tensor
    window: Window
    rows: slice

    @property
    def codes(self) -> torch.Tensor:
        """What is stored, in the carriers of the torch backend."""
        return self.window.planes[self.tensor.role].codes(self.rows)

    @property
    def alone(self) -> torch.Tensor:
        """What each is worth by itself; a weight's code less its zero point."""
        if self.tensor.role == "codes":
            return self.window.levels(self.rows)
        return self.window.worth(self.tensor.role, self.rows)

    @property
    def values(self) -> torch.Tensor:
        """What each is worth with the scales that it meets."""
        return self.alone * self.window.scales(self.rows) if self.tensor.role == "codes" else self.alone


def padding(reading: Reading, matrix: Matrix, *, kernel: bool = True) -> Iterator[Pad]:
    """All that is stored beside the matrix: rows beyond the outputs at all inputs, then inputs beyond the rank's at its
    own rows. kernel: whether all tensors go on as far as the codes; a checkpoint's pads (the unused end of a last
    word) have no scales, so that only their codes can be asked for."""
    for role in VALUED:
        for stored in reading.roles.get(role, ()):
            end = stored.k_end
            unit, device = stored.k_unit or end, reading.device
            found = [(part, n, torch.arange(0, end, unit, device=device)) for part, n in _rows_beyond(stored, device)]
            for first, count in stored.k_gaps:
                k = torch.arange(first, first + count, unit, device=device)
                found += [(part, torch.arange(matrix.n[part].length, device=device), k) for part in stored.parts]
            for part, n, at in found:
                k = at - stored.k[0].offset
                if kernel:
                    window = reading.at(part, n, k)
                else:
                    plane = reading.plane(stored, part, n, places(View(stored.k[0].chain), at))
                    window = Window({role: plane}, len(n), len(k))
                yield from (Pad(stored, part, n[rows], k, window, rows) for rows in window.blocks())


def _rows_beyond(stored: Stored, device: torch.device) -> Iterator[tuple[int, torch.Tensor]]:
    """(part, rows counted on from its first one) of the stored rows that are no part's."""
    for view, first, count in stored.n_gaps:
        at = torch.arange(first, first + count, device=device)
        own = [(part, v) for part, v in zip(stored.parts, stored.n) if (v.chain, v.base) == (view.chain, view.base)]
        if own[0][1].step == 1:  # stacked: the part before the gap
            own = [max((one for one in own if one[1].offset <= first), key=lambda one: one[1].offset)]
        for part, v in own:
            rows = at[(at - v.offset) % v.step == 0]
            yield part, (rows - v.offset) // v.step
