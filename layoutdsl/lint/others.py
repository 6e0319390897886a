"""Other specs of the same kind, as the text states them, to tell copies from new layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from layoutdsl.errors import LayoutError
from layoutdsl.folders import near, real
from layoutdsl.library import files, kind_of, read_tree
from layoutdsl.model import Spec
from layoutdsl.source import Tree

Text = Mapping[str, Any]


def others(spec: Spec, own: Path, specs: tuple[str, ...]) -> Iterator[tuple[str, Text]]:
    """Name and text of every spec of the same kind but that of the file `own`, shipped or in the folders `specs`,
    without documentation."""
    kind, own = kind_of(spec), real(own)
    for path, place in _paths(specs, Path.cwd()):
        if place == own:
            continue
        try:
            tree = read_tree(path, specs=specs)
        except LayoutError:
            continue  # a finding of its own
        text = tree.data
        if isinstance(text, dict) and kind in text and text[kind] != spec.name:
            yield str(text[kind]), _plain_of(tree)


@lru_cache(maxsize=8)
def _paths(specs: tuple[str, ...], here: Path) -> tuple[tuple[Path, Path], ...]:
    """Each file as `lint` calls it, so that it is read once, and where it really is.

    They are listed once: a new one is found by its own linting.
    """
    return tuple((near(path, here), real(path)) for path in files(specs))


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
