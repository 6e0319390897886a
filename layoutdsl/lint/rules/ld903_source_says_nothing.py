"""A spec does not say where its facts come from.

## Why is this bad

A layout is copied from somewhere: a library's packing code, a specification, the files themselves. Whoever doubts a
digit must be able to look there, and whoever updates the spec must know when it has changed.

## Example

    source: todo

## Use instead

    source: my-quantizer 2.1, the function that packs rows
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.rules.ld902_doc_says_nothing import says_nothing
from layoutdsl.lint.subject import Subject


def check(subject: Subject) -> Iterator[Found]:
    if says_nothing(subject.spec.source, subject.spec.name):
        yield Found(
            "nothing says where the facts come from",
            ("source",),
            help="name the library, specification or files, and their version",
        )
