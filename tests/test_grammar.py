"""The parsers of the strings inside a spec: what they read, what they refuse, and at which characters.

The expected values of expressions are those of Python's own operators, over trees that the tests build.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from layoutdsl.grammar import (
    MAX_DEPTH,
    MAX_LENGTH,
    Expr,
    GrammarError,
    parse_expr,
    parse_names,
    parse_order,
    parse_split,
    parse_template,
    parse_value,
)

PARSERS: dict[str, Callable[[str], Any]] = {
    "split": parse_split, "order": parse_order, "value": parse_value, "expr": parse_expr, "code": parse_template,
    "names": parse_names,
}


def refused(parser: str, text: str) -> tuple[str, str, str | None]:
    """The message, the characters it means (`|` marks a place behind the text), and the help."""
    with pytest.raises(GrammarError) as caught:
        PARSERS[parser](text)
    error = caught.value
    assert 0 <= error.start < error.end <= len(text) + 1
    return error.message, text[error.start : error.end] or "|", error.help


# --- split ------------------------------------------------------------------------------------------------------------


def split(text: str) -> list[tuple[str, list[tuple[str, int | str | None]]]]:
    sizes: dict[str, Any] = {"bits": 4, "group": 32}
    return [(axis.axis, [(digit.name, digit.size.evaluate(sizes) if digit.size else None) for digit in axis.digits])
            for axis in parse_split(text)]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("k = kw kp:8", [("k", [("kw", None), ("kp", 8)])]),
        ("k=kw kp:(32/bits)", [("k", [("kw", None), ("kp", 8)])]),
        ("k = g gi:group", [("k", [("g", None), ("gi", 32)])]),
        ("k = all", [("k", [("all", None)])]),
        ("k = kt a:2 b:4 · n = nt c:8", [("k", [("kt", None), ("a", 2), ("b", 4)]), ("n", [("nt", None), ("c", 8)])]),
        ("k = kw kp:8; n = nw", [("k", [("kw", None), ("kp", 8)]), ("n", [("nw", None)])]),
    ],
)
def test_split(text: str, axes: list[Any]) -> None:
    assert split(text) == axes


def test_split_knows_the_places_of_its_names() -> None:
    text = "k = kw kp:(32/bits) · n = nt c:8"
    for axis in parse_split(text):
        assert text[axis.start : axis.start + len(axis.axis)] == axis.axis
        assert all(text[digit.start : digit.start + len(digit.name)] == digit.name for digit in axis.digits)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("", "expected an axis name, found the end of the split", "|"),
        ("k", "expected `=`, found the end of the split", "|"),
        ("k =", "expected the axis' digits, found the end of the split", "|"),
        ("k = 8", "expected the axis' digits, found `8`", "8"),
        ("k = kw kp", "expected the size of digit `kp`, as in `kp:8`, found the end of the split", "|"),
        ("k = kw kp:", "expected a size, found the end of the split", "|"),
        ("k = kw kp:)", "expected a size, found `)`", ")"),
        ("k = kw:4 kp:8", "the first digit `kw` takes what is left of the axis and states no size", "kw"),
        ("k = kw kp:8 n = nt", "expected the size of digit `n`, as in `n:8`, found `=`", "="),
        ("k = kw, n = nt", "expected the end of the split, found `,`", ","),
        ("k = kw · k = kx", "expected each axis once, found `k`", "k"),
        ("k = a b:2 · n = c b:2", "digit `b` stands twice", "b:2"),
        ("k = a b:(2", "expected `)`, found the end of the split", "|"),
        ("k = a b:2 ·", "expected an axis name, found the end of the split", "|"),
        ("k = a ! b", "unexpected character '!'", "!"),
    ],
)
def test_no_split(text: str, message: str, place: str) -> None:
    assert refused("split", text)[:2] == (message, place)


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("kw, n {kp}", [("kw", "stored", 0), ("n", "stored", 1), ("kp", "packed", 1)]),
        ("g, n (gi)", [("g", "stored", 0), ("n", "stored", 1), ("gi", "shared", 1)]),
        ("(n k)", [("n", "shared", 0), ("k", "shared", 0)]),
        ("n, 1, kb {k0}", [("n", "stored", 0), ("1", "one", 1), ("kb", "stored", 2), ("k0", "packed", 2)]),
        ("1, 1 (n k)", [("1", "one", 0), ("1", "one", 1), ("n", "shared", 1), ("k", "shared", 1)]),
        ("a {b c} (d)", [("a", "stored", 0), ("b", "packed", 0), ("c", "packed", 0), ("d", "shared", 0)]),
        ("{a}", [("a", "packed", 0)]),
    ],
)
def test_order(text: str, items: list[tuple[str, str, int]]) -> None:
    found = parse_order(text)
    assert [(item.name, item.role, item.dim) for item in found] == items
    assert [text[item.start : item.end] for item in found] == [name for name, _, _ in items]


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("", "expected at least one digit, found the end of the order", "|"),
        ("()", "expected at least one digit, found the end of the order", "|"),
        (", n", "expected a stored digit before the comma, found `,`", ","),
        ("n,, k", "expected a stored digit before the comma, found `,`", ","),
        ("(n), k", "expected a stored digit before the comma, found `,`", ","),
        ("n {k", "expected a digit or `}`, found the end of the order", "|"),
        ("n {k)", "expected a digit or `}`, found `)`", ")"),
        ("n ({k})", "expected a digit or `)`, found `{`", "{"),
        ("{a} {b}", "expected one word, the innermost digits, found `{`", "{"),
        ("{a} b", "expected no stored digit after the packed word, found `b`", "b"),
        ("n n", "digit `n` stands twice", "n"),
        ("n (n)", "digit `n` stands twice", "n"),
        ("n 2", "expected a digit, `{`, `(` or `,`, found `2`", "2"),
        ("n }", "expected a digit, `{`, `(` or `,`, found `}`", "}"),
        ("n × k", "unexpected character '×'", "×"),
    ],
)
def test_no_order(text: str, message: str, place: str) -> None:
    assert refused("order", text)[:2] == (message, place)


def test_help_says_what_to_do() -> None:
    assert refused("order", "n n")[2] == "each digit stands exactly once"
    assert refused("split", "k = a b:2 · n = b")[2] == "give each digit its own name"
    assert refused("split", "k = a:2 b:2")[2] == "drop the size, or put a digit without one in front"
    assert refused("value", "a * 2")[2] == "a value is made of products and differences of tensors alone"


# --- value ------------------------------------------------------------------------------------------------------------


def shown(formula: Any) -> Any:
    return formula.args[0] if formula.op == "tensor" else (shown(formula.args[0]), formula.op, shown(formula.args[1]))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("w", "w"),
        ("w * s", ("w", "*", "s")),
        ("(q - z) * s", (("q", "-", "z"), "*", "s")),
        ("q - z * s", ("q", "-", ("z", "*", "s"))),
        ("a - b - c", (("a", "-", "b"), "-", "c")),
        ("a * b * c", (("a", "*", "b"), "*", "c")),
        ("((w))", "w"),
    ],
)
def test_value(text: str, tree: Any) -> None:
    formula = parse_value(text)
    assert shown(formula) == tree
    assert all(text[tensor.start : tensor.end] == tensor.args[0] for tensor in formula.tensors())


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("", "expected a tensor or `(`, found the end of the value", "|"),
        ("w *", "expected a tensor or `(`, found the end of the value", "|"),
        ("w + s", "expected the end of the value, found `+`", "+"),
        ("w * 2", "expected a tensor or `(`, found `2`", "2"),
        ("-w", "expected a tensor or `(`, found `-`", "-"),
        ("w s", "expected the end of the value, found `s`", "s"),
        ("(w", "expected `)`, found the end of the value", "|"),
        ("w)", "expected the end of the value, found `)`", ")"),
        ("w / s", "expected the end of the value, found `/`", "/"),
        ("__import__('os')", "unexpected character \"'\"", "'"),
    ],
)
def test_no_value(text: str, message: str, place: str) -> None:
    assert refused("value", text)[:2] == (message, place)


# --- expressions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("-7", -7), ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("2^3^2", 64), ("-2^2", 4), ("2^(bits-1)", 8),
        ("7 - 2 - 1", 4), ("32/bits", 8), ("17 % 5", 2), ("up(100, 64)", 128), ("up(128, 64)", 128), ("lcm(4, 6)", 12),
        ("min(3, 4) + max(3, 4)", 7), ("1 < 2", 1), ("2 <= 1", 0), ("groups > 1", 1), ("groups >= 2", 1),
        ("not zero_points", 0), ("not (1 > 2)", 1), ("not 1 > 2", 1), ("zero_points and groups > 1", 1),
        ("0 or 0", 0), ("1 or unknown_name", 1), ("0 and unknown_name", 0), ("scale == tensor", 1),
        ("scale != tensor", 0), ("scale == channel", 0), ("tensor == scale", 1), ("bits == 4", 1), ("bits == 8", 0),
        ("scale == tensor or scale == channel", 1), ("up", 3), ("0 ^ 0", 1), ("1 == 1 == 1", 1),
    ],
)
def test_expression(text: str, value: int) -> None:
    scope = {"bits": 4, "groups": 2, "zero_points": True, "scale": "tensor", "up": 3}
    assert parse_expr(text).evaluate(scope) == value


def test_an_expression_knows_its_names() -> None:
    text = "groups > 1 and not up(bits, groups)"
    assert [(name, text[start:end]) for name, start, end in parse_expr(text).names()] == [
        ("groups", "groups"), ("bits", "bits"), ("groups", "groups"),
    ]


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("", "expected a number, a name or `(`, found the end of the expression", "|"),
        ("1 +", "expected a number, a name or `(`, found the end of the expression", "|"),
        ("1 2", "expected the end of the expression, found `2`", "2"),
        ("(1", "expected `)`, found the end of the expression", "|"),
        ("and 1", "expected a number, a name or `(`, found `and`", "and"),
        ("1 and or 2", "expected a number, a name or `(`, found `or`", "or"),
        ("up(1)", "expected 2 arguments of `up`, found `up`", "up"),
        ("lcm(1, 2, 3)", "expected 2 arguments of `lcm`, found `lcm`", "lcm"),
        ("print(1)", "expected the end of the expression, found `(`", "("),
        ("1 = 1", "expected the end of the expression, found `=`", "="),
        ("1.5", "unexpected character '.'", "."),
        ("'a'", "unexpected character \"'\"", "'"),
        ("9" * 19, "expected a number of at most 18 digits, found `" + "9" * 19 + "`", "9" * 19),
    ],
)
def test_no_expression(text: str, message: str, place: str) -> None:
    assert refused("expr", text)[:2] == (message, place)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("bits + nib", "unknown name `nib`", "nib"),
        ("1 / 0", "division by zero", "1 / 0"),
        ("bits % none", "division by zero", "bits % none"),
        ("32 / 3", "32 / 3 leaves a rest", "32 / 3"),
        ("2 ^ 63", "exponent 63 is not within 0 to 62", "2 ^ 63"),
        ("2 ^ -1", "exponent -1 is not within 0 to 62", "2 ^ -1"),
        ("2^62 * 2", "the result needs more than 64 bits", "2^62 * 2"),
        ("kind + 1", "`word` is a word, a number is needed", "kind"),
        ("up(3, 0)", "division by zero", "up(3, 0)"),
    ],
)
def test_what_cannot_be_evaluated(text: str, message: str, place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_expr(text).evaluate({"bits": 4, "none": 0, "kind": "word"})
    assert (caught.value.message, text[caught.value.start : caught.value.end]) == (message, place)


def test_an_unknown_name_comes_with_its_neighbour() -> None:
    with pytest.raises(GrammarError) as caught:
        parse_expr("zero_pionts").evaluate({"zero_points": True, "bits": 4})
    assert caught.value.help == "did you mean `zero_points`?"


# --- templates and lists of names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "filled"),
    [("u4b8", "u4b8"), ("u{bits}", "u4"), ("u{bits}b{2^(bits-1)}", "u4b8"), ("{dtype}", "float16"), ("", "")],
)
def test_template(text: str, filled: str) -> None:
    assert parse_template(text).fill({"bits": 4, "dtype": "float16"}) == filled


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("u{bits", "`{` without `}`", "{"),
        ("u}bits", "`}` without `{`", "}"),
        ("u{bits}}", "`}` without `{`", "}"),
        ("u{}", "expected a number, a name or `(`, found the end of the expression", "}"),
        ("u{bits +}", "expected a number, a name or `(`, found the end of the expression", "}"),
        ("u{a ! b}", "unexpected character '!'", "!"),
    ],
)
def test_no_template(text: str, message: str, place: str) -> None:
    assert refused("code", text)[:2] == (message, place)


def test_names() -> None:
    assert parse_names("q,k, v") == ("q", "k", "v")
    assert refused("names", "q,,v")[:2] == ("expected a name, found `,`", ",")
    assert refused("names", "q k")[:2] == ("expected the end of the list of names, found `k`", "k")
    assert refused("names", "")[0] == "expected a name, found the end of the list of names"
    assert refused("names", "q,q")[0] == "a name stands twice"


# --- any text ---------------------------------------------------------------------------------------------------------

PIECES = [
    "k", "n", "e", "p", "gi", "up", "lcm", "and", "or", "not", "0", "1", "8", "128", "=", "==", "!=", "<", "<=", ">",
    ">=", "+", "-", "*", "/", "%", "^", ":", ",", ";", "·", "(", ")", "{", "}", " ", "\n", "!", "é", "\0", "٣",
]
SOUP = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join))


@settings(deadline=None, max_examples=300)
@given(SOUP)
@example("(" * (MAX_LENGTH - 1))
@example("-" * MAX_LENGTH)
@example("not " * 99)
@example("2^" * 199 + "2")
@example("up(" * 100)
@example("١")
def test_only_grammar_errors_escape(text: str) -> None:
    scope = {"k": 3, "n": -5, "gi": True, "e": "word", "p": 0}
    for parse in PARSERS.values():
        try:
            found = parse(text)
            if isinstance(found, Expr):
                value = found.evaluate(scope)
                assert value == "word" or abs(int(value)) < 1 << 63
        except GrammarError as error:
            assert error.message
            assert 0 <= error.start < error.end <= len(text) + 1


@pytest.mark.parametrize("parser", list(PARSERS))
def test_long_text_is_refused(parser: str) -> None:
    assert refused(parser, "a" * (MAX_LENGTH + 1))[0] == f"longer than {MAX_LENGTH} characters"


@pytest.mark.parametrize("parser", ["expr", "value"])
def test_deep_text_is_refused(parser: str) -> None:
    deep = "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1)
    assert refused(parser, deep)[0].startswith(f"nested deeper than {MAX_DEPTH}")
    PARSERS[parser](deep[1:-1])


# --- arithmetic against Python ----------------------------------------------------------------------------------------

Tree = Any
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
    "^": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
    "lcm": math.lcm, "min": min, "max": max, "up": lambda a, b: -(-a // b) * b,
}
# As documented: or, and, comparisons, sums, products, powers; every level groups to the left.
RANK = {op: rank for rank, ops in enumerate(
    (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"), ("^",))) for op in ops}
NAMES = {"a": 1, "b": 2, "c": -3, "d": 64}

LEAVES = st.one_of(st.integers(0, 40), st.sampled_from(sorted(NAMES)))
TREES = st.recursive(LEAVES, lambda inner: st.one_of(
    st.tuples(st.sampled_from(sorted(OPERATORS)), inner, inner),
    st.tuples(st.sampled_from(["neg", "not"]), inner),
), max_leaves=12)


class Undefined(Exception):
    """The value is refused by the language: a division by zero or with a rest, a power out of range, over 64 bits."""


def worth(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return NAMES[tree]
    op, *args = tree
    if op in ("and", "or"):
        first = bool(worth(args[0]))
        return int(first) if first == (op == "or") else int(bool(worth(args[1])))
    values = [worth(arg) for arg in args]
    if op in ("neg", "not"):
        return -values[0] if op == "neg" else int(not values[0])
    first, second = values
    if op in ("/", "%", "up", "lcm") and second == 0:
        raise Undefined
    if (op == "/" and first % second) or (op == "^" and not 0 <= second <= 62):
        raise Undefined
    result = int(OPERATORS[op](first, second))
    if abs(result) >= 1 << 63:
        raise Undefined
    return result


def written(tree: Tree, rank: int = 0) -> str:
    """The tree as text with no parentheses but those it needs."""
    if not isinstance(tree, tuple):
        return str(tree)
    op, *args = tree
    if op in ("neg", "not"):
        text = f"-{written(args[0], 9)}" if op == "neg" else f"not {written(args[0], 2)}"
        return text if rank == 0 else f"({text})"
    if op not in RANK:
        return f"{op}({written(args[0])}, {written(args[1])})"
    text = f"{written(args[0], RANK[op])} {op} {written(args[1], RANK[op] + 1)}"
    return text if rank <= RANK[op] else f"({text})"


@settings(deadline=None, max_examples=500)
@given(TREES)
def test_arithmetic_agrees_with_python(tree: Tree) -> None:
    text = written(tree)
    assume(len(text) <= MAX_LENGTH)
    try:
        expected: int | None = worth(tree)
    except Undefined:
        expected = None
    try:
        found: int | str | None = parse_expr(text).evaluate(NAMES)
    except GrammarError as error:
        assume("nested deeper" not in error.message)
        found = None
    assert found == expected, text
