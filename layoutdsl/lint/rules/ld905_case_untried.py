"""A case, or a tensor that is not always there, is at none of the sizes to try.

## Why is this bad

The proofs run at the sizes to try, with the parameters that stand there. What no entry reaches is not proven: a digit
that is wrong in a case for several groups stays wrong while every size to try has one group.

## Example

    cases: [{when: groups > 1, order: "g, nt i j (gi)"}]
    try: [{n: 128, k: 128, group: -1}]

## Use instead

    cases: [{when: groups > 1, order: "g, nt i j (gi)"}]
    try: [{n: 128, k: 128, group: -1}, {n: 128, k: 256, group: 128}]
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import choices, held, holds, scope_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Format) or len(subject.tries) < len(spec.try_):
        return
    tried = {
        (one.key, case) for entry in subject.tries for one in held(spec, scope_of(entry)) for case in (None, one.case)
    }
    for key, tensor in spec.tensors.items():
        if (key, None) not in tried and tensor.when is not None and any(holds(tensor.when, s) for s in choices(spec)):
            yield Found(
                f"no size to try has the tensor `{key}`", ("tensors", key, "when"), help="add one where this holds"
            )
            continue
        for at in range(len(tensor.cases)):
            if (key, at) not in tried and any(
                (key, at) == (o.key, o.case) for s in choices(spec) for o in held(spec, s)
            ):
                yield Found(
                    f"no size to try takes case {at + 1} of `{key}`",
                    ("tensors", key, "cases", at, "when"),
                    help="add one where this holds",
                )
