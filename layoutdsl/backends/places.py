"""Where in the checkpoint an element stands, for messages."""

from __future__ import annotations

from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan


def place(plan: Plan, matrix: str, expert: int, part: int, n: int, k: int) -> str:
    """`expert 3, part up, n 17, k 128`, counted over all ranks."""
    parts = [e.part for e in plan.extents if e.matrix == matrix and e.role == "n" and e.part != "*"]
    name = parts[part] if part >= 0 else ""
    starts = {(e.role, e.part): e.start for e in plan.extents if e.matrix == matrix}
    words = []
    if plan.experts[0]:
        words.append(f"expert {plan.experts[1] + expert}")
    if name:
        words.append(f"part {name}")
    words += [f"n {starts.get(('n', name), 0) + n}", f"k {starts.get(('k', ''), 0) + k}"]
    return ", ".join(words)


def refused(tensor: str, where: str, why: str) -> LayoutError:
    return LayoutError(f"`{tensor}` at {where}: {why}", code="LP170", name="value-refused",
                       help="the target cannot hold this value; check the checkpoint, or choose another kernel or dtype")
