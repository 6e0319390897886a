"""Fused parts are padded once behind the last, on an axis that another matrix of the module reads.

## Why is this bad

The activation halves what the fused matrix writes. With padding behind the last part alone, half is not where the first
part ends: of [gate 176 | up 176 | 32 zeros] it is 192, which hands 16 outputs of up to gate and 32 zeros to up.

## Example

    gate_up: {n: {gate: i, up: i}, k: h, pad: tail}
    down: {n: h, k: i}

## Use instead

    gate_up: {n: {gate: i, up: i}, k: h, pad: part}
    down: {n: h, k: i}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import has_parts, inner, outputs
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module):
        return
    for axis, (_, reader) in inner(spec).items():
        for name, matrix in spec.matrices.items():
            inside = any(axes[0] == axis for _, axes in outputs(matrix))
            if matrix.pad == "tail" and inside and has_parts(matrix):
                yield Found(
                    f"`{name}` is padded once behind all its parts, but `{reader}` reads axis `{axis}` of one part: "
                    "the others would begin too early",
                    ("matrices", name, "pad"),
                    help="state `pad: part`, so that each part is padded at its own end",
                )
