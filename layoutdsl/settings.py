"""`[tool.layoutdsl]` of pyproject.toml: the nearest file with such a table wins, and nothing is merged.

    [tool.layoutdsl]
    specs = ["formats"]              # folders of your own specs, relative to this file

    [tool.layoutdsl.lint]            # read by lint/settings.py
    ignore = ["LD904"]

A key that means nothing, or a value of another type, is refused with its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from layoutdsl.errors import did_you_mean

KEYS = ("specs", "lint")


class BadSettings(Exception):
    """What is wrong with a pyproject.toml, in one sentence that begins with its place."""


@dataclass(frozen=True)
class Table:
    """One table of a pyproject.toml: the file, its text, and what the table states."""

    file: Path
    name: str
    text: str
    values: Mapping[str, Any]

    def inner(self, key: str) -> Table:
        """The table `key` in this one, empty where there is none."""
        values = self.values.get(key, {})
        if not isinstance(values, dict):
            self.refuse(key, f"{key} must be a table")
        return Table(self.file, f"{self.name}.{key}", self.text, values)

    def known(self, keys: tuple[str, ...]) -> None:
        """Refuse a key that is none of `keys`."""
        for key in self.values:
            if key not in keys:
                near = did_you_mean(key, keys) or "its keys are " + ", ".join(keys)
                self.refuse(key, f"has no key `{key}`: {near}")

    def texts(self, key: str, what: str) -> tuple[str, ...]:
        """The list of texts at `key`, empty where there is none."""
        found = self.values.get(key, [])
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            self.refuse(key, f"{key} must be a list of {what}")
        return tuple(found)

    def refuse(self, key: str, sentence: str) -> NoReturn:
        raise BadSettings(f"{self.file}{self._line(key)}: [{self.name}] {sentence}")

    def _line(self, key: str) -> str:
        """`:LINE` of a key below the head of its table, where it stands on a line of its own."""
        below = False
        for number, line in enumerate(self.text.splitlines(), 1):
            if re.match(r"\s*\[", line):
                below = line.partition("#")[0].strip() == f"[{self.name}]"
            elif below and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""", line):
                return f":{number}"
        return ""


def folders(start: Path | None = None) -> tuple[str, ...]:
    """The user's folders of specs that count in the folder `start` (default: the current one)."""
    table = nearest((start or Path.cwd()).resolve())
    if table is None:
        return ()
    found = {item: table.file.parent / item for item in table.texts("specs", "folders")}
    for item, folder in found.items():
        if not folder.is_dir():
            table.refuse("specs", f"specs names `{item}`, and there is no folder {folder}")
    return tuple(map(str, found.values()))


def nearest(folder: Path) -> Table | None:
    """The table `[tool.layoutdsl]` of the nearest pyproject.toml that has one, from `folder` upwards."""
    import tomllib

    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
            values = tomllib.loads(text).get("tool", {}).get("layoutdsl")
        except (OSError, ValueError) as error:
            raise BadSettings(f"{file} cannot be read: {error}") from None
        if values is None:
            continue
        table = Table(file, "tool.layoutdsl", text, values if isinstance(values, dict) else {})
        if not isinstance(values, dict):
            table.refuse("layoutdsl", "must be a table")
        table.known(KEYS)
        return table
    return None
