"""Edits of a file: those that do not overlap, from its end to its beginning; all else in the file stays as it is."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from layoutdsl.errors import Diagnostic, Edit, Span
from layoutdsl.folders import real
from layoutdsl.lint.suppress import OF_COMMENTS

ROUNDS = 8
"""How often a file is looked at again: a fix may leave something to fix."""


def fixed(text: str, edits: Iterable[Edit]) -> tuple[str, int]:
    """The text after those edits that do not overlap an earlier one, and how many these are."""
    starts = [int(text[:1] == "\ufeff"), *(line.end() for line in re.finditer(r"\r\n|\r|\n", text))]
    places = sorted({(*_place(edit.span, starts, len(text)), edit.text) for edit in edits})
    taken: list[tuple[int, int, str]] = []
    for start, end, new in places:
        if not taken or start >= taken[-1][1]:
            taken.append((start, end, new))
    for start, end, new in reversed(taken):
        text = text[:start] + new + text[end:]
    return text, len(taken)


def settled(text: str, file: str, look: Callable[[str], Sequence[Diagnostic]]) -> tuple[str, int]:
    """The text when nothing is left to fix in it, and how many edits that took; `look` finds what there is.

    A suppression that is mended may suppress what would else be mended next, so comments come first; whether they are
    needed is said of the text as its author left it, not of what becomes of it.
    """
    text, comments = _settled(text, lambda now: [edit for code, edit in _own(look(now), file) if code in OF_COMMENTS])
    text, others = _settled(text, lambda now: [edit for code, edit in _own(look(now), file) if code not in OF_COMMENTS])
    return text, comments + others


def _settled(text: str, edits: Callable[[str], Iterable[Edit]]) -> tuple[str, int]:
    count = 0
    for _ in range(ROUNDS):
        text, made = fixed(text, edits(text))
        count += made
        if not made:
            break
    return text, count


def _own(found: Iterable[Diagnostic], file: str) -> Iterator[tuple[str, Edit]]:
    """Codes and fixes of what is mended in the file itself."""
    for finding in found:
        if finding.fix is not None and finding.fix.span.file == file:
            yield finding.code, finding.fix


def read(path: Path) -> str:
    """The text of a spec with its own line ends and byte order mark."""
    return path.read_bytes().decode("utf-8")


def write(path: Path, text: str) -> None:
    """Put the text in the place of the file, which is never seen half written."""
    path = real(path)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        stream.write(text.encode())
    os.chmod(stream.name, path.stat().st_mode)
    os.replace(stream.name, path)


def diff(path: Path, before: str, after: str) -> str:
    """What changed, as `patch` reads it."""
    name = path.as_posix()
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _place(span: Span, starts: Sequence[int], size: int) -> tuple[int, int]:
    def at(line: int, column: int) -> int:
        return min(starts[line - 1] + column - 1, size) if line <= len(starts) else size

    return at(span.line, span.column), at(span.end_line, span.end_column)
