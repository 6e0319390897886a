"""A plan in words: axes, choice, tensors, steps, padding with its reasons and its price, memory, losses, duties.

What a plan says is read off it alone, so a plan that came from a file is explained alike. What else could have been
chosen, and what other ranks store, is worked out from the specs that it names, and left out where they are not found.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from layoutdsl.backends.torch.pieces import scratch
from layoutdsl.errors import LayoutError
from layoutdsl.pairs import Request
from layoutdsl.plan import Extent, Plan, Program, Reduction
from layoutdsl.planner import Choice
from layoutdsl.price import (
    MUCH,
    bytes_of,
    elements,
    empty_ranks,
    everywhere,
    left_to_choose,
    lighter,
    padding,
    recalled,
    rivals,
)
from layoutdsl.recodes import Recode
from layoutdsl.resolve import CHOICES, dealt

__all__ = ["REASONS", "explain", "padding", "recoded"]

WIDTH = 100

REASONS = {
    "code": "it decodes to 0",
    "scale": "the scale beside it is 0",
    "weight": "the weights that it scales are 0",
    "input": "the input it meets is 0, and its value is finite",
    "unread": "nothing reads it",
    "fill": "its group's zero point again: it decodes to 0",
}
"""Why a pad is harmless, in words; `fill` is the reason of pads that a program fills rather than sets."""


CHOSEN = dict(zip(CHOICES, (
    "every rank holds the same share",
    "the kernel gets smaller groups than the checkpoint has, each scale stands for several",
    "ranks hold whole groups of the kernel, or whole heads, dealt as evenly as can be",
    "the share of each rank lies inside one group of the checkpoint",
    "a rank whose share begins inside a group is padded in front, to where a group of the kernel begins",
), strict=True))  # fmt: skip
"""What each choice of the planner means."""


def explain(plan: Plan, specs: tuple[str, ...] = ()) -> str:
    """The report that `layoutdsl plan` prints."""
    request, why = _request(plan, specs)
    sections = (
        _header(plan), _axes(plan), _choice(plan, request, why), _tensors(plan), _steps(plan), _padding(plan, request),
        _memory(plan), _notes(plan, request),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section)))


def _request(plan: Plan, specs: tuple[str, ...]) -> tuple[Request | None, str]:
    """What was asked for, of a plan towards a kernel; or why that is not known."""
    try:
        return (recalled(plan, specs) if plan.groups else None), ""
    except LayoutError as error:
        return None, error.message


def _header(plan: Plan) -> Iterator[str]:
    yield f"{plan.source.spec} -> {plan.target.spec}, module {plan.module.spec}"
    sizes = [(axis, ",".join(map(str, size)) if isinstance(size, tuple) else size) for axis, size in plan.sizes]
    yield from _listed("sizes", _assigned(sizes))
    ranks = [f"{rank} of {count} {kind}-parallel" for kind, rank, count in (
        ("tensor", plan.ranks.rank, plan.ranks.tp), ("expert", plan.ranks.ep_rank, plan.ranks.ep)) if count > 1]
    yield from _listed("rank", ", ".join(ranks) or "the only one")
    total, _, count = plan.experts
    if total:
        first, _ = dealt(plan.places or total, plan.ranks.ep, plan.ranks.ep_rank, 1)
        here = ", ".join(map(str, plan.slots)) or f"{first} to {first + count - 1}"
        yield from _listed("experts", f"{here} of {total}")
    if plan.sharded:
        yield from _listed("given", "the source tensors are this rank's slices already")
    for what, side in (("source", plan.source), ("target", plan.target), ("module", plan.module)):
        if side.params:
            yield from _listed(what, _assigned(side.params))
    yield from _listed("plan", f"sha256 {plan.digest}")


def _axes(plan: Plan) -> Iterator[str]:
    yield "Axes"
    rows = [("matrix", "axis", "part", "whole", "this rank", "length", "front", "padded", "why")]
    for extent in plan.extents:
        here = f"{extent.start} to {extent.start + extent.length - 1}" if extent.length else "nothing"
        part = "all" if extent.part == "*" else extent.part
        rows.append((extent.matrix, f"{extent.role} = {extent.axis}", part, f"{extent.size:,}", here,
                     f"{extent.length:,}", f"{extent.front:,}", f"{extent.padded:,}", "; ".join(_why(plan, extent))))
    # A column that says nothing is left out.
    idle = {at for at, empty in ((2, ""), (6, "0")) if all(row[at] == empty for row in rows[1:])}
    shown = [tuple(cell for at, cell in enumerate(row) if at not in idle) for row in rows]
    numbers = ("whole", "length", "front", "padded")
    yield from _table(shown, right=tuple(at for at, title in enumerate(shown[0]) if title in numbers))


def _why(plan: Plan, extent: Extent) -> Iterator[str]:
    if extent.length < extent.size:
        yield f"cut in {plan.ranks.tp}"
    if extent.padded == extent.length:
        return
    more = f"{extent.padded - extent.length:,} more"
    if extent.part == "*":
        parts = [one for one in plan.extents if (one.matrix, one.role) == (extent.matrix, "n") and one.part != "*"]
        slots = sum(part.padded for part in parts)
        if slots > extent.length:
            yield f"{slots - extent.length:,} more, as the widest rank has"
        if extent.padded == slots:
            return
        more = f"{extent.padded - slots:,} more"
    # Ranks hold `held` times the axis together: one that holds less than its share is not the widest.
    if extent.part != "*" and extent.length * plan.ranks.tp < extent.size * extent.held:
        more += ", as the widest rank has"
    at_the_end = any((other.matrix, other.part) == (extent.matrix, "*") for other in plan.extents)
    if extent.role == "n" and at_the_end and extent.part != "*":  # padded once, at the end of all parts
        yield more
        return
    on_axis = {other.matrix for other in plan.extents if other.role == "k" and other.axis == extent.axis}
    sizes = {size for name, size in plan.groups if name in on_axis and size and extent.part != "*"}
    whole = ["whole tiles", *(f"groups of {size}" for size in sorted(sizes))]
    yield f"{more}{',' if 'widest' in more else ''} for {' and '.join(whole)}"


def _choice(plan: Plan, request: Request | None, why: str) -> Iterator[str]:
    if not plan.groups:
        return
    yield f"Choice: {plan.choice}"
    yield _wrapped(CHOSEN[plan.choice] if plan.ranks.tp > 1 else "one tensor-parallel rank holds all")
    rows = [("matrix", "stored n x k", "tile", "group")]
    tiles, stored = {name: f"{n} x {k}" for name, n, k in plan.tiles}, int(dict(plan.source.params).get("group", -1))
    for name, group in plan.groups:
        k = next(e for e in plan.extents if (e.matrix, e.role) == (name, "k"))
        outputs = [e for e in plan.extents if (e.matrix, e.role) == (name, "n")]
        n = next((e.padded for e in outputs if e.part == "*"), sum(e.padded for e in outputs))
        rows.append((name, f"{n:,} x {k.padded:,}", tiles[name], _group(group, stored if 0 < stored < k.size else 0)))
    yield from _table(rows, right=())
    for axis, grain in plan.grains:
        yield f"  {axis} is cut at multiples of {grain}"
    if request is not None:
        yield from _next_best(request)
    if why:
        yield _wrapped(f"left out, for want of the specs: the next best way, what all ranks store; {why}")


def _group(group: int, stored: int) -> str:
    """A kernel's group, and what it is of the checkpoint's."""
    if not group:
        return f"one, inside one of the checkpoint's {stored}" if stored else "one"
    return f"{group}, {stored // group} for each of the checkpoint's {stored}" if group < stored else str(group)


def _next_best(request: Request) -> Iterator[str]:
    for rival in rivals(request):
        names = ", ".join(rival.matrices)
        if rival.choice is None:
            yield f"  next best for {names}: none, all others pad each axis as much or more"
            continue
        share = f", {float(100 * abs(rival.more) / rival.bytes):.1f} %" if rival.more else ""
        more = f"{abs(rival.more):,} bytes {'more' if rival.more > 0 else 'less'}{share}" if rival.more else "as much"
        best = "next best" if rival.more >= 0 else "left to choose"
        yield _wrapped(f"{best} for {names}: {_way(rival.choice)}; it stores {more}")


def _way(choice: Choice) -> str:
    """Another way in words: its name, its cuts, and how each matrix is stored."""
    cuts = [f"{axis} cut at multiples of {grain}" for axis, grain in choice.grains.items()]
    sizes = [f"{fit.matrix.n_padded:,} x {fit.matrix.k.padded:,} in {_groups(fit.group)}" for fit in choice.fits]
    return ", ".join([choice.name, *cuts, " and ".join(sizes)])


def _groups(group: int) -> str:
    return f"groups of {group}" if group else "one group"


def _tensors(plan: Plan) -> Iterator[str]:
    for title, found in (("Reads", plan.inputs), ("Writes", plan.outputs)):
        yield from ["", title] if title == "Writes" else [title]
        rows = [("tensor", "dtype", "shape", "bytes", "code")]
        for info in found:
            shape = " x ".join(map(str, info.full_shape)) or "one"
            dtypes = info.dtypes if title == "Reads" else info.dtypes[:1]
            rows.append((info.name, " or ".join(dtypes), shape, f"{bytes_of(info):,}", info.code))
        rows.append(("total", "", "", f"{sum(map(bytes_of, found)):,}", ""))
        yield from _table(rows, right=(3,))


def _steps(plan: Plan) -> Iterator[str]:
    yield "Steps"
    for program in plan.programs:
        yield f"  {program.output}"
        for label, text in _step(program, each=" of each expert" if plan.experts[0] else ""):
            yield from _listed(label, text, 4)
    for source, output in plan.passed:
        how = "the order that sorts it" if plan.output[output].role == "k_perm" else "as it is"
        yield from (f"  {output}", f"    from    {source}, {how}")


def _step(program: Program, each: str) -> Iterator[tuple[str, str]]:
    if any(program.sources):
        yield "from", _names(program.sources)
    for label, kind in (("move", "data"), ("make", "value")):
        if moves := [move for move in program.moves if move.kind == kind]:
            n, k = sum(len(move.n) for move in moves), sum(len(move.k) for move in moves)
            yield label, (f"{_count(sum(map(elements, moves)), 'code')}{each}, in {_count(n, 'run')} along n "
                          f"and {_count(k, 'run')} along k")
    yield "recode", recoded(program.recode, bool(program.operands))
    for operand in program.operands:
        yield "with", f"the {operand.role.replace('_', ' ')} of {_names(operand.sources)}"
    looks = [("n", move.gather_n) for move in program.moves] + [("k", move.gather_k) for move in program.moves]
    for axis, tensor in dict.fromkeys((axis, look.tensor) for axis, look in looks if look is not None):
        yield "gather", f"{axis} in the order that sorts {tensor}"
    if program.fill is not None:
        yield "fill", f"pads with the zero points of {_names(program.fill.sources)}"
    if program.reduction:
        yield "after", f"`{program.reduction}` is known"
    if program.values:
        yield "values", ", ".join(map(str, program.values))


def _padding(plan: Plan, request: Request | None) -> Iterator[str]:
    found = padding(plan)
    added, stored = sum((row[-1] for row in found), Fraction()), sum(map(bytes_of, plan.outputs))
    everyone = everywhere(request) if request is not None and plan.ranks.tp * plan.ranks.ep > 1 else None
    if not added and not (everyone and everyone.added):
        yield "Padding: none"
        return
    yield "Padding"
    rows = [("tensor", "pad code", "codes", "bytes", "why it is harmless")]
    for name, code, reason, count, size in found:
        rows.append((name, code or "from data", f"{count:,}", _exact(size), REASONS[reason]))
    yield from _table(rows, right=(1, 2, 3)) if found else ()
    here = " on this rank" if plan.ranks.tp * plan.ranks.ep > 1 else ""
    yield f"  {_exact(added)} bytes added{here}: {_percent(added / stored)} of what is stored"
    if everyone is not None:
        yield f"  {_exact(everyone.added)} bytes added on all ranks: {_percent(everyone.share)} of what is stored"
    if request is not None:
        yield from _less(plan, request, everyone.share if everyone is not None else added / stored)


def _less(plan: Plan, request: Request, share: Fraction) -> Iterator[str]:
    """The ranks that pad a tenth or less, where these pad more."""
    asked = left_to_choose(request) if share > MUCH and plan.ranks.tp > 1 else None
    if asked is None:
        return
    found = lighter(asked)
    if found is None:
        yield f"  no fewer tensor-parallel ranks bring it to {_percent(MUCH)}"
        return
    ranks, price = found
    many = "as many ranks" if ranks.tp * ranks.ep == plan.ranks.tp * plan.ranks.ep else "fewer ranks"
    flags = f"--tp {ranks.tp}" + (f" --ep {ranks.ep}" if ranks.ep > 1 else "")
    yield f"  with {flags}, {many}: {_percent(price.share)}"


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.1f} %"


def _memory(plan: Plan) -> Iterator[str]:
    read, written, between = sum(map(bytes_of, plan.inputs)), sum(map(bytes_of, plan.outputs)), scratch(plan)
    yield "Memory"
    yield f"  {written:,} bytes stay: all that is written"
    yield _wrapped(f"{read + written + between:,} bytes at most while it runs: all that is read and written, and "
                   f"{between:,} of intermediate results on the torch backend")


def _notes(plan: Plan, request: Request | None) -> Iterator[str]:
    notes = (
        ("Found in the data first", [f"{red.name}: {_reduced(red)}" for red in plan.reductions]),
        ("Checked in the data", [f"{_names(c.tensor for c in plan.checks if c.why == why)}: {why}"
                                 for why in dict.fromkeys(check.why for check in plan.checks)]),
        ("Losses", [f"{name}: {text}" for name, text in plan.losses] or ["none: every value is exact, or refused"]),
        ("Duties of the caller", [str(duty) for duty in plan.duties] or ["none"]),
        ("Ranks", [*_replicas(plan), *_empty(plan, request)]),
    )
    blocks = ["\n".join([title, *map(_wrapped, items)]) for title, items in notes if items]
    yield "\n\n".join(blocks)


def _replicas(plan: Plan) -> Iterator[str]:
    """How many tensor-parallel ranks hold each weight, matrix by matrix."""
    along_k = {extent.matrix: extent.held for extent in plan.extents if extent.role == "k"}
    held: dict[tuple[str, int], list[str]] = {}
    for extent in plan.extents:
        if extent.role == "n" and extent.part != "*":
            times = min(extent.held, along_k[extent.matrix])
            held.setdefault((extent.matrix, times), []).append(extent.part)
    for (matrix, times), parts in held.items():
        whole = len([1 for name, _ in held if name == matrix]) == 1
        if times > 1:
            of = "" if whole else f" of {', '.join(parts)}"
            yield f"{matrix}: {times} tensor-parallel ranks hold each weight{of}"


def _empty(plan: Plan, request: Request | None) -> Iterator[str]:
    """Which tensor-parallel ranks hold nothing of an axis; of other ranks than this one, the specs know."""
    here = {e.axis: [plan.ranks.rank] for e in plan.extents if not e.length}
    ranks: dict[tuple[int, ...], list[str]] = {}
    for axis, empty in (here if request is None else empty_ranks(request)).items():
        ranks.setdefault(tuple(empty), []).append(axis)
    for empty, axes in ranks.items():
        first, last = empty[0], empty[-1]
        who = f"rank {first} holds" if first == last else f"ranks {first} to {last} hold"
        yield f"tensor-parallel {who} nothing of {' and '.join(axes)}: all padding"


def _reduced(red: Reduction) -> str:
    over = f"over the scales that `{red.output}` reads"
    if red.kind == "largest":
        return f"the largest scale, {over}"
    each = "for each expert" if red.scope == "expert" else "one for all experts"
    return f"the reference global scale and the power of two to shift by, {each}, {over}"


def recoded(recode: Recode, operand: bool = False) -> str:
    """A recode in words, with its power, offset or constant."""
    a, b, power = recode.source, recode.target, recode.power
    scaled = f" times 2^{power}" if power else ""
    by = "the zero point beside it" if operand else "zero point 8"
    return {
        "copy": "none: the same codes" + (f", named {a} there and {b} here" if a != b else ""),
        "rescale": f"the value{scaled}, from {a} to {b}" if a != b else f"the value{scaled}",
        "reciprocal": f"one over the value{scaled}, from {a} to {b}",
        "offset": f"the code {'+' if power >= 0 else '-'} {abs(power)}" if power else f"none: the same codes ({b})",
        "constant": f"the code {power} everywhere",
        "fp8_nibbles": f"nibbles turned around {by}, as FP8 activations want them ({a} to {b})",
        "plain_nibbles": f"nibbles turned back around {by} ({a} to {b})",
        "fold_sign": "the sign of a negative scale moves into its FP4 codes",
        "nvfp4_scale": f"the absolute value{scaled}, times the shift and the part's ratio, from {a} to {b}",
        "nvfp4_global": f"the reference global scale{scaled}, less the shift",
        "int16_scale": "round(4096 times the value over the largest), as int16",
        "largest": "the largest scale over 4096",
        "int16_undo": f"the int16 times its factor, rounded to {b}",
        "ramp": f"the number of the group that k is in, groups of {power}" if power else "0: one group",
        "shape": "the extents of the matrix",
    }[recode.name]


def _table(rows: Sequence[tuple[str, ...]], right: tuple[int, ...]) -> Iterator[str]:
    """Columns; what does not fit of the last one goes on below."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = 2 + sum(width + 2 for width in widths[:-1])
    for row in rows:
        cells = [cell.rjust(width) if at in right else cell.ljust(width)
                 for at, (cell, width) in enumerate(zip(row[:-1], widths, strict=False))]
        last = row[-1].rjust(widths[-1]) if len(row) - 1 in right else row[-1]
        first, *rest = textwrap.wrap(last, max(WIDTH - indent, 20), drop_whitespace=False) or [""]
        yield ("  " + "  ".join([*cells, first])).rstrip()
        yield from (" " * indent + line.strip() for line in rest)


def _listed(label: str, text: str, indent: int = 2) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, break_long_words=False, initial_indent=" " * indent + label.ljust(8),
                             subsequent_indent=" " * (indent + 8))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, initial_indent="  ", subsequent_indent="    ")


def _names(sources: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name for name in sources if name))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _assigned(pairs: Iterable[tuple[str, bool | int | str]]) -> str:
    return " ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in pairs)


def _exact(value: Fraction) -> str:
    """Bytes; where a code is smaller than a byte they may not be whole."""
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,}"
