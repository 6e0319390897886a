"""A request, and both sides of each of its matrices with numbers: what the compiler works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.model import Format, Kernel, Module, ParamValue
from layoutdsl.plan import Extent
from layoutdsl.recodes import Habits
from layoutdsl.resolve import (
    Matrix,
    Ranks,
    Side,
    Stored,
    group_of,
    groups_nest,
    matrices,
    pad,
    padded_to,
    taken,
    tensors,
    with_extents,
)


@dataclass(frozen=True)
class Request:
    """What was asked for: three specs with all their parameters, sizes, ranks and choices.

    `padded` imposes extents per module axis; `extents` and `groups` take over those of another plan (its inverse).
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
    extents: tuple[Extent, ...] = ()
    groups: Mapping[str, int] | None = None
    kernel_groups: Mapping[str, int] | None = None


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


def pairs_of(request: Request) -> tuple[list[Pair], dict[str, int]]:
    source, target = sides(request)
    found = matrices(request.module, request.module_params, request.sizes, request.ranks, request.grains)
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
    if request.kernel_groups is not None and side is not source:
        groups = [request.kernel_groups[matrix.name] for matrix in found]
    elif side is source:
        groups = [taken(kernel, matrix, int(side.params.get("group", -1))) for matrix in found]
    else:
        given = int(side.params.get("group", -1)) if request.group_given else None
        groups = [group_of(kernel, source, matrix, given) for matrix in found]
    return _padded(request, side, found, groups), groups


def _padded(request: Request, kernel: Side, found: Sequence[Matrix], groups: Sequence[int]) -> tuple[Matrix, ...]:
    assert isinstance(kernel.format, Kernel)
    if not request.padded:
        return pad(kernel.format, kernel.params, found, groups)
    imposed = []
    for matrix in found:
        wide = padded_to(matrix, dict.fromkeys(request.padded, 1), 1)
        k = replace(wide.k, padded=request.padded.get(matrix.k.axis, wide.k.length))
        axis = matrix.n[0].axis
        if matrix.pad == "tail":
            imposed.append(replace(wide, k=k, n_padded=request.padded.get(axis, matrix.n_length)))
            continue
        n = tuple(replace(s, padded=request.padded.get(axis, s.length)) for s in matrix.n)
        imposed.append(replace(wide, n=n, k=k, n_padded=sum(s.padded for s in n)))
    for axis in request.padded:
        if axis not in request.module.axes:
            raise LayoutError(
                f"module `{request.module.name}` has no axis `{axis}` to pad",
                code="LP111",
                name="sizes",
                help=did_you_mean(axis, request.module.axes) or f"its axes: {', '.join(request.module.axes)}",
            )
    for matrix, group in zip(imposed, groups):
        _check_imposed(kernel.format, matrix, group)
    return tuple(imposed)


def _check_imposed(kernel: Kernel, matrix: Matrix, group: int) -> None:
    """Padded extents that the caller imposes must hold the matrix, whole groups and a tile of the kernel."""
    k, n, least = matrix.k, matrix.n_padded, matrix.n_length
    wrong = ""
    if k.padded < k.length or n < least or any(s.padded < s.length for s in matrix.n):
        wrong = f"which is less than its {least} x {k.length}"
    elif group and k.padded > group and k.padded % group:
        wrong = f"and `{k.axis}` is no multiple of its groups of {group}"
    elif not any(n % tile.n == 0 and k.padded % tile.k == 0 for tile in kernel.accepts.tiles):
        tiles = " or ".join(f"{tile.n} x {tile.k}" for tile in kernel.accepts.tiles)
        wrong = f"which fits no tile of kernel `{kernel.name}` ({tiles})"
    if wrong:
        raise LayoutError(
            f"`{matrix.name}` would be padded to {n} x {k.padded} (`{matrix.n[0].axis}` x `{k.axis}`), {wrong}",
            code="LP125",
            name="padded-extents",
            help="impose other extents, or leave `padded` out",
        )


def extents_of(matrix: Matrix) -> Iterator[Extent]:
    """The plan's record of one matrix: its k, its n per part, and (role n, part `*`) the whole of parts padded once."""
    k = matrix.k
    yield Extent(matrix.name, k.axis, "k", "", k.size, k.start, k.length, k.padded)
    alone = len(matrix.n) == 1 and matrix.pad == "tail"
    for s, part in zip(matrix.n, matrix.parts or ("",)):
        yield Extent(matrix.name, s.axis, "n", part, s.size, s.start, s.length, matrix.n_padded if alone else s.padded)
    if matrix.pad == "tail" and len(matrix.n) > 1:
        yield Extent(matrix.name, matrix.n[0].axis, "n", "*", matrix.n_size, 0, matrix.n_length, matrix.n_padded)


def _roles(found: Sequence[Stored]) -> dict[str, tuple[Stored, ...]]:
    roles: dict[str, tuple[Stored, ...]] = {}
    for tensor in found:
        roles[tensor.role] = (*roles.get(tensor.role, ()), tensor)
    return roles


def target_mode(request: Request) -> str:
    """How the target's tensors hold the slice: padded for a kernel, local for a checkpoint."""
    return "padded" if isinstance(request.target, Kernel) else "local"
