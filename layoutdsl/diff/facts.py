"""What differs between two versions of a tensor, in words: order, digits, code, dtype, scale power, shape, padding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layoutdsl.show.sheet import Digit, Sheet


@dataclass(frozen=True)
class Fact:
    """One difference: its kind, both values as text, and a sentence."""

    kind: str
    before: str
    after: str
    said: str

    @property
    def key(self) -> tuple[str, str]:
        """What does not depend on sizes: facts with the same key at two settings are one."""
        return self.kind, self.kind if self.kind in _SIZED else self.said


_SIZED = ("shape", "padding")

_PLAIN = {
    "name": "its name in a file is another",
    "role": "its role is another",
    "dtype": "its dtype is another",
    "code": "its codes mean other values",
    "scaled": "its values are stored times another power of two",
    "plus": "another number is added to its codes",
    "reciprocal": "one version stores one over the value",
    "derive": "it is made otherwise where a source lacks it",
    "experts": "experts share it in one version alone",
    "order": "it is stored in another order",
    "shape": "its shape is another",
}


def facts_of(before: Sheet, after: Sheet) -> tuple[Fact, ...]:
    """All differences between two versions of a tensor at the same sizes; none where these store the same bytes."""
    return tuple(
        fact for found in (_digits(before, after), _stated(before, after), _padding(before, after)) for fact in found
    )


def _stated(before: Sheet, after: Sheet) -> Iterator[Fact]:
    """What a tensor states beside its digits, with the parameters' values filled in."""
    for (kind, one), (_, other) in zip(_values(before), _values(after)):
        if one != other:
            yield Fact(kind, one, other, _PLAIN[kind])


def _values(sheet: Sheet) -> Iterator[tuple[str, str]]:
    stored = sheet.stored
    yield "name", stored.name.rpartition(".")[2]
    yield "role", sheet.role
    yield "dtype", " or ".join(stored.dtypes)
    yield "code", stored.code.name
    yield "scaled", f"2^{stored.scaled}"
    yield "plus", str(stored.plus)
    yield "reciprocal", "one over the value" if stored.reciprocal else "the value"
    yield "derive", stored.derive or "nothing"
    yield "experts", "one for all" if "(e" in sheet.order.replace(" ", "") else "one each"
    yield "shape", f"[{', '.join(map(str, stored.shape))}]"


def _padding(before: Sheet, after: Sheet) -> Iterator[Fact]:
    one, other = (_padded(sheet) for sheet in (before, after))
    if one != other:
        yield Fact("padding", one, other, "it is padded otherwise")


def _padded(sheet: Sheet) -> str:
    """The extents as they are stored, and where in front something is padded."""
    matrix = sheet.matrix
    front = f", {matrix.k.front} of it in front" if matrix.k.front else ""
    return f"n {matrix.n_padded}, k {matrix.k.padded}{front}"


# --- digits -----------------------------------------------------------------------------------------------------------

Place = tuple[str, int, int]
"""What a digit is, whatever its name: its axis, its weight and its size, 0 for what is left of the axis."""


def _digits(before: Sheet, after: Sheet) -> Iterator[Fact]:
    olds, news = ([_place(digit) for digit in _stored(sheet)] for sheet in (before, after))
    one, other = before.order, after.order
    shares = {axis: (_sharing(before, axis), _sharing(after, axis)) for axis in "nk"}
    others = {axis: both for axis, both in shares.items() if both[0] != both[1]}
    yield from (Fact("sharing", *both, f"along {axis} others share one value") for axis, both in others.items())
    if others and one == other:
        return
    if sorted(olds) != sorted(news):
        yield Fact("digits", _written(before), _written(after), "its axes are split otherwise, or stored otherwise")
    elif olds != news:
        yield Fact("order", one, other, _moved(before, after, olds, news))
    elif _packed(before) != _packed(after):
        yield Fact("order", one, other, "other digits are packed in a word")


def _stored(sheet: Sheet) -> list[Digit]:
    """The digits that move an element; one of a single value never does, unless the axis goes on in it."""
    return [digit for digit in sheet.digits if digit.role != "shared" and (digit.top or digit.size > 1)]


def _place(digit: Digit) -> Place:
    return digit.axis, digit.weight, 0 if digit.top else digit.size


def _packed(sheet: Sheet) -> list[Place]:
    return [_place(digit) for digit in _stored(sheet) if digit.role == "packed"]


def _written(sheet: Sheet) -> str:
    """Order and split of a tensor as a spec writes them, sizes as numbers."""
    splits: list[str] = []
    for axis in "nk":
        digits = sorted((digit for digit in sheet.digits if digit.axis == axis), key=lambda digit: -digit.weight)
        named = [digit.name if digit.top else f"{digit.name}:{digit.size}" for digit in digits]
        splits += [f"{axis} = {' '.join(named)}"] * (named != [axis])
    return "; ".join([sheet.order, *splits])


def _sharing(sheet: Sheet, axis: str) -> str:
    """How many neighbours along an axis share one stored value."""
    shared = [digit for digit in sheet.digits if digit.axis == axis and digit.role == "shared"]
    return "all" if any(digit.top for digit in shared) else str(math.prod(digit.size for digit in shared))


def _moved(before: Sheet, after: Sheet, olds: Sequence[Place], news: Sequence[Place]) -> str:
    """Which digits stand elsewhere: two that change places, one that moves, or all that do not stay."""
    names = {_place(digit): digit.name for digit in _stored(before)}
    other = [at for at, (old, new) in enumerate(zip(olds, news)) if old != new]
    if len(other) == 2:
        one, two = (olds[at] for at in other)
        return f"digits `{names[one]}` and `{names[two]}` change places: {_effect(before, after, (one, two))}"
    for at in (other[0], other[-1]):
        if [place for place in olds if place != olds[at]] == [place for place in news if place != olds[at]]:
            behind = news.index(olds[at])
            where = f"behind `{names[news[behind - 1]]}`" if behind else "to the front"
            return f"digit `{names[olds[at]]}` moves {where}: {_effect(before, after, (olds[at],))}"
    moved = ", ".join(f"`{names[olds[at]]}`" for at in other)
    return f"digits {moved} stand in another order: {_effect(before, after, [olds[at] for at in other])}"


def _effect(before: Sheet, after: Sheet, places: Sequence[Place]) -> str:
    """What is ordered otherwise where these digits move."""
    levels = {
        _level(sheet, digit): None for sheet in (before, after) for digit in _stored(sheet) if _place(digit) in places
    }
    if len(levels) == 1:
        return _ORDER[next(iter(levels))]
    return f"elements go between {' and '.join(sorted(levels))}"


_ORDER = {
    "bits of a word": "the order inside a word",
    "words of a lane": "the order of a lane's words",
    "lanes": "lane order",
    "tiles": "the order of tiles",
    "words": "the order of words",
}


def _level(sheet: Sheet, digit: Digit) -> str:
    """What a digit counts: bits of a word, words of a lane, lanes, tiles; words where no warp reads tiles."""
    lane = sheet.words_of_a_lane
    if digit.role == "packed":
        return "bits of a word"
    if not lane:
        return "words"
    if digit.stride >= sheet.tile_words * sheet.per_word:
        return "tiles"
    return "lanes" if digit.stride >= lane * sheet.per_word else "words of a lane"
