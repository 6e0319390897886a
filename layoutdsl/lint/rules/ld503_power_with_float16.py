"""A kernel reads powers of two as scales, and may be given float16 activations.

## Why is this bad

An e8m0 byte reaches from 2^-127 to 2^127, float16 from 2^-24 to 2^15. A kernel that multiplies in float16 turns 214 of
the 256 bytes into zero or infinity, silently.

## Example

    params: {dtype: [bfloat16, float16]}
    s: {role: scale, dtype: float8_e8m0fnu, ...}

## Use instead

    params: {dtype: [bfloat16]}
    s: {role: scale, dtype: float8_e8m0fnu, ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import code_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    values = spec.params["dtype"].values if isinstance(spec, Kernel) and "dtype" in spec.params else ()
    if not isinstance(spec, Kernel) or "float16" not in values:
        return
    for scope, roles in subject.settings:
        scale = roles.get("scale")
        code = code_of(scale.tensor, scope) if scale is not None else None
        if scale is not None and code is not None and code.kind == "power":
            yield Found(
                f"`dtype` may be float16, which holds 2^-24 to 2^15, while `{scale.key}` holds {code.name}, "
                "2^-127 to 2^127",
                ("params", "dtype"),
                help="leave float16 out: such kernels take bfloat16 activations",
            )
            return
