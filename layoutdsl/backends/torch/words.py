"""Launches carried out by torch: words are read, codes exchanged, words written, and no code is ever unpacked.

As many blocks at once as stay in a cache lie in one buffer, words of one number side by side:

    buffer[number, block] = source[reads(number) + at(block)]          an index, the same for all pieces of a shape
    exchanges of codes between buffer[.. 0 .., :] and buffer[.. 1 .., :]       shifts and masks over whole halves
    target[writes(number) + at(block)] = buffer[number, block]

Strided copies would need no index, but torch is slow at them where the innermost loop is short, and a kernel's loops
are. Words are as wide as the addresses of both tensors allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from layoutdsl.backends.torch.boxes import Addresses, Box, Last
from layoutdsl.backends.torch.codes import indexed
from layoutdsl.backends.torch.lower import Launch, halved
from layoutdsl.backends.torch.pieces import piece

DTYPE = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
"""Carriers of words. All but bytes are signed, so that a right shift fills with the sign: masks cut that off."""

Recoded = Callable[["Words", Box, int], None]
"""What changes the codes of a buffer, of a piece around blocks and an expert."""


def carry(launch: Launch, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor], recode: Recoded) -> None:
    """Carry out a launch between the flat bytes of each expert's output and source."""
    launch = _aligned(launch, [*to, *of])
    size, dtype = launch.word // 8, DTYPE[launch.word]
    targets, sources = ([flat[: len(flat) // size * size].view(dtype) for flat in flats] for flats in (to, of))
    words = Words(launch, targets[0].device)
    for part in launch.around.pieces(max(piece(targets[0].device) >> len(launch.digits), 1)):
        words.fit(part)
        for expert, (target, source) in enumerate(zip(targets, sources)):
            torch.gather(source[part.source.at // size :], 0, words.reads, out=words.buffer)
            recode(words, part, expert)
            words.swap()
            target[part.target.at // size :].scatter_(0, words.writes, words.buffer)


def _aligned(launch: Launch, flats: Sequence[torch.Tensor]) -> Launch:
    """The launch on words whose addresses are all multiples of their size."""
    unit = math.gcd(8, launch.unit, *(begin for flat in flats for begin in (flat.data_ptr(), flat.storage_offset())))
    while launch.word > max(8 * unit, launch.bits):
        launch = halved(launch)
    return launch


class Words:
    """The buffers of a launch: `buffer` with the words of a piece, `spare` of the same size."""

    def __init__(self, launch: Launch, device: torch.device):
        self.launch, self.device = launch, device
        self.last = Last()

    def fit(self, part: Box) -> None:
        """Take the size of a piece around blocks."""
        self.reads, self.writes, self.buffer, self.spare = self.last.of(part.loops, lambda: self._sized(part))

    def _sized(self, part: Box) -> tuple[torch.Tensor, ...]:
        size = self.launch.word // 8
        reads = self.index(self.launch.reads, [loop[4] for loop in part.loops], part) // size
        writes = self.index(self.launch.writes, [loop[3] for loop in part.loops], part) // size
        buffer = torch.empty(len(reads), dtype=DTYPE[self.launch.word], device=self.device)
        return reads, writes, buffer, torch.empty_like(buffer)

    def index(self, digits: Sequence[int], steps: Sequence[int], part: Box) -> torch.Tensor:
        """A sum of steps for each word of a piece."""
        sizes = (*[2] * len(digits), *part.sizes)
        return indexed(Addresses(0, sizes, (*reversed(digits), *steps)), self.device).view(-1)

    def swap(self) -> None:
        for kind, a, b in self.launch.swaps:
            (self._exchange if kind == "word" else self._exchange_inside)(a, b)

    def _exchange(self, q: int, p: int) -> None:
        """Digit q of the word's number with digit p of the place in a word."""
        low, high = self.buffer.view(-1, 2, len(self.buffer) >> (len(self.launch.digits) - q)).unbind(1)
        shift = self.launch.bits << p
        changed = self.spare[: low.numel()].view(low.shape)
        torch.bitwise_right_shift(low, shift, out=changed)
        changed.bitwise_xor_(high).bitwise_and_(self.mask(lambda at: not at >> p & 1))
        high.bitwise_xor_(changed)
        low.bitwise_xor_(changed.bitwise_left_shift_(shift))

    def _exchange_inside(self, p: int, r: int) -> None:
        """Two digits of the place in a word, p < r."""
        shift = ((1 << r) - (1 << p)) * self.launch.bits
        torch.bitwise_right_shift(self.buffer, shift, out=self.spare)
        changed = self.spare.bitwise_xor_(self.buffer)
        changed.bitwise_and_(self.mask(lambda at: bool(at >> p & 1) and not at >> r & 1))
        self.buffer.bitwise_xor_(changed)
        self.buffer.bitwise_xor_(changed.bitwise_left_shift_(shift))

    def mask(self, holds: Callable[[int], bool], code: int | None = None) -> int:
        """A code, all ones unless told otherwise, at each place for which `holds`; the word as the carrier shows it."""
        bits, word = self.launch.bits, self.launch.word
        code = (1 << bits) - 1 if code is None else code
        found = sum(code << at * bits for at in range(word // bits) if holds(at))
        return found - (1 << word) if word > 8 and found >> (word - 1) else found
