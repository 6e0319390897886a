"""The same sizes and parameters stand twice among those to try.

## Why is this bad

Each entry of `try` is a proof. A second one of the same sizes proves nothing new, and mostly it was meant to be
another: a copied line in which a size or a parameter was not changed.

## Example

    try:
      - {n: 64, k: 128}
      - {n: 64, k: 128}

## Use instead

    try:
      - {n: 64, k: 128}
      - {n: 100, k: 200}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.edits import without_item
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject


def check(subject: Subject) -> Iterator[Found]:
    entries = subject.spec.try_
    for at, entry in enumerate(entries):
        first = entries.index(entry)
        if first < at:
            yield Found(
                f"entry {at + 1} of `try` is the same as entry {first + 1}",
                ("try", at),
                help="change a size or a parameter, or remove it",
                fix=without_item(subject.tree, ("try", at)),
            )
