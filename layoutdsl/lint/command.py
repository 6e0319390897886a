"""The command `lint`. Exit status: 0 clean, 1 findings, 2 wrong usage or a failure of our own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.collector import uncollected
from layoutdsl.lint.settings import FORMATS, Choices, Nearest

if TYPE_CHECKING:
    from layoutdsl.lint.run import Outcome
    from layoutdsl.lint.select import Selection

CLEAN, FINDINGS, FAILED = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", type=_path, metavar="PATH", help=(
        "files or folders (default: all shipped specs and your own)"))
    parser.add_argument("--select", action="append", type=_words, metavar="CODES", help=(
        "codes, beginnings of codes or names, apart by commas, whose findings are wanted (default: ALL)"))
    parser.add_argument("--extend-select", action="append", type=_words, default=[], metavar="CODES", help=(
        "also these, beside what pyproject.toml selects"))
    parser.add_argument("--ignore", action="append", type=_words, default=[], metavar="CODES", help=(
        "not these; the longer of two that fit a finding decides"))
    parser.add_argument("--output-format", choices=FORMATS, help="how findings are said (default: text)")
    mending = parser.add_mutually_exclusive_group()
    mending.add_argument("--fix", action="store_true", default=None, help="mend what there is one way to mend")
    mending.add_argument("--no-fix", action="store_false", dest="fix", help="mend nothing")
    mending.add_argument("--diff", action="store_true", help="show what --fix would change, and change nothing")
    parser.add_argument("--no-cache", action="store_false", dest="cache", help=(
        "find everything anew, and keep nothing for the next run"))
    parser.add_argument("--exit-zero", action="store_true", default=None, help="exit status 0 in spite of findings")


def command(args: Any) -> int:
    with uncollected():
        return _command(args)


def _command(args: Any) -> int:
    from layoutdsl.lint import ink, report
    from layoutdsl.lint.run import run

    nearest = Nearest(Choices(
        None if args.select is None else _flat(args.select), _flat(args.extend_select), _flat(args.ignore),
        args.output_format, args.fix, args.exit_zero,
    ))  # fmt: skip
    choices = nearest.at(Path.cwd())
    if args.cache:
        from layoutdsl.lint.kept import examined as examine
    else:
        from layoutdsl.lint.shares import examined as examine
    outcome = run(args.paths, args.specs, nearest.selection, examine)
    if args.diff:
        return _diff(outcome, nearest.selection, args.specs)
    if choices.fix and (count := _fix(outcome, nearest.selection, args.specs)):
        print(f"{count} finding{'s' * (count != 1)} mended", file=sys.stderr)
        outcome = run(args.paths, args.specs, nearest.selection, examine)
    form = choices.output_format or "text"
    if text := report.FORMATS[form](outcome):
        print(ink.inked(text) if form == "text" and ink.is_wanted() else text)
    return _status(outcome, CLEAN if choices.exit_zero or not outcome.findings else FINDINGS)


def _status(outcome: Outcome, status: int) -> int:
    """The exit status, and on stderr what failed of our own."""
    for fault in outcome.faults:
        if os.environ.get("LAYOUTDSL_TRACEBACK"):
            import traceback

            traceback.print_exception(fault.error)
        print(f"this is a fault of layoutdsl: {fault} (LAYOUTDSL_TRACEBACK=1 shows where; please report it)",
              file=sys.stderr)
    return FAILED if outcome.faults else status


def _words(text: str) -> tuple[str, ...]:
    from layoutdsl.lint.select import unknown

    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if (sentence := unknown(word)) is not None:
            raise argparse.ArgumentTypeError(sentence)
    if not words:
        raise argparse.ArgumentTypeError(f"expected codes or names, found `{text}`")
    return words


def _path(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected a file or folder, found nothing; `.` is the current folder")
    return text


def _flat(given: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(word for words in given for word in words)


# --- mending ----------------------------------------------------------------------------------------------------------


def _mended(
    outcome: Outcome, selection: Callable[[Path], Selection], specs: tuple[str, ...]
) -> list[tuple[Path, str, str, int]]:
    """Of each file that has something to mend: its text, its new text, and how many findings are mended."""
    from layoutdsl.lint import fix
    from layoutdsl.lint.run import again, chosen

    fixable = {finding.fix.span.file for finding in outcome.findings if finding.fix is not None}
    found = []
    for path in (path for path in outcome.files if str(path) in fixable):
        before = fix.read(path)
        wanted = selection(path)
        after, count = fix.settled(
            before, str(path), lambda text, path=path, wanted=wanted: chosen(again(outcome, path, specs, text), wanted)
        )
        found.append((path, before, after, count))
    return found


def _fix(outcome: Outcome, selection: Callable[[Path], Selection], specs: tuple[str, ...]) -> int:
    from layoutdsl.lint import fix

    mended = _mended(outcome, selection, specs)
    for path, _, after, _ in mended:
        fix.write(path, after)
    return sum(count for *_, count in mended)


def _diff(outcome: Outcome, selection: Callable[[Path], Selection], specs: tuple[str, ...]) -> int:
    from layoutdsl.lint import fix

    mended = _mended(outcome, selection, specs)
    for path, before, after, _ in mended:
        print(fix.diff(path, before, after), end="")
    return _status(outcome, FINDINGS if mended else CLEAN)
