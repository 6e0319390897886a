"""Which order the scales of a kernel stand in is chosen by an extent, not by how many groups the matrix has.

## Why is this bad

Kernels read scales of several groups in one order and those of one group in another, and they go by the rows that are
there. A choice by an extent is right where the two happen to agree. In a mixture of experts they do not: w13 has the
hidden features along k and the intermediate ones along n, and on a rank with fewer of these than a group nearly all of
its scales land where the kernel reads others, without a word. The rule lays such a matrix out both ways and names a
scale that is read as another one.

## Example

    split: "k = g gi:(group) · n = nt h:4 i:4 l:2"
    order: "g, nt i h l (gi)"
    cases: [{when: n / 2 > group, split: "k = g gi:(group) · n = nt j:8 i:8", order: "g, nt i j (gi)"}]

## Use instead

    split: "k = g gi:(group) · n = nt h:4 i:4 l:2"
    order: "g, nt i h l (gi)"
    cases: [{when: groups > 1, split: "k = g gi:(group) · n = nt j:8 i:8", order: "g, nt i j (gi)"}]
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import Stated, laid_over
from layoutdsl.lint.misread import Misread, misread
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel

_WHAT = {"scale": "scale", "zero_point": "zero point"}


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Kernel):
        return
    for key, tensor in spec.tensors.items():
        for at in range(len(tensor.cases)):
            one = laid_over(key, tensor, at)
            if tensor.role in _WHAT and one.restated & {"order", "split"} and (wrong := misread(spec, one)) is not None:
                yield _found(one, wrong)


def _found(one: Stated, wrong: Misread) -> Found:
    what, order = _WHAT[one.tensor.role], "one group" if wrong.has_several else "several"
    lands = f"the {what} of {wrong.stands} would stand where the kernel reads {wrong.read}"
    others = f"{wrong.count - 1} more of its {wrong.total} {what}s would"
    if wrong.due is not None:
        said = f"{wrong.matrix} and gets the order of {order}; {lands}, as {others}"
        help = f"write `{wrong.due}`: it counts the groups of the very matrix, padded"
    else:
        gets = "gets the order of this case, others of that group do not"
        if not wrong.taken:
            gets = "does not get the order of this case, others of that group do"
        said = f"{wrong.matrix} and {gets}; where that is wrong, {lands}, as {others}"
        help = (
            "write `groups > 1` if the kernel reads several groups in the order of the case, `groups == 1` if it reads "
            "one group so"
        )
    return Found(
        f"the number of groups does not decide the order of `{one.key}`: {said}",
        ("tensors", one.key, "cases", one.case, "when"),
        help=help,
    )
