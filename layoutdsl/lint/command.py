"""The command `lint`."""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help=(
        "files or folders (default: all shipped specs and your own)"))


def command(args: Any) -> int:
    from layoutdsl.lint.run import lint, report

    found, files = lint(args.paths, args.specs)
    print(report(found, files))
    return 1 if found else 0
