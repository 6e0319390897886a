"""Colours for a report at a terminal: what is wrong in red, where it stands in blue, the rest as it is."""

from __future__ import annotations

import os
import re
import sys

BOLD, RED, BLUE = "1", "1;31", "34"

_LINES = (
    (re.compile(r"([A-Z]{2}[0-9]{3} [\w-]+)(: .*)"), (RED, BOLD)),
    (re.compile(r"( *-->)( .*)"), (BLUE, "")),
    (re.compile(r"( *\| )( *\^+)"), (BLUE, RED)),
    (re.compile(r"( *[0-9]* \|)(.*)"), (BLUE, "")),
    (re.compile(r"( *= )(\w+)(:.*)"), (BLUE, BOLD, "")),
)
"""A line of a report in pieces, and the colour of each."""


def inked(report: str) -> str:
    """A report of findings as text, with the escape codes of a terminal."""
    return "\n".join(map(_inked, report.split("\n")))


def is_wanted() -> bool:
    """Whether stdout is a terminal that has colours, whose user has not asked for none (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _inked(line: str) -> str:
    for pattern, inks in _LINES:
        if (found := pattern.fullmatch(line)) is not None:
            return "".join(f"\x1b[{ink}m{piece}\x1b[0m" if ink else piece for piece, ink in zip(found.groups(), inks))
    return line
