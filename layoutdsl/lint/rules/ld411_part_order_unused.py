"""An order of parts is never chosen, or names a part twice.

## Why is this bad

The first order that names all parts of a matrix counts. One whose names all stand in an earlier order is never looked
at, so what it says of their order is not what the format does.

## Example

    parts: {orders: [[gate, up], [up, gate]]}

## Use instead

    parts: {orders: [[up, gate]]}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    orders = subject.spec.parts.orders
    for at, names in enumerate(orders):
        twice = next((place for place, name in enumerate(names) if name in names[:place]), None)
        if twice is not None:
            yield Found(
                f"part `{names[twice]}` stands twice in an order",
                ("parts", "orders", at, twice),
                help="name each part once",
            )
        before = next((other for other in orders[:at] if set(names) <= set(other)), None)
        if before is not None:
            yield Found(
                f"the order {', '.join(names)} is never chosen: {', '.join(before)} comes first and names all of it",
                ("parts", "orders", at),
                help="keep the order in which the parts are stored",
            )
