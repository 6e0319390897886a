"""Weights in act-order, for torch: sorted in their own layout, word by word, and then moved as if they had no order.

GPTQ packs eight k of a column in a word. Row r of the sorted words takes its code p from the row that has the input
order[8 r + p], at the place that it has there:

    sorted[r, n] = OR over p of (words[order[8 r + p] // 8, n] >> 4 * (order[8 r + p] % 8) & 15) << 4 * p

Where n is looked up too (the outputs of a layer whose neighbour sorts its inputs), whole words change places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from layoutdsl.backends.torch.codes import Codes
from layoutdsl.backends.torch.pieces import piece
from layoutdsl.backends.torch.sources import Sources, stored
from layoutdsl.backends.torch.words import DTYPE
from layoutdsl.plan import Lookup, Move


def in_order(move: Move, part: int, codes: Codes, sources: Sources, expert: int) -> torch.Tensor | None:
    """The flat bytes of a tensor with its codes sorted along the looked up axes; None where words cannot do it."""
    k = move.gather_k
    if k is None or len(k.digits) != 2 or k.views[0] != (0, 1, 0):
        return None
    (weight, places, near), (above, _, stride) = k.digits
    order = sources.order(k.tensor, expert, k.group)
    rows, inner, word = len(order) // places, stride // places, places * codes.bits
    packed = (weight, near, above) == (1, 1, places) and stride % places == 0 and len(order) % places == 0
    if not packed or word not in DTYPE or codes.flat.storage_offset() * 8 % word:
        return None
    if len(codes.flat) * 8 % (word * rows * inner):
        return None
    words = codes.flat.view(DTYPE[word]).view(-1, rows, inner)
    columns = _Columns.of(move.gather_n, part, places, words.shape, sources, expert) if move.gather_n else None
    if move.gather_n is not None and columns is None:
        return None
    made = torch.empty_like(words)
    most = max(piece(sources.device) // words[:, 0].numel(), 1)
    for first in range(0, rows, most):
        found = _assembled(words, order[first * places : (first + most) * places].view(-1, places), codes.bits)
        made[:, first : first + most] = found if columns is None else columns.sorted(found)
    return made.view(-1).view(torch.uint8)


@dataclass(frozen=True)
class _Columns:
    """From which column each column of words, [outer, rows, inner], comes. They are so many words wide, or, where that
    is 0, all of outer."""

    come: torch.Tensor
    width: int

    @classmethod
    def of(
        cls, lookup: Lookup, part: int, places: int, shape: Sequence[int], sources: Sources, expert: int
    ) -> _Columns | None:
        outer, rows, inner = shape
        step = lookup.digits[0][2] // places
        count = outer if step == rows * inner else inner // max(step, 1)
        if len(lookup.digits) > 1 or lookup.digits[0][2] % places or (count != outer and outer * inner != count * step):
            return None
        order = sources.order(lookup.tensor, expert, lookup.group)
        come = torch.arange(count, device=order.device)
        straight_on = torch.arange(len(order), device=order.device)
        here, there = (stored(lookup, part, x) // places // step % count for x in (straight_on, order))
        come[here] = there
        return cls(come, 0 if step == rows * inner else step)

    def sorted(self, words: torch.Tensor) -> torch.Tensor:
        lines = words.view(-1, len(self.come), self.width or words[0].numel())
        return lines.index_select(1, self.come).view(words.shape)


def _assembled(words: torch.Tensor, order: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of words, [outer, rows, inner], made of the codes of those in `order`, [rows, places]."""
    places = order.shape[1]
    found: torch.Tensor | None = None
    for place in range(places):
        shift = (order[:, place] % places * bits).to(words.dtype).view(-1, 1)
        codes = words.index_select(1, order[:, place] // places).bitwise_right_shift_(shift)
        codes = codes.bitwise_and_((1 << bits) - 1).bitwise_left_shift_(place * bits)
        found = codes if found is None else found.bitwise_or_(codes)
    assert found is not None
    return found
