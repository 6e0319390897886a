"""The command `rule`: the page of a rule, as docs/rules.md has it, or a line on each of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.lint.rule import Rule, rule_of, rules
from layoutdsl.lint.select import code_named, family


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", nargs="*", metavar="RULE", help=(
        "a code or a name, whose page is printed, or the beginning of codes, which are listed (default: list all)"))
    parser.add_argument("--all", action="store_true", help="print every page")


def command(args: Any) -> int:
    if args.all:
        print("\n\n\n".join(map(page, rules())))
    else:
        print("\n\n\n".join([_answer(word) for word in args.rules]) or _lines(rules()))
    return 0


def _answer(word: str) -> str:
    begun = family(word)
    return _lines(begun) if begun and begun[0].code != word.upper() else page(named(word))


def _lines(listed: Sequence[Rule]) -> str:
    width = max(len(rule.name) for rule in rules())
    return "\n".join(f"{rule.code} {rule.name:{width}} {rule.finds}" for rule in listed)


def named(word: str) -> Rule:
    """The rule of that code or name."""
    if (found := rule_of(code_named(word) or "")) is not None:
        return found
    known = [known for rule in rules() for known in (rule.code, rule.name, *rule.also)]
    near = did_you_mean(word, known) or "`layoutdsl rule` lists them"
    raise LayoutError(f"no rule has the code or name `{word}`", code="LP109", name="no-such-rule", help=near)


def page(rule: Rule) -> str:
    """Head and text of a page, in Markdown."""
    also = f", also reported as {', '.join(rule.also)}" if rule.also else ""
    return f"# {rule.code} {rule.name}{also}\n\n{rule.doc}"
