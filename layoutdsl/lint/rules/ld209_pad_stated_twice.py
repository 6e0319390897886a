"""A tensor of a kernel rounds an extent up that the kernel's tiles pad already.

## Why is this bad

`n` and `k` in a kernel's expressions are the padded ones: `accepts.tiles` is the one place that says how far. A second
`up` either changes nothing or disagrees with the tiles, and then the tensor is larger than what the kernel is told.

## Example

    accepts: {tiles: [{n: 64, k: 128}], groups: [128]}
    tensors:
      w: {shape: [up(k, 256) / 16, n * 2], ...}

## Use instead

    accepts: {tiles: [{n: 64, k: 256}], groups: [128]}
    tensors:
      w: {shape: [k / 16, n * 2], ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.grammar import Expr
from layoutdsl.lint.formats import Stated, number, stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel
from layoutdsl.source import Route

EXPLAINS = ("LD303",)


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Kernel):
        return
    for one in stated(spec, "shape", "split"):
        for path, expr in _sizes(one):
            for call in _calls(expr):
                axis, multiple = call.args[0].args[0], number(call.args[1], {})
                odd = [getattr(t, axis) for t in spec.accepts.tiles if multiple and getattr(t, axis) % multiple]
                said = f"and they disagree: tiles pad to multiples of {odd[0]}" if odd else "and once is enough"
                yield Found(
                    f"`{one.key}` pads {axis} to {multiple or 'a multiple'}, which the kernel's tiles pad "
                    f"already, {said}",
                    path,
                    within=(call.start, call.end),
                    help=f"write `{axis}`, and let `accepts.tiles` say how far it is padded",
                )


def _sizes(one: Stated) -> Iterator[tuple[Route, Expr]]:
    for at, expr in enumerate(one.tensor.shape or ()):
        yield (*one.path("shape"), at), expr
    for axis in one.tensor.split or ():
        yield from ((one.path("split"), digit.size) for digit in axis.digits if digit.size is not None)


def _calls(expr: Expr) -> Iterator[Expr]:
    if expr.op == "up" and expr.args[0].op == "name" and expr.args[0].args[0] in ("n", "k"):
        yield expr
    yield from (call for arg in expr.args if isinstance(arg, Expr) for call in _calls(arg))
