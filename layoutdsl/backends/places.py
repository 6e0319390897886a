"""Where in the checkpoint an element stands, for messages."""

from __future__ import annotations

from collections.abc import Sequence

from layoutdsl import recodes
from layoutdsl.codes import Unrepresentable
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan, Reduction

ANY = -1
"""The group of an order that no weight of the rank is gathered by."""


def place(plan: Plan, matrix: str, expert: int, part: int, n: int, k: int) -> str:
    """`expert 3, part up, n 17, k 128`, counted over all ranks."""
    parts = [e.part for e in plan.extents if e.matrix == matrix and e.role == "n" and e.part != "*"]
    name = parts[part] if part >= 0 else ""
    starts = {(e.role, e.part): e.start for e in plan.extents if e.matrix == matrix}
    words = []
    if plan.experts[0]:
        words.append(f"expert {plan.source_experts[expert]}")
    if name:
        words.append(f"part {name}")
    words += [f"n {starts.get(('n', name), 0) + n}", f"k {starts.get(('k', ''), 0) + k}"]
    return ", ".join(words)


def refused(tensor: str, where: str, why: str) -> LayoutError:
    return LayoutError(
        f"`{tensor}` at {where}: {why}",
        code="LP170",
        name="value-refused",
        help="the target cannot hold this value; check the checkpoint, or choose another kernel or dtype",
    )


def order_refused(plan: Plan, tensor: str, expert: int, position: int, k: int, found: int, group: int) -> LayoutError:
    """An act-order whose groups do not have their number of inputs: `found` is the group of the sorted `position`."""
    where = f"expert {plan.source_experts[expert]}, k {k}" if plan.experts[0] else f"k {k}"
    wanted = position // group if group else 0
    return LayoutError(
        f"`{tensor}` at {where}: sorted by group, place {position} holds group {found}, group {wanted} belongs there",
        code="LP172",
        name="unequal-groups",
        help=f"every group of an act-order checkpoint has {group or 'all'} inputs; check group and the file",
    )


def ratios(plan: Plan, reduction: Reduction, globals_: Sequence[float], expert: int) -> list[int]:
    """Powers of two of the parts' global scales over the first part's; LayoutError where one is none."""
    matrix = reduction.output.split(".")[0]
    parts = [e.part for e in plan.extents if e.matrix == matrix and e.role == "n" and e.part != "*"]
    found: list[int] = []
    for (tensor, _), part, value in zip(reduction.globals, parts, globals_):
        try:
            found.append(recodes.nvfp4_ratio(globals_[0], value, reduction.reciprocal))
        except Unrepresentable as error:
            words = [f"expert {plan.source_experts[expert]}"] if plan.experts[0] else []
            where = ", ".join([*words, *([f"part {part}"] if part else [])])
            raise LayoutError(
                f"`{tensor}`{' at ' + where if where else ''}: {error}",
                code="LP171",
                name="global-scales-differ",
                help="the kernel has one global scale for all parts: make them equal in the checkpoint, "
                "or convert each part as a matrix of its own",
            ) from None
    return found
