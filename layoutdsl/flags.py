"""Arguments of the command line of the form NAME=VALUE, as argparse wants them read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE in two."""
    name, equals, value = (word.strip() for word in text.partition("="))
    if not (equals and name and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found `{text}`")
    return name, value


def size(text: str) -> tuple[str, int | tuple[int, ...]]:
    """AXIS=N, or AXIS=N,N,... where parts have their own widths."""
    axis, value = pair(text)
    if not re.fullmatch("[0-9]+(,[0-9]+)*", value):
        raise argparse.ArgumentTypeError(f"expected AXIS=N or AXIS=N,N,..., found `{text}`")
    widths = tuple(map(int, value.split(",")))
    return axis, widths if len(widths) > 1 else widths[0]


def numbers(text: str) -> tuple[int, ...]:
    """N,N,... itself, or a file that holds it; brackets, blanks and line breaks do not count."""
    if not re.fullmatch("[0-9]+(,[0-9]+)*", text):
        try:
            text = re.sub(r"\s*(,|\s)\s*", ",", Path(text).read_text(encoding="utf-8").strip().strip("[]").strip())
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"`{text}` is neither N,N,... nor a file that can be read") from error
        if not re.fullmatch("[0-9]+(,[0-9]+)*", text):
            raise argparse.ArgumentTypeError(f"expected one list such as 0,1,2,3,0, the file holds `{text[:40]}`")
    return tuple(map(int, text.split(",")))


def rank(text: str) -> int | str:
    """A rank's number, or `env`: what the environment says."""
    if text != "env" and not re.fullmatch("-?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"expected a number or env, found `{text}`")
    return text if text == "env" else int(text)


def of_kernels(pairs: Iterable[tuple[str, bool | int | str]]) -> dict[str, bool | int | str]:
    """Parameters of kernels by their own names; `target.group` is `group`, as messages of the planner write it."""
    return {name.removeprefix("target."): value for name, value in pairs}


def param(text: str) -> tuple[str, bool | int | str]:
    """A parameter: true and false, whole numbers, and words."""
    name, value = pair(text)
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if re.fullmatch("-?[0-9]+", value) else value
