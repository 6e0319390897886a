"""A matrix of one part says where its parts are padded.

## Why is this bad

With one part there is nothing to choose: it is padded at its end. The key is read by nobody, and whoever reads the spec
looks for parts that are not there.

## Example

    down: {n: h, k: i, pad: tail}

## Use instead

    down: {n: h, k: i}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import has_parts
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Module):
        return
    for name, matrix in subject.spec.matrices.items():
        if "pad" in matrix.model_fields_set and not has_parts(matrix):
            yield Found(
                f"`pad` of `{name}` has no effect: the matrix has one part",
                ("matrices", name, "pad"),
                key=True,
                help="name the parts, or remove it",
            )
