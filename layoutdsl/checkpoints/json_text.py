"""JSON from a stranger: one object, as long, as wide and as deep as a checkpoint needs, and no key twice.

    parse(b'{"bits": 4}', "`config.json`")      # {'bits': 4}

Memory is bounded whatever stands in a file: it is read up to so many bytes, and parsed where it has few enough values.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from layoutdsl import files
from layoutdsl.errors import LayoutError

MAX_BYTES = 100_000_000
"""Longest JSON that is read, a header's included (the limit of the safetensors library)."""

MAX_VALUES = 8_000_000
"""Most values in it: a header states eight for each tensor."""

MAX_DEPTH = 64
"""Deepest nesting; a config.json has some six levels."""

AGAIN = "download the file again"


def read(path: Path, *folders: Path, help: str | None = None) -> dict[str, Any]:
    """The JSON object in a file; `folders`: where it may lead if it is a link. LayoutError where there is none."""
    try:
        with files.opened(path, *folders) as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        _fail(f"`{path}` cannot be read: {files.reason(error)}", help)
    return parse(text, f"`{path}`")


def parse(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object that a text is; `what` names it in errors."""
    if len(text) > MAX_BYTES:
        _fail(f"{what} is longer than {MAX_BYTES} bytes", None)
    # Before the text is parsed: each value costs many times the bytes that it has in the text.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES:
        _fail(f"{what} has more than {MAX_VALUES} values", None)
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        _fail(f"{what} is no JSON: {str(error)[:200]}", AGAIN)
    if not isinstance(data, dict):
        _fail(f"{what} holds a {type(data).__name__}, a JSON object is needed", AGAIN)
    if _is_deep(data):
        _fail(f"{what} is nested deeper than {MAX_DEPTH} levels", None)
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"`{name[:80]}` stands twice")
    return found


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH):
        inner = [one for node in level for one in (node.values() if isinstance(node, dict) else node)]
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _fail(message: str, help: str | None) -> NoReturn:
    raise LayoutError(message, code="LP210", name="bad-checkpoint", help=help)
