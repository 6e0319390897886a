"""Reports as text, and the exception that carries them."""

import copy
import pickle

import pytest

from layoutdsl.errors import Diagnostic, LayoutError, Span, did_you_mean


def at(line: int, column: int, end_column: int, *, end_line: int | None = None) -> Span:
    return Span("specs/x.yaml", line, column, end_line if end_line is not None else line, end_column)


def test_a_report_shows_the_place() -> None:
    diagnostic = Diagnostic(
        "LD003", "duplicate-key", "`tensors` stands twice in this mapping", at(12, 1, 8),
        help="merge the two into one", source=("tensors:",),
    )
    assert diagnostic.render() == (
        "LD003 duplicate-key: `tensors` stands twice in this mapping\n"
        "  --> specs/x.yaml:12:1\n"
        "   |\n"
        "12 | tensors:\n"
        "   | ^^^^^^^\n"
        "   = help: merge the two into one"
    )


def test_a_report_without_source_shows_the_position_only() -> None:
    assert Diagnostic("LD001", "syntax", "m", at(3, 4, 5), help="h").render() == (
        "LD001 syntax: m\n --> specs/x.yaml:3:4\n  = help: h"
    )


def test_a_report_without_a_place_is_one_line() -> None:
    assert Diagnostic("LP000", "refused", "no such axis").render() == "LP000 refused: no such axis"
    assert Diagnostic("LP000", "refused", "no", help="yes").render() == "LP000 refused: no\n  = help: yes"


@pytest.mark.parametrize(
    ("source", "span", "shown"),
    [
        (("a: b",), at(1, 5, 5), ["1 | a: b", "  |     ^"]),  # nothing, at the end
        (("a: b",), at(1, 9, 12), ["1 | a: b", "  |     ^"]),  # beyond the end
        (("",), at(1, 1, 1), ["1 |", "  | ^"]),
        (("a: {", "  b: 1}"), at(1, 4, 8, end_line=2), ["1 | a: {", "  |    ^"]),  # the first line of several
        (("\ta\tb",), at(1, 4, 5), ["1 | \ta\tb", "  | \t \t^"]),  # tabs keep their width, whatever it is
        (("a\x1b[31m\ud800\xa0b",), at(1, 9, 10), ["1 | a\ufffd[31m\ufffd b", "  |         ^"]),
    ],
)
def test_carets_stand_below_what_they_mean(source: tuple[str, ...], span: Span, shown: list[str]) -> None:
    assert Diagnostic("C", "n", "m", span, source=source).render().splitlines()[3:] == shown


@pytest.mark.parametrize("column", [1, 30, 200, 500, 951, 1000])
def test_long_lines_are_cut_around_the_place(column: int) -> None:
    line = "".join(chr(ord("a") + index % 26) for index in range(1000))
    text, carets = Diagnostic("C", "n", "m", at(1, column, column + 3), source=(line,)).render().splitlines()[3:]
    start = carets.index("^")
    assert len(text) < 130
    assert text[start : carets.rindex("^") + 1] == line[column - 1 : column + 2]


def test_a_single_error() -> None:
    error = LayoutError("axis `k` has 100 codes", help="pad it")
    assert (error.message, error.help) == ("axis `k` has 100 codes", "pad it")
    assert error.diagnostics == (Diagnostic("LP000", "refused", "axis `k` has 100 codes", None, "pad it"),)
    assert str(error) == "LP000 refused: axis `k` has 100 codes\n  = help: pad it"


def test_many_findings_are_one_error() -> None:
    first = Diagnostic("LD001", "syntax", "one", at(1, 1, 2), "do", ("a",))
    second = Diagnostic("LD003", "duplicate-key", "two")
    error = LayoutError.of([first, second])
    assert error.diagnostics == (first, second)
    assert (error.message, error.help) == ("one", "do")
    assert str(error) == first.render() + "\n\n" + second.render()


class Refused(LayoutError):
    """Errors of a kind stay of that kind."""


@pytest.mark.parametrize("kind", [LayoutError, Refused])
def test_an_error_survives_a_process_border(kind: type[LayoutError]) -> None:
    error = kind.of([Diagnostic("LD001", "syntax", "one", at(1, 1, 2), "do", ("a",)), Diagnostic("X", "y", "two")])
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is kind
        assert back.diagnostics == error.diagnostics
        assert str(back) == str(error)


@pytest.mark.parametrize(
    ("word", "known", "answer"),
    [
        ("grop", ["order", "group"], "did you mean `group`?"),
        ("Split", ["split"], "did you mean `split`?"),
        ("group", ["group"], None),
        ("zebra", ["group"], None),
        ("x" * 10_000, ["x" * 9_999], None),
        ("", [], None),
    ],
)
def test_did_you_mean(word: str, known: list[str], answer: str | None) -> None:
    assert did_you_mean(word, known) == answer
