"""A difference as plain data, for a program to read: `layoutdsl diff --output-format json`."""

from __future__ import annotations

from typing import Any

from layoutdsl.diff.compare import Change, Difference
from layoutdsl.diff.facts import Fact
from layoutdsl.diff.moves import Example
from layoutdsl.diff.settings import Setting
from layoutdsl.show.sheet import Sheet


def data_of(found: Difference) -> dict[str, Any]:
    """Every key is always there; `moved` counts at the first of a tensor's settings."""
    return {
        "spec": found.after.spec.name,
        "before": found.before.label,
        "after": found.after.label,
        "same": found.is_same,
        "stated": [_fact(fact) for fact in found.stated],
        "tensors": [_change(change) for change in found.changes],
        "refused": [
            {"version": one.label, "message": one.message, "settings": [_setting(at) for at in one.settings]}
            for one in found.refusals
        ],
        "same_tensors": list(found.same),
        "texts": list(found.texts),
        "settings": [_setting(setting) for setting in found.settings],
    }


def _fact(fact: Fact) -> dict[str, str]:
    return {"kind": fact.kind, "before": fact.before, "after": fact.after, "message": fact.said}


def _setting(setting: Setting) -> dict[str, Any]:
    sizes = {axis: list(size) if isinstance(size, tuple) else size for axis, size in setting.sizes}
    return {"sizes": sizes, "params": dict(setting.params)}


def _change(change: Change) -> dict[str, Any]:
    return {
        "tensor": change.tensor,
        "status": change.status,
        "facts": [_fact(fact) for fact in change.facts],
        "elements": change.moves.elements,
        "moved": change.moves.moved,
        "examples": [_example(change, one) for one in change.moves.examples],
        "settings": [_setting(setting) for setting in change.settings],
    }


def _example(change: Change, one: Example) -> dict[str, Any]:
    assert change.before is not None and change.after is not None
    parts = change.before.matrix.parts
    sides = {name: _place(sheet, one) for name, sheet in (("before", change.before), ("after", change.after))}
    return {"part": parts[one.part] if parts else None, "n": one.n, "k": one.k, **sides}


def _place(sheet: Sheet, one: Example) -> dict[str, Any]:
    row, word, bit = sheet.place(sheet.address(one.part, one.n, one.k))
    return {"row": list(row), "word": word, "bit": bit}
