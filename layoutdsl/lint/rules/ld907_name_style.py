"""The name of a spec, an axis or a parameter is not in lower case, with `_` between words.

## Why is this bad

Names are typed: on the command line, in plans, in expressions. All shipped ones are lower-case words with `_` between,
so that nobody has to remember which is written how.

## Example

    checkpoint: MyFormat

## Use instead

    checkpoint: my_format
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from layoutdsl.library import kind_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module
from layoutdsl.source import Route

_STYLE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def check(subject: Subject) -> Iterator[Found]:
    for name, what, path, key in _named(subject):
        if not _STYLE.fullmatch(name):
            suggested = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
            yield Found(
                f"the {what} `{name}` is not in lower case, with `_` between words",
                path,
                key=key,
                help=f"write `{suggested}`",
            )


def _named(subject: Subject) -> Iterator[tuple[str, str, Route, bool]]:
    spec = subject.spec
    yield spec.name, kind_of(spec), (kind_of(spec),), False
    for name in spec.params:
        yield name, "parameter", ("params", name), True
    for name in spec.axes if isinstance(spec, Module) else ():
        yield name, "axis", ("axes", name), True
