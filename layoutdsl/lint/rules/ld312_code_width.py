"""An integer code has a width that is not supported: it is neither 4 nor 8 bits.

## Why is this bad

Every spec is proven against a form of itself in bytes, and plans move codes of 4 and 8 bits. A code of 1, 2 or 3 bits
has a name and a value, but nothing here proves or moves it.

## Example

    w: {role: codes, dtype: int32, code: u2b2, split: "k = kw kp:16", order: "kw, n {kp}"}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {kp}"}

where the weights have 4 bits; a format of 2 bits cannot be described yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import code_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route

EXPLAINS = ("LD302",)

_WIDTHS = (4, 8)


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        for one in roles.values():
            code, path = code_of(one.tensor, scope), one.path("code")
            if code is None or code.kind != "integer" or code.bits in _WIDTHS or path in seen:
                continue
            seen.add(path)
            yield Found(
                f"code {code.name} of `{one.key}` has {code.bits} bit{'s' if code.bits > 1 else ''}: integer codes "
                "of 4 and 8 bits are supported",
                path,
                help="such a format cannot be described; leave the width out where a parameter offers it",
            )
