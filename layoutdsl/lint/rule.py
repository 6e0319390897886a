"""What a rule is, and all of them: a new file in `lint/rules` is a new rule.

    >>> one = rule_of("LD302")
    >>> one.name, one.page
    ('word-width', 'docs/rules.md#ld302')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.errors import Edit

if TYPE_CHECKING:
    from layoutdsl.lint.subject import Subject
    from layoutdsl.source import Route, Tree

FAMILIES = {
    "LD0": "text and schema",
    "LD1": "axes and digits",
    "LD2": "padding",
    "LD3": "packing",
    "LD4": "shards and groups",
    "LD5": "values",
    "LD9": "style",
    "LP1": "sizes and parameters",
    "LP2": "laws",
}
"""What the codes that begin so are about."""

_FOLDER = Path(__file__).parent / "rules"
_FILE = re.compile(r"([a-z]{2}[0-9]{3})_([a-z0-9_]+)")


@dataclass(frozen=True)
class Found:
    """What a rule says of one place: the value at `path` in the spec, its characters `within`, or its key."""

    message: str
    path: Route
    help: str | None = None
    within: tuple[int, int] | None = None
    key: bool = False
    fix: Edit | None = None


@dataclass(frozen=True)
class Rule:
    """A code, its name, and what its file says and does; the file is imported when it is first asked for."""

    code: str
    name: str
    module: str

    @property
    def page(self) -> str:
        """Where the documentation of the rule stands, in the repository."""
        return f"docs/rules.md#{self.code.lower()}"

    @property
    def also(self) -> tuple[str, ...]:
        """Further names under which the code is reported."""
        return getattr(self._file, "ALSO", ())

    @property
    def explains(self) -> tuple[str, ...]:
        """Codes of what the proofs find for the same cause, which stay silent where this is reported."""
        return getattr(self._file, "EXPLAINS", ())

    @property
    def doc(self) -> str:
        """The page, in Markdown."""
        return cleandoc(self._file.__doc__ or "")

    @property
    def finds(self) -> str:
        """The first line of the page."""
        return self.doc.partition("\n")[0]

    @property
    def check(self) -> Callable[[Subject], Iterator[Found]] | None:
        """What a valid spec is asked, where the rule asks it anything."""
        return getattr(self._file, "check", None)

    @property
    def check_tree(self) -> Callable[[Tree], Iterator[Found]] | None:
        """What any readable text is asked, where the rule asks it anything."""
        return getattr(self._file, "check_tree", None)

    @cached_property
    def _file(self) -> Any:
        return import_module(self.module)


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    return tuple(_rules())


def rule_of(code: str) -> Rule | None:
    """The rule of that code, or None: plans and checkpoints have refusals of their own, which are no rules."""
    return next((rule for rule in rules() if rule.code == code), None)


def _rules() -> Iterator[Rule]:
    for path in sorted(_FOLDER.glob("*.py")):
        if named := _FILE.fullmatch(path.stem):
            code, name = named.groups()
            yield Rule(code.upper(), name.replace("_", "-"), f"layoutdsl.lint.rules.{path.stem}")
