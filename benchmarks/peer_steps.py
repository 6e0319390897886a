"""What engines do today to repack GPTQ's int4 weights for Marlin on a CPU, rewritten: each nibble becomes an int32,
tiles of 16 x 64 are put in order, and eight int32 at a time become a word again.

    >>> repacked(torch.zeros(16, 64, dtype=torch.int32)).shape
    torch.Size([8, 128])
"""

from __future__ import annotations

import torch

TILE_K, TILE_N = 16, 64
PER_WORD = 8


def repacked(qweight: torch.Tensor) -> torch.Tensor:
    """Marlin's weights, int32 [k / 16, 2 n], of GPTQ's, int32 [k / 8, n]."""
    return _pack(_permute(_unpack(qweight)))


def _unpack(qweight: torch.Tensor) -> torch.Tensor:
    """[k, n], a code in each int32."""
    rows, n = qweight.shape
    codes = torch.zeros(rows * PER_WORD, n, dtype=torch.int32)
    for at in range(PER_WORD):
        codes[at::PER_WORD] = (qweight >> 4 * at) & 15
    return codes


def _permute(codes: torch.Tensor) -> torch.Tensor:
    """[k / 16, 16 n]: the codes of a tile stand together, in the order in which threads read them."""
    k, n = codes.shape
    tiles = codes.reshape(k // TILE_K, TILE_K, n // 16, 16).permute(0, 2, 1, 3)
    order = _order()
    return tiles.reshape(-1, order.numel())[:, order].reshape(k // TILE_K, n * TILE_K)


def _order() -> torch.Tensor:
    """Of each place in a tile's words, where its code stands in four blocks of 16 x 16."""
    # column c and k quarter kq are the thread; then block j; in a word k0 is the slowest, then b, then k3
    c, kq, j, k0, b, k3 = torch.meshgrid(*(torch.arange(size) for size in (8, 4, 4, 2, 2, 2)), indexing="ij")
    k, column = k3 * 8 + kq * 2 + k0, b * 8 + c
    return ((j * 16 + k) * 16 + column).reshape(-1)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    words = torch.zeros(codes.shape[0], codes.shape[1] // PER_WORD, dtype=torch.int32)
    for at in range(PER_WORD):
        words |= codes[:, at::PER_WORD] << 4 * at
    return words
