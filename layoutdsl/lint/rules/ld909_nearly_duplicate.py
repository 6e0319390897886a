"""A format is another one but for the place of the elements of a single tensor.

## Why is this bad

Formats that agree in the codes, the scales and all but one order are mostly copies in which a digit slipped: zero
points in the order of scales and not in that of a word, scales of several groups in the order of one. Where a kernel
does read the same tensors another way, it is another build of the first, which can be said.

## Example

    kernel: my_marlin        # as marlin_int4_a16, but
    zero_point: {order: "g, nt i {j2 j1 j0} (gi)", ...}

## Use instead

    kernel: my_marlin
    base: marlin_int4_a16
    tensors: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutdsl.library import kind_of
from layoutdsl.lint.others import Text, differing, plain
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format, Kernel

_PLACE = ("split", "order", "cases")


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Format) or (isinstance(spec, Kernel) and spec.base is not None):
        return
    own = plain(subject.tree.data)
    for name, other in subject.others:
        if differing(own, other, ("parts", "value", "tensors")) != ["tensors"]:
            continue
        odd = _odd(own["tensors"], other["tensors"])
        if odd is not None:
            way = f", or state `base: {name}` where another build reads it so" if isinstance(spec, Kernel) else ""
            yield Found(
                f"`{spec.name}` is the {kind_of(spec)} `{name}` but for the place of the elements of `{odd}`",
                ("tensors", odd),
                key=True,
                help=f"place them as `{name}` does{way}",
            )
            return


def _odd(own: Text, other: Text) -> str | None:
    """The only tensor that differs, where it differs in the place of its elements alone."""
    odd = differing(own, other, tuple(own)) if own.keys() == other.keys() else []
    if len(odd) != 1:
        return None
    first, second = (_without(tensors[odd[0]]) for tensors in (own, other))
    return odd[0] if first == second else None


def _without(tensor: Text) -> dict[str, Any]:
    return {key: value for key, value in tensor.items() if key not in _PLACE}
