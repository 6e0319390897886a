"""The algebra of layouts, on integers only.

An axis is split into digits; each digit has a weight (its place in the axis), an extent and a stride (its place in
memory, counted in codes). A chain is the list of an axis' digits, and an element's address is the sum over axes

    A(x) = sum over digits of (x // weight % extent) * stride

so that every question can be asked of one axis at a time. Worked example: GPTQ int4 packs eight k in a word and stores
words `kw n {kp}`. With n = 64 columns, k = 8 kw + kp has the chain

    digit  weight  extent  stride
    kp     1       8       1          (the nibble inside the word)
    kw     8       top     512        (64 columns of 8 codes)

and A(k = 11) = 3 * 1 + 1 * 512. A shared digit (one scale for a whole group) has stride 0.

`refine` cuts a stretch of an axis into boxes inside which two chains are both affine; `runs` turns each box into
(first element, loops), which is all that a conversion is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from layoutdsl.errors import LayoutError

MAX_PHASES = 64
"""How many cuts one period may have before the two layouts count as having no common refinement."""

Digit = tuple[int, int, int]
"""(weight, extent, stride); the top digit of an axis has extent 0: it never wraps."""

Loop = tuple[int, int]
"""(count, step in coordinates)"""


class Chain(NamedTuple):
    """The digits of one axis, least significant first."""

    digits: tuple[Digit, ...]

    def at(self, x: int) -> int:
        """Address of coordinate `x`, in codes."""
        address = 0
        for weight, extent, stride in self.digits:
            if stride:
                address += (x // weight % extent if extent else x // weight) * stride
        return address


class View(NamedTuple):
    """A chain through an offset and a step (a rank's slice, a part, a pad in front): x -> base + A(offset + step x)."""

    chain: Chain
    offset: int = 0
    step: int = 1
    base: int = 0

    def at(self, x: int) -> int:
        chain, offset, step, address = self
        x = offset + step * x
        for weight, extent, stride in chain.digits:
            if stride:
                address += (x // weight % extent if extent else x // weight) * stride
        return address


@dataclass(frozen=True, slots=True)
class Run:
    """A box of elements whose addresses are affine on both sides.

    `part` is the fused part (-1: none), `x` the coordinate of the first element along the axis (inside the rank's
    stretch for data, inside the stored matrix for a pad), `dst` and `src` its addresses in codes, `loops` the steps
    (count, dx, ddst, dsrc), innermost first. `join` says that the target element is written by another run, so that the
    source element must be equal to it.
    """

    part: int
    x: int
    dst: int
    src: int
    loops: tuple[tuple[int, int, int, int], ...]
    join: bool = False


def _cuts(view: View) -> list[tuple[int, int]]:
    """(period, phase) of the coordinates at which some digit of the view carries."""
    found: list[tuple[int, int]] = []
    chain, offset, step, _ = view
    for weight, _, _ in chain.digits:
        if step % weight == 0:
            continue
        if weight % step:
            raise LayoutError(
                f"a step of {step} meets a digit of weight {weight}, which it does not divide",
                code="LD110",
                name="no-common-refinement",
                help="let the number of alternating parts divide the digits of the axis",
            )
        period = weight // step
        found.append((period, -(offset // step) % period))
    return found


def _levels(start: int, size: int, views: Sequence[View]) -> list[tuple[int, tuple[int, ...]]]:
    """(period, phases) of the cuts inside a stretch, each period a multiple of the one before."""
    phases: dict[int, set[int]] = {}
    for view in views:
        for period, phase in _cuts(view):
            # A digit that nowhere carries, such as one group that is the whole axis, needs no cut.
            if period > 1 and (phase - start - 1) % period + 1 < size:
                phases.setdefault(period, set()).add(phase)
    levels: list[tuple[int, tuple[int, ...]]] = []
    below = 1
    for period in sorted(phases):
        raised = math.lcm(period, below)
        repeated = phases[period]
        if raised > period:
            repeated = {phase + shift for phase in repeated for shift in range(0, raised, period)}
        if len(repeated) > MAX_PHASES:
            raise LayoutError(
                f"digits of weight {period} and {below} on one axis need {len(repeated)} cuts in {raised} elements",
                code="LD110",
                name="no-common-refinement",
                help="one side's digits should divide the other's: check the group size and the tile",
            )
        if levels and levels[-1][0] == raised:
            levels[-1] = (raised, tuple(sorted({*levels[-1][1], *repeated})))
        else:
            levels.append((raised, tuple(sorted(repeated))))
        below = raised
    return levels


def refine(start: int, size: int, views: Sequence[View]) -> Iterator[tuple[int, tuple[Loop, ...]]]:
    """Boxes (start, loops) that cover [start, start + size) once, inside which every view is affine.

    How many there are depends on the digits and on where the stretch begins and ends, not on its size.
    """
    if size <= 0:
        return iter(())
    levels = _levels(start, size, views)
    loops = _aligned(start, size, levels)
    return iter([(start, loops)] if loops is not None else _boxes(start, size, levels))


def _aligned(start: int, size: int, levels: list[tuple[int, tuple[int, ...]]]) -> tuple[Loop, ...] | None:
    """The one box of a stretch that begins at a cut of every level and ends at one; None where it is not so simple."""
    loops: list[Loop] = []
    below = 1
    for period, phases in levels:
        if size <= period:
            if any(0 < (phase - start) % period < size for phase in phases):
                return None
        elif len(phases) > 1 or (start - phases[0]) % period or size % period:
            return None
        else:
            loops.append((period // below, below))
            below = period
    if size > below:
        loops.append((size // below, below))
    return tuple(loops)


def _boxes(start: int, size: int, levels: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[Loop, ...]]]:
    """The boxes of a stretch that is not empty."""
    end = start + size
    for at in range(len(levels) - 1, -1, -1):
        period, phases = levels[at]
        borders = sorted([start + (phase - start) % period for phase in phases])
        first = borders[0]
        if first < end:
            break
    else:
        return [(start, ((size, 1),) if size > 1 else ())]
    below = levels[:at]
    found = _boxes(start, first - start, below) if first > start else []
    whole = (end - first) // period
    borders.append(first + period)
    if whole:
        for low, high in zip(borders, borders[1:]):
            for x, loops in _boxes(low, high - low, below):
                found.append((x, (*loops, (whole, period)) if whole > 1 else loops))
    shift = whole * period
    for low, high in zip(borders, borders[1:]):
        if low + shift < end:
            found += _boxes(low + shift, min(high + shift, end) - low - shift, below)
    return found


@lru_cache(maxsize=1 << 12)
def runs(length: int, target: View, source: View | None, *, part: int = -1, start: int = 0) -> tuple[Run, ...]:
    """Runs over coordinates [start, start + length); without a source (a pad) the source columns are 0."""
    return tuple(_runs(length, target, source, part, start))


def _runs(length: int, target: View, source: View | None, part: int, start: int) -> Iterator[Run]:
    views = [target] if source is None else [target, source]
    for x, box in refine(start, length, views):
        dst, src = target.at(x), source.at(x) if source else 0
        loops: list[tuple[int, int, int, int]] = []
        for count, step in box:
            to, of = target.at(x + step) - dst, source.at(x + step) - src if source else 0
            if loops:
                inner, x_step, dst_step, src_step = loops[-1]
                if inner * x_step == step and inner * dst_step == to and inner * src_step == of:
                    loops[-1] = inner * count, x_step, dst_step, src_step
                    continue
            loops.append((count, step, to, of))
        yield Run(part, x, dst, src, tuple(loops))
