"""The small languages inside a spec's strings, each with its parser: digits, orders, values and expressions.

    split   k = kw kp:(32/bits) · n = nt j:4 b:2 c:8     an axis, most significant digit first; that has the rest
    order   kt, nt c kq j {k0 b k3} (gi)                 stored digits, outermost first; a comma ends a dimension,
                                                         {one word}, (shared: not stored), 1 is a dimension of size one
    value   (qweight - qzeros) * scales                  products and differences of tensors
    expr    groups > 1 and not zero_points               integers, parameters, + - * / % ^, comparisons, and or not
    code    u{bits}b{2^(bits-1)}                         text with expressions in braces

All raise GrammarError with the place inside the string. Nothing here is ever handed to Python's own evaluator.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from layoutdsl.errors import did_you_mean

MAX_LENGTH = 400
"""Longest string that is parsed; the longest shipped one has 60 characters."""

MAX_DEPTH = 24
"""Deepest nesting of parentheses."""


class GrammarError(ValueError):
    """What is wrong with a string, at characters [start, end)."""

    def __init__(self, message: str, start: int, end: int, help: str | None = None):
        super().__init__(message)
        self.message, self.start, self.end, self.help = message, start, end, help


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<int>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op><=|>=|==|!=|[-+*/%^<>=:,{}()·;])"
)


def _tokens(text: str) -> list[Token]:
    if len(text) > MAX_LENGTH:
        raise GrammarError(f"longer than {MAX_LENGTH} characters", 0, len(text))
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise GrammarError(f"unexpected character {text[at]!r}", at, at + 1)
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup or "", match[0], at, match.end()))
        at = match.end()
    return found


class _Reader:
    """A cursor over the tokens of one string."""

    def __init__(self, text: str, what: str):
        self.text, self.what = text, what
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0

    def peek(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else Token("end", "", len(self.text), len(self.text))

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def take(self, *texts: str) -> Token | None:
        token = self.peek()
        if token.kind != "end" and token.text in texts:
            self.at += 1
            return token
        return None

    def expect(self, text: str) -> Token:
        token = self.take(text)
        return token if token else self.fail(f"expected `{text}`")

    def name(self, what: str) -> Token:
        token = self.next()
        return token if token.kind == "name" else self.fail(f"expected {what}", token)

    def fail(self, message: str, token: Token | None = None, help: str | None = None):
        token = token or self.peek()
        found = f"`{token.text}`" if token.text else f"the end of the {self.what}"
        raise GrammarError(f"{message}, found {found}", token.start, max(token.end, token.start + 1), help)

    def done(self) -> None:
        if self.peek().kind != "end":
            self.fail(f"expected the end of the {self.what}")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH}")

    def leave(self) -> None:
        self.depth -= 1


# --- expressions ------------------------------------------------------------------------------------------------------

Value = int | str
Scope = Mapping[str, int | str | bool | tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression tree: `op` is int, name, neg, not, a binary operator, or a call of up, lcm, min, max."""

    op: str
    args: tuple
    start: int
    end: int

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Every name used, with its place."""
        if self.op == "name":
            yield self.args[0], self.start, self.end
        for arg in self.args:
            if isinstance(arg, Expr):
                yield from arg.names()

    def evaluate(self, scope: Scope) -> int | str:
        """Its value; booleans are 0 and 1. Raises GrammarError where a name is unknown or a division is not exact."""
        if self.op == "int":
            return self.args[0]
        if self.op == "name":
            return self._lookup(scope)
        if self.op == "and":
            return int(bool(self.args[0].evaluate(scope)) and bool(self.args[1].evaluate(scope)))
        if self.op == "or":
            return int(bool(self.args[0].evaluate(scope)) or bool(self.args[1].evaluate(scope)))
        if self.op in ("==", "!="):
            first, second = (arg._word(scope) for arg in self.args)
            return int((first == second) == (self.op == "=="))
        values = [arg.evaluate(scope) for arg in self.args]
        for arg, value in zip(self.args, values):
            if isinstance(value, str):
                raise GrammarError(f"`{value}` is a word, a number is needed", arg.start, arg.end)
        return self._arithmetic([int(value) for value in values])

    def _word(self, scope: Scope) -> int | str:
        """A side of a comparison: a name that is no parameter stands for itself, as in `scale == tensor`."""
        return self.args[0] if self.op == "name" and self.args[0] not in scope else self.evaluate(scope)

    def _lookup(self, scope: Scope) -> int | str:
        name = self.args[0]
        if name not in scope:
            raise GrammarError(
                f"unknown name `{name}`",
                self.start,
                self.end,
                did_you_mean(name, scope) or f"known here: {', '.join(sorted(scope)) or 'nothing'}",
            )
        value = scope[name]
        return int(value) if isinstance(value, (bool, int)) else str(value)

    def _arithmetic(self, values: list[int]) -> int:
        first, second = values[0], values[1] if len(values) > 1 else 0
        if self.op in ("/", "%", "up", "lcm") and second == 0:
            raise GrammarError("division by zero", self.start, self.end)
        if self.op == "/" and first % second:
            raise GrammarError(f"{first} / {second} leaves a rest", self.start, self.end)
        if self.op == "^" and not 0 <= second <= 62:
            raise GrammarError(f"exponent {second} is not within 0 to 62", self.start, self.end)
        result = _OPERATIONS[self.op](first, second)
        if abs(result) >= 1 << 63:
            raise GrammarError("the result needs more than 64 bits", self.start, self.end)
        return int(result)


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "^": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "neg": lambda value, _: -value,
    "not": lambda value, _: not value,
    "up": lambda value, multiple: -(-value // multiple) * multiple,
    "lcm": math.lcm,
    "min": min,
    "max": max,
}
_LEVELS = (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"), ("^",))
_CALLS = {"up": 2, "lcm": 2, "min": 2, "max": 2}


def _expr(reader: _Reader, level: int = 0) -> Expr:
    if level == len(_LEVELS):
        return _unary(reader)
    left = _expr(reader, level + 1)
    while token := reader.take(*_LEVELS[level]):
        right = _expr(reader, level + 1)
        left = Expr(token.text, (left, right), left.start, right.end)
    return left


def _unary(reader: _Reader) -> Expr:
    token = reader.next()
    if token.text in ("-", "not"):
        reader.enter()
        inner = _expr(reader, 2) if token.text == "not" else _unary(reader)
        reader.leave()
        return Expr("not" if token.text == "not" else "neg", (inner,), token.start, inner.end)
    if token.text == "(":
        reader.enter()
        inner = _expr(reader)
        close = reader.expect(")")
        reader.leave()
        return replace(inner, start=token.start, end=close.end)
    if token.kind == "int":
        if len(token.text) > 18:
            reader.fail("expected a number of at most 18 digits", token)
        return Expr("int", (int(token.text),), token.start, token.end)
    if token.kind == "name" and token.text not in ("and", "or"):
        if token.text in _CALLS and reader.take("("):
            reader.enter()
            args = [_expr(reader)]
            while reader.take(","):
                args.append(_expr(reader))
            close = reader.expect(")")
            reader.leave()
            if len(args) != _CALLS[token.text]:
                reader.fail(f"expected {_CALLS[token.text]} arguments of `{token.text}`", token)
            return Expr(token.text, tuple(args), token.start, close.end)
        return Expr("name", (token.text,), token.start, token.end)
    reader.fail("expected a number, a name or `(`", token)
    raise AssertionError


def parse_expr(text: str) -> Expr:
    """An integer or boolean expression."""
    reader = _Reader(text, "expression")
    found = _expr(reader)
    reader.done()
    return found


# --- split and order --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitDigit:
    name: str
    size: Expr | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AxisSplit:
    axis: str
    digits: tuple[SplitDigit, ...]
    start: int
    end: int


def parse_split(text: str) -> tuple[AxisSplit, ...]:
    """`k = kw kp:8 · n = nt c:8`; every digit but an axis' first states its size."""
    reader = _Reader(text, "split")
    found: list[AxisSplit] = []
    while True:
        axis = reader.name("an axis name")
        reader.expect("=")
        digits: list[SplitDigit] = []
        while reader.peek().kind == "name":
            digits.append(_split_digit(reader, first=not digits))
        if not digits:
            reader.fail("expected the axis' digits")
        if any(axis.text == other.axis for other in found):
            reader.fail("expected each axis once", axis)
        found.append(AxisSplit(axis.text, tuple(digits), axis.start, digits[-1].end))
        if not reader.take("·", ";"):
            break
    reader.done()
    seen: dict[str, SplitDigit] = {}
    for digit in (digit for split in found for digit in split.digits):
        if digit.name in seen:
            raise GrammarError(
                f"digit `{digit.name}` stands twice", digit.start, digit.end, "give each digit its own name"
            )
        seen[digit.name] = digit
    return tuple(found)


def _split_digit(reader: _Reader, *, first: bool) -> SplitDigit:
    name = reader.next()
    if not reader.take(":"):
        if not first:
            reader.fail(f"expected the size of digit `{name.text}`, as in `{name.text}:8`")
        return SplitDigit(name.text, None, name.start, name.end)
    if first:
        raise GrammarError(
            f"the first digit `{name.text}` takes what is left of the axis and states no size",
            name.start,
            name.end,
            "drop the size, or put a digit without one in front",
        )
    token = reader.peek()
    size = _unary(reader) if token.text == "(" or token.kind in ("int", "name") else reader.fail("expected a size")
    return SplitDigit(name.text, size, name.start, size.end)


@dataclass(frozen=True, slots=True)
class OrderDigit:
    """One item of an order. `role` is stored, packed, shared or one; `dim` counts the commas before it."""

    name: str
    role: str
    dim: int
    start: int
    end: int


_CLOSING = {"{": ("packed", "}"), "(": ("shared", ")")}


def parse_order(text: str) -> tuple[OrderDigit, ...]:
    """`kw, n {kp} (gi)`, outermost first. Packed digits stand last of the stored ones, shared ones anywhere."""
    reader = _Reader(text, "order")
    found: list[OrderDigit] = []
    dim, comma = 0, None
    while (token := reader.peek()).kind != "end":
        if reader.take(","):
            if not any(item.dim == dim and item.role != "shared" for item in found):
                reader.fail("expected a stored digit before the comma", token)
            dim, comma = dim + 1, token
        elif token.text in _CLOSING:
            reader.next()
            role, closing = _CLOSING[token.text]
            if role == "packed" and any(item.role == "packed" for item in found):
                reader.fail("expected one word, the innermost digits", token)
            while not reader.take(closing):
                digit = reader.name(f"a digit or `{closing}`")
                found.append(OrderDigit(digit.text, role, dim, digit.start, digit.end))
        elif token.text == "1":
            reader.next()
            found.append(OrderDigit("1", "one", dim, token.start, token.end))
        else:
            digit = reader.name("a digit, `{`, `(` or `,`")
            if any(item.role == "packed" for item in found):
                reader.fail("expected no stored digit after the packed word", digit)
            found.append(OrderDigit(digit.text, "stored", dim, digit.start, digit.end))
    if not found:
        reader.fail("expected at least one digit")
    if comma is not None and not any(item.dim == dim and item.role != "shared" for item in found):
        raise GrammarError(
            "expected a stored digit after the comma", comma.start, comma.end, "a comma ends a dimension: leave it out"
        )
    seen: set[str] = set()
    for item in found:
        if item.role != "one" and item.name in seen:
            raise GrammarError(
                f"digit `{item.name}` stands twice", item.start, item.end, "each digit stands exactly once"
            )
        seen.add(item.name)
    return tuple(found)


# --- value and code templates -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Formula:
    """A value tree: `op` is tensor, `*` or `-`; a tensor's args are its name."""

    op: str
    args: tuple
    start: int
    end: int

    def tensors(self) -> Iterator[Formula]:
        if self.op == "tensor":
            yield self
        for arg in self.args:
            if isinstance(arg, Formula):
                yield from arg.tensors()

    def factors(self) -> Iterator[Formula]:
        """What is multiplied: tensors and differences."""
        if self.op != "*":
            yield self
            return
        for arg in self.args:
            yield from arg.factors()


def parse_value(text: str) -> Formula:
    """Products and differences of tensors: `(qweight - qzeros) * scales`."""
    reader = _Reader(text, "value")
    found = _difference(reader)
    reader.done()
    return found


def _difference(reader: _Reader) -> Formula:
    left = _product(reader)
    while reader.take("-"):
        right = _product(reader)
        left = Formula("-", (left, right), left.start, right.end)
    return left


def _product(reader: _Reader) -> Formula:
    left = _factor(reader)
    while reader.take("*"):
        right = _factor(reader)
        left = Formula("*", (left, right), left.start, right.end)
    return left


def _factor(reader: _Reader) -> Formula:
    if reader.take("("):
        reader.enter()
        inner = _difference(reader)
        reader.expect(")")
        reader.leave()
        return inner
    token = reader.next()
    if token.kind != "name":
        reader.fail("expected a tensor or `(`", token, "a value is made of products and differences of tensors alone")
    return Formula("tensor", (token.text,), token.start, token.end)


@dataclass(frozen=True, slots=True)
class Template:
    """Text with expressions in braces, as in `u{bits}b{2^(bits-1)}`."""

    pieces: tuple

    def fill(self, scope: Scope) -> str:
        """The text; GrammarError where it becomes too long."""
        filled = "".join(piece if isinstance(piece, str) else str(piece.evaluate(scope)) for piece in self.pieces)
        if len(filled) > MAX_LENGTH:
            raise GrammarError(f"longer than {MAX_LENGTH} characters", 0, 1)
        return filled

    def names(self) -> Iterator[tuple[str, int, int]]:
        for piece in self.pieces:
            if isinstance(piece, Expr):
                yield from piece.names()


def parse_template(text: str) -> Template:
    """A code or dtype name, in which `{expression}` is replaced by its value."""
    if len(text) > MAX_LENGTH:
        raise GrammarError(f"longer than {MAX_LENGTH} characters", 0, len(text))
    pieces: list = []
    at = 0
    while at < len(text):
        opening = text.find("{", at)
        plain = text[at:] if opening < 0 else text[at:opening]
        if "}" in plain:
            spot = at + plain.index("}")
            raise GrammarError("`}` without `{`", spot, spot + 1)
        if plain:
            pieces.append(plain)
        if opening < 0:
            break
        closing = text.find("}", opening)
        if closing < 0:
            raise GrammarError("`{` without `}`", opening, opening + 1)
        try:
            pieces.append(_shifted(parse_expr(text[opening + 1 : closing]), opening + 1))
        except GrammarError as error:
            raise GrammarError(error.message, error.start + opening + 1, error.end + opening + 1, error.help) from None
        at = closing + 1
    return Template(tuple(pieces))


def parse_names(text: str) -> tuple[str, ...]:
    """Names apart by commas: `q,k,v`."""
    reader = _Reader(text, "list of names")
    found = [reader.name("a name").text]
    while reader.take(","):
        found.append(reader.name("a name").text)
    reader.done()
    if len(set(found)) != len(found):
        raise GrammarError("a name stands twice", 0, len(text))
    return tuple(found)


def _shifted(expr: Expr, by: int) -> Expr:
    args = tuple(_shifted(arg, by) if isinstance(arg, Expr) else arg for arg in expr.args)
    return Expr(expr.op, args, expr.start + by, expr.end + by)
