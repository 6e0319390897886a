"""An axis is padded, and nobody keeps its padding zero.

## Why is this bad

What is visible outside is the caller's duty, and what one matrix writes and another reads is the module's. An axis that
is neither is taken for one inside the module, so no caller is told to pad an input or to slice an output.

## Example

    visible: []
    matrices:
      up: {n: i, k: h}
      down: {n: h2, k: i}

## Use instead

    visible: [h, h2]
    matrices:
      up: {n: i, k: h}
      down: {n: h2, k: i}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import outputs, readers, writers
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module
from layoutdsl.source import Route


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module):
        return
    for axis in spec.axes:
        if axis in spec.visible:
            continue
        does_write, does_read = writers(spec, axis), readers(spec, axis)
        inside = any(a != b for a in does_write for b in does_read)
        if (does_write or does_read) and not inside:
            first = (does_read or does_write)[0]
            said = "read" if does_read else "written"
            yield Found(
                f"axis `{axis}` is {said} by `{first}` alone and not visible: nobody keeps its padding zero",
                _place(spec, first, axis, does_read),
                help=f"add `{axis}` to `visible`",
            )


def _place(spec: Module, matrix: str, axis: str, does_read: list[str]) -> Route:
    if does_read:
        return ("matrices", matrix, "k")
    return ("matrices", matrix, *next(place for place, axes in outputs(spec.matrices[matrix]) if axes[0] == axis))
