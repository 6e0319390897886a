"""Ranks cut an axis that stands second in a product, where they do not cut it.

## Why is this bad

A product is counted in things of its first axis: ranks cut `q d` between heads. Where the axis that they cut stands
behind another one, every rank holds that matrix whole, while its neighbours are cut, and the sums come out once per
rank.

## Example

    ranks: {tp: q}
    matrices:
      o: {n: h, k: d q}

## Use instead

    ranks: {tp: q}
    matrices:
      o: {n: h, k: q d}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.modules import cuts, products
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Module


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Module):
        return
    for path, axes in products(spec):
        for axis in sorted(cuts(spec, "tp") & set(axes[1:])):
            first = " ".join([axis, *(other for other in axes if other != axis)])
            yield Found(
                f"ranks cut axis `{axis}`, but `{' '.join(axes)}` counts things of `{axes[0]}`: each rank would "
                "hold all",
                path,
                help=f"write `{first}`, if that is how they are stored",
            )
