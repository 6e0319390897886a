"""Small changes of what stands in a spec's strings. Each function yields other strings for one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(r"<=|>=|==|!=|\w+|\S")


def orders(text: str) -> Iterator[str]:
    """Two digits swapped, one moved, the word turned around or undone, digits shared or apart, commas elsewhere."""
    tokens = _TOKEN.findall(text)
    places = [at for at, token in enumerate(tokens) if token[0].isalpha()]
    names = [tokens[at] for at in places]
    for a, b in itertools.combinations(range(len(names)), 2):
        yield _order(tokens, places, [*names[:a], names[b], *names[a + 1 : b], names[a], *names[b + 1 :]])
        yield _order(tokens, places, [*names[:a], *names[a + 1 : b + 1], names[a], *names[b + 1 :]])
        yield _order(tokens, places, [*names[:a], names[b], *names[a:b], *names[b + 1 :]])
    for opening, closing in ("{}", "()"):
        if opening in tokens:
            first, last = tokens.index(opening), tokens.index(closing)
            inside = tokens[first + 1 : last]
            yield _joined([*tokens[: first + 1], *reversed(inside), *tokens[last:]])
            yield _joined([*tokens[:first], *inside, *tokens[last + 1 :]])
    for at, token in enumerate(tokens):
        if token == ",":
            yield _joined([*tokens[:at], *tokens[at + 1 :]])
        if token == "1" or token == "p":
            yield _joined([token for token in (*tokens[:at], *tokens[at + 1 :]) if token != ","])
        if token[0].isalpha() and "(" not in tokens[:at] and "{" not in tokens[:at]:
            yield _joined([*tokens[:at], "(", token, ")", *tokens[at + 1 :]])
            yield _joined([*tokens[:at], "{", token, "}", *tokens[at + 1 :]])
            if at and tokens[at - 1] != ",":
                yield _joined([*tokens[:at], ",", *tokens[at:]])
    if "p" not in names:
        yield f"p {text}"
        yield f"p, {text}"
    if "e" not in names:
        yield f"{text} (e)"


def _order(tokens: Sequence[str], places: Sequence[int], names: Sequence[str]) -> str:
    made = list(tokens)
    for at, name in zip(places, names):
        made[at] = name
    return _joined(made)


def _joined(tokens: Sequence[str]) -> str:
    text = " ".join(tokens)
    for wide, narrow in ((" ,", ","), ("{ ", "{"), (" }", "}"), ("( ", "("), (" )", ")")):
        text = text.replace(wide, narrow)
    return text


def splits(text: str) -> Iterator[str]:
    """Another size of a digit, two digits of an axis swapped, one left out, another axis."""
    axes = [axis.strip() for axis in text.split("·")]
    for at, axis in enumerate(axes):
        for other in _axis(axis):
            yield " · ".join([*axes[:at], other, *axes[at + 1 :]])
        if len(axes) > 1:
            yield " · ".join([*axes[:at], *axes[at + 1 :]])
    if len(axes) == 2:
        yield " · ".join(f"{other[0]}{axis[1:]}" for axis, other in zip(axes, reversed(axes)))


def _axis(axis: str) -> Iterator[str]:
    name, _, rest = axis.partition(" = ")
    digits = rest.split(" ")
    assert all(digits), axis
    for at, digit in enumerate(digits):
        letter, _, size = digit.partition(":")
        for other in _sizes(size):
            yield f"{name} = {' '.join([*digits[:at], f'{letter}:{other}', *digits[at + 1 :]])}"
    letters, sizes = [digit.partition(":")[0] for digit in digits], [digit.partition(":")[2] for digit in digits]
    for a, b in itertools.combinations(range(len(digits)), 2):
        swapped = [*letters]
        swapped[a], swapped[b] = letters[b], letters[a]
        yield f"{name} = {' '.join(f'{letter}:{size}' if size else letter for letter, size in zip(swapped, sizes))}"
    for at in range(1, len(digits)):
        yield f"{name} = {' '.join([*digits[:at], *digits[at + 1 :]])}"


def _sizes(size: str) -> Iterator[str]:
    if size.isdecimal():
        yield str(2 * int(size))
        if int(size) > 1:
            yield str(int(size) // 2)
    elif size:
        yield from (f"({other})" for other in numbers(size[1:-1]))


SWAPPED = {
    "and": ("or",), "or": ("and",), "==": ("!=",), "!=": ("==",), ">": (">=", "<"), "<": ("<=", ">"), ">=": (">",),
    "<=": ("<",), "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "^": ("*",),
}  # fmt: skip


def conditions(text: str) -> Iterator[str]:
    """Turned around, always, never, another operator, another number, one half of it."""
    yield f"not ({text})"
    yield "1"
    yield "0"
    yield from _pieces(text)
    for word in (" and ", " or "):
        if word in text:
            yield from text.split(word)


def numbers(text: str) -> Iterator[str]:
    """One more, one less, twice, half, another operator or number in it."""
    if not text.lstrip("-").isdecimal():
        yield f"({text}) + 1"
        yield f"({text}) - 1"
        yield f"2 * ({text})"
    yield from _pieces(text)


def _pieces(text: str) -> Iterator[str]:
    for match in re.finditer(r"<=|>=|==|!=|[-+*/^<>]|\w+", text):
        token = match[0]
        others = list(SWAPPED.get(token, ()))
        if token.isdecimal():
            others = [str(int(token) + 1), str(2 * int(token)), *([str(int(token) - 1)] if int(token) else [])]
        for other in others:
            yield f"{text[: match.start()]}{other}{text[match.end() :]}"


NEIGHBOURS = {
    "u4": ("u4b8", "n4", "e2m1"), "u4b8": ("u4", "u4b7", "u4b9", "n4b8"), "n4": ("n4b8", "u4"),
    "n4b8": ("n4", "u4b8"), "u8": ("u8b128", "e4m3"), "u8b128": ("u8", "u8b127", "u8b129", "e4m3"),
    "e2m1": ("u4b8", "u4"), "e4m3": ("u8b128", "e8m0", "s0e5m3"), "e8m0": ("e8m0z", "e4m3"),
    "e8m0z": ("e8m0", "e4m3"), "s0e5m3": ("s0e5m3b", "e4m3", "e8m0"), "s0e5m3b": ("s0e5m3", "e4m3"),
    "int16": ("float16", "bfloat16"),
    "float16": ("bfloat16", "float32"), "bfloat16": ("float16", "float32"), "float32": ("float16", "int32"),
    "int32": ("uint32", "int64", "uint8"), "int64": ("int32", "float32"),
    "uint8": ("int8", "float8_e4m3fn", "float8_e8m0fnu"), "float8_e4m3fn": ("uint8", "float8_e8m0fnu"),
    "float8_e8m0fnu": ("uint8", "float8_e4m3fn"),
    "{dtype}": ("float16", "bfloat16", "float32"), "{scale_dtype}": ("float32", "{dtype}"),
    "{input_dtype}": ("float32", "{dtype}"), "u{bits}": ("u{bits}b{2^(bits-1)}",),
}  # fmt: skip
"""Codes and dtypes that one could be taken for."""


def codes(text: str) -> Iterator[str]:
    """Another code or dtype; another bias, also where an expression gives it."""
    yield from NEIGHBOURS.get(text, ())
    for match in re.finditer(r"\{([^{}]*[^\w{}][^{}]*)\}", text):
        yield from (f"{text[: match.start()]}{{{other}}}{text[match.end() :]}" for other in _pieces(match[1]))
        yield text[: match.start()].rstrip("b")


def values(text: str) -> Iterator[str]:
    """A factor or a zero point left out, said twice, in another place, or worked with otherwise."""
    tokens = _TOKEN.findall(text)
    names = [at for at, token in enumerate(tokens) if token[0].isalpha()]
    for a, b in itertools.combinations(names, 2):
        swapped = [*tokens]
        swapped[a], swapped[b] = tokens[b], tokens[a]
        yield _joined(swapped)
    for at in names:
        if at and tokens[at - 1] in "*-":
            yield _joined([*tokens[: at - 1], *tokens[at + 1 :]])
        yield _joined([*tokens[: at + 1], "*", tokens[at], *tokens[at + 1 :]])
    for at, token in enumerate(tokens):
        if token in "*-":
            yield _joined([*tokens[:at], "-" if token == "*" else "*", *tokens[at + 1 :]])
    if "(" in tokens:
        yield _joined([token for token in tokens if token not in "()"])
