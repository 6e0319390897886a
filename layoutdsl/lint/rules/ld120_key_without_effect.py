"""A tensor states what a tensor of its role is never asked for.

## Why is this bad

`plus` belongs to zero points, `scaled` and `reciprocal` to what is multiplied or added, `derive` to a global scale. On
a tensor of another role they are read by nobody, so the values come out as if they were not there: zero points that
are stored one too low stay so when the scale carries the `plus`.

## Example

    s: {role: scale, dtype: float16, plus: 1, order: "n (k)"}

## Use instead

    z: {role: zero_point, dtype: uint8, code: u8, plus: 1, order: "n (k)"}
    s: {role: scale, dtype: float16, order: "n (k)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

_FACTORS = ("scale", "global_scale", "bias", "input_scale")
_ASKED = {
    "plus": ("zero_point",),
    "scaled": _FACTORS,
    "reciprocal": _FACTORS,
    "derive": ("global_scale",),
}


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, *_ASKED):
        for field, roles in _ASKED.items():
            here = one.case is None or field in one.restated
            if here and getattr(one.tensor, field) is not None and one.tensor.role not in roles:
                yield Found(
                    f"`{field}` of `{one.key}` has no effect: a {one.tensor.role} tensor is never asked for it",
                    one.path(field),
                    key=True,
                    help=f"it belongs to the role {' or '.join(roles)}",
                )
