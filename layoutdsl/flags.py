"""Arguments of the command line of the form NAME=VALUE, as argparse wants them read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable


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


def of_kernels(pairs: Iterable[tuple[str, bool | int | str]]) -> dict[str, bool | int | str]:
    """Parameters of kernels by their own names; `target.group` is `group`, as messages of the planner write it."""
    return {name.removeprefix("target."): value for name, value in pairs}


def param(text: str) -> tuple[str, bool | int | str]:
    """A parameter: true and false, whole numbers, and words."""
    name, value = pair(text)
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if re.fullmatch("-?[0-9]+", value) else value
