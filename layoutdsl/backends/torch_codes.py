"""The codes of a tensor in its flat bytes, two codes of 4 bits to a byte: read and written a grid at a time.

    >>> codes = Codes(torch.tensor([0x21, 0x43], dtype=torch.uint8), 4)
    >>> codes.read(Addresses(1, (3,), (1,))).tolist()
    [2, 3, 4]
"""

from __future__ import annotations

import torch

from layoutdsl.backends.boxes import Addresses, copy
from layoutdsl.backends.torch_recodes import STORED


class Codes:
    """Codes of so many bits in `flat`. Whoever reads or writes 4-bit codes has a byte for each."""

    def __init__(self, flat: torch.Tensor, bits: int):
        self.flat, self.bits = flat, bits
        self.grid: tuple[object, torch.Tensor, torch.Tensor] | None = None

    @property
    def wide(self) -> torch.Tensor:
        """Codes of 8 bits and more."""
        return self.flat.view(STORED[self.bits])

    def read(self, where: Addresses) -> torch.Tensor:
        """A view, or of 4-bit codes a copy."""
        if self.bits != 4:
            return where.of(self.wide)
        beyond = where.low - where.low % 2
        index, shift = self._grid(Addresses(where.at - beyond, where.sizes, where.steps))
        found = torch.gather(self.flat[beyond // 2 :], 0, index.view(-1))
        return found.view(where.sizes).bitwise_right_shift_(shift).bitwise_and_(15)

    def _grid(self, where: Addresses) -> tuple[torch.Tensor, torch.Tensor]:
        """Bytes and shifts of a grid; those of the last one are kept, since pieces are alike."""
        if self.grid is None or self.grid[0] != where:
            index = where.index(self.flat.device)
            self.grid = where, index >> 1, _shift(index)
        return self.grid[1:]

    def take(self, addresses: torch.Tensor) -> torch.Tensor:
        """The codes at any addresses."""
        if self.bits != 4:
            return self.wide.take(addresses)
        return self.flat.take(addresses >> 1).bitwise_right_shift_(_shift(addresses)).bitwise_and_(15)

    def write(self, where: Addresses, codes: torch.Tensor) -> None:
        """`codes` may have dimensions of size one in the place of larger ones."""
        if self.bits != 4:
            copy(where.of(self.wide), codes)
            return
        dim = where.odd()
        if dim is None:
            self._write_halves(where, codes.expand(where.sizes))
            return
        even, odd = (where.every_other(dim, first) for first in (0, 1))
        codes = codes.expand(where.sizes)
        low, high = (codes[(slice(None),) * dim + (slice(first, None, 2),)] for first in (0, 1))
        if even.odd() is None and even.sizes == odd.sizes and even.halved() == odd.halved():
            copy(even.halved().of(self.flat), (high << 4).bitwise_or_(low))
        else:
            self.write(even, low)
            self.write(odd, high)

    def _write_halves(self, where: Addresses, codes: torch.Tensor) -> None:
        """Codes that stand all in the lower halves of bytes, or all in the upper ones; the others stay."""
        shift = where.at % 2 * 4
        view = where.halved().of(self.flat)
        copy(view, (view & (0xF0 >> shift)).bitwise_or_(codes << shift))


def _shift(addresses: torch.Tensor) -> torch.Tensor:
    return (addresses & 1).to(torch.uint8).bitwise_left_shift_(2)
