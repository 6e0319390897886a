"""The command `rule`: the page of a rule, as docs/rules.md has it, or a line on each of them."""

from __future__ import annotations

import argparse
from typing import Any

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.lint.rule import Rule, rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", nargs="?", metavar="RULE", help="a code or a name (default: list all rules)")
    parser.add_argument("--all", action="store_true", help="print every page")


def command(args: Any) -> int:
    if args.all:
        print("\n\n\n".join(map(page, rules())))
    elif args.rule is None:
        width = max(len(rule.name) for rule in rules())
        print(*(f"{rule.code} {rule.name:{width}} {rule.finds}" for rule in rules()), sep="\n")
    else:
        print(page(named(args.rule)))
    return 0


def named(word: str) -> Rule:
    """The rule of that code or name."""
    for rule in rules():
        if word.lower() in (rule.code.lower(), rule.name, *rule.also):
            return rule
    known = [known for rule in rules() for known in (rule.code, rule.name, *rule.also)]
    near = did_you_mean(word, known) or "`layoutdsl rule` lists them"
    raise LayoutError(f"no rule has the code or name `{word}`", code="LP109", name="no-such-rule", help=near)


def page(rule: Rule) -> str:
    """Head and text of a page, in Markdown."""
    also = f", also reported as {', '.join(rule.also)}" if rule.also else ""
    return f"# {rule.code} {rule.name}{also}\n\n{rule.doc}"
