"""A spec says the same as another one under another name.

## Why is this bad

Plans remember a spec by its name and text, so that two of the same layout give two plans, two caches and two kernels,
and a correction of one leaves the other wrong. A checkpoint's format that differs in its config alone belongs into the
`detect` of the first; another build of a kernel names it as its `base`.

## Example

    checkpoint: gptq_too     # tensors, value and parts as in gptq

## Use instead

    checkpoint: gptq
    detect: [{quant_method: gptq}, {quant_method: gptq_too}]
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.library import kind_of
from layoutdsl.lint.others import compared, differing, plain
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject


def check(subject: Subject) -> Iterator[Found]:
    kind, own = kind_of(subject.spec), plain(subject.tree.data)
    for name, other in subject.others:
        if not differing(own, other, compared(kind)):
            yield Found(
                f"`{subject.spec.name}` says the same as the {kind} `{name}`",
                (kind,),
                help=f"use `{name}`, or state what differs",
            )
            return
