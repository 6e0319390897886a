"""A checkpoint has a global scale, and does not say whether it is multiplied or divided.

## Why is this bad

One writer of NVFP4 stores the factor, another one over it, under similar names and in the same shape. The wrong
direction is off by the square of the scale, and merging parts takes the smaller where the larger was due.

## Example

    g: {role: global_scale, dtype: float32, order: "(n k)"}

## Use instead

    g: {role: global_scale, dtype: float32, reciprocal: false, order: "(n k)"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Checkpoint


def check(subject: Subject) -> Iterator[Found]:
    if not isinstance(subject.spec, Checkpoint):
        return
    for key, tensor in subject.spec.tensors.items():
        if tensor.role == "global_scale" and tensor.reciprocal is None:
            yield Found(
                f"`{key}` does not say whether weights are multiplied by it or divided",
                ("tensors", key),
                key=True,
                help="add `reciprocal: false` where they are multiplied, `true` where one over the factor is stored",
            )
