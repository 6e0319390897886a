"""A request, and both sides of each of its matrices with numbers: what the compiler works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.model import Format, Kernel, Module, ParamValue
from layoutdsl.plan import Extent
from layoutdsl.recodes import Habits
from layoutdsl.resolve import (
    Fit,
    Matrix,
    Ranks,
    Side,
    Stored,
    Stretch,
    cheapest,
    groups_nest,
    groups_of,
    is_tight,
    matrices,
    named,
    stored_group,
    taken,
    tensors,
    tile_of,
    widened,
    with_extents,
)


@dataclass(frozen=True)
class Request:
    """What was asked for: three specs with all their parameters, sizes, ranks and choices.

    `only`: the matrices that are wanted, if not all. `places`: how many there are for experts, where some experts have
    several; `slots`: the expert of each. `padded` imposes extents per module axis; `extents` and `groups` take over
    those of another plan (its inverse). `fitted`: what the planner decided for each matrix.
    """

    source: Format
    target: Format
    module: Module
    source_params: dict[str, ParamValue]
    target_params: dict[str, ParamValue]
    module_params: dict[str, ParamValue]
    sizes: dict[str, int | tuple[int, ...]]
    ranks: Ranks
    sharded: bool
    habits: Habits
    padded: dict[str, int]
    group_given: bool
    grains: Mapping[str, int]
    only: tuple[str, ...] = ()
    places: int = 0
    slots: tuple[int, ...] = ()
    extents: tuple[Extent, ...] = ()
    groups: Mapping[str, int] | None = None
    fitted: Mapping[str, Fit] | None = None


@dataclass(frozen=True)
class Pair:
    """One matrix as both sides see it: the padded matrix, and each side's tensors by role."""

    matrix: Matrix
    source: dict[str, tuple[Stored, ...]]
    target: dict[str, tuple[Stored, ...]]


def sides(request: Request) -> tuple[Side, Side]:
    """Source and target with their modes: a kernel's tensors are padded, a checkpoint's whole or local."""
    source = "padded" if isinstance(request.source, Kernel) else "local" if request.sharded else "whole"
    target = "padded" if isinstance(request.target, Kernel) else "local"
    return (Side(request.source, request.source_params, source), Side(request.target, request.target_params, target))


def cut_matrices(request: Request) -> tuple[Matrix, ...]:
    """The request's matrices on its rank, not yet padded."""
    return matrices(
        request.module,
        request.module_params,
        request.sizes,
        request.ranks,
        request.grains,
        only=request.only,
        places=request.places,
    )


def pairs_of(request: Request) -> tuple[list[Pair], dict[str, int]]:
    """Both sides of each matrix, and the groups with which a kernel reads them."""
    source, target = sides(request)
    found = cut_matrices(request)
    ours = _extents(request, source, target, found)
    pairs: list[Pair] = []
    for matrix, source_matrix, target_matrix, source_group, target_group in ours:
        pairs.append(
            Pair(
                target_matrix if target.mode == "padded" else source_matrix if source.mode == "padded" else matrix,
                _roles(tensors(source, source_matrix, source_group)),
                _roles(tensors(target, target_matrix, target_group)),
            )
        )
    groups = {matrix.name: sg if tg is None else tg for matrix, _, _, sg, tg in ours}
    return pairs, {name: group for name, group in groups.items() if group is not None}


def _extents(request: Request, source: Side, target: Side, found: Sequence[Matrix]) -> list:
    """Per matrix: as cut, as the source has it, as the target has it, and both kernel groups (None: no kernel)."""
    wide_source, groups_source = _kernel_extents(request, source, source, found)
    wide_target, groups_target = _kernel_extents(request, target, source, found)
    return list(zip(found, wide_source, wide_target, groups_source, groups_target))


def _kernel_extents(
    request: Request, side: Side, source: Side, found: Sequence[Matrix]
) -> tuple[Sequence[Matrix], Sequence[int | None]]:
    kernel = side.format
    if not isinstance(kernel, Kernel):
        for matrix in found:
            groups_nest(source, side, matrix)
        return found, [None] * len(found)
    if request.extents:
        known = {(e.matrix, e.role, e.part): e for e in request.extents}
        groups = request.groups or {}
        return [with_extents(matrix, known) for matrix in found], [groups[matrix.name] for matrix in found]
    if request.fitted is not None and side is not source:
        fitted = [request.fitted[matrix.name] for matrix in found]
        return [fit.matrix for fit in fitted], [fit.group for fit in fitted]
    stored = [stored_group(source, matrix) for matrix in found]
    if side is source:
        groups = [taken(kernel, matrix, int(side.params.get("group", -1))) for matrix in found]
        stored = [0] * len(found)
    else:
        given = int(side.params.get("group", -1)) if request.group_given else None
        groups = [groups_of(kernel, source, matrix, given)[0] for matrix in found]
    if request.padded:
        return _imposed(request, kernel, found, groups), groups
    fitted = cheapest(kernel, side.params, found, groups, stored, is_tight(request.module, request.module_params))
    return [fit.matrix for fit in fitted], groups


def _imposed(request: Request, kernel: Kernel, found: Sequence[Matrix], groups: Sequence[int]) -> list[Matrix]:
    """The matrices with the extents that the caller imposes; an axis that he leaves out is not padded."""
    for axis in request.padded:
        if axis not in request.module.axes:
            raise LayoutError(
                f"module `{request.module.name}` has no axis `{axis}` to pad",
                code="LP111",
                name="sizes",
                help=did_you_mean(axis, request.module.axes) or f"its axes: {', '.join(request.module.axes)}",
            )
    imposed: list[Matrix] = []
    for matrix, group in zip(found, groups):
        k = request.padded.get(matrix.k.axis, matrix.k.widest)
        if matrix.pad == "tail":
            parts = [s.widest for s in matrix.n]
            n = request.padded.get(matrix.n[0].axis, sum(parts))
        else:
            parts = [request.padded.get(s.axis, s.widest) for s in matrix.n]
            n = sum(parts)
        imposed.append(widened(matrix, parts, n, k))
        _check_imposed(kernel, imposed[-1], group)
    return imposed


def _check_imposed(kernel: Kernel, matrix: Matrix, group: int) -> None:
    """Padded extents that the caller imposes must hold the matrix, whole groups and a tile of the kernel."""
    k, n, least = matrix.k, matrix.n_padded, matrix.n_widest
    wrong = ""
    if k.padded < k.widest or n < least or any(s.padded < s.widest for s in matrix.n):
        wrong = f"which is less than its {least} x {k.widest}"
    elif group and k.padded > group and k.padded % group:
        wrong = f"and `{k.axis}` is no multiple of its groups of {group}"
    elif tile_of(kernel, n, k.padded) is None:
        tiles = " or ".join(f"{tile.n} x {tile.k}" for tile in kernel.accepts.tiles)
        wrong = f"which fits no tile of kernel `{kernel.name}` ({tiles})"
    if wrong:
        raise LayoutError(
            f"`{matrix.name}` would be padded to {n} x {k.padded} (`{matrix.n[0].axis}` x `{k.axis}`), {wrong}",
            code="LP125",
            name="padded-extents",
            help="impose other extents, or leave `padded` out",
        )


def choice_of(request: Request, found: Sequence[Matrix], groups: Mapping[str, int]) -> str:
    """How the planner calls what serves the matrices so; nothing where neither side is a kernel."""
    if not groups:
        return ""
    source = sides(request)[0]
    stored = [stored_group(source, matrix) if source.mode != "padded" else 0 for matrix in found]
    return named(found, [groups[matrix.name] for matrix in found], stored)


def extents_of(matrix: Matrix, ranks: int) -> Iterator[Extent]:
    """The plan's record of one matrix: its k, its n per part, and (role n, part `*`) the whole of parts padded once."""
    yield _extent(matrix, "k", "", matrix.k, ranks)
    for stretch, part in zip(matrix.n, matrix.parts or ("",)):
        yield _extent(matrix, "n", part, stretch, ranks)
    if matrix.pad == "tail":
        first = matrix.n[0]
        yield Extent(matrix.name, first.axis, "n", "*", matrix.n_size, 0, matrix.n_length, matrix.n_padded, 0, 1)


def _extent(matrix: Matrix, role: str, part: str, s: Stretch, ranks: int) -> Extent:
    return Extent(matrix.name, s.axis, role, part, s.size, s.start, s.length, s.padded, s.front, s.held(ranks))


def _roles(found: Sequence[Stored]) -> dict[str, tuple[Stored, ...]]:
    roles: dict[str, tuple[Stored, ...]] = {}
    for tensor in found:
        roles[tensor.role] = (*roles.get(tensor.role, ()), tensor)
    return roles


def target_mode(request: Request) -> str:
    """How the target's tensors hold the slice: padded for a kernel, local for a checkpoint."""
    return "padded" if isinstance(request.target, Kernel) else "local"
