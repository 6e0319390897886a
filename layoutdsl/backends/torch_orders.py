"""Weights in act-order, for torch: sorted in their own layout, word by word, and then moved as if they had no order.

GPTQ packs eight k of a column in a word. Row r of the sorted words takes its code p from the row that has the input
order[8 r + p], at the place that it has there:

    sorted[r, n] = OR over p of (words[order[8 r + p] // 8, n] >> 4 * (order[8 r + p] % 8) & 15) << 4 * p

Where n is looked up too (the outputs of a layer whose neighbour sorts its inputs), whole words change places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from layoutdsl.backends.boxes import Box, Loop
from layoutdsl.backends.torch_codes import Codes
from layoutdsl.backends.torch_scratch import piece
from layoutdsl.backends.torch_sources import Sources, stored
from layoutdsl.backends.torch_words import DTYPE
from layoutdsl.layout import Chain, View
from layoutdsl.plan import Lookup, Move


def straight(move: Move, box: Box) -> Box | None:
    """A box of a gathered move, its source the sorted tensor; None where it is not affine there."""
    for axis, lookup in enumerate((move.gather_n, move.gather_k)):
        if lookup is not None and box is not None:
            box = _through(box, axis, lookup)
    return box


def _through(box: Box, axis: int, lookup: Lookup) -> Box | None:
    """The positions along one axis become addresses, their loops cut where a digit of the layout carries."""
    offset, step, base = lookup.views[box.part if axis == 0 else 0]
    weights = sorted((weight for weight, _, _ in lookup.digits if weight > 1), reverse=True)
    cut = [part for loop in box.loops for part in (_cut(loop, step, weights) if loop[0] == axis else (loop,))]
    own = [(count, step * dsrc) for of, count, _, _, dsrc in cut if of == axis]
    first = box.src[axis]
    for weight in weights:
        low = sum((count - 1) * by for count, by in own if by < weight)
        if (offset + step * first) % weight + low >= weight or any(by > weight and by % weight for _, by in own):
            return None
    view = View(Chain(lookup.digits), offset, step, base)
    at = view.at(first)
    loops = ((*loop[:4], view.at(first + loop[4]) - at) if loop[0] == axis else loop for loop in cut)
    src = (at, box.src[1]) if axis == 0 else (box.src[0], at)
    return replace(box, src=src, loops=tuple(loops))


def _cut(loop: Loop, step: int, weights: list[int]) -> Iterator[Loop]:
    """A loop over positions, cut at the weights that it passes where they are whole steps of it."""
    axis, count, dx, ddst, dsrc = loop
    for weight in weights:
        turns = weight // (step * dsrc) if dsrc else 0
        if 1 < turns < count and turns * step * dsrc == weight and count % turns == 0:
            yield axis, count // turns, turns * dx, turns * ddst, turns * dsrc
            count = turns
    yield axis, count, dx, ddst, dsrc


def in_order(move: Move, part: int, codes: Codes, sources: Sources, expert: int) -> torch.Tensor | None:
    """The flat bytes of a tensor with its codes sorted along the looked up axes; None where words cannot do it."""
    k = move.gather_k
    if k is None or len(k.digits) != 2 or k.views[0] != (0, 1, 0):
        return None
    (_, places, _), (_, _, stride) = k.digits
    order = sources.order(k.tensor, expert, k.group)
    rows, inner, word = len(order) // places, stride // places, places * codes.bits
    fits = word in DTYPE and codes.flat.storage_offset() * 8 % word == 0
    if not fits or len(order) % places or len(codes.flat) * 8 % (word * rows * inner):
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
