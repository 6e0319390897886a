"""Recodes of the 4-bit codes in whole words, on their way from a source to a target."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layoutdsl.backends.torch.boxes import Addresses, Box, Last
from layoutdsl.backends.torch.codes import Codes, indexed
from layoutdsl.backends.torch.lower import Launch, halved
from layoutdsl.backends.torch.operands import HOST, Operands, Tables
from layoutdsl.backends.torch.sources import Sources
from layoutdsl.backends.torch.words import Recoded, Words
from layoutdsl.codes import code_named
from layoutdsl.plan import Program

NIBBLES = ("fp8_nibbles", "plain_nibbles")

Way = tuple[Launch, Recoded]


def recoded(launch: Launch, program: Program, sources: Sources, experts: Sequence[int]) -> Way | None:
    """How a program's recode is done in a launch, maybe in one on smaller words; None where it cannot be.

    Known are copies, recodes around the zero point 8, and signs of scales that are those of all codes of a word.
    """
    recode = program.recode
    a, b = code_named(recode.source), code_named(recode.target)
    if a.bits != b.bits:
        return None
    if recode.name == "copy":
        return launch, _copied
    if recode.name in NIBBLES and not program.operands:
        around = a.bias or (b.bias if recode.name == "fp8_nibbles" else 0)
        return (launch, _plus if recode.name == "plain_nibbles" else _minus) if around == 8 else None
    if recode.name == "fold_sign":
        return _folded(launch, program, sources, experts)
    return None


def _copied(words: Words, part: Box, expert: int) -> None:
    pass


def _plus(words: Words, part: Box, expert: int) -> None:
    """Codes below 8 get 8 more; of the others 15 minus the code is all bits but the topmost turned around."""
    _flipped(words, words.mask(lambda at: True, code=0))


def _minus(words: Words, part: Box, expert: int) -> None:
    """Codes from 8 on get 8 less; of the others 15 minus the code is all bits but the topmost turned around."""
    _flipped(words, words.mask(lambda at: True, code=1))


def _flipped(words: Words, turned: int) -> None:
    torch.bitwise_right_shift(words.buffer, 3, out=words.spare)
    top = words.spare.bitwise_and_(words.mask(lambda at: True, code=1)).bitwise_xor_(turned)
    words.buffer.bitwise_xor_(top.mul_(7).bitwise_xor_(words.mask(lambda at: True, code=8)))


def _folded(launch: Launch, program: Program, sources: Sources, experts: Sequence[int]) -> Way | None:
    (operand,) = program.operands
    if any(move.gather_n is not None or move.gather_k is not None for move in operand.moves):
        return None
    part = launch.around.part
    tables = Operands(program, sources, 0).tables(operand, part)
    while not all(_steady(launch, axis, tables[axis]) for axis in (0, 1)):
        if launch.word == 8:
            return None
        launch = halved(launch)
    return launch, _Signs(tables, [sources.codes(operand.sources[part], expert) for expert in experts])


def _steady(launch: Launch, axis: int, table: torch.Tensor) -> bool:
    """Whether, along an axis, all codes of a word have the same beside them."""
    own = [loop for loop in (*launch.digits, *launch.around.loops) if loop[0] == axis]
    inside = [digit for digit in launch.inside if digit[0] == axis]
    words = Addresses(launch.around.at[axis], tuple(loop[1] for loop in own), tuple(loop[2] for loop in own))
    places = Addresses(0, (2,) * len(inside), tuple(digit[2] for digit in inside))
    found = table[indexed(words, HOST).view(-1, 1) + indexed(places, HOST).view(1, -1)]
    return bool((found == found[:, :1]).all())


class _Signs:
    """A negative scale turns the signs of its FP4 codes around."""

    def __init__(self, tables: Tables, scales: Sequence[Codes]):
        self.tables, self.scales = tables, scales
        self.last, self.grids = Last(), Last()

    def __call__(self, words: Words, part: Box, expert: int) -> None:
        scale = self.scales[expert].wide.take(self.last.of(part, lambda: self._addresses(words, part)))
        negative = (scale > 0x80).bitwise_and_(scale != 0xFF).to(words.buffer.dtype)
        words.buffer.bitwise_xor_(negative.mul_(words.mask(lambda at: True, code=8)))

    def _addresses(self, words: Words, part: Box) -> torch.Tensor:
        grids = self.grids.of(part.loops, lambda: [_coordinates(words, axis, part) for axis in (0, 1)])
        n, k = (table.to(words.device)[at:].take(grid) for table, at, grid in zip(self.tables, part.at, grids))
        return n.add_(k)


def _coordinates(words: Words, axis: int, part: Box) -> torch.Tensor:
    """Along an axis, of each word of a piece, counted from the first."""
    digits, loops = ([loop[2] if loop[0] == axis else 0 for loop in of] for of in (words.launch.digits, part.loops))
    return words.index(digits, loops, part)
