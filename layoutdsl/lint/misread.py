"""Scales in the wrong order, and what a kernel would take them for.

A kernel reads scales of several groups in one order and scales of one group in another. Where a condition picks the
order by something else, some matrix gets the wrong one; laid out both ways, each of its scales stands where another is
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from layoutdsl.errors import LayoutError
from layoutdsl.grammar import Expr
from layoutdsl.lint.formats import EXTENTS, Stated, choices, holds, numbers
from layoutdsl.model import Kernel, ParamValue
from layoutdsl.resolve import Matrix, Side, Stored, Stretch, bind, tensors

_GATE_AND_UP = ("gate", "up")
_INTERMEDIATE, _HIDDEN = (128, 64, 256), (2048, 128, 256)
_SEVERAL = (2, 3, 16, 1024)
_STEP = 64
_LARGEST, _MOST_SCALES = 1 << 16, 1 << 18
_SHOWN = (3, 17)
"""The group and the output that a message shows, or the next ones that are misread."""


class Misread(NamedTuple):
    """A matrix whose scales get the wrong order; a scale, what it is read as; how many.

    `due` is the condition that the case needs, or None where the one it has does not tell; `taken` whether it holds.
    """

    matrix: str
    has_several: bool
    taken: bool
    due: str | None
    stands: str
    read: str
    count: int
    total: int


def misread(kernel: Kernel, one: Stated) -> Misread | None:
    """The first matrix of an expert that gets the wrong order by the condition of a tensor's case, if any does.

    A kernel sees how many rows there are, and knows its group where there are several. Where the condition says both of
    matrices that are alike in that, it depends on something else.
    """
    assert one.case is not None
    condition = one.tensor.cases[one.case].when
    asked = {name for name, _, _ in condition.names()} & {*EXTENTS}
    counts = sorted({*_SEVERAL, *(count for at in numbers(condition) for count in (at - 1, at, at + 1) if count > 1)})
    named = [name for name in (*kernel.params, "parts") if name != "group"]
    for fixed in {tuple(scope[name] for name in named): scope for scope in choices(kernel)}.values() if asked else ():
        if asked == {"groups"} and len({holds(condition, {**fixed, "groups": count}) for count in counts}) == 1:
            continue
        tried = [(*made, _asked(kernel, fixed, *made)) for made in _matrices(kernel, condition)]
        taken = [holds(condition, scope) for _, _, scope in tried]
        several = [scope["groups"] != 1 for _, _, scope in tried]
        seen = [scope["group"] if more else 1 for more, (_, _, scope) in zip(several, tried)]
        both = {at for at, count in Counter(at for at, _ in {*zip(zip(seen, several), taken)}).items() if count > 1}
        if not both:
            continue
        due = _due(condition, taken, several)
        for (matrix, group, scope), has, more, alike in zip(tried, taken, several, zip(seen, several)):
            doubtful = alike in both if due is None else has != (more == (due == _OF_SEVERAL))
            if doubtful and (wrong := _laid_out(kernel, one, scope, matrix, group)) is not None:
                return wrong._replace(due=due)
    return None


_OF_SEVERAL, _OF_ONE = "groups > 1", "groups == 1"


def _due(condition: Expr, taken: Sequence[bool], several: Sequence[bool]) -> str | None:
    """Which condition was meant: one that says the same of all matrices that have one group, or several, is about that;
    so is one that leaves out group -1, whatever else it asks. Any other may have been meant either way."""
    of_several, of_one = ({has for has, more in zip(taken, several) if more == wanted} for wanted in (True, False))
    if len(of_several) == 1:
        return _OF_SEVERAL if of_several == {True} else _OF_ONE
    if len(of_one) == 1:
        return _OF_ONE if of_one == {True} else _OF_SEVERAL
    return _OF_SEVERAL if any(map(_leaves_out_one, _conjuncts(condition))) else None


def _leaves_out_one(condition: Expr) -> bool:
    """Whether it holds for every group but -1, which is 0 in conditions."""
    asked = {name for name, _, _ in condition.names()}
    return asked == {"group"} and [holds(condition, {"group": group}) for group in (0, 32, 128)] == [False, True, True]


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if condition.op == "and":
        for arg in condition.args:
            yield from _conjuncts(arg)
    else:
        yield condition


def _matrices(kernel: Kernel, condition: Expr) -> Iterator[tuple[Matrix, int]]:
    """w13 and w2 of experts of several sizes, with each group that the kernel takes."""
    parts = _GATE_AND_UP if any({*_GATE_AND_UP} <= {*order} for order in kernel.parts.orders) else ()
    for group in sorted(kernel.accepts.groups, reverse=True):
        for i, h in _sizes(condition, max(group, 1)):
            inside, outside = Stretch("i", i, 0, i, i), Stretch("h", h, 0, h, h)
            halves = (inside,) * max(len(parts), 1)
            for matrix in (
                Matrix("w13", parts, halves, outside, "part", i * len(halves), None, True),
                Matrix("w2", (), (outside,), inside, "part", h, None, True),
            ):
                if matrix.n_padded * max(matrix.k.padded // max(group, 1), 1) <= _MOST_SCALES or group < 1:
                    yield matrix, max(group, 0)


def _sizes(condition: Expr, group: int) -> Iterator[tuple[int, int]]:
    """Intermediate and hidden features: some usual ones, and below and above each number of the condition."""
    usual = list(product(_INTERMEDIATE, _HIDDEN))
    yield from usual
    near = {
        around
        for at in numbers(condition)
        for size in (at // 2, at, at * 2, at * group)
        for around in (size // _STEP * _STEP + step for step in (-_STEP, 0, _STEP))
        if 0 < around <= _LARGEST
    }
    for size in sorted(near):
        yield from (pair for i in _INTERMEDIATE if (pair := (i, size)) not in usual)
        yield from (pair for h in _HIDDEN if (pair := (size, h)) not in usual)


def _asked(kernel: Kernel, fixed: Mapping[str, ParamValue], matrix: Matrix, group: int) -> dict[str, ParamValue]:
    own = {name: value for name, value in fixed.items() if name in kernel.params or name == "parts"}
    return {**own, **Side(kernel, {**bind(kernel, {}), **own}, "padded").scope(matrix, group)}


def _laid_out(
    kernel: Kernel, one: Stated, scope: Mapping[str, ParamValue], matrix: Matrix, group: int
) -> Misread | None:
    params = {**bind(kernel, {}), **{name: value for name, value in scope.items() if name in kernel.params}}
    try:
        stands, reads = (
            next(t for t in tensors(Side(which, params, "padded"), matrix, group) if t.role == one.tensor.role)
            for which in (kernel, _mended(kernel, one, scope))
        )
    except (LayoutError, StopIteration):
        return None
    groups, rows = int(scope["groups"]), group or matrix.k.padded
    found = {_address(reads, part, x, at * rows): (part, x, at) for part, x, at in _scales(matrix, groups)}
    moved = {
        here: found[at]
        for here in _scales(matrix, groups)
        if (at := _address(stands, here[0], here[1], here[2] * rows)) in found and found[at] != here
    }
    if not moved:
        return None
    wanted = (0, _SHOWN[1], min(_SHOWN[0], groups - 1))
    first = wanted if wanted in moved else next(iter(moved))
    total = groups * sum(stretch.length for stretch in matrix.n)
    kept = f"{matrix.n[0].length} outputs" if not matrix.parts else f"2 x {matrix.n[0].length} outputs"
    sizes = f"{kept} and {matrix.k.length} inputs"
    has = f"{groups} groups of {group}" if groups > 1 else "one group"
    return Misread(
        f"`{matrix.name}` of {sizes} has {has}",
        groups > 1,
        holds(one.tensor.cases[one.case or 0].when, scope),
        None,
        _named(matrix, first),
        _named(matrix, moved[first]),
        len(moved),
        total,
    )


def _mended(kernel: Kernel, one: Stated, scope: Mapping[str, ParamValue]) -> Kernel:
    """The kernel with the case taken where it is not, and not taken where it is."""
    tensor = kernel.tensors[one.key]
    flipped = Expr("int", (int(not holds(tensor.cases[one.case or 0].when, scope)),), 0, 0)
    cases = tuple(c.model_copy(update={"when": flipped}) if at == one.case else c for at, c in enumerate(tensor.cases))
    return kernel.model_copy(
        update={"tensors": {**kernel.tensors, one.key: tensor.model_copy(update={"cases": cases})}}
    )


def _scales(matrix: Matrix, groups: int) -> Iterator[tuple[int, int, int]]:
    """(part, output, group) of every scale."""
    for part, stretch in enumerate(matrix.n):
        yield from ((part, x, at) for x in range(stretch.length) for at in range(groups))


def _address(stored: Stored, part: int, x: int, k: int) -> int:
    n_view, k_view = stored.view(part)
    return n_view.at(x) + k_view.at(k)


def _named(matrix: Matrix, scale: tuple[int, int, int]) -> str:
    part, x, at = scale
    return f"group {at}, output {x}" + (f" of `{matrix.parts[part]}`" if matrix.parts else "")
