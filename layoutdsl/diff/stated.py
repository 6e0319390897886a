"""What two specs state differently beside where elements stand: parameters, tiles, parts, value, conditions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from layoutdsl.diff.facts import Fact
from layoutdsl.diff.versions import Version
from layoutdsl.library import kind_of

IDLE = ("version", "doc", "source", "try", "base", "tensors", "checkpoint", "kernel", "module")
"""Keys that change nothing, or of which is told elsewhere."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(r"\w+|[^\w\s]+")

_SAID = {
    "detect": "other entries of a config.json name the format",
    "value": "a weight is worth something else",
}


def stated(before: Version, after: Version, names: Mapping[str, str]) -> Iterator[Fact]:
    """Each difference, with both sides as text. `names`: key of a tensor after -> its key before."""
    if (one := kind_of(before.spec)) != (other := kind_of(after.spec)):
        yield Fact("kind", one, other, "the spec is of another kind")
    was, now = before.data, after.data
    for key in dict.fromkeys((*was, *now)):
        if key.startswith("x-") or key in IDLE or was.get(key) == now.get(key):
            continue
        mine, theirs = was.get(key), now.get(key)
        if key in _INSIDE:
            yield from _inside(key, mine or {}, theirs or {})
        elif key != "value" or _words(mine) != _NAME.sub(lambda name: names.get(name[0], name[0]), _words(theirs)):
            yield Fact(key, _text(mine), _text(theirs), _SAID.get(key, f"`{key}` is another"))
    for name, tensor in now.get("tensors", {}).items():
        if (old := names.get(name)) is not None:
            yield from _conditions(old, was["tensors"][old], tensor)


Taken = tuple[str, int | None]
"""A case that a setting takes: the key of its tensor, its place among the cases; None where none of these holds."""


def untried(
    before: Version, after: Version, names: Mapping[str, str], taken: tuple[Container[Taken], Container[Taken]]
) -> Iterator[Fact]:
    """Cases that one version alone has and that no setting takes: what they change nobody has seen."""
    for name, old in names.items():
        one, other = (side.data["tensors"][key].get("cases", []) for side, key in ((before, old), (after, name)))
        said = f"a case of `{old}` was not compared: no setting takes it"
        gone = [case for at, case in enumerate(one) if case not in other and (old, at) not in taken[0]]
        new = [case for at, case in enumerate(other) if case not in one and (name, at) not in taken[1]]
        yield from (Fact("untried", _text(case), "nothing", said) for case in gone)
        yield from (Fact("untried", "nothing", _text(case), said) for case in new)


_INSIDE = {"params": "parameter", "accepts": "`accepts`:", "parts": "`parts`:", "matrices": "matrix", "axes": "axis"}
"""Keys of which each entry is told of by itself, and what such an entry is called."""


def _inside(key: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Fact]:
    for name in dict.fromkeys((*was, *now)):
        one, other = (_undocumented(side.get(name)) for side in (was, now))
        if one != other:
            how = "is new" if one is None else "is gone" if other is None else "is another"
            yield Fact(key, _text(one), _text(other), f"{_INSIDE[key]} `{name}` {how}")


def _conditions(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Fact]:
    one, other = (_words(side.get("when", "always")) for side in (was, now))
    if one != other:
        yield Fact("when", one, other, f"the tensor `{name}` is there under another condition")
    one, other = ([_words(case["when"]) for case in side.get("cases", [])] for side in (was, now))
    if one != other:
        yield Fact("when", _text(one), _text(other), f"the cases of `{name}` hold under other conditions")


def texts(before: Version, after: Version) -> Iterator[str]:
    """The keys whose text differs, those of tensors by the names of these; what changes nothing is among them."""
    was, now = before.data, after.data
    for key in dict.fromkeys((*was, *now)):
        if key == "tensors":
            one, other = was[key], now[key]
            yield from (f"tensors.{name}" for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name))
        elif was.get(key) != now.get(key):
            yield key


def _words(text: Any) -> str:
    """A text that an expression is parsed from, blanks alike."""
    return " ".join(_TOKEN.findall(str(text)))


def _undocumented(value: Any) -> Any:
    return {key: one for key, one in value.items() if key != "doc"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    """Plain data as a spec writes it, on one line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(value)
