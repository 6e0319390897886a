"""A tensor is never there, or one of its cases never counts, whatever the parameters are.

## Why is this bad

The first case whose condition holds counts. Where an earlier one holds wherever this one does, or where the condition
contradicts the values of its parameters, what the case states is never used, and no size to try can prove it.

## Example

    cases:
      - {when: bits == 4 or bits == 8, name: packed}
      - {when: bits == 8, code: u8}

## Use instead

    cases:
      - {when: bits == 8, name: packed, code: u8}
      - {when: bits == 4, name: packed}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import choices, holds, names
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for key, tensor in subject.spec.tensors.items():
        scopes = list(choices(subject.spec, names(tensor.conditions())))
        there = [scope for scope in scopes if tensor.when is None or holds(tensor.when, scope)]
        if not there:
            yield Found(
                f"tensor `{key}` is never there: its condition holds for no parameters and no sizes",
                ("tensors", key, "when"),
                help="compare with the values that the parameters have, or remove the tensor",
            )
            continue
        left = there
        for at, case in enumerate(tensor.cases):
            path = ("tensors", key, "cases", at, "when")
            if not any(holds(case.when, scope) for scope in there):
                yield Found(
                    f"case {at + 1} of `{key}` is never taken: its condition holds for no parameters and no sizes",
                    path,
                    help="compare with the values that the parameters have, or remove the case",
                )
            elif not any(holds(case.when, scope) for scope in left):
                yield Found(
                    f"case {at + 1} of `{key}` is never taken: an earlier one holds wherever it does",
                    path,
                    help="put the narrower condition first",
                )
            left = [scope for scope in left if not holds(case.when, scope)]
