"""A format spec with numbers: its tensors for one matrix, ready to be drawn.

    picture = picture_of(load_spec("marlin_int4_a16"), {"n": 100, "k": 128}, tp=2)
    [sheet.name for sheet in picture.sheets]                 # weight, weight_scale, of rank 0, padded

Sizes that are not given are those of the spec's first line to try. Refuses what resolve refuses, and axes that take
long to walk along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.grammar import OrderDigit
from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, Fields, Kernel, Module, ParamValue, Tensor
from layoutdsl.pairs import Request
from layoutdsl.planner import choices
from layoutdsl.recodes import Habits
from layoutdsl.resolve import Fit, Matrix, Ranks, Scope, Side, Sizes, Stored, bind, matrices, tensors, with_defaults
from layoutdsl.show.sheet import Digit, Sheet

LONGEST_AXIS = 1 << 18
"""Longest axis that is drawn: each is walked along once."""

Params = Mapping[str, ParamValue]


@dataclass(frozen=True)
class Picture:
    """A format's tensors of the matrices of a module, with the sizes and parameters they have.

    `is_rank` says that they are those of one rank of several, and not what all ranks share.
    """

    spec: Checkpoint | Kernel
    params: tuple[tuple[str, ParamValue], ...]
    sizes: tuple[tuple[str, int | tuple[int, ...]], ...]
    sheets: tuple[Sheet, ...]
    ranks: Ranks
    is_rank: bool

    def chosen(self, name: str | None) -> tuple[Sheet, ...]:
        """The tensor of that name alone, or all of them, the codes first."""
        if name is None:
            return tuple(sorted(self.sheets, key=lambda sheet: sheet.role != "codes"))
        known = {wanted: sheet for sheet in reversed(self.sheets) for wanted in _names(sheet)}
        if name not in known:
            names = [sheet.name for sheet in self.sheets]
            raise LayoutError(
                f"`{self.spec.name}` has no tensor `{name}` with these parameters",
                code="LP116",
                name="no-such-tensor",
                help=did_you_mean(name, known) or f"its tensors: {', '.join(names)}",
            )
        return (known[name],)


def _names(sheet: Sheet) -> Iterator[str]:
    """The name of a tensor, and what of it tells enough."""
    words = sheet.name.split(".")
    yield from (".".join(words[at:]) for at in range(len(words)))
    yield sheet.stored.name


def picture_of(
    spec: Checkpoint | Kernel,
    sizes: Sizes | None = None,
    params: Params | None = None,
    *,
    module: str | None = None,
    tp: int = 1,
    rank: int | None = None,
    specs: Sequence[str] = (),
) -> Picture:
    """The tensors of a format for a module; without one, for a plain or a fused matrix with the axes n and k.

    A checkpoint's tensors are whole unless `rank` asks for one rank's slice; a kernel's always are one rank's, padded
    and grouped as the planner chooses.
    """
    given, chosen = dict(sizes or {}), dict(params or {})
    fused = bool({"parts", "names"} & set(chosen)) or isinstance(given.get("n"), tuple)
    mod = load_spec(module or ("linear_fused" if fused else "linear"), specs=tuple(specs), kind="module")
    assert isinstance(mod, Module)
    entry: dict[str, Any] = dict(spec.try_[0] if module is None else mod.try_[0])
    given = sizes_of(mod, entry, given)
    chosen = {**{name: value for name, value in entry.items() if name not in mod.axes}, **chosen}
    if module is None:
        given, chosen = _plain(spec, mod, given, chosen, fused, tp)
    own = {name: value for name, value in chosen.items() if name not in mod.params or name in spec.params}
    bound = bind(spec, own)
    mod_params = bind(mod, {name: value for name, value in chosen.items() if name in mod.params})
    _check_lengths(given)
    ranks = Ranks(tp, rank or 0)
    if isinstance(spec, Kernel):
        fits = _fitted(_request(spec, bound, mod, mod_params, given, ranks, "group" in own))
        side, held = Side(spec, bound, "padded"), []
        seen, groups = [fit.matrix for fit in fits], [fit.group for fit in fits]
    else:
        held = [matrices(mod, mod_params, given, Ranks(tp, each)) for each in range(tp)] if rank is None else []
        side = Side(spec, bound, "whole" if rank is None else "local")
        seen = matrices(mod, mod_params, given, ranks)
        seen = seen if rank is not None else matrices(mod, mod_params, given, Ranks())
        groups = [None] * len(seen)
    sheets: list[Sheet] = []
    for at, (matrix, group) in enumerate(zip(seen, groups)):
        owners = tuple(one[at] for one in held) if tp > 1 else ()
        sheets += _sheets(side, matrix, group, owners, alone=len(seen) == 1)
    shown = {name: value for name, value in {**mod_params, **bound}.items() if name in chosen or name == "group"}
    return Picture(spec, tuple(shown.items()), tuple(given.items()), tuple(sheets), ranks, not held and tp > 1)


def _plain(
    spec: Checkpoint | Kernel, mod: Module, sizes: dict[str, Any], params: dict[str, Any], fused: bool, tp: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes and parameters of a matrix without a module of its own: names and widths of its parts, and what is cut."""
    if tp > 1 and "split" in mod.params:
        params.setdefault("split", "n")
    if fused:
        n: int | tuple[int, ...] = sizes.get("n", 1)
        count = len(n) if isinstance(n, tuple) else 0
        names = next((order[: count or len(order)] for order in spec.parts.orders if len(order) >= count), None)
        if names is not None:
            params.setdefault("names", ",".join(names))
        if not isinstance(n, tuple):
            sizes["n"] = (n,) * len(str(params.get("names", "")).split(","))
    return sizes, params


def _check_lengths(sizes: Sizes) -> None:
    for axis, size in sizes.items():
        longest = max(size) if isinstance(size, tuple) else size
        if longest > LONGEST_AXIS:
            raise LayoutError(
                f"size `{axis}` is {longest}, more than the {LONGEST_AXIS} elements along an axis that are drawn",
                code="LP117",
                name="too-large-to-draw",
                help="a layout repeats: a few tiles show all of it",
            )


def _request(
    kernel: Kernel, params: Scope, module: Module, module_params: Scope, sizes: Sizes, ranks: Ranks, group_given: bool
) -> Request:
    """The kernel's tensors as made of a checkpoint that has the kernel's own groups."""
    return Request(
        source=kernel,
        target=kernel,
        module=module,
        source_params=dict(params),
        target_params=dict(params),
        module_params=dict(module_params),
        sizes=dict(sizes),
        ranks=ranks,
        sharded=False,
        habits=Habits(),
        padded={},
        group_given=group_given,
        grains={},
    )


def _fitted(request: Request) -> list[Fit]:
    """The matrices as the planner fits them to the kernel, whose own groups stand for those of a checkpoint."""
    try:
        return [fit for found in choices(request, first=True) for fit in found[0].fits]
    except LayoutError as error:
        found = error.diagnostics[0]  # it speaks to someone who converts
        help = (found.help or "").replace("target.group", "group")
        raise LayoutError(found.message, code=found.code, name=found.name, help=help) from None


def sizes_of(module: Module, entry: Mapping[str, Any], given: Sizes) -> dict[str, int | tuple[int, ...]]:
    """The sizes of a module's axes: those given, and what follows from these; else those of a line to try."""
    tried = {axis: entry[axis] for axis in module.axes if axis in entry and module.default.get(axis) not in given}
    return with_defaults(module, {**tried, **given})


# --- tensors ----------------------------------------------------------------------------------------------------------


def _sheets(side: Side, matrix: Matrix, group: int | None, ranks: tuple[Matrix, ...], alone: bool) -> Iterator[Sheet]:
    scope = side.scope(matrix, group)
    found = tensors(side, matrix, group)
    kept = [one for one in side.format.tensors.items() if one[1].when is None or one[1].when.evaluate(scope)]
    grouping = next(((one.k[0].offset, one.k_unit) for one in found if one.role == "scale" and one.k_unit), None)
    warps = isinstance(side.format, Kernel)
    each = len(found) // len(kept)  # parts apart are tensors of their own
    for at, stored in enumerate(found):
        key, tensor = kept[at // each]
        case = next((case for case, one in enumerate(tensor.cases) if one.when.evaluate(scope)), None)
        fields = _fields(tensor, case)
        assert fields.order is not None
        yield Sheet(
            stored.name.removeprefix(f"{matrix.name}.") if alone else stored.name,
            stored,
            matrix,
            tuple(_digits(fields, stored, matrix)),
            order_text(fields.order),
            ranks,
            grouping,
            warps and stored.role == "codes",
            key,
            case,
        )


def _fields(tensor: Tensor, at: int | None) -> Fields:
    """Split and order of a tensor, from the case that holds."""
    if at is None:
        return tensor
    case = tensor.cases[at]
    return tensor.model_copy(update={"split": case.split or tensor.split, "order": case.order or tensor.order})


def _digits(fields: Fields, stored: Stored, matrix: Matrix) -> Iterator[Digit]:
    """The digits in their order, with the numbers of resolve's chains."""
    known: dict[str, tuple[str, int, int, bool, int]] = {}
    for axis, view, end in (("n", stored.n[0], _end(stored, matrix)), ("k", stored.k[0], stored.k_end)):
        split = next((split for split in fields.split or () if split.axis == axis), None)
        names = [axis] if split is None else [digit.name for digit in reversed(split.digits)]
        for name, (weight, extent, stride) in zip(names, view.chain.digits, strict=True):
            known[name] = (axis, weight, extent or -(-end // weight), not extent, stride)
    for item in fields.order or ():
        if item.name in known:
            yield Digit(item.name, *known[item.name], item.role)


def _end(stored: Stored, matrix: Matrix) -> int:
    """How far the coordinates along n go that share the first chain."""
    parts = [
        (view, matrix.n[part].length) for part, view in zip(stored.parts, stored.n) if view.base == stored.n[0].base
    ]
    ends = [view.offset + view.step * (length - 1) + 1 for view, length in parts]
    gaps = [first + count for view, first, count in stored.n_gaps if view.base == stored.n[0].base]
    return max(*ends, *gaps, 1)


def order_text(order: Sequence[OrderDigit]) -> str:
    """An order as a spec writes it: `kt, nt c kq j {k0 b k3}`."""
    text, brackets = "", {"packed": "{}", "shared": "()"}
    for before, item, after in zip((None, *order), order, (*order[1:], None)):
        opening, closing = brackets.get(item.role, ("", ""))
        if before is not None:
            text += ", " if before.dim != item.dim else " "
        text += opening if opening and (before is None or before.role != item.role) else ""
        text += item.name
        text += closing if closing and (after is None or after.role != item.role) else ""
    return text
