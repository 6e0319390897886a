"""Tokens aligned by expert, in one launch (kernels/gemm/align.cuh).

A token and one of the experts that it chose are a pair, pair p of token p // top_k. Pairs sorted by expert, each
expert's filled up to whole tiles, are the rows of a product in which a tile has one expert's weights:

    ids [[2, 0], [2, 1]], tiles of 2 rows   ->   tokens [1 4 | 3 4 | 0 2]   experts [0, 1, 2]   count [6]

    >>> align = Align(experts=8)
    >>> tokens = torch.empty(align.rows(pairs, tile=16), dtype=torch.int32)
    >>> launcher.launch(*align(ids=ids.data_ptr(), id_bytes=8, pairs=pairs, tokens=tokens.data_ptr(), ...))

Nothing is read back: `count` stays on the device, and what stands beyond it is not written.

Refuses: more experts on a rank than a block has threads, and more pairs than 32 bits number (LP360).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from layoutdsl.errors import LayoutError

WARPS, LANES = 16, 32

SLICE, BLOCKS = 4 * LANES, 32
"""Pairs that a warp places at least, where there are more than one block's; most blocks, for each counts all pairs."""

MOST_PAIRS = 1 << 30


@dataclass(frozen=True)
class Align:
    """The kernel for so many experts on a rank. Called, it is the kernel, the blocks and the arguments of a launch."""

    experts: int

    name: ClassVar[str] = "moe_align"
    threads: ClassVar[int] = WARPS * LANES
    source: ClassVar[str] = """#include "gemm/align.cuh"

namespace ld {

LD_KERNEL(moe_align, 512)(Global ids, i64 id_bytes, i64 pairs, Global map, i64 ids_end, i64 experts, Global tokens,
                          Global tile_experts, Global count, Global local, i64 tile, i64 slice) {
    const Choices choices{ids, id_bytes, pairs, map, ids_end, static_cast<u32>(experts)};
    align(choices, {tokens, tile_experts, count, local, static_cast<u32>(tile)}, slice);
}

}  // namespace ld
"""

    def __post_init__(self) -> None:
        if not 0 < self.experts <= self.threads:
            raise LayoutError(
                f"{self.experts} experts on one rank: tokens are aligned for 1 to {self.threads}",
                code="LP360",
                name="too-many-to-align",
                help="share the experts among more ranks: compile_plan(..., ep=)",
            )

    @property
    def shared(self) -> int:
        return (self.experts * (WARPS + 2) + WARPS) * 4

    def rows(self, pairs: int, tile: int) -> int:
        """The most rows, a multiple of `tile`, that pairs take however they are shared out."""
        used = min(self.experts, pairs)
        return ((pairs - used) // tile + used) * tile

    def __call__(
        self, *, ids: int, id_bytes: int, pairs: int, ids_end: int, tokens: int, tile_experts: int, count: int,
        local: int, tile: int, map: int = 0,
    ) -> tuple[Align, int, tuple[int, ...]]:  # fmt: skip
        """A launch for 1 to 2^30 pairs; addresses of

        ids           [pairs] the experts that tokens chose, of 4 or 8 bytes (id_bytes): from 0 on, before ids_end
        map           [ids_end] int32, the expert of this rank that an id stands for, or -1; 0: ids are this rank's
        tokens        [rows(pairs, tile)] int32: pairs, and the number of all pairs where a tile is filled up
        tile_experts  [rows(pairs, tile) / tile] int32
        count         [1] int32: how many of the rows are used
        local         [pairs] int32: the pair's expert on this rank, or -1
        """
        if not 0 < pairs <= MOST_PAIRS:
            raise LayoutError(
                f"{pairs} pairs of a token and an expert: 1 to {MOST_PAIRS} are aligned at once",
                code="LP360",
                name="too-many-to-align",
                help="split the tokens",
            )
        blocks = max(1, min(BLOCKS, pairs // (WARPS * SLICE)))
        piece = -(-pairs // (blocks * WARPS * LANES)) * LANES
        blocks = -(-pairs // (WARPS * piece))
        numbers = (ids, id_bytes, pairs, map, ids_end, self.experts, tokens, tile_experts, count, local, tile, piece)
        return self, blocks, numbers
