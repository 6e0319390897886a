"""One matrix writes an axis that the next one reads, and nothing says whether padding stays zero in between.

## Why is this bad

A kernel pads the axis on both sides. Padded inputs of the second matrix meet codes that need not be zero: they are
harmless only if the activation maps the zeros that the first matrix writes to zeros again. Unstated counts as unknown,
and some sizes are refused that could be served.

## Example

    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}

## Use instead

    matrices:
      up: {n: i, k: h}
      down: {n: h, k: i}
    activation: zero
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import inner
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module) or "activation" in spec.model_fields_set:
        return
    for axis, (writer, reader) in inner(spec).items():
        yield Found(
            f"`{reader}` reads axis `{axis}` as `{writer}` writes it, and nothing says that its padding is zero then",
            ("matrices", reader, "k"),
            help="add `activation: zero` where the activation maps zero to zero, as silu, gelu and relu do; "
            "else `activation: unknown`",
        )
