"""Other specs of the same kind, as the text states them, to tell copies from new layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layoutdsl.errors import LayoutError
from layoutdsl.library import files, kind_of, read_tree
from layoutdsl.lint.subject import Subject

Text = Mapping[str, Any]


def others(subject: Subject) -> Iterator[tuple[str, Text]]:
    """Name and text of every other spec of this kind, shipped or in the folders of specs, without documentation."""
    kind, own = kind_of(subject.spec), Path(subject.tree.file).resolve()
    for path in files(subject.specs):
        if path.resolve() == own:
            continue
        try:
            text = read_tree(path, specs=subject.specs).data
        except LayoutError:
            continue  # a finding of its own
        if isinstance(text, dict) and kind in text and text[kind] != subject.spec.name:
            yield str(text[kind]), plain(text)


def plain(value: Any) -> Any:
    """A text without documentation, extensions and spaces that do not count."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key != "doc" and not str(key).startswith("x-")}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return " ".join(value.split()) if isinstance(value, str) else value


def differing(first: Text, second: Text, keys: tuple[str, ...]) -> list[str]:
    """Those of the keys under which two texts say different things."""
    return [key for key in keys if first.get(key) != second.get(key)]
