"""A tensor is never there, or what it or one of its cases states never counts, whatever the parameters are.

## Why is this bad

The first case whose condition holds counts. Where an earlier one holds wherever this one does, or where the condition
contradicts the values of its parameters, what the case states is never used, and no size to try can prove it. Where a
condition always holds, the same is true of what the tensor itself states: `group != -1` looks as if it left out one
group, but that is 0 in conditions.

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

from layoutdsl.lint.formats import always, choices, holds, names
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Case, Format, Tensor


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
            elif (own := _both(tensor, case)) and always(subject.spec, tensor, case.when, there):
                yield Found(
                    f"case {at + 1} of `{key}` is always taken: its condition holds for all parameters and all sizes, "
                    f"so what the tensor itself states as {' and '.join(f'`{name}`' for name in own)} is never used",
                    path,
                    help="one group is 0 in conditions, not -1; write `groups > 1` where there are several"
                    if names([case.when]) & {"group", "groups"}
                    else "state it of the tensor itself, without a case",
                )
            left = [scope for scope in left if not holds(case.when, scope)]


def _both(tensor: Tensor, case: Case) -> list[str]:
    """What a tensor states itself, and its case anew."""
    return [name for name, value in case if name != "when" and None not in (value, getattr(tensor, name))]
