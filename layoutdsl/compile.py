"""Source, target and module in, a proven Plan out."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layoutdsl import nearest, resolve
from layoutdsl import plan as plans
from layoutdsl.arguments import check_arguments
from layoutdsl.builder import Builder
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.library import digest, load_spec, recall, recent
from layoutdsl.model import Format, Kernel, Module, ParamValue, Spec
from layoutdsl.pairs import Pair, Request, choice_of, extents_of, pairs_of, sides
from layoutdsl.plan import Plan, TensorInfo
from layoutdsl.planner import decided
from layoutdsl.prove import prove
from layoutdsl.recodes import Habits
from layoutdsl.resolve import Ranks, bind, tile_of, with_defaults

Sizes = Mapping[str, int | Sequence[int]]


def compile_plan(
    source: str | Spec,
    target: str | Spec,
    module: str | Spec,
    sizes: Sizes,
    *,
    params: Mapping[str, ParamValue] | None = None,
    tp: int = 1,
    rank: int = 0,
    ep: int = 1,
    ep_rank: int = 0,
    sharded: bool = False,
    padded: Mapping[str, int] | None = None,
    grains: Mapping[str, int] | None = None,
    only: Sequence[str] = (),
    experts: Sequence[int] = (),
    habits: Habits | None = None,
    specs: Sequence[str] = (),
) -> Plan:
    """The proven plan that turns one rank's slice of `source` tensors into `target` tensors.

    source, target, module: shipped names, names in the folders `specs`, paths, or loaded specs. sizes: extents of the
    module's axes before sharding; a list of widths where the parts of a fused matrix have their own. params: values by
    name; a name counts for every side that has it, `source.group`, `target.group` or `module.split` for one side alone;
    the target takes over what it shares with the source. A kernel keeps the source's groups, if it has some, unless
    `target.group` asks for others. tp, ep: how many ranks cut the module; rank, ep_rank: which one this is. sharded:
    the source tensors are already this rank's slices. padded: imposes a padded extent per module axis. grains: imposes
    what ranks cut an axis at multiples of; without, of all that serve the module the choice with the fewest bytes (see
    planner.py). only: the matrices to convert, of a module whose others are converted elsewhere. experts: the expert of
    each place that ranks have for one, where some experts have several (redundant experts); every expert must have one.

    Raises LayoutError where nothing can serve the shape, or the formats do not hold the same kind of code; its help is
    the nearest setting that works, where there is one (see nearest.py).
    """
    values = tp, rank, ep, ep_rank, sharded, habits and repr(habits)
    known = _known((source, target, module), specs)
    key = known and _key(known, specs, values, (sizes, params, padded, grains), (only, experts))
    if key in _PLANS:
        return _PLANS[key]
    check_arguments(
        {"source": source, "target": target, "module": module},
        sizes,
        params,
        padded,
        {"tp": tp, "rank": rank, "ep": ep, "ep_rank": ep_rank},
        habits,
        specs,
    )
    folders = tuple(specs)
    src, dst, mod = known or (
        load_spec(spec, specs=folders, kind=kind) for spec, kind in zip((source, target, module), SIDES)
    )
    assert isinstance(src, Format) and isinstance(dst, Format) and isinstance(mod, Module)
    arguments: dict[str, Any] = {
        "source": src,
        "target": dst,
        "module": mod,
        "sizes": sizes,
        "params": params,
        "tp": tp,
        "rank": rank,
        "ep": ep,
        "ep_rank": ep_rank,
        "sharded": sharded,
        "padded": padded,
        "grains": grains,
        "only": only,
        "experts": experts,
        "habits": habits,
        "specs": folders,
    }
    try:
        plan = _made(**arguments)
    except LayoutError as error:
        raise nearest.helped(error, arguments, lambda changed: _made(**changed)) from None
    prove(plan, specs=folders)
    if key is not None:
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan


_PLANS: dict[bytes | None, Plan] = {}
MOST_PLANS = 1024


def forget() -> None:
    """Empty the memory of plans and of resolved tensors."""
    _PLANS.clear()
    resolve.forget()


def _known(specs: Sequence[Any], folders: Any) -> list[Spec] | None:
    """Source, target and module, loaded; None where an argument is wrong."""
    try:
        folders, known = tuple(folders), []
        for spec, kind in zip(specs, SIDES):
            found = recent(spec, kind) if isinstance(spec, str) and not folders else None
            if found is None:
                if not isinstance(spec, str | Spec):
                    return None
                found = load_spec(spec, specs=folders, kind=kind)
            known.append(found)
        return known
    except (TypeError, ValueError, OSError, LayoutError):
        return None


def _key(
    specs: Sequence[Spec], folders: Any, values: Any, mappings: Sequence[Any], lists: Sequence[Any]
) -> bytes | None:
    """What a plan depends on, as bytes, which tell true from 1; None where an argument is wrong."""
    try:
        mapped, listed = [one and dict(one) for one in mappings], [tuple(one) for one in lists]
        of = [id(spec) for spec in specs], tuple(folders), values, mapped, listed
        return marshal.dumps(of, 0)  # this version shares no objects: equal arguments give equal bytes
    except (TypeError, ValueError):
        return None


SIDES = ("checkpoint|kernel", "checkpoint|kernel", "module")
"""Kinds of source, target and module."""


def _made(
    source: Format,
    target: Format,
    module: Module,
    sizes: Sizes,
    params: Mapping[str, ParamValue] | None,
    tp: int,
    rank: int,
    ep: int,
    ep_rank: int,
    sharded: bool,
    padded: Mapping[str, int] | None,
    grains: Mapping[str, int] | None,
    only: Sequence[str],
    experts: Sequence[int],
    habits: Habits | None,
    specs: tuple[str, ...],
) -> Plan:
    """The plan that these arguments of compile_plan lead to, not yet proven."""
    given = _by_side(params or {}, {"source": source, "target": target, "module": module})
    src_params = bind(source, given["source"])
    dst_params = bind(target, given["target"], src_params)
    mod_params = bind(module, given["module"])
    only_target = "group" in given["target"] and "group" not in source.params
    for axis, grain in (grains or {}).items():
        if axis not in module.axes or not isinstance(grain, int) or grain < 1:
            raise LayoutError(
                f"module `{module.name}` cannot be cut along `{axis}` at multiples of {grain}",
                code="LP111",
                name="sizes",
                help=did_you_mean(axis, module.axes)
                or f"its axes: {', '.join(module.axes)}; at multiples of 1 or more",
            )
    whole = with_defaults(
        module, {axis: tuple(size) if isinstance(size, Sequence) else size for axis, size in sizes.items()}
    )
    _check_slots(module, whole, experts)
    ranks = Ranks(tp, rank, ep, ep_rank)
    sharded = sharded and tp * ep > 1 and not isinstance(source, Kernel)
    request = decided(
        Request(
            source=source,
            target=target,
            module=module,
            source_params=src_params,
            target_params=dst_params,
            module_params=mod_params,
            sizes=whole,
            ranks=ranks,
            sharded=sharded,
            habits=habits or Habits(),
            padded=dict(padded or {}),
            group_given="target.group" in (params or {}) or only_target,
            grains=dict(grains or {}),
            only=tuple(only),
            places=len(experts),
            slots=tuple(experts),
        )
    )
    return _compile(request)


def invert(plan: Plan, *, specs: tuple[str, ...] = ()) -> Plan:
    """The proven plan from `plan`'s outputs back to the rank's slice of its source tensors.

    Input scales that passed through are the source's own tensors already, and no part of it.
    """
    src, dst, mod = (recall(side.spec, side.digest, specs) for side in (plan.target, plan.source, plan.module))
    assert isinstance(src, Format) and isinstance(dst, Format) and isinstance(mod, Module)
    # Between kernels each side pads by its own rule, as it did on the way here.
    between_kernels = isinstance(src, Kernel) and isinstance(dst, Kernel)
    request = Request(
        source=src,
        target=dst,
        module=mod,
        source_params=plans.params_of(plan.target),
        target_params=plans.params_of(plan.source) | ({"input_scale": False} if _passed_input_scale(plan) else {}),
        module_params=plans.params_of(plan.module),
        sizes=dict(plan.sizes),
        ranks=plan.ranks,
        sharded=plan.ranks.tp * plan.ranks.ep > 1 and not isinstance(src, Kernel),
        habits=plan.habits,
        padded={},
        group_given=True,
        grains=dict(plan.grains),
        only=plan.only,
        places=plan.places,
        extents=() if between_kernels else tuple(plan.extents),
        groups=None if between_kernels else dict(plan.groups),
    )
    back = _compile(request)
    for info in back.inputs:
        made = plan.output.get(info.name)
        if made is None or (made.full_shape, made.code) != (info.full_shape, info.code):
            found = f"{list(made.full_shape)} of {made.code}" if made else "nothing"
            raise LayoutError(
                f"there is no way back: kernel `{src.name}` has `{info.name}` as {list(info.full_shape)} of "
                f"{info.code} at these sizes, this plan makes {found}",
                code="LP353",
                name="no-way-back",
                help="between kernels each side pads and groups by its own rule; go back to a checkpoint format",
            )
    prove(back, specs=specs)
    return back


def _passed_input_scale(plan: Plan) -> bool:
    return any(plan.output[output].role == "input_scale" for _, output in plan.passed)


def _by_side(params: Mapping[str, ParamValue], sides: Mapping[str, Spec]) -> dict[str, dict[str, ParamValue]]:
    """Parameters per side; a bare name goes to every side that declares it."""
    found: dict[str, dict[str, ParamValue]] = {side: {} for side in sides}
    bare: list[str] = []
    for name, value in params.items():
        side, dot, rest = name.partition(".")
        if dot and side in sides:
            found[side][rest] = value
            continue
        bare.append(name)
    for name in bare:
        takers = [
            side
            for side, spec in sides.items()
            if name in spec.params or (name == "parts" and isinstance(spec, Format))
        ]
        if not takers:
            known = sorted({key for spec in sides.values() for key in spec.params} | {"parts"})
            raise LayoutError(
                f"no side has a parameter `{name}`",
                code="LP101",
                name="unknown-parameter",
                help=did_you_mean(name, known) or f"parameters: {', '.join(known)}",
            )
        for side in takers:
            found[side].setdefault(name, params[name])
    return found


def _compile(request: Request) -> Plan:
    pairs, groups = pairs_of(request)
    builder = Builder(request, pairs)
    for pair in pairs:
        builder.matrix(pair)
    total, start, count = pairs[0].matrix.experts or (0, 0, 0)
    whole = sides(request)[0].mode == "whole"
    held = total if whole else count
    inputs = [TensorInfo.of(t, held) for pair in pairs for found in pair.source.values() for t in found]
    return Plan(
        plans.FORM,
        _side(request.source, request.source_params),
        _side(request.target, request.target_params),
        _side(request.module, request.module_params),
        tuple(sorted(request.sizes.items())),
        request.only,
        request.ranks,
        tuple(sorted(request.grains.items())),
        choice_of(request, [pair.matrix for pair in pairs], groups),
        request.sharded,
        request.habits,
        tuple(extent for pair in pairs for extent in extents_of(pair.matrix, request.ranks.tp)),
        tuple(groups.items()),
        tuple(_tiles(request, pairs)),
        (total, start if whole else 0, count),
        request.places,
        request.slots[start : start + count] if whole else (),
        tuple(inputs),
        tuple(builder.outputs),
        tuple(builder.programs),
        tuple(builder.reductions),
        tuple(builder.checks),
        tuple(builder.passed),
        tuple(builder.duties),
        tuple(builder.losses()),
    )


def _tiles(request: Request, pairs: Sequence[Pair]) -> Iterator[tuple[str, int, int]]:
    kernel = request.target if isinstance(request.target, Kernel) else request.source
    for pair in pairs if isinstance(kernel, Kernel) else ():
        tile = tile_of(kernel, pair.matrix.n_padded, pair.matrix.k.padded)
        assert tile is not None
        yield pair.matrix.name, tile.n, tile.k


def _check_slots(module: Module, sizes: Mapping[str, int | tuple[int, ...]], slots: Sequence[int]) -> None:
    """Every expert has a place, and every place an expert that is there."""
    if not slots:
        return
    if not module.experts:
        raise LayoutError(
            f"module `{module.name}` has no experts, but a map of {len(slots)} places for them is given",
            code="LP114",
            name="expert-map",
            help="leave the map out",
        )
    total = sizes.get(module.experts, 0)
    count = total if isinstance(total, int) else 0
    missing = sorted({*range(count)} - {*slots})
    strange = next((expert for expert in slots if not isinstance(expert, int) or not 0 <= expert < count), None)
    if missing or strange is not None or not count:
        what = "expert {}" if strange is not None else "no place for expert {}" if missing else "experts"
        what = what.format(strange if strange is not None else missing[0] if missing else "")
        raise LayoutError(
            f"the map of experts has {what}; module `{module.name}` has {count or 'none'}",
            code="LP114",
            name="expert-map",
            help="give the expert of each place, such as 0,1,2,3,0: every expert at least once",
        )


def _side(spec: Spec, params: Mapping[str, ParamValue]) -> plans.Side:
    return plans.Side(spec.name, digest(spec), tuple(params.items()))
