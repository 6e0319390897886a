"""The documentation of a spec says nothing that its name does not say.

## Why is this bad

`doc` is what a reader of the list of formats sees. One sentence tells formats of similar names apart: how many bits,
what shares a scale, who writes such files.

## Example

    checkpoint: my_format
    doc: my format

## Use instead

    checkpoint: my_format
    doc: 4-bit integers, a float16 scale per 32 inputs, as my-quantizer 2 writes them
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject

PLACEHOLDERS = ("todo", "tbd", "fixme", "xxx", "unknown", "none", "n a", "na", "doc", "source", "here", "")


def says_nothing(text: str, name: str) -> bool:
    """Whether a text is a placeholder, or the name again."""
    plain = " ".join(re.findall(r"\w+", text.lower().replace("_", " ")))
    return plain in (*PLACEHOLDERS, name.replace("_", " ")) or plain.split(" ")[0] in ("todo", "tbd", "fixme")


def check(subject: Subject) -> Iterator[Found]:
    if says_nothing(subject.spec.doc, subject.spec.name):
        yield Found(
            "the documentation says nothing that the name does not say",
            ("doc",),
            help="say in a sentence what is stored how, and who writes or reads it",
        )
