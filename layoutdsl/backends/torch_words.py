"""Launches carried out by torch, on words: what backends/cpu_lower.py makes of a program, with no code unpacked.

A block of 2^d words is read into a buffer, as many blocks at once as stay in a cache, words of one number side by side:

    buffer[number, block] = source[reads(number) + at(block)]        one index for all pieces of the same shape
    exchanges of codes between buffer[.. 0 .., :] and buffer[.. 1 .., :]     shifts and masks over whole halves
    target[writes(number) + at(block)] = buffer[number, block]

Strided copies would need no index, but torch is slow at them where the innermost loop is short, and a kernel's loops
are. Words are as wide as the addresses of both tensors allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from layoutdsl.backends.cpu_lower import NIBBLES, Form, Launch, Loop, launches
from layoutdsl.backends.torch_scratch import piece
from layoutdsl.plan import Plan, Program

DTYPE = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
"""Carriers of words. All but bytes are signed, so that a right shift fills with the sign: masks cut that off."""


def known_launches(plan: Plan, program: Program) -> tuple[Launch, ...] | None:
    """The launches of a program, or None where it has none or has some that are not carried out here."""
    found = launches(plan, program)
    return found if found is not None and all(map(_is_known, found)) else None


def _is_known(launch: Launch) -> bool:
    forward = all(step >= 0 for loop in launch.loops for step in loop[1:])  # an index cannot be negative
    return forward and launch.form.how in ("move", "fill", *NIBBLES)


def carry(launch: Launch, to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
    """Carry out a launch between the flat bytes of each expert's output and source (of none, where it fills)."""
    launch = _aligned(launch, [*to, *of])
    size, dtype = launch.form.word // 8, DTYPE[launch.form.word]
    targets, sources = ([flat[: len(flat) // size * size].view(dtype) for flat in flats] for flats in (to, of))
    if launch.form.how == "fill":
        for target in targets:
            sizes, steps = [loop[0] for loop in launch.loops], [loop[1] // size for loop in launch.loops]
            at = target.storage_offset() + launch.dst // size
            target.as_strided(sizes, steps, at).fill_(_signed(launch.value, launch.form.word))
        return
    block = _Block(launch, targets[0].device)
    for dst, src, loops in _pieces(launch.loops, max(piece(targets[0].device) >> launch.form.digits, 1)):
        for target, source in zip(targets, sources):
            block.carry(loops, target[(launch.dst + dst) // size :], source[(launch.src + src) // size :])


def _aligned(launch: Launch, flats: Sequence[torch.Tensor]) -> Launch:
    """The launch on words whose addresses are all multiples of their size."""
    steps = [step for loop in launch.loops for step in loop[1:]]
    begins = [begin for flat in flats for begin in (flat.data_ptr(), flat.storage_offset())]
    unit = math.gcd(8, launch.dst, launch.src, *launch.reads, *launch.writes, *steps, *begins)
    while launch.form.word > max(8 * unit, launch.form.bits):
        launch = halved(launch)
    return launch


def halved(launch: Launch) -> Launch:
    """The same launch on words of half the size: which half of a word becomes a digit of the word's number. Exchanges
    with that digit only rename words."""
    form, number = launch.form, launch.form.digits
    if form.how == "fill":
        half = form.word // 2
        loops = (*launch.loops, (2, half // 8, 0))
        return replace(launch, form=replace(form, word=half), loops=loops, value=launch.value & ((1 << half) - 1))
    top = (form.word // form.bits).bit_length() - 2
    names, swaps = list(range(number + 1)), []
    for kind, a, b in form.swaps:
        if kind == "word" and b == top:
            names[a], names[number] = names[number], names[a]
        elif kind == "word":
            swaps.append((kind, names[a], b))
        elif top in (a, b):
            swaps.append(("word", names[number], min(a, b)))
        else:
            swaps.append((kind, a, b))
    step = form.word // 16
    writes = dict(zip(names, (*launch.writes, step)))
    return replace(
        launch,
        form=replace(form, word=form.word // 2, digits=number + 1, swaps=tuple(swaps)),
        reads=(*launch.reads, step),
        writes=tuple(writes[name] for name in range(number + 1)),
    )


def _pieces(loops: tuple[Loop, ...], most: int) -> Iterator[tuple[int, int, tuple[Loop, ...]]]:
    """(target offset, source offset, loops) of pieces with at most so many turns, cut along the outermost loops."""
    turns = math.prod(loop[0] for loop in loops)
    if turns <= most:
        yield 0, 0, loops
        return
    (count, dst, src), rest = loops[0], loops[1:]
    step = most * count // turns
    for first in range(0, count, max(step, 1)):
        if step:
            yield first * dst, first * src, ((min(step, count - first), dst, src), *rest)
            continue
        for inner_dst, inner_src, inner in _pieces(rest, most):
            yield first * dst + inner_dst, first * src + inner_src, inner


class _Block:
    """The buffers of one launch."""

    def __init__(self, launch: Launch, device: torch.device):
        self.launch, self.form, self.device = launch, launch.form, device
        self.loops: tuple[Loop, ...] | None = None

    def carry(self, loops: tuple[Loop, ...], target: torch.Tensor, source: torch.Tensor) -> None:
        if loops != self.loops:
            self._fit(loops)
        torch.gather(source, 0, self.reads, out=self.words)
        if self.form.how != "move":
            _recode(self.form, self.words, self.spare)
        for kind, a, b in self.form.swaps:
            (_exchange if kind == "word" else _exchange_inside)(self.form, a, b, self.numbered, self.spare)
        target.scatter_(0, self.writes, self.words)

    def _fit(self, loops: tuple[Loop, ...]) -> None:
        size = self.form.word // 8
        self.loops = loops
        self.reads = _index(self.launch.reads, [(count, src) for count, _, src in loops], size, self.device)
        self.writes = _index(self.launch.writes, [(count, dst) for count, dst, _ in loops], size, self.device)
        self.words = torch.empty(self.reads.numel(), dtype=DTYPE[self.form.word], device=self.device)
        self.spare = torch.empty_like(self.words)
        self.numbered = self.words.view(*[2] * self.form.digits, -1)


def _index(digits: Sequence[int], loops: Sequence[tuple[int, int]], size: int, device: torch.device) -> torch.Tensor:
    """The words of a piece: the last digit of the number outermost, then the loops."""
    found = torch.zeros((), dtype=torch.int64, device=device)
    for count, step in (*((2, step) for step in reversed(digits)), *loops):
        found = found.unsqueeze(-1) + torch.arange(count, device=device) * (step // size)
    return found.view(-1)


def _exchange(form: Form, q: int, p: int, words: torch.Tensor, spare: torch.Tensor) -> None:
    """Digit q of the word's number with digit p of the place in a word."""
    low, high = words.select(form.digits - 1 - q, 0), words.select(form.digits - 1 - q, 1)
    shift = form.bits << p
    changed = spare[: low.numel()].view(low.shape)
    torch.bitwise_right_shift(low, shift, out=changed)
    changed.bitwise_xor_(high).bitwise_and_(_mask(form, lambda at: not at >> p & 1))
    high.bitwise_xor_(changed)
    low.bitwise_xor_(changed.bitwise_left_shift_(shift))


def _exchange_inside(form: Form, p: int, r: int, words: torch.Tensor, spare: torch.Tensor) -> None:
    """Two digits of the place in a word, p < r."""
    shift = ((1 << r) - (1 << p)) * form.bits
    changed = spare.view(words.shape)
    torch.bitwise_right_shift(words, shift, out=changed)
    changed.bitwise_xor_(words).bitwise_and_(_mask(form, lambda at: bool(at >> p & 1) and not at >> r & 1))
    words.bitwise_xor_(changed)
    words.bitwise_xor_(changed.bitwise_left_shift_(shift))


def _recode(form: Form, words: torch.Tensor, spare: torch.Tensor) -> None:
    """Codes around the zero point 8: below it, 15 minus the code is all bits but the topmost turned around."""
    ones = _mask(form, lambda at: True, code=1)
    torch.bitwise_right_shift(words, 3, out=spare)
    spare.bitwise_and_(ones)
    if form.how == "fp8_nibbles":
        spare.bitwise_xor_(ones)
    words.bitwise_xor_(spare.mul_(7).bitwise_xor_(_mask(form, lambda at: True, code=8)))


def _mask(form: Form, holds: Callable[[int], bool], code: int | None = None) -> int:
    """A code, all ones unless told otherwise, at each place of a word for which `holds`."""
    code = (1 << form.bits) - 1 if code is None else code
    return _signed(sum(code << at * form.bits for at in range(form.word // form.bits) if holds(at)), form.word)


def _signed(word: int, bits: int) -> int:
    """A word as its carrier shows it."""
    return word - (1 << bits) if bits > 8 and word >> (bits - 1) else word
