"""Several codes share a word, and the order does not say which digits stand in it.

## Why is this bad

Whether the first of eight nibbles is the lowest or the highest, and whether neighbours or every second element share a
word, differs from format to format. The digits in braces say it; without them there is no default.

## Example

    w: {role: codes, dtype: int32, code: u4b8, order: "n, k"}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "n, kw {kp}"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.lint.formats import choices, code_of, dtype_of, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

EXPLAINS = ("LD302",)


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    scope = next(iter(choices(subject.spec)))
    for one in stated(subject.spec, "order"):
        packed = any(item.role == "packed" for item in one.tensor.order)
        code, dtype = code_of(one.tensor, scope), dtype_of(one.tensor, scope)
        if packed or code is None or dtype is None or one.tensor.role == "weight_shape":
            continue
        count = DTYPE_BITS[dtype] // code.bits
        if count > 1:
            yield Found(
                f"each {dtype} of `{one.key}` holds {count} codes of {code.bits} bits, and the order does not "
                "say which",
                one.path("order"),
                help=f"put digits of {count} elements in braces, the most significant first, as in `kw {{kp}}`",
            )
