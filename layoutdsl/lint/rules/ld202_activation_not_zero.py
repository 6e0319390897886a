"""Padding is said to stay zero through an activation that maps zero to something else.

## Why is this bad

Then a padded input of the next matrix is not zero, its code need not be either, and their product is added to every
output. With a gate the other part is zero there and the product with it too, so only matrices of one part are found.

## Example

    doc: an MLP with a sigmoid, down(sigmoid(up x))
    activation: zero

## Use instead

    doc: an MLP with a sigmoid, down(sigmoid(up x))
    activation: unknown
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from layoutdsl.lint.modules import has_parts, inner
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module

_AT_ZERO = {
    "sigmoid": "1/2",
    "logistic": "1/2",
    "hardsigmoid": "1/2",
    "softplus": "log 2",
    "softmax": "one over the width",
    "exp": "1",
    "exponential": "1",
    "cos": "1",
    "cosine": "1",
}
_NAMED = re.compile(r"\b(" + "|".join(_AT_ZERO) + r")\b")
_A_PRODUCT = re.compile(r"\*|\btimes\b|\bsi?lu\b|\bswish\b|\bgelu\b|\brelu\b")


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module) or spec.activation != "zero":
        return
    named = _NAMED.search(spec.doc.lower())
    if named is None or _A_PRODUCT.search(spec.doc.lower()):
        return
    for axis, (writer, _) in inner(spec).items():
        if not has_parts(spec.matrices[writer]):
            yield Found(
                f"{named[1]}, which `doc` names, maps zero to {_AT_ZERO[named[1]]}: the padding of axis `{axis}` is "
                f"not zero behind `{writer}`",
                ("activation",),
                help="state `activation: unknown`",
            )
