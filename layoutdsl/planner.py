"""How ranks cut a module, and which groups, tiles and pads the kernel gets: of all ways, the one with the fewest bytes.

    even            every rank holds the same share
    finer groups    the kernel gets smaller groups than the checkpoint has; each scale stands for several
    uneven          ranks hold whole groups of the kernel (or whole heads), as many as can be dealt evenly
    one group       each rank's share lies inside a group of the checkpoint
    front pad       a rank whose share begins inside a group is padded in front, from where the kernel's group begins

Every rank is padded to the widest. Inside a module ranks hold whole groups of the kernel, together at least as many as
the axis has, so other cuts can save little: a few per cent in four of 2,772 public shapes, by ranks of several widths.
Zeros in front of an inner axis, which an activation would have to write, are not considered. Matrices that share no
inner axis are decided apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from layoutdsl.errors import LayoutError
from layoutdsl.model import Kernel
from layoutdsl.pairs import Request, cut_matrices, sides
from layoutdsl.resolve import (
    CHOICES,
    Cut,
    Fit,
    Matrix,
    Ranks,
    Side,
    are_few,
    filled,
    fitted,
    groups_of,
    is_tight,
    named,
    shapes,
    stored_bytes,
    stored_group,
    tensors,
    up,
    worth,
)


@dataclass(frozen=True)
class Choice:
    """One way to serve matrices that share an inner axis: its name, what ranks cut each axis at multiples of, and how
    each matrix is fitted to the kernel. `bytes` are those of all its tensors on the widest rank."""

    name: str
    grains: dict[str, int]
    fits: tuple[Fit, ...]
    bytes: int

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """What the least is taken of: bytes on the widest rank (all ranks store as many), duties, the plainer way, the
        coarser group."""
        coarse = -sum(fit.group or 1 << 30 for fit in self.fits)
        return self.bytes, self.duties, CHOICES.index(self.name), coarse

    @property
    def duties(self) -> int:
        """How many a caller has, zeros to write between the matrices among them."""
        between = sum(
            m.n[0].padded < k.padded
            for m in (fit.matrix for fit in self.fits)
            for k in (fit.matrix.k for fit in self.fits)
            if m.n[0].axis == k.axis and not k.seen
        )
        return between + sum(fit.duties for fit in self.fits)


def decided(request: Request) -> Request:
    """The request with the best choice taken, where it leaves one: towards a kernel, with nothing imposed."""
    if (
        request.extents
        or request.padded
        or isinstance(request.source, Kernel)
        or not isinstance(request.target, Kernel)
    ):
        return request
    grains = dict(request.grains)
    fitted: dict[str, Fit] = {}
    for found in choices(request, first=True):
        grains |= found[0].grains
        fitted |= {fit.matrix.name: fit for fit in found[0].fits}
    return replace(request, grains=grains, fitted=fitted)


def choices(request: Request, *, first: bool = False) -> list[list[Choice]]:
    """For each set of matrices that share an inner axis all ways to serve it, the best first; with `first` at least
    that one. Raises LayoutError where there is none: why the plainest is none."""
    alone = request.ranks == Ranks()
    whole = cut_matrices(request if alone else replace(request, ranks=Ranks()))
    found: list[list[Choice]] = []
    for names in _sets(whole):
        served: list[Choice] = []
        refused: LayoutError | None = None
        for grains in _grains(request, [m for m in whole if m.name in names]):
            if first and served and not _may_store_less(request, grains, served[0]):
                continue
            try:
                cut = whole if alone else cut_matrices(replace(request, grains=grains))
                held = [m for m in cut if m.name in names]
                served += _choices(request, grains, held, served, every=not first)
                served.sort(key=lambda choice: choice.cost)
            except LayoutError as error:
                # That equal shares are none is no reason while others may be.
                refused = error if refused is None or refused.diagnostics[0].code == "LP120" else refused
            if first and served and not grains and _is_exact(served[0]):
                break
        if not served:
            assert refused is not None
            raise refused
        found.append(served)
    return found


def _sets(found: Sequence[Matrix]) -> list[list[str]]:
    """Names of matrices, those together of which one reads what another writes."""
    sets: list[list[Matrix]] = []
    for matrix in found:
        near = [one for one in sets if any(_meet(matrix, other) for other in one)]
        sets = [one for one in sets if one not in near] + [[*(m for one in near for m in one), matrix]]
    order = {matrix.name: at for at, matrix in enumerate(found)}
    return sorted(([m.name for m in one] for one in sets), key=lambda names: order[names[0]])


def _meet(one: Matrix, other: Matrix) -> bool:
    return any(a.n[0].axis == b.k.axis and not b.k.seen for a, b in ((one, other), (other, one)))


def _is_exact(choice: Choice) -> bool:
    """Whether no rank is padded: if shares are equal too, no other choice can store less."""
    return choice.name == CHOICES[0] and all(
        fit.matrix.k.padded == fit.matrix.k.widest and fit.matrix.n_padded == fit.matrix.n_widest for fit in choice.fits
    )


def _grains(request: Request, found: Sequence[Matrix]) -> Iterator[dict[str, int]]:
    """What ranks may cut the axis at multiples of, the plainest first; nothing for equal shares. An axis that is seen
    outside the module is cut as its neighbours expect: in equal shares, or by whole heads."""
    given = dict(request.grains)
    yield given
    inner = [m for m in found if m.n[0].axis in {other.k.axis for other in found} and not m.n[0].seen]
    axes = {m.n[0].axis for m in inner} & _cut_axes(request)
    if given or request.ranks.tp == 1 or not axes:
        return
    (axis,) = axes
    assert isinstance(request.target, Kernel)
    stored = int(request.source_params.get("group", -1))
    if stored < 0:
        yield {axis: 1}
        return
    accepted = [group for group in request.target.accepts.groups if group > 0 and stored % group == 0]
    below = [divisor for divisor in range(1, math.isqrt(stored) + 1) if stored % divisor == 0]
    shares = sorted({*below, *(stored // divisor for divisor in below)}, reverse=True)
    yield from ({axis: grain} for grain in dict.fromkeys([*sorted(accepted, reverse=True), *shares]))


def _may_store_less(request: Request, grains: dict[str, int], known: Choice) -> bool:
    """Whether cuts at these grains could store less than a known choice: in an inner extent, or in fewer groups."""
    kernel, stored = request.target, int(request.source_params.get("group", -1))
    assert isinstance(kernel, Kernel)
    for fit in known.fits:
        k, grain = fit.matrix.k, grains.get(fit.matrix.k.axis)
        if k.seen or k.shared is None or grain is None:
            continue
        widest = Cut(k.shared.ranks, k.size, grain).widest
        writers = [m for m in (fit.matrix for fit in known.fits) if m.n[0].axis == k.axis]
        least = min(tile.k for tile in kernel.accepts.tiles)
        shares = [min(tile.n // math.gcd(tile.n, len(m.n)) for tile in kernel.accepts.tiles) for m in writers]
        # A coarser group, or one for all, has fewer scales.
        coarser = 0 < fit.group < grain or (fit.group and widest <= stored)
        if coarser or up(widest, least) < k.padded:
            return True
        return any(up(widest, share) < m.n[0].padded for share, m in zip(shares, writers))
    return True


def _cut_axes(request: Request) -> set[str]:
    return {
        filled(template, request.module_params, "`ranks`")
        for kind, template in request.module.ranks.items()
        if kind == "tp"
    }


def _choices(
    request: Request, grains: dict[str, int], found: Sequence[Matrix], known: Sequence[Choice], *, every: bool
) -> list[Choice]:
    """The choices for matrices cut with these grains; unless every one is wanted, without those whose codes alone take
    more bytes than a known one."""
    kernel, (source, target) = request.target, sides(request)
    assert isinstance(kernel, Kernel)
    given = int(request.target_params.get("group", -1)) if request.group_given else None
    stored = [stored_group(source, matrix) for matrix in found]
    options = [worth(kernel, m, groups_of(kernel, source, m, given), own) for m, own in zip(found, stored)]
    tight = is_tight(request.module, request.module_params)
    are_few(kernel, found, math.prod(map(len, options)))
    made = [
        (sum(n * k for _, n, k in padded), groups, padded)
        for groups in product(*options)
        for padded in shapes(kernel, found, groups, stored, tight)
    ]
    made.sort(key=lambda one: one[0])
    served: list[Choice] = []
    for codes, groups, padded in made:
        best = None if every else min((*known, *served), key=lambda choice: choice.bytes, default=None)
        if best is not None and codes * _bytes_of_a_code(target, best.fits[0]) > best.bytes:
            break
        chosen = fitted(found, groups, stored, padded)
        size = sum(stored_bytes(kernel, target.params, fit.matrix, fit.group) for fit in chosen)
        name = named([fit.matrix for fit in chosen], [fit.group for fit in chosen], stored)
        served.append(Choice(name, grains, chosen, size))
    return served


def _bytes_of_a_code(target: Side, fit: Fit) -> float:
    """Bytes that one weight takes in the codes, of all experts together."""
    codes = next(tensor for tensor in tensors(target, fit.matrix, fit.group) if tensor.role == "codes").code
    return codes.bits / 8 * (fit.matrix.experts[2] if fit.matrix.experts else 1)
