"""Findings, where they stand, and the one exception that carries them.

    >>> span = Span(file="x.yaml", line=12, column=1, end_line=12, end_column=8)
    >>> print(Diagnostic("LD003", "duplicate-key", "`tensors` stands twice in this mapping", span,
    ...                  help="merge the two into one", source=("tensors:",)).render())
    LD003 duplicate-key: `tensors` stands twice in this mapping
      --> x.yaml:12:1
       |
    12 | tensors:
       | ^^^^^^^
       = help: merge the two into one

Refuses nothing: it only reports. A diagnostic carries its own source lines, so rendering needs no file.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

_WIDTH = 120
_LONGEST_WORD = 64
_LONGEST_MESSAGE = 10_000
_MOST_KNOWN = 2_000


@dataclass(frozen=True)
class Span:
    """A stretch of a text: lines and columns count characters from 1, the end column is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Edit:
    """What stands at `span` becomes `text`."""

    span: Span
    text: str


@dataclass(frozen=True)
class Place:
    """Where a spec states what is wrong, said without its text: the path of a value, and its characters."""

    path: tuple[str | int, ...]
    within: tuple[int, int] | None = None


@dataclass(frozen=True)
class Diagnostic:
    """One finding: a stable code, its readable name, one sentence, and where the cause stands.

    `source` holds the lines that `span` covers; `fix` is the one edit that mends it, where there is no choice.
    `place` is where a spec states the cause, until `span` says so.
    """

    code: str
    name: str
    message: str
    span: Span | None = None
    help: str | None = None
    source: tuple[str, ...] = ()
    fix: Edit | None = None
    place: Place | None = None

    def render(self) -> str:
        """Return the report as text, without a final newline."""
        head = f"{self.code} {self.name}: {_clean(self.message)}"
        gutter = " " * len(str(self.span.line)) if self.span is not None else " "
        lines = [head]
        if self.span is not None:
            lines.append(f"{gutter}--> {_clean(str(self.span))}")
        if self.span is not None and self.source:
            text, carets = _underline(self.source[0], self.span)
            lines += [f"{gutter} |", f"{self.span.line} | {text}".rstrip(), f"{gutter} | {carets}"]
        if self.help is not None:
            lines.append(f"{gutter} = help: {_clean(self.help)}")
        return "\n".join(lines)


class LayoutError(Exception):
    """Everything that one stage found wrong with what the user gave.

    `message` and `help` are those of the first finding; `str` renders all of them.
    """

    diagnostics: tuple[Diagnostic, ...]

    def __init__(
        self,
        message: str,
        *,
        code: str = "LP000",
        name: str = "refused",
        help: str | None = None,
        span: Span | None = None,
        place: Place | None = None,
    ) -> None:
        # The message is kept by then: BaseException.__new__ does it. A call of super().__init__ would say it again, and
        # keep torch.compile from tracing to the message.
        self.diagnostics = (Diagnostic(code, name, message, span, help, place=place),)

    @classmethod
    def of(cls, diagnostics: Iterable[Diagnostic]) -> "LayoutError":
        """Return one error that carries all `diagnostics`, in their order. Requires at least one."""
        found = tuple(diagnostics)
        assert found, "an error needs at least one diagnostic"
        error = cls(found[0].message)
        error.diagnostics = found
        return error

    @property
    def message(self) -> str:
        return self.diagnostics[0].message

    @property
    def help(self) -> str | None:
        return self.diagnostics[0].help

    def __str__(self) -> str:
        return "\n\n".join(diagnostic.render() for diagnostic in self.diagnostics)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would rebuild from the message alone and lose the diagnostics.
        return type(self).of, (self.diagnostics,)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a question that names the known word nearest to `word`, or None where none is near."""
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return None
    folded = {name.lower(): name for name in islice(known, _MOST_KNOWN) if name != word}
    near = difflib.get_close_matches(word.lower(), folded, n=1)
    return f"did you mean `{folded[near[0]]}`?" if near else None


def _underline(line: str, span: Span) -> tuple[str, str]:
    """Return the line as it can be printed, and the carets below it."""
    start = min(span.column - 1, len(line))
    end = min(span.end_column - 1, len(line)) if span.end_line == span.line else len(line)
    left = max(0, min(start - _WIDTH // 3, len(line) - _WIDTH))
    shown = "".join(map(_printable, line[left : left + _WIDTH])) + ("…" if left + _WIDTH < len(line) else "")
    if left > 0:
        shown, left = "…" + shown, left - 1
    start, end = start - left, min(end - left, len(shown))
    # Tabs stay tabs, so that the carets stand below the text whatever a tab's width.
    padding = "".join("\t" if char == "\t" else " " for char in shown[:start])
    return shown, padding + "^" * max(1, end - start)


def _clean(text: str) -> str:
    """Text as a terminal may be given it: what a stranger wrote neither moves the cursor nor fills the screen."""
    short = text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"
    return short if short.isprintable() else "".join(char if char == "\n" else _printable(char) for char in short)


def _printable(char: str) -> str:
    if char.isprintable() or char == "\t":
        return char
    return " " if char.isspace() else "\ufffd"
