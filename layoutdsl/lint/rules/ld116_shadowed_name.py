"""A parameter has a name that already means something else, or that no expression can say.

## Why is this bad

Expressions know `n`, `k`, `groups` and `parts` of the matrix they are evaluated for, and these hide a parameter of the
same name. In a module an entry of `try` gives sizes and parameters side by side, so a parameter named like an axis
would take its size. Names that are no single word, or words of the language, cannot be written in an expression.

## Example

    params: {parts: [one, two]}

## Use instead

    params: {pieces: [one, two]}
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_LANGUAGE = ("and", "or", "not", "up", "lcm", "min", "max")
_OF_A_MATRIX = ("n", "k", "groups", "parts")


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    axes = spec.axes if isinstance(spec, Module) else ()
    for name in spec.params:
        if name in axes:
            said = f"parameter `{name}` has the name of an axis"
        elif name in _OF_A_MATRIX and not isinstance(spec, Module):
            said = f"parameter `{name}` is hidden by `{name}` of each matrix, which expressions know by that name"
        elif name in _OF_THE_LANGUAGE or not _WORD.fullmatch(name):
            said = f"no expression can name the parameter `{name}`"
        else:
            continue
        yield Found(said, ("params", name), key=True, help="give it another name, of letters, digits and `_`")
