"""A tensor that holds the shape of the weights lays out digits.

## Why is this bad

Such a tensor has an element for each extent, whatever these are, and its `shape` says how many. Digits of n and k in
its order are read by nobody: the file that they seem to describe, one number for each weight, is another one.

## Example

    weight_shape: {role: weight_shape, dtype: int64, order: "n, k", shape: [2]}

## Use instead

    weight_shape: {role: weight_shape, dtype: int64, order: "(n k)", shape: [2]}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "order"):
        laid_out = [item for item in one.tensor.order if item.role != "shared"]
        if one.tensor.role == "weight_shape" and laid_out:
            first = laid_out[0]
            yield Found(
                f"`{first.name}` of `{one.key}` is stored, but a tensor of the weights' shape holds none of theirs",
                one.path("order"),
                help='write `order: "(n k)"`',
                within=(first.start, first.end),
            )
