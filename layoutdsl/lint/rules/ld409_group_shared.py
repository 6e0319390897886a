"""A scale does not follow k, although the format has groups.

## Why is this bad

Ranks that cut k cut the scales along with it, group by group. A scale that shares all of k has one row whatever the
group is: every rank holds it whole and multiplies its inputs by the scale of another rank's.

## Example

    params: {group: {type: group, default: 32}}
    s: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "n (g gi)"}

## Use instead

    params: {group: {type: group, default: 32}}
    s: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "n, g (gi)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import digits, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "order", "split"):
        along = digits(one.tensor, "k")
        if one.tensor.role not in ("scale", "zero_point") or len(along) < 2:
            continue
        place = {item.name: item for item in one.tensor.order}
        if all(name in place and place[name].role == "shared" for name, _ in along):
            first = place[along[0][0]]
            yield Found(
                f"`{one.key}` shares `{first.name}` too, so it has one row whatever the group is",
                one.path("order"),
                within=(first.start, first.end),
                help=f"store `{first.name}` outside the parentheses",
            )
