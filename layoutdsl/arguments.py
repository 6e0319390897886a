"""The types of what a caller hands to compile_plan, refused in words before anything is computed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from layoutdsl.errors import LayoutError
from layoutdsl.model import Spec
from layoutdsl.recodes import Habits
from layoutdsl.resolve import MAX_EXTENT

MOST_RANKS = 4096
"""More than any one model is spread over."""


def check_arguments(
    names: Mapping[str, Any],
    sizes: Any,
    params: Any,
    padded: Any,
    ranks: Mapping[str, Any],
    habits: Any,
    specs: Any,
) -> None:
    """LayoutError where a type is wrong. names: source, target, module; ranks: tp, rank, ep, ep_rank."""
    for name, value in names.items():
        if not isinstance(value, str | Spec) or (isinstance(value, str) and not 0 < len(value) < 4096):
            _wrong(f"`{name}`", "the name or path of a spec, or a loaded one", value)
    _mapping("sizes", sizes, "axis", "a whole number, or a list of widths", _is_size)
    _mapping(
        "params",
        params,
        "parameter",
        "true or false, a whole number, or text",
        lambda v: isinstance(v, bool | int | str),
    )
    _mapping(
        "padded", padded, "axis", f"a whole number from 1 to {MAX_EXTENT}", lambda v: _whole(v) and 0 < v <= MAX_EXTENT
    )
    for name, value in ranks.items():
        if not _whole(value):
            _wrong(f"`{name}`", "a whole number", value)
    for count in ("tp", "ep"):
        if not 1 <= ranks[count] <= MOST_RANKS:
            _wrong(f"`{count}`", f"a number of ranks from 1 to {MOST_RANKS}", ranks[count])
    if habits is not None and not isinstance(habits, Habits):
        _wrong("`habits`", "a layoutdsl.Habits", habits)
    if (
        isinstance(specs, str)
        or not isinstance(specs, Sequence)
        or not all(isinstance(folder, str) for folder in specs)
    ):
        _wrong("`specs`", "a list of folders", specs)


def as_int(value: Any) -> int | None:
    """What counts, as an int: one of numpy too, or a tensor without dimensions; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def whole(name: str, value: Any) -> int:
    """The same for an argument of that name; LayoutError for anything else."""
    number = as_int(value)
    if number is None:
        _wrong(f"`{name}`", "a whole number", value, f"give an int, such as {name}=1")
    return number


def _mapping(name: str, given: Any, key: str, what: str, fits: Any) -> None:
    if given is None and name != "sizes":
        return
    if not isinstance(given, Mapping):
        _wrong(f"`{name}`", f"a mapping from {key} to value", given)
    for entry, value in given.items():
        if not isinstance(entry, str):
            _wrong(f"a key of `{name}`", f"text, the name of its {key},", entry)
        if not fits(value):
            _wrong(f"`{name}[{entry!r}]`", what, value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return bool(value) and all(map(_whole, value))
    return _whole(value)


def _wrong(
    what: str,
    expected: str,
    found: Any,
    help: str = "give that instead; compile_plan's docstring lists all arguments",
) -> NoReturn:
    shown = repr(found)
    raise LayoutError(
        f"{what} is {shown if len(shown) <= 60 else type(found).__name__}, {expected} is needed",
        code="LP100",
        name="wrong-argument",
        help=help,
    )
