"""The codes of a kernel have none that is worth zero, so its padding cannot be neutral.

## Why is this bad

A padded weight is multiplied by whatever stands in the padded input, or lies beside outputs that are cut off later.
Only a weight of zero is harmless everywhere, and a power of two is never zero: byte 0 of e8m0 is worth 2^-127.

## Example

    weight: {role: codes, dtype: uint8, code: e8m0, order: "n, k"}

## Use instead

    weight: {role: codes, dtype: uint8, code: e8m0z, order: "n, k"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import code_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel

EXPLAINS = ("LP200",)


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Kernel):
        return
    seen: set[str] = set()
    for scope, roles in subject.settings:
        one = roles.get("codes")
        code = code_of(one.tensor, scope) if one is not None else None
        if one is None or code is None or code.kind != "power" or code.name in seen or code.decode(0) == 0:
            continue
        seen.add(code.name)
        yield Found(
            f"`{one.key}` is padded with code 0, and {code.name} is worth {code.decode(0):.3g} there, not 0",
            one.path("code" if one.tensor.code is not None else "dtype"),
            help="use a code that holds zero",
        )
