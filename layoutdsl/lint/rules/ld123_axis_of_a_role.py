"""A tensor shares an axis that its role runs along, or stores one that it has nothing to say of.

## Why is this bad

Every weight has a code of its own, every output its bias, and every input its place in an order. Where the order puts
such an axis in parentheses, all but one of these are lost; where it stores the other axis too, the file that it
describes holds one value for each weight, which no such file does.

## Example

    bias: {role: bias, dtype: float16, order: "k (n)"}
    g_idx: {role: act_order, dtype: int32, order: "n (k)"}

## Use instead

    bias: {role: bias, dtype: float16, order: "n (k)"}
    g_idx: {role: act_order, dtype: int32, order: "k (n)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import Stated, digits, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

EXPLAINS = ("LP200",)

_RUNS = {"codes": "nk", "bias": "n", "act_order": "k"}
_HAS = {
    "codes": "every weight has a code of its own",
    "bias": "every output has a bias, the same for all inputs",
    "act_order": "every input has its group, the same for all outputs",
}


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "order", "split"):
        if one.tensor.role in _RUNS and (found := _found(one)) is not None:
            yield found


def _found(one: Stated) -> Found | None:
    axes = {name: axis for axis in "nk" for name, _ in digits(one.tensor, axis)}
    runs = _RUNS[one.tensor.role]
    for item in one.tensor.order:
        axis = axes.get(item.name)
        if axis is not None and (item.role == "shared") != (axis not in runs):
            does = "is shared" if item.role == "shared" else "is stored"
            ways = [" ".join(name for name, of in axes.items() if (of in runs) == stored) for stored in (True, False)]
            return Found(
                f"`{item.name}` of axis {axis} {does} in `{one.key}`, but {_HAS[one.tensor.role]}",
                one.path("order"),
                within=(item.start, item.end),
                help=f"store {ways[0]}" + (f", and put {ways[1]} in parentheses" if ways[1] else ""),
            )
    return None
