"""The default of a parameter, or a value that a config is mapped to, is none that the parameter allows.

## Why is this bad

The same value would be refused from a user. A default is never checked when nobody sets the parameter, so the layout is
one that the spec does not describe; a mapped value is found out only by the first checkpoint that states it.

## Example

    params: {bits: {values: [4, 8], default: 3}}

## Use instead

    params: {bits: {values: [4, 8], default: 4}}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutdsl.errors import LayoutError
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Param
from layoutdsl.resolve import bind


def check(subject: Subject) -> Iterator[Found]:
    for name, param in subject.spec.params.items():
        for value, path in _given(name, param):
            try:
                bind(subject.spec, {name: value})
            except LayoutError as error:
                yield Found(error.message, path, help=error.help)
        if param.map is not None and param.config is None:
            yield Found(
                f"parameter `{name}` maps values of a config without saying which key holds them",
                ("params", name, "map"),
                key=True,
                help="add `config: KEY`, or remove the map",
            )


def _given(name: str, param: Param) -> Iterator[tuple[Any, tuple[str, ...]]]:
    if param.default is not None:
        yield param.default, ("params", name, "default")
    for key, value in (param.map or {}).items():
        yield value, ("params", name, "map", key)
