"""How ranks cut a module, and which groups the kernel gets: of all ways that serve it, the one with the fewest bytes.

    even            every rank holds the same share
    finer groups    the kernel gets smaller groups than the checkpoint has; each scale stands for several
    uneven          ranks hold whole groups of the kernel, as many as can be dealt evenly
    one group       each rank's share lies inside a group of the checkpoint

Every rank is padded to the widest. Inside a module no cut at other places stores less: together ranks hold whole groups
of the kernel, at least as many as the axis has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from layoutdsl.errors import LayoutError
from layoutdsl.model import Kernel
from layoutdsl.pairs import Request, sides
from layoutdsl.resolve import Matrix, Side, group_of, matrices, pad, stored_bytes

NAMES = ("even", "finer groups", "uneven", "one group a rank")


@dataclass(frozen=True)
class Choice:
    """One way to serve a module: how it is called, what ranks cut each axis at multiples of, and each matrix' group."""

    name: str
    grains: dict[str, int]
    groups: dict[str, int]
    padded: tuple[Matrix, ...]
    bytes: int

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """What the least is taken of: bytes on the widest rank, duties, the plainer way, the coarser group."""
        duties = sum((m.k.padded > m.k.widest) + (m.n_padded > m.n_widest) for m in self.padded)
        return self.bytes, duties, NAMES.index(self.name), -sum(group or 1 << 30 for group in self.groups.values())


def decided(request: Request) -> Request:
    """The request with the best choice taken, where it leaves one: towards a kernel, with nothing imposed."""
    if (
        request.extents
        or request.padded
        or isinstance(request.source, Kernel)
        or not isinstance(request.target, Kernel)
    ):
        return request
    found = best(request)
    return replace(request, grains=found.grains, kernel_groups=found.groups)


def best(request: Request) -> Choice:
    """LayoutError where no choice serves the module: that of the plainest."""
    least: Choice | None = None
    refused: LayoutError | None = None
    for grains in _grains(request):
        try:
            for choice in _choices(request, grains):
                if least is None or choice.rank < least.rank:
                    least = choice
        except LayoutError as error:
            refused = refused or error
        if least is not None and least.name == NAMES[0] and _is_exact(least):
            return least
    if least is None:
        assert refused is not None
        raise refused
    return least


def _is_exact(choice: Choice) -> bool:
    """Whether no rank is padded: if shares are equal too, no other choice can store less."""
    return all(m.k.padded == m.k.widest and m.n_padded == m.n_widest for m in choice.padded)


def _grains(request: Request) -> Iterator[dict[str, int]]:
    """What ranks may cut the axis at multiples of, the plainest first; nothing for equal shares. An axis that is seen
    outside the module is cut as its neighbours expect: in equal shares."""
    yield dict(request.grains)
    cut = [template.fill(request.module_params) for kind, template in request.module.ranks.items() if kind == "tp"]
    if request.grains or request.ranks.tp == 1 or not cut or cut[0] == "none":
        return
    (axis,) = cut
    if axis in request.module.visible:
        return
    assert isinstance(request.target, Kernel)
    stored = int(request.source_params.get("group", -1))
    if all(matrix.k != axis for matrix in request.module.matrices.values()) or stored < 0:
        yield {axis: 1}
        return
    accepted = [group for group in request.target.accepts.groups if group > 0 and stored % group == 0]
    shares = [stored >> by for by in range(stored.bit_length()) if stored % (1 << by) == 0]
    yield from ({axis: grain} for grain in dict.fromkeys([*sorted(accepted, reverse=True), *shares]))


def _choices(request: Request, grains: dict[str, int]) -> Iterator[Choice]:
    kernel, (source, target) = request.target, sides(request)
    assert isinstance(kernel, Kernel)
    found = matrices(request.module, request.module_params, request.sizes, request.ranks, grains)
    options = [list(_groups(request, kernel, source, matrix)) for matrix in found]
    for groups in product(*options):
        padded = pad(kernel, target.params, found, groups)
        size = sum(stored_bytes(kernel, target.params, m, group) for m, group in zip(padded, groups))
        names = {matrix.name: group for matrix, group in zip(found, groups)}
        yield Choice(_named(request, grains, groups), grains, names, padded, size)


def _groups(request: Request, kernel: Kernel, source: Side, matrix: Matrix) -> Iterator[int]:
    """The groups that a matrix may have, its own first; LayoutError where there is none."""
    given = int(request.target_params.get("group", -1)) if request.group_given else None
    refused: LayoutError | None = None
    stored = int(source.params.get("group", -1))
    finer = [g for g in kernel.accepts.groups if given is None and 0 < g < stored and stored % g == 0]
    seen: set[int] = set()
    for group in (given, *sorted(finer, reverse=True)):
        try:
            taken = group_of(kernel, source, matrix, group)
        except LayoutError as error:
            refused = refused or error
            continue
        if taken not in seen:
            seen.add(taken)
            yield taken
    if not seen:
        assert refused is not None
        raise refused


def _named(request: Request, grains: dict[str, int], groups: Sequence[int]) -> str:
    stored = int(request.source_params.get("group", -1))
    if grains:
        return NAMES[2] if stored < 0 or any(groups) else NAMES[3]
    return NAMES[1] if any(0 < group < stored for group in groups) else NAMES[0]
