"""A format has a global scale and no other scale.

## Why is this bad

A global scale is what the scales of blocks are multiplied with. One that stands alone is the scale itself: under the
other name it is neither laid over the weights nor found by a kernel that asks for scales.

## Example

    w: {role: codes, dtype: float8_e4m3fn, ...}
    s: {role: global_scale, dtype: float32, order: "(n k)"}

## Use instead

    w: {role: codes, dtype: float8_e4m3fn, ...}
    s: {role: scale, dtype: float32, order: "(n k)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject

EXPLAINS = ("LP130",)


def check(subject: Subject) -> Iterator[Found]:
    alone = {
        roles["global_scale"].key
        for _, roles in subject.settings
        if "global_scale" in roles and "scale" not in roles
    }
    for key in sorted(alone):
        yield Found(
            f"`{key}` is a global scale where no tensor is a scale",
            ("tensors", key, "role"),
            help="give it the role scale, or let both be there together",
        )
