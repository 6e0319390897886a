"""How findings are said: to a person, a line each, as JSON, as annotations of GitHub (and as SARIF, see sarif.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.errors import Diagnostic, Span
from layoutdsl.folders import real
from layoutdsl.lint.rule import rule_of

if TYPE_CHECKING:
    from layoutdsl.lint.run import Outcome

FIX = "--fix mends"


def text(outcome: Outcome) -> str:
    """Each finding with its lines, its help and its page; the last line counts them."""
    return "\n\n".join([*map(_whole, outcome.findings), summary(outcome)])


def concise(outcome: Outcome) -> str:
    """A line for each finding, and one that counts them."""
    lines = (f"{_where(finding)}{finding.code} {finding.name}: {finding.message}" for finding in outcome.findings)
    lines = (_shown(line.replace("\n", " ")) for line in lines)
    return "\n".join([*lines, summary(outcome)])


def summary(outcome: Outcome) -> str:
    """How many findings in how many files, and how many of them `--fix` mends."""
    found, files = outcome.findings, len(outcome.files)
    where = f"{files} file{'s' * (files != 1)}"
    if not found:
        return f"{where}, no findings"
    fixable = sum(finding.fix is not None for finding in found)
    mended = f" ({FIX} {'it' if len(found) == 1 else fixable if fixable < len(found) else 'all'})" if fixable else ""
    return f"{len(found)} finding{'s' * (len(found) != 1)} in {where}{mended}"


def as_json(outcome: Outcome) -> str:
    """One object: the findings, the number of files, and the failures of our own."""
    made = {
        "version": 1,
        "files": len(outcome.files),
        "findings": [_plain(finding) for finding in outcome.findings],
        "faults": [str(fault) for fault in outcome.faults],
    }
    return json.dumps(made, indent=2, ensure_ascii=False)


def github(outcome: Outcome) -> str:
    """Workflow commands, which GitHub shows beside the lines of a pull request; nothing where there are no findings."""
    return "\n".join(_command(finding) for finding in outcome.findings)


def sarif(outcome: Outcome) -> str:
    """A SARIF 2.1.0 log."""
    from layoutdsl.lint.sarif import log

    return json.dumps(log(outcome), indent=2, ensure_ascii=False)


FORMATS: dict[str, Callable[[Outcome], str]] = {
    "text": text, "concise": concise, "json": as_json, "github": github, "sarif": sarif,
}  # fmt: skip


def uri(file: str) -> str:
    """A file as GitHub names it: relative to the repository's checkout (or the current folder), forward slashes."""
    root, path = real(Path(os.environ.get("GITHUB_WORKSPACE") or ".")), real(Path(file))
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def page(finding: Diagnostic) -> str | None:
    """Where the documentation of a finding stands."""
    rule = rule_of(finding.code)
    return rule.page if rule is not None else None


def _whole(finding: Diagnostic) -> str:
    gutter = " " * len(str(finding.span.line)) if finding.span is not None else " "
    see = page(finding)
    return finding.render() + (f"\n{gutter} = see: {see}" if see is not None else "")


def _where(finding: Diagnostic) -> str:
    return f"{finding.span}: " if finding.span is not None else ""


def _plain(finding: Diagnostic) -> dict[str, Any]:
    span, fix = finding.span, finding.fix
    return {
        "code": finding.code,
        "name": finding.name,
        "message": finding.message,
        "help": finding.help,
        "page": page(finding),
        "file": _posix(span.file) if span is not None else None,
        **(_region(span) if span is not None else {}),
        "source": list(finding.source),
        "fix": {**_region(fix.span), "text": fix.text} if fix is not None else None,
    }


def _region(span: Span) -> dict[str, int]:
    """Lines and columns count characters from 1, the end column is exclusive."""
    return {"line": span.line, "column": span.column, "end_line": span.end_line, "end_column": span.end_column}


def _posix(file: str) -> str:
    return Path(file).as_posix()


def _command(finding: Diagnostic) -> str:
    lines = [finding.message, *([f"help: {finding.help}"] if finding.help else []), *_see(finding)]
    properties = [*_position(finding.span), ("title", f"{finding.code} {finding.name}")]
    shown = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in properties)
    return f"::error {shown}::{_escaped(chr(10).join(lines))}"


def _see(finding: Diagnostic) -> Iterator[str]:
    if (see := page(finding)) is not None:
        yield f"see: {see}"


def _position(span: Span | None) -> Iterator[tuple[str, object]]:
    """GitHub takes columns for those of one line, so a finding that spans lines has none."""
    if span is None:
        return
    yield from (("file", uri(span.file)), ("line", span.line), ("endLine", span.end_line))
    if span.line == span.end_line:
        yield from (("col", span.column), ("endColumn", span.end_column))


def _escaped(value: str, also: str = "") -> str:
    for char in f"%\r\n{also}":
        value = value.replace(char, f"%{ord(char):02X}")
    return _shown(value)


def _shown(line: str) -> str:
    """A line as a terminal may be given it: nothing in the name of a file moves the cursor or begins another line."""
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line)
