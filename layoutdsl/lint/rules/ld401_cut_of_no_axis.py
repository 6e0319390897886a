"""Ranks may cut an axis that the module does not have, or those of one kind the axis of the other.

## Why is this bad

A parameter that says which axis ranks cut is tried with one value at a time, so a wrong one among the others is found
by the first user who sets it. Expert-parallel ranks share whole experts; any other axis is for tensor-parallel ranks,
which would each hold all experts, uncut, where they name theirs.

## Example

    params: {split: [n, k, m]}
    axes: {n: outputs, k: inputs}
    ranks: {tp: "{split}"}

## Use instead

    params: {split: [n, k, none]}
    axes: {n: outputs, k: inputs}
    ranks: {tp: "{split}"}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.errors import did_you_mean
from layoutdsl.lint.modules import cuts
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module):
        return
    for kind in spec.ranks:
        for axis in sorted(cuts(spec, kind)):
            path = ("ranks", kind)
            if axis not in spec.axes:
                yield Found(
                    f"{kind} ranks may cut `{axis}`, which is no axis of the module",
                    path,
                    help=did_you_mean(axis, spec.axes) or f"axes: {', '.join(spec.axes)}, or `none`",
                )
            elif kind == "ep" and axis != spec.experts:
                counted = f"`{spec.experts}` counts them" if spec.experts else "no axis counts experts"
                yield Found(
                    f"expert-parallel ranks share experts, not axis `{axis}`: {counted}",
                    path,
                    help="let `experts` and `ranks.ep` name the same axis",
                )
            elif kind == "tp" and axis == spec.experts:
                inside = [name for name in spec.axes if name != axis]
                yield Found(
                    f"tensor-parallel ranks cut inside experts, but `{axis}` counts them: each rank would hold all "
                    "experts, uncut",
                    path,
                    help=f"let `ranks.ep` name `{axis}` and `ranks.tp` one of {', '.join(inside)}, "
                    "or `none`",
                )
