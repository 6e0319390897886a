"""The size of a digit depends on the extent of another axis.

## Why is this bad

Digits of n count outputs and digits of k count inputs. A size that is computed from the other axis fits where the two
happen to agree, as in a square matrix, and elsewhere the digits no longer multiply out, or move elements to places
that the kernel does not read.

## Example

    split: "n = nt j:(k / 16)"

## Use instead

    split: "n = nt j:8"
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Format

_FOREIGN = {"n": ("k", "group", "groups"), "k": ("n",)}


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Format):
        return
    for one in stated(subject.spec, "split"):
        for axis in one.tensor.split or ():
            for digit in axis.digits:
                used = [name for name, _, _ in digit.size.names()] if digit.size is not None else []
                for name in dict.fromkeys(used):
                    if name in _FOREIGN.get(axis.axis, ()):
                        yield Found(
                            f"digit `{digit.name}` of axis {axis.axis} has a size that depends on `{name}`, "
                            "which counts along the other axis",
                            one.path("split"),
                            within=(digit.start, digit.end),
                            help=f"state a number, or a size that depends on axis {axis.axis} alone",
                        )
