"""The first digit of an axis is 0 at every size to try.

## Why is this bad

Where every size to try fits into one group, word or tile, nothing proves where the second one stands. A wrong place of
the first digit in the order moves no element that is tried.

## Example

    split: "k = g gi:128"
    try: [{n: 64, k: 128}, {n: 20, k: 72}]

## Use instead

    split: "k = g gi:128"
    try: [{n: 64, k: 256}, {n: 20, k: 72}]
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import by_role, digits, scope_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Format) or len(subject.tries) < len(spec.try_):
        return
    if subject.tree.home(("tensors",)) is not subject.tree:
        return  # tensors of a base are tried there
    least: dict[tuple[str, str], tuple[int, str]] = {}
    reached: set[tuple[str, str]] = set()
    for one in subject.tries:
        roles = by_role(spec, scope_of(one))
        for tensor in one.tensors:
            found = roles[tensor.role]
            for axis, view in (("n", tensor.n[0]), ("k", tensor.k[0])):
                weight, extent = view.chain.digits[-1][0], one.sizes[axis]
                if weight > 1:
                    least[found.key, axis] = weight, digits(found.tensor, axis)[0][0]
                if weight == 1 or weight < extent:  # pyright: ignore
                    reached.add((found.key, axis))
    for (key, axis), (weight, name) in least.items():
        if (key, axis) not in reached:
            yield Found(
                f"digit `{name}` of `{key}` is 0 at every size to try: none has more than {weight} along {axis}",
                ("try",),
                key=True,
                help=f"add an entry with a larger {axis}",
            )
