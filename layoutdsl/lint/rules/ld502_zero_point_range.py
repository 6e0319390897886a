"""Zero points have another number of bits than the codes that they are subtracted from.

## Why is this bad

A zero point is a code itself, the one that stands for zero. With fewer bits it cannot name all of them, and with more
it can name some that do not exist; writers use the same width for both. Zero points that stand in a byte each are not
meant: those of 4 bits leave its upper half unused.

## Example

    w: {role: codes, dtype: int32, code: u8, ...}
    z: {role: zero_point, dtype: int32, code: u4, ...}

## Use instead

    w: {role: codes, dtype: int32, code: u8, ...}
    z: {role: zero_point, dtype: int32, code: u8, ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.lint.formats import code_of, dtype_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        if "codes" not in roles or "zero_point" not in roles:
            continue
        codes, zero = (code_of(roles[role].tensor, scope) for role in ("codes", "zero_point"))
        if codes is None or zero is None or not codes.is_weight_integer or codes.bits == zero.bits:
            continue
        if zero.bits > codes.bits and zero.bits == DTYPE_BITS.get(dtype_of(roles["zero_point"].tensor, scope) or ""):
            continue
        path = roles["zero_point"].path("code" if roles["zero_point"].tensor.code else "dtype")
        if path not in seen:
            seen.add(path)
            yield Found(
                f"`{roles['zero_point'].key}` holds zero points of {zero.bits} bits, for codes of {codes.bits} bits in "
                f"`{roles['codes'].key}`",
                path,
                help=f"use a code of {codes.bits} bits",
            )
