"""Comments that say of a finding that it is meant:

    # layoutdsl: ignore[LD904] the second entry is timed, not proven      on its line, or above it
    # layoutdsl: ignore-file[LD904, name-mismatch] generated              anywhere, for the whole file

A reason is obligatory. A comment that suppresses nothing, gives no reason or names no rule is a finding itself; what is
not needed `--fix` removes. What stands where a comment speaks of no rule is not mended: it may be meant. Findings
that keep a spec from being read are never suppressed: nothing else would be known of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutdsl.errors import Diagnostic, Edit, Span, did_you_mean
from layoutdsl.lint.rule import rules
from layoutdsl.lint.select import Selection, code_named

if TYPE_CHECKING:
    from layoutdsl.source import Tree

UNUSED = ("LD040", "unused-suppression")
UNREASONED = ("LD041", "suppression-without-reason")
UNKNOWN = ("LD042", "unknown-suppression")
OF_COMMENTS = tuple(code for code, _ in (UNUSED, UNREASONED, UNKNOWN))

_FORM = re.compile(r"#\s*layoutdsl\s*:\s*(?:(ignore(?:-file)?)\s*\[([^\]]*)\]\s*(.*))?", re.IGNORECASE)
_USE = "write `# layoutdsl: ignore[CODE] reason`, or `ignore-file[CODE]` for the whole file"


@dataclass(frozen=True)
class Suppression:
    """One comment: where it stands, which line it speaks of (None: the file), its words and its reason."""

    span: Span
    text: str
    line: int | None
    words: tuple[tuple[str, int, int], ...]
    reason: str
    is_alone: bool

    def reaches(self, finding: Diagnostic) -> bool:
        """Whether it speaks of the place of a finding."""
        at = finding.span.line if finding.span is not None and finding.span.file == self.span.file else None
        return self.line in (None, at)


def suppressions(tree: Tree) -> tuple[Suppression, ...]:
    """The comments of a spec that begin with `layoutdsl:`."""
    return tuple(_suppressions(tree)) if any("layoutdsl" in line.lower() for line in tree.lines) else ()


def applied(
    given: Iterable[Suppression], found: Iterable[Diagnostic], selection: Selection
) -> Iterator[Diagnostic]:
    """The findings that no comment suppresses, and what is wrong with the comments themselves.

    Of a rule that is not wanted it cannot be said whether a comment still suppresses anything.
    """
    left = list(found)
    for one in given:
        if not one.words:
            yield _finding(one, UNKNOWN, "this comment is addressed to layoutdsl, and says nothing it knows", _USE)
            left = _unmended(one, left)
            continue
        before = len(left)
        for at, (word, _, _) in enumerate(one.words):
            code = code_named(word)
            if code is None:
                yield _unknown(one, at, left)
                left = _unmended(one, left)
                continue
            kept = [finding for finding in left if finding.code != code or not one.reaches(finding)]
            if len(kept) == len(left) and selection.has(code):
                where = "in this file" if one.line is None else f"in line {one.line}"
                yield replace(_at(one, at, UNUSED, f"there is no finding `{word}` {where}"), help="remove it")
            left = kept
        if len(left) < before and not one.reason:
            said = f"no reason is given for suppressing {', '.join(f'`{word}`' for word, _, _ in one.words)}"
            yield _finding(one, UNREASONED, said, "say behind the bracket why the finding is meant")
    yield from left


def _suppressions(tree: Tree) -> Iterator[Suppression]:
    scalars = _scalars(tree)
    alone = {}
    for number, line in enumerate(tree.lines, 1):
        if (start := _comment(line, number, scalars)) is not None:
            alone[number] = not line[:start].strip()
    for number in alone:
        line = tree.lines[number - 1]
        start = _comment(line, number, scalars) or 0
        form = _FORM.match(line, start)
        if form is None:
            continue
        kind, inside, reason = form.groups()
        below = number
        while below <= len(tree.lines) and (alone.get(below) or not tree.lines[below - 1].strip()):
            below += 1
        offset = form.start(2)
        words = [
            (word[0], word.start() + offset, word.end() + offset) for word in re.finditer(r"[^,\s]+", inside or "")
        ]
        text = line[start:].rstrip()
        span = Span(tree.file, number, start + 1, number, start + 1 + len(text))
        is_file = kind is not None and kind.lower() == "ignore-file"
        yield Suppression(span, line, None if is_file else below, tuple(words), (reason or "").strip(), alone[number])


def _comment(line: str, number: int, scalars: dict[int, list[tuple[int, int]]]) -> int | None:
    """Where the comment of a line begins."""
    for mark in re.finditer(r"(?:^|(?<=\s))#", line):
        if not any(start <= mark.start() < end for start, end in scalars.get(number, ())):
            return mark.start()
    return None


def _scalars(tree: Tree) -> dict[int, list[tuple[int, int]]]:
    """Line -> the stretches of it, from 0, that are text of keys and values."""
    inner = {path[:-1] for path in tree.spans if path}
    found: dict[int, list[tuple[int, int]]] = {}
    leaves = [span for path, span in tree.spans.items() if path not in inner]
    for span in (*leaves, *tree.keys.values()):
        for line in range(span.line, span.end_line + 1):
            start = span.column - 1 if line == span.line else 0
            end = span.end_column - 1 if line == span.end_line else len(tree.lines[line - 1])
            found.setdefault(line, []).append((start, end))
    return found


def _finding(one: Suppression, kind: tuple[str, str], message: str, help: str) -> Diagnostic:
    return Diagnostic(*kind, message, one.span, help, (one.text,))


def _at(one: Suppression, at: int, kind: tuple[str, str], message: str) -> Diagnostic:
    """A finding at one of the words of a comment, whose removal is its fix."""
    _, start, end = one.words[at]
    span = Span(one.span.file, one.span.line, start + 1, one.span.line, end + 1)
    return Diagnostic(*kind, message, span, None, (one.text,), _without(one, at))


def _unknown(one: Suppression, at: int, left: Iterable[Diagnostic]) -> Diagnostic:
    """A word that is no rule. Where it is near to what is found there, or the beginning of its codes, it is corrected;
    it is never removed, since something was meant by it."""
    word, _, _ = one.words[at]
    found = replace(_at(one, at, UNKNOWN, f"`{word}` is no rule"), fix=None)
    here = [finding for finding in left if one.reaches(finding)]
    begun = sorted({finding.code for finding in here if finding.code.startswith(word.upper())})
    near = did_you_mean(word, [name for finding in here for name in (finding.code, finding.name)])
    meant = ", ".join(begun) or (near.split("`")[1] if near is not None else "")
    if meant and found.span is not None:
        return replace(found, help=f"did you mean `{meant}`?", fix=Edit(found.span, meant))
    known = did_you_mean(word, [name for rule in rules() for name in (rule.code, rule.name)])
    return replace(found, help=known or "`layoutdsl rule` lists them")


def _unmended(one: Suppression, found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Findings without the fix of those of which a comment speaks."""
    return [replace(finding, fix=None) if one.reaches(finding) else finding for finding in found]


def _without(one: Suppression, at: int) -> Edit:
    """The comment without one of its words, or the text without the comment, where it has no other."""
    line, span = one.span.line, one.span
    if len(one.words) > 1:
        start, end = (one.words[at - 1][2], one.words[at][2]) if at else (one.words[0][1], one.words[1][1])
        return Edit(Span(span.file, line, start + 1, line, end + 1), "")
    if one.is_alone:
        return Edit(Span(span.file, line, 1, line + 1, 1), "")
    kept = len(one.text[: span.column - 1].rstrip())
    return Edit(Span(span.file, line, kept + 1, line, len(one.text) + 1), "")
