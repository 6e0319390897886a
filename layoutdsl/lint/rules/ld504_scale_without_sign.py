"""Scales have no sign, and the codes beside them cannot take it over.

## Why is this bad

Negative block scales occur in public checkpoints. Where the scale's code has no sign, the sign can be moved into codes
of sign and magnitude, such as e2m1, and nothing is lost; integer codes with a zero point have no such bit, so those
weights become zero or are refused.

## Example

    w: {role: codes, dtype: int32, code: u4b8, ...}
    s: {role: scale, dtype: float8_e4m3fn, code: s0e5m3, ...}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, ...}
    s: {role: scale, dtype: float16, ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import code_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        if "codes" not in roles or "scale" not in roles:
            continue
        codes, scale = (code_of(roles[role].tensor, scope) for role in ("codes", "scale"))
        if codes is None or scale is None or scale.kind != "float" or scale.sign or codes.sign:
            continue
        path = roles["scale"].path("code")
        if path not in seen:
            seen.add(path)
            yield Found(
                f"`{roles['scale'].key}` holds {scale.name}, which has no sign, and {codes.name} in "
                f"`{roles['codes'].key}` has no sign bit to take it over: negative scales have no place",
                path,
                help="give the scale a code with a sign",
            )
