"""What a plan says it is, held against the specs it names: the law `header`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NoReturn

from layoutdsl.errors import LayoutError
from layoutdsl.library import recall
from layoutdsl.model import Format, Kernel, Module, Spec
from layoutdsl.plan import Extent, Plan, TensorInfo, params_of
from layoutdsl.plan import Side as PlanSide
from layoutdsl.resolve import (
    CHOICES,
    MAX_EXTENT,
    Matrix,
    Side,
    Stored,
    bind,
    cheapest,
    is_tight,
    matrices,
    named,
    stored_group,
    tensors,
    tile_of,
    with_extents,
)

HABITS = {"pads": ("neutral", "zero"), "nvfp4_factor": ("expert", "tensor"), "int16": ("nearest", "stepwise")}


def broken(law: str, message: str, tensor: str = "") -> NoReturn:
    of = f"`{tensor}`: " if tensor else ""
    raise LayoutError(
        f"the plan breaks the law `{law}`: {of}{message}",
        code="LP200",
        name=f"law-{law}",
        help="compile the plan anew; if it was just compiled, the spec or layoutdsl is at fault",
    )


def first_odd(stated: Iterable[Any], true: Iterable[Any]) -> tuple[Any, Any] | None:
    """The first place where two lists differ: (stated, true), None where one has ended."""
    return next(((a, b) for a, b in zip_longest(stated, true) if a != b), None)


@dataclass(frozen=True)
class Pair:
    """One matrix, padded where a side is a kernel, and the tensors of both sides by role."""

    matrix: Matrix
    source: Mapping[str, tuple[Stored, ...]]
    target: Mapping[str, tuple[Stored, ...]]

    @property
    def parts(self) -> range:
        return range(len(self.matrix.n))

    def holder(self, role: str, part: int) -> Stored | None:
        """The source tensor of a role that holds a part."""
        return next((tensor for tensor in self.source.get(role, ()) if part in tensor.parts), None)

    def first(self, side: str, role: str) -> Stored | None:
        return next(iter(getattr(self, side).get(role, ())), None)


@dataclass(frozen=True)
class Given:
    """A plan, and what its specs say about it."""

    plan: Plan
    source: Side
    target: Side
    module: Module
    pairs: tuple[Pair, ...]

    @cached_property
    def orders(self) -> dict[str, Stored | None]:
        """Per matrix the tensor by whose order its k is sorted: where the source is in act-order, the target is not."""
        sorts = self.source.params.get("act_order") and not self.target.params.get("act_order")
        return {pair.matrix.name: pair.first("source", "act_order") if sorts else None for pair in self.pairs}

    def inner_order(self, pair: Pair) -> Stored | None:
        """The order of another matrix' k that this matrix' n follows: on inner axes alone, outputs keep theirs."""
        if pair.matrix.n[0].seen:
            return None
        for other in self.pairs:
            if other is not pair and other.matrix.k.axis == pair.matrix.n[0].axis:
                return self.orders[other.matrix.name]
        return None

    def group(self, side: str) -> int:
        """Inputs in a group as that side's parameters say; 0: one group."""
        return max(int(getattr(self, side).params.get("group", -1)), 0)

    @property
    def pads(self) -> bool:
        """Whether the target is a kernel's, whose pads are read."""
        return self.target.mode == "padded"


def read(plan: Plan, specs: tuple[str, ...]) -> Given:
    """The law `header`: specs, parameters, sizes, ranks, extents, groups, inputs and outputs fit together."""
    source, target, module = _specs(plan, specs)
    sides = _sides(plan, source, target)
    _values(plan)
    found = matrices(
        module,
        params_of(plan.module),
        dict(plan.sizes),
        plan.ranks,
        dict(plan.grains),
        only=plan.only,
        places=plan.places,
    )
    _extents_are_all(plan, found)
    tight = is_tight(module, params_of(plan.module))
    wide = [_wide(plan, matrix) for matrix in found]
    _agree(wide, tight)
    _counts(plan, found, sides[0])
    _fits(plan, *sides, wide, found)
    pairs = tuple(_pairs(plan, module, *sides, found, wide))
    given = Given(plan, *sides, module, pairs)
    for pair in pairs:
        for found in (pair.source, pair.target):
            _stand_apart(found)
    _inputs(given)
    _outputs(given)
    return given


# --- specs and values -------------------------------------------------------------------------------------------------


def _specs(plan: Plan, specs: tuple[str, ...]) -> tuple[Format, Format, Module]:
    source, target, module = (_recalled(side, specs) for side in (plan.source, plan.target, plan.module))
    if not isinstance(source, Format) or not isinstance(target, Format) or not isinstance(module, Module):
        broken("header", "source and target must be formats, module a module")
    return source, target, module


def _recalled(side: PlanSide, specs: tuple[str, ...]) -> Spec:
    spec = recall(side.spec, side.digest, specs)
    if tuple(bind(spec, params_of(side)).items()) != side.params:
        broken("header", f"the parameters of `{side.spec}` are not all of its own, in its order")
    return spec


def _sides(plan: Plan, source: Format, target: Format) -> tuple[Side, Side]:
    if plan.sharded and (isinstance(source, Kernel) or plan.ranks.tp * plan.ranks.ep == 1):
        broken("header", "`sharded` means checkpoint tensors cut for several ranks")
    mode = "padded" if isinstance(source, Kernel) else "local" if plan.sharded else "whole"
    return (
        Side(source, params_of(plan.source), mode),
        Side(target, params_of(plan.target), "padded" if isinstance(target, Kernel) else "local"),
    )


def _values(plan: Plan) -> None:
    axes = [axis for axis, _ in plan.sizes]
    if axes != sorted(set(axes)):
        broken("header", "sizes stand in order of their axes, each once")
    for habit, known in HABITS.items():
        if getattr(plan.habits, habit) not in known:
            broken("header", f"the habit `{habit}` is one of {', '.join(known)}")
    if any(extent.padded > MAX_EXTENT for extent in plan.extents):
        broken("header", f"no axis is padded beyond {MAX_EXTENT}")


# --- extents ----------------------------------------------------------------------------------------------------------


def _extents_are_all(plan: Plan, found: Sequence[Matrix]) -> None:
    expected: list[tuple[str, str, str]] = []
    for matrix in found:
        expected.append((matrix.name, "k", ""))
        expected += [(matrix.name, "n", part) for part in matrix.parts or ("",)]
        if matrix.pad == "tail":
            expected.append((matrix.name, "n", "*"))
    if [(e.matrix, e.role, e.part) for e in plan.extents] != expected:
        broken("header", "the extents are not one per axis of each matrix, in their order")


def _wide(plan: Plan, matrix: Matrix) -> Matrix:
    """The matrix with the plan's padded extents, once all that the plan says of it is true."""
    known: dict[tuple[str, str, str], Extent] = {(e.matrix, e.role, e.part): e for e in plan.extents}
    parts = matrix.parts or ("",)
    at_the_tail = matrix.pad == "tail"
    to_kernel = bool(plan.groups)
    for role, part, stretch in [("k", "", matrix.k), *(("n", part, s) for part, s in zip(parts, matrix.n))]:
        extent = known[matrix.name, role, part]
        held = (stretch.axis, stretch.size, stretch.start, stretch.length)
        if (extent.axis, extent.size, extent.start, extent.length) != held:
            broken(
                "header",
                f"rank {plan.ranks.rank} holds {stretch.start} to {stretch.start + stretch.length - 1} of axis "
                f"`{stretch.axis}`, {stretch.size} in all; the plan says otherwise for {role} of `{matrix.name}`",
            )
        least = extent.front + (stretch.widest if to_kernel else stretch.length)
        if extent.padded < least or (at_the_tail and role == "n" and extent.padded != least):
            to = "cannot be" if at_the_tail and role == "n" else "is"
            broken("header", f"{role} of `{matrix.name}` {to} padded from {least} to {extent.padded}")
        if extent.front and (extent.front < 0 or role == "n" or not stretch.seen or not to_kernel):
            broken("header", f"{role} of `{matrix.name}` cannot be padded in front")
        if extent.held != stretch.held(plan.ranks.tp):
            times = stretch.held(plan.ranks.tp)
            broken("header", f"every element along {role} of `{matrix.name}` is held {times} times over all ranks")
    if at_the_tail:
        star = known[matrix.name, "n", "*"]
        whole = (matrix.n[0].axis, matrix.n_size, 0, matrix.n_length, 0, 1)
        if (star.axis, star.size, star.start, star.length, star.front, star.held) != whole:
            broken("header", f"all parts of `{matrix.name}` have {matrix.n_length} outputs of {matrix.n_size}")
        if star.padded < (matrix.n_widest if to_kernel else matrix.n_length):
            broken("header", f"n of `{matrix.name}` is padded from {star.length} to {star.padded}")
    return with_extents(matrix, known)


def _agree(wide: Sequence[Matrix], tight: bool) -> None:
    """What one matrix writes along an axis inside the module, the next one reads; zeros may be written between."""
    for matrix in wide:
        for other in wide:
            for stretch in matrix.n:
                if stretch.axis != other.k.axis or stretch.seen:
                    continue
                same = stretch._replace(padded=other.k.padded) == other.k
                if not same or not (stretch.padded == other.k.padded or (tight and stretch.padded < other.k.padded)):
                    writes = f"`{matrix.name}` writes {stretch.padded} elements of axis `{stretch.axis}`"
                    broken("agree", f"{writes}, `{other.name}` reads {other.k.padded}")


def _counts(plan: Plan, found: Sequence[Matrix], source: Side) -> None:
    total, start, count = found[0].experts or (0, 0, 0)
    if plan.experts != (total, start if source.mode == "whole" else 0, count):
        broken("header", f"this rank holds experts {start} to {start + count - 1} of {total}")
    if plan.slots and (source.mode != "whole" or not plan.places):
        broken("header", "only of whole tensors some experts are taken several times")
    if plan.places and source.mode == "whole" and len(plan.slots) != count:
        broken("header", f"this rank has {count} places for experts")
    if any(not 0 <= expert < total for expert in plan.slots):
        broken("header", f"the experts are 0 to {total - 1}")
    if plan.slots and plan.ranks.ep == 1 and len(set(plan.slots)) < total:
        broken("header", "no place is left for one of the experts")
    if plan.places and (not total or plan.places < total):
        broken("header", f"{total} experts cannot have {plan.places} places")


def _fits(plan: Plan, source: Side, target: Side, wide: Sequence[Matrix], found: Sequence[Matrix]) -> None:
    """Whether the kernel takes the padded matrices and their groups; without a kernel nothing is padded."""
    side, other = (target, source) if target.mode == "padded" else (source, target)
    kernel, own = side.format, side.params.get("group")
    names = [matrix.name for matrix in found] if isinstance(kernel, Kernel) else []
    if [name for name, _ in plan.groups] != names:
        broken("header", "the groups are not one per matrix of a kernel, in their order")
    if not isinstance(kernel, Kernel):
        if list(wide) != list(found):
            broken("header", "an axis is padded, but neither side is a kernel")
        if plan.choice or plan.tiles:
            broken("header", "without a kernel nothing is chosen")
        return
    if own not in (None, other.params.get("group"), *(group or -1 for _, group in plan.groups)):
        broken(
            "header", f"parameter `group` of `{kernel.name}` is neither one of its groups nor that of the other side"
        )
    for matrix, (name, group) in zip(wide, plan.groups):
        k = matrix.k.padded
        if group < 0 or (group or -1) not in kernel.accepts.groups:
            broken("header", f"kernel `{kernel.name}` does not take group {group} of `{name}`")
        if group and k % group and k > group:
            broken("header", f"k of `{name}` is padded to {k}, no multiple of group {group}")
    _named(plan, source, wide)
    _tiled(plan, kernel, wide)


def _named(plan: Plan, source: Side, wide: Sequence[Matrix]) -> None:
    stored = [stored_group(source, matrix) if source.mode != "padded" else 0 for matrix in wide]
    choice = named(wide, [group for _, group in plan.groups], stored)
    if plan.choice != choice:
        broken("header", f"what serves the module so is called `{choice}`, one of: {', '.join(CHOICES)}")


def _tiled(plan: Plan, kernel: Kernel, wide: Sequence[Matrix]) -> None:
    if [name for name, _, _ in plan.tiles] != [matrix.name for matrix in wide]:
        broken("header", "the tile families are not one per matrix of a kernel, in their order")
    for matrix, (_, n, k) in zip(wide, plan.tiles):
        tile = tile_of(kernel, matrix.n_padded, matrix.k.padded)
        if tile is None or (tile.n, tile.k) != (n, k):
            size = f"{matrix.n_padded} x {matrix.k.padded}"
            fits = f"fits tiles of {tile.n} x {tile.k}" if tile else "fits no tile"
            broken("header", f"`{matrix.name}` of {size} {fits} of kernel `{kernel.name}`")


# --- tensors ----------------------------------------------------------------------------------------------------------


def _pairs(
    plan: Plan, module: Module, source: Side, target: Side, found: Sequence[Matrix], wide: Sequence[Matrix]
) -> Iterable[Pair]:
    groups = dict(plan.groups)
    tight = is_tight(module, params_of(plan.module))
    for at, (cut, padded) in enumerate(zip(found, wide)):
        group = groups.get(cut.name)
        target_holds = (padded, group) if target.mode == "padded" else (cut, None)
        source_holds = (cut, None)
        if source.mode == "padded":
            source_holds = (padded, group) if target.mode == "local" else _as_source(source, found, at, tight)
        yield Pair(padded, _by_role(tensors(source, *source_holds)), _by_role(tensors(target, *target_holds)))


def _as_source(source: Side, found: Sequence[Matrix], at: int, tight: bool) -> tuple[Matrix, int]:
    """A matrix as a kernel holds it whose tensors become another kernel's: padded by its own rule."""
    assert isinstance(source.format, Kernel)
    group = max(int(source.params.get("group", -1)), 0)
    groups = [group] * len(found)
    return cheapest(source.format, source.params, found, groups, [0] * len(found), tight)[at].matrix, group


def _by_role(found: Sequence[Stored]) -> dict[str, tuple[Stored, ...]]:
    roles: dict[str, tuple[Stored, ...]] = {}
    for tensor in found:
        roles[tensor.role] = (*roles.get(tensor.role, ()), tensor)
    return roles


def _stand_apart(found: Mapping[str, tuple[Stored, ...]]) -> None:
    """Every weight has a code of its own, every output a bias, every input its place in an order."""
    for role, axes in (("codes", "nk"), ("bias", "n"), ("act_order", "k")):
        for tensor in found.get(role, ()):
            for axis in axes:
                views = tensor.n if axis == "n" else tensor.k
                if any(extent != 1 and stride == 0 for view in views for _, extent, stride in view.chain.digits):
                    broken("complete", f"neighbours along {axis} share one element", tensor.name)


def _inputs(given: Given) -> None:
    total, _, count = given.plan.experts
    held = total if given.source.mode == "whole" else count
    inputs = tuple(TensorInfo.of(t, held) for pair in given.pairs for found in pair.source.values() for t in found)
    if odd := first_odd(given.plan.inputs, inputs):
        broken("header", "the inputs are not the tensors of the source spec", (odd[1] or odd[0]).name)
    _are_named_once(inputs)


def _outputs(given: Given) -> None:
    """The target's tensors, and what passes through: input scales without a place there, orders to gather inputs by."""
    count = given.plan.experts[2]
    outputs: list[TensorInfo] = []
    passed: list[tuple[str, str]] = []
    for pair in given.pairs:
        outputs += [TensorInfo.of(t, count) for found in pair.target.values() for t in found]
        if "input_scale" not in pair.target:
            alone = pair.source.get("input_scale", ())
            outputs += [TensorInfo.of(t, count) for t in alone]
            passed += [(t.name, t.name) for t in alone]
        order = given.orders[pair.matrix.name]
        if order is not None and pair.matrix.k.seen:
            name, length = f"{pair.matrix.name}.k_perm", pair.matrix.k.length
            outputs.append(TensorInfo(name, "k_perm", ("int32",), "int32", length, (length,), count, False))
            passed.append((order.name, name))
    if odd := first_odd(given.plan.outputs, outputs):
        broken("header", "the outputs are not the tensors of the target spec", (odd[1] or odd[0]).name)
    _are_named_once(outputs)
    if given.plan.passed != tuple(passed):
        broken("header", "the tensors passed through are not the source's input scales and orders")


def _are_named_once(infos: Sequence[TensorInfo]) -> None:
    names = [info.name for info in infos]
    if len(set(names)) < len(names):
        broken("header", "two tensors have this name", next(name for name in names if names.count(name) > 1))
