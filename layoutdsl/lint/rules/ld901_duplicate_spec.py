"""A spec says the same as another one under another name.

## Why is this bad

Plans remember a spec by its name and text, so that two of the same layout give two plans, two caches and two kernels,
and a correction of one leaves the other wrong. A checkpoint's format that differs in its config alone belongs into the
`detect` of the first; another build of a kernel names it as its `base`.

## Example

    checkpoint: gptq_too     # tensors, value and parts as in gptq

## Use instead

    checkpoint: gptq
    detect: [{quant_method: gptq}, {quant_method: gptq_too}]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layoutdsl.errors import LayoutError
from layoutdsl.library import files, kind_of, read_tree
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject

_SAYS = ("params", "parts", "tensors", "value", "accepts", "axes", "default", "experts", "ranks", "serves", "visible",
         "matrices", "activation", "tight")


def check(subject: Subject) -> Iterator[Found]:
    kind, own = kind_of(subject.spec), _said(subject.tree.data)
    for path in files(subject.specs):
        if path.resolve() == Path(subject.tree.file).resolve():
            continue
        try:
            other: Any = read_tree(path, specs=subject.specs).data
        except LayoutError:
            continue
        if isinstance(other, dict) and kind in other and other[kind] != subject.spec.name and _said(other) == own:
            yield Found(
                f"`{subject.spec.name}` says the same as the {kind} `{other[kind]}`",
                (kind,),
                help=f"use `{other[kind]}`, or state what differs",
            )
            return


def _said(data: Any) -> Any:
    return {key: _plain(data[key]) for key in _SAYS if key in data}


def _plain(value: Any) -> Any:
    """Without documentation, and with spaces that count alone."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key != "doc" and not str(key).startswith("x-")}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return " ".join(value.split()) if isinstance(value, str) else value
