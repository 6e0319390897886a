"""The text of a spec as a tree that knows where everything stands, and edits of that text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml

Node = yaml.Node
Path = tuple[str | int, ...]


class Edit(NamedTuple):
    """Characters [start, end) of a text become `new`."""

    start: int
    end: int
    new: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


class Document:
    """A spec's text. Paths are those of its data; an entry of a mapping is dropped, added or given another value by an
    edit that leaves everything else as it stands."""

    def __init__(self, text: str):
        self.text = text
        self.root = yaml.compose(text, Loader=yaml.SafeLoader)

    def node(self, path: Path) -> Node:
        found = self.root
        for step in path:
            found = self.entries(found)[step] if isinstance(step, str) else found.value[step]
        return found

    def has(self, path: Path) -> bool:
        return path[-1] in self.entries(self.node(path[:-1]))

    @staticmethod
    def entries(node: Node) -> dict[str, Node]:
        return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}

    def scalars(self, path: Path = ()) -> Iterator[tuple[Path, str]]:
        """Every scalar with its place."""
        node = self.node(path)
        if isinstance(node, yaml.ScalarNode):
            yield path, node.value
        steps = list(self.entries(node)) if isinstance(node, yaml.MappingNode) else range(len(node.value))
        if not isinstance(node, yaml.ScalarNode):
            for step in steps:
                yield from self.scalars((*path, step))

    def source(self, path: Path) -> str:
        """The text of a value."""
        node = self.node(path)
        return self.text[node.start_mark.index : node.end_mark.index].rstrip()

    def write(self, path: Path, new: str) -> Edit:
        """Another scalar in the place of a value."""
        node = self.node(path)
        end = node.start_mark.index + len(self.source(path))
        return Edit(node.start_mark.index, end, quoted(new))

    def rename(self, path: Path, new: str) -> Edit:
        """Another key."""
        key = next(key for key, _ in self.node(path[:-1]).value if key.value == path[-1])
        return Edit(key.start_mark.index, key.end_mark.index, new)

    def swap(self, a: Path, b: Path) -> list[Edit]:
        """Two values in each other's place."""
        return [
            Edit(self.node(at).start_mark.index, self.node(at).start_mark.index + len(self.source(at)), self.source(by))
            for at, by in ((a, b), (b, a))
        ]

    def drop(self, path: Path) -> Edit:
        """Without this entry of a mapping or of a list."""
        parent = self.node(path[:-1])
        pairs = parent.value if isinstance(parent, yaml.MappingNode) else [(one, one) for one in parent.value]
        keys = [key.value for key, _ in pairs] if isinstance(parent, yaml.MappingNode) else list(range(len(pairs)))
        at = keys.index(path[-1])
        start = pairs[at][0].start_mark.index
        last = at == len(pairs) - 1
        if not parent.flow_style:
            end = parent.end_mark.index if last else pairs[at + 1][0].start_mark.index
            return Edit(self._line(start), self._line(end) if self._line(end) > start else len(self.text), "")
        if not last:
            return Edit(start, pairs[at + 1][0].start_mark.index, "")
        return Edit(pairs[at - 1][1].end_mark.index if at else start, pairs[at][1].end_mark.index, "")

    def add(self, path: Path, key: str, new: str) -> Edit:
        """One more entry at the end of a mapping."""
        node = self.node(path)
        if node.flow_style:
            end = node.value[-1][1].end_mark.index
            return Edit(end, end, f", {key}: {new}")
        indent = node.value[0][0].start_mark.column
        end = self._line(node.value[0][0].start_mark.index)
        return Edit(end, end, f"{' ' * indent}{key}: {new}\n")

    def append(self, path: Path, new: str) -> Edit:
        """One more element at the end of a list in one line."""
        end = self.node(path).end_mark.index - 1
        return Edit(end, end, f", {new}")

    def _line(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1


_PLAIN = re.compile(r"[A-Za-z_][\w./-]*|-?(0|[1-9][0-9]*)")


def quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text not in ("null", "no", "on", "off", "yes") else json.dumps(
        text, ensure_ascii=False
    )
