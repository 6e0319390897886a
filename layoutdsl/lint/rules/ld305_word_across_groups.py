"""A word spans inputs of two groups.

## Why is this bad

Ranks cut between groups, and a kernel reads a scale per group. Where the inputs of a word belong to two groups, a cut
goes through a word, and whoever unpacks it needs both scales.

## Example

    params: {group: {type: group, default: 4}}
    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "n, kw {kp}"}

## Use instead

    params: {group: {type: group, default: 32}}
    w: {role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "n, kw {kp}"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import digits as digits_of
from layoutdsl.lint.formats import number, weights
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format, Kernel


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Format):
        return
    seen: set[object] = set()
    groups = _groups(subject)
    for scope, roles in subject.settings:
        one = roles.get("codes")
        of = weights(one.tensor, "k", scope) if one is not None else None
        if one is None or of is None:
            continue
        sizes = dict(digits_of(one.tensor, "k"))
        word = [item for item in one.tensor.order if item.role == "packed" and item.name in sizes]
        span = max((of[item.name] * (number(sizes[item.name], scope) or 1) for item in word), default=1)
        for group in groups:
            if group % span and (one.path("order"), group) not in seen:
                seen.add((one.path("order"), group))
                yield Found(
                    f"a word of `{one.key}` spans {span} inputs, so groups of {group} end inside words",
                    one.path("order"),
                    within=(word[0].start, word[-1].end),
                    help=f"take groups of a multiple of {span}",
                )


def _groups(subject: Subject) -> list[int]:
    """The group sizes that the spec names."""
    spec = subject.spec
    param = spec.params.get("group")
    named = [*spec.accepts.groups] if isinstance(spec, Kernel) else []
    if param is not None:
        named += [*param.values, param.default]  # pyright: ignore
    named += [one.params.get("group") for one in subject.tries]  # pyright: ignore
    return sorted({value for value in named if isinstance(value, int) and value > 0})
