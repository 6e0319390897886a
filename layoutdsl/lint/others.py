"""Other specs of the same kind, as the text states them, to tell copies from new layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from layoutdsl.errors import LayoutError
from layoutdsl.library import files, kind_of, read_tree
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Tree

Text = Mapping[str, Any]


def others(subject: Subject) -> Iterator[tuple[str, Text]]:
    """Name and text of every other spec of this kind, shipped or in the folders of specs, without documentation."""
    kind, own = kind_of(subject.spec), Path(subject.tree.file).resolve()
    for path in _paths(subject.specs):
        try:
            tree = read_tree(path, specs=subject.specs)
        except LayoutError:
            continue  # a finding of its own
        text = tree.data
        if isinstance(text, dict) and kind in text and text[kind] != subject.spec.name and path != own:
            yield str(text[kind]), _plain_of(tree)


@lru_cache(maxsize=8)
def _paths(specs: tuple[str, ...]) -> tuple[Path, ...]:
    """The files are listed once: a new one is found by its own linting."""
    return tuple(path.resolve() for path in files(specs))


_PLAIN: dict[str, Text] = {}


def _plain_of(tree: Tree) -> Text:
    if tree.digest not in _PLAIN:
        _PLAIN[tree.digest] = plain(tree.data)
    return _PLAIN[tree.digest]


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
