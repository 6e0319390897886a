"""A plan in words: axes, tensors, steps, padding with its reasons and its price, losses, checks and duties.

Everything here is read off the plan alone, so it also explains a plan that came from a file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Extent, Move, Plan, Program, Reduction, TensorInfo
from layoutdsl.recodes import Recode
from layoutdsl.resolve import dealt

WIDTH = 100

REASONS = {
    "code": "it decodes to 0",
    "scale": "the scale beside it is 0",
    "weight": "the weights that it scales are 0",
    "input": "the input it meets is 0, and its value is finite",
    "unread": "nothing reads it",
    "fill": "it repeats its group's zero point, so it decodes to 0",
}
"""Why a pad is harmless, in words; `fill` is the reason of pads that a program fills rather than sets."""


def explain(plan: Plan) -> str:
    """The report that `layoutdsl plan` prints."""
    sections = (_header(plan), _axes(plan), _tensors(plan), _steps(plan), _padding(plan), _notes(plan))
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section)))


def padding(plan: Plan) -> list[tuple[str, str, str, int, Fraction]]:
    """(output, pad code, reason, how many codes, their bytes) of all that is stored and holds no logical element; the
    pad code is empty where it is filled from the data. Over all experts of the rank."""
    found: list[tuple[str, str, str, int, Fraction]] = []
    for program in plan.programs:
        info, counts = plan.output[program.output], dict[tuple[str, str], int]()
        pads = [(str(move.pad), move.reason, move) for move in program.moves if move.kind == "pad"]
        fills = [("", "fill", move) for move in program.fill.moves] if program.fill else []
        for code, reason, move in (*pads, *fills):
            counts[code, reason] = counts.get((code, reason), 0) + _elements(move) * _copies(info)
        found += [(info.name, code, reason, count, Fraction(count * code_named(info.code).bits, 8))
                  for (code, reason), count in counts.items()]
    return found


def _elements(move: Move) -> int:
    return _spots(move.n) * _spots(move.k)


def _spots(runs: Sequence[Run]) -> int:
    """Stored elements along one axis: a loop that stands still repeats one, a joined run repeats another's."""
    total = 0
    for run in runs:
        count = 0 if run.join else 1
        for times, _, step, _ in run.loops:
            count *= times if step else 1
        total += count
    return total


def _copies(info: TensorInfo) -> int:
    return 1 if info.shared or not info.experts else info.experts


def _bytes(info: TensorInfo) -> int:
    return info.codes * code_named(info.code).bits * _copies(info) // 8


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
    rows = [("matrix", "axis", "part", "whole", "this rank", "padded", "why")]
    for extent in plan.extents:
        here = f"{extent.start} to {extent.start + extent.length - 1}" if extent.length else "nothing"
        part = "all" if extent.part == "*" else extent.part
        rows.append((extent.matrix, f"{extent.role} = {extent.axis}", part, f"{extent.size:,}", here,
                     f"{extent.padded:,}", "; ".join(_why(plan, extent))))
    yield from _table(rows, right=(3, 5))


def _why(plan: Plan, extent: Extent) -> Iterator[str]:
    if extent.length < extent.size:
        yield f"cut in {plan.ranks.tp}"
    if extent.padded > extent.length:
        on_axis = {other.matrix for other in plan.extents if other.role == "k" and other.axis == extent.axis}
        sizes = {size for name, size in plan.groups if name in on_axis and size}
        whole = ["whole tiles", *(f"whole groups of {size}" for size in sorted(sizes))]
        widest = ", as the widest rank has," if any(axis == extent.axis for axis, _ in plan.grains) else ""
        yield f"{extent.padded - extent.length:,} more{widest} for {' and '.join(whole)}"


def _tensors(plan: Plan) -> Iterator[str]:
    for title, found in (("Reads", plan.inputs), ("Writes", plan.outputs)):
        yield from ["", title] if title == "Writes" else [title]
        rows = [("tensor", "dtype", "shape", "bytes", "code")]
        for info in found:
            shape = " x ".join(map(str, info.full_shape)) or "one"
            dtypes = info.dtypes if title == "Reads" else info.dtypes[:1]
            rows.append((info.name, " or ".join(dtypes), shape, f"{_bytes(info):,}", info.code))
        rows.append(("total", "", "", f"{sum(map(_bytes, found)):,}", ""))
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
            yield label, (f"{_count(sum(map(_elements, moves)), 'code')}{each}, in {_count(n, 'run')} along n "
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


def _padding(plan: Plan) -> Iterator[str]:
    found = padding(plan)
    if not found:
        yield "Padding: none"
        return
    yield "Padding"
    rows = [("tensor", "pad code", "codes", "bytes", "why it is harmless")]
    for name, code, reason, count, size in found:
        rows.append((name, code or "from data", f"{count:,}", _exact(size), REASONS[reason]))
    yield from _table(rows, right=(1, 2, 3))
    added, stored = sum(row[-1] for row in found), sum(map(_bytes, plan.outputs))
    yield f"  {_exact(Fraction(added))} bytes added: {float(100 * added / stored):.1f} % of what is stored"


def _notes(plan: Plan) -> Iterator[str]:
    notes = (
        ("Found in the data first", [f"{red.name}: {_reduced(red)}" for red in plan.reductions]),
        ("Checked in the data", [f"{_names(c.tensor for c in plan.checks if c.why == why)}: {why}"
                                 for why in dict.fromkeys(check.why for check in plan.checks)]),
        ("Losses", [f"{name}: {text}" for name, text in plan.losses] or ["none: every value is exact, or refused"]),
        ("Duties of the caller", [str(duty) for duty in plan.duties] or ["none"]),
        ("Replicas", list(_replicas(plan))),
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) if at in right else cell.ljust(width)
                 for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        yield ("  " + "  ".join(cells)).rstrip()


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
