"""The codes of a tensor in its flat bytes, two codes of 4 bits to a byte: read and written a grid at a time.

    >>> codes = Codes(torch.tensor([0x21, 0x43], dtype=torch.uint8), 4)
    >>> codes.read(Addresses(1, (3,), (1,))).tolist()
    [2, 3, 4]

Grids of 4-bit codes are walked by an index rather than as strided views: torch is slow at these where the innermost
loop is short. Pieces of a box are alike, so that the last index is kept.
"""

from __future__ import annotations

import math

import torch

from layoutdsl.backends.torch.boxes import Addresses, Last, copy
from layoutdsl.backends.torch.recodes import STORED, signed


class Codes:
    """Codes of so many bits in `flat`. Whoever reads or writes 4-bit codes has a byte for each."""

    def __init__(self, flat: torch.Tensor, bits: int):
        self.flat, self.bits = flat, bits
        self.reading, self.writing = Last(), Last()

    @property
    def wide(self) -> torch.Tensor:
        """Codes of 8 bits and more."""
        return self.flat.view(STORED[self.bits])

    def read(self, where: Addresses) -> torch.Tensor:
        """A view, or of 4-bit codes a copy."""
        if self.bits != 4:
            return where.of(self.wide)
        begin = where.low - where.low % 2
        grid = where.moved(-begin)
        index, shift = self.reading.of(grid, lambda: _bytes(indexed(grid, self.flat.device)))
        return _gathered(self.flat[begin // 2 :], index).bitwise_right_shift_(shift).bitwise_and_(15)

    def take(self, n: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """The codes at all sums of addresses along n and along k, in dimensions that do not meet."""
        if self.bits != 4:
            return _gathered(self.wide, n + k)
        shift = _shift(n).bitwise_xor(_shift(k))
        return _gathered(self.flat, (n + k).bitwise_right_shift_(1)).bitwise_right_shift_(shift).bitwise_and_(15)

    def write(self, where: Addresses, codes: torch.Tensor) -> None:
        """`codes` may have dimensions of size one in the place of larger ones."""
        codes = codes.expand(where.sizes)
        if self.bits != 4:
            copy(where.of(self.wide), codes)
            return
        paired, dim = where.paired(), where.odd()
        if dim is None:
            self._write_halves(where, codes)
            return
        low, high = (codes[(slice(None),) * dim + (slice(first, None, 2),)] for first in (0, 1))
        if paired is not None:
            self._put(paired, (high << 4).bitwise_or_(low))
        else:
            self.write(where.every_other(dim, 0), low)
            self.write(where.every_other(dim, 1), high)

    def fill(self, where: Addresses, code: int) -> None:
        """One code everywhere, in words as wide as the addresses allow; nothing but halves of bytes needs memory."""
        widest = 8 * math.gcd(8, self.flat.storage_offset(), self.flat.data_ptr())
        bits, paired = self.bits, where.paired()
        while paired is not None and 2 * bits <= widest:
            where, code, bits = paired, code | code << bits, 2 * bits
            paired = where.paired()
        if bits == 4:
            self.write(where, torch.tensor(code, dtype=torch.uint8, device=self.flat.device))
            return
        size = bits // 8
        words = self.flat[: len(self.flat) // size * size].view(STORED[bits])
        where.of(words).fill_(signed(code, bits))

    def _write_halves(self, where: Addresses, codes: torch.Tensor) -> None:
        """Codes that stand all in the lower halves of bytes, or all in the upper ones; the others stay."""
        shift, where = where.at % 2 * 4, where.halved()
        stay = _gathered(self.flat[where.low :], self._index(where)).view(codes.shape) & (0xF0 >> shift)
        self._put(where, stay.bitwise_or_(codes << shift))

    def _put(self, where: Addresses, made: torch.Tensor) -> None:
        """Write bytes."""
        self.flat[where.low :].scatter_(0, self._index(where), made.reshape(-1))

    def _index(self, where: Addresses) -> torch.Tensor:
        grid = where.moved(-where.low)
        return self.writing.of(grid, lambda: indexed(grid, self.flat.device).view(-1))


def indexed(where: Addresses, device: torch.device) -> torch.Tensor:
    """Addresses as a tensor."""
    found = torch.tensor([where.at], device=device)
    for size, step in zip(where.sizes, where.steps):
        if size > 1:
            found = (found.unsqueeze(-1) + torch.arange(size, device=device) * step).view(-1)
    return found.view(where.sizes)


def _gathered(codes: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.gather(codes, 0, index.reshape(-1)).view(index.shape)


def _bytes(addresses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where 4-bit codes stand: bytes, and shifts in them."""
    return addresses >> 1, _shift(addresses)


def _shift(addresses: torch.Tensor) -> torch.Tensor:
    return (addresses & 1).to(torch.uint8).bitwise_left_shift_(2)
