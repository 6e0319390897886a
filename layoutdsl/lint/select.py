"""Which findings are wanted: codes, beginnings of codes and names, of which the longest that fits a finding decides.

Case does not count.

    >>> wanted = Selection.of(select=["LD1", "LD3"], ignore=["LD303"])
    >>> wanted.has("LD302"), wanted.has("LD303"), wanted.has("LD904")
    (True, False, False)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from layoutdsl.errors import did_you_mean
from layoutdsl.lint.rule import Rule, rules

ALL = "ALL"


@dataclass(frozen=True)
class Selection:
    """Beginnings of codes that are wanted, and those that are not; of two as long, what is ignored wins."""

    select: tuple[str, ...] = ("",)
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, select: Iterable[str] = (ALL,), extend_select: Iterable[str] = (), ignore: Iterable[str] = ()
    ) -> Selection:
        """The selection that these words make; each of them is `known`."""
        return cls(tuple(map(_prefix, (*select, *extend_select))), tuple(map(_prefix, ignore)))

    def has(self, code: str) -> bool:
        return self._reach(code, self.select) > self._reach(code, self.ignore)

    @staticmethod
    def _reach(code: str, prefixes: tuple[str, ...]) -> int:
        return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=-1)


EVERY = Selection()


def unknown(word: str) -> str | None:
    """What is wrong with a word that selects, in one sentence, or None: a code, the beginning of one, a name or ALL."""
    if word.upper() == ALL or family(word) or code_named(word) is not None:
        return None
    known = [known for rule in rules() for known in (rule.code, rule.name, *rule.also)]
    near = did_you_mean(word, known) or "`layoutdsl rule` lists them"
    return f"no rule has the code or name `{word}`: {near}"


def code_named(word: str) -> str | None:
    """The code of the rule with that code or name."""
    code, name = word.upper(), word.lower()
    return next((rule.code for rule in rules() if code == rule.code or name == rule.name), None) or next(
        (rule.code for rule in rules() if name in rule.also), None
    )


def family(word: str) -> tuple[Rule, ...]:
    """The rules whose codes begin with the word."""
    begins = re.fullmatch("[A-Z]{1,2}[0-9]*", word.upper())
    return tuple(rule for rule in rules() if begins and rule.code.startswith(begins[0]))


def _prefix(word: str) -> str:
    if word.upper() == ALL:
        return ""
    return word.upper() if family(word) else code_named(word) or word
