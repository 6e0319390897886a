"""Other specs of the same kind, as the text states them, to tell copies from new layouts."""

from __future__ import annotations

import hashlib
import json
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


def compared(kind: str) -> tuple[str, ...]:
    """The keys that say what a spec of that kind describes."""
    return _OF_A_MODULE if kind == "module" else _OF_A_FORMAT


_OF_A_FORMAT = ("params", "parts", "tensors", "value", "accepts")
_OF_A_MODULE = (
    "params", "axes", "default", "experts", "ranks", "serves", "visible", "matrices", "activation", "tight",
)  # fmt: skip


def layout(kind: str, text: Text) -> str:
    """The digest of what a spec describes: two of the same describe the same."""
    own = plain(text)
    said = json.dumps([kind, *(own.get(key) for key in compared(kind))], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def differing(first: Text, second: Text, keys: tuple[str, ...]) -> list[str]:
    """Those of the keys under which two texts say different things."""
    return [key for key in keys if first.get(key) != second.get(key)]
