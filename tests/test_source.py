"""The strict YAML reader: what it reads, what it refuses, and where it says so.

Each file in tests/errors is a bad spec that begins with the exact report it earns, as comments. A first line
`# model: <name>` names one of `MODELS` to validate against (`spec`: the real ones, by the whole of `lint`); without it
the file is only read. After a change of wording, `python tests/test_source.py` writes the reports anew: review them as
a diff.
"""

import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from layoutdsl.errors import LayoutError, Span
from layoutdsl.lint.run import lint
from layoutdsl.model import Spec
from layoutdsl.source import CODES, MAX_BYTES, Tree, read, read_file, validate

ERRORS = Path(__file__).parent / "errors"


class Base(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def parse(value: Any) -> str:
    if not isinstance(value, str):
        raise PydanticCustomError("grammar", "{text}", {"text": "expected a split, such as `k = kw kp:8`"})
    at = value.find("!")
    if at >= 0:
        raise PydanticCustomError(
            "grammar", "{text}", {"text": "unexpected `!`", "start": at, "end": at + 1, "help": "use `·` between axes"}
        )
    return value


Split = Annotated[str, BeforeValidator(parse)]


class PadTo(Base):
    kind: Literal["to"]
    to: Annotated[int, Field(gt=0, multiple_of=8)]


class PadBy(Base):
    kind: Literal["by"]
    by: int
    value: int | Literal["zero"] | list[int] = 0


class Tile(Base):
    n: int
    k: list[int]


class Tensor(Base):
    order: Split | tuple[Split, ...]
    bits: int = 4
    signed: bool = False
    role: Literal["codes", "scale", "zero_point"] = "codes"
    pads: list[Annotated[PadTo | PadBy, Field(discriminator="kind")]] = []
    tile: Tile | Literal["none"] = "none"
    source: str = Field("here", alias="from", min_length=2, pattern="^[a-z]+$")


class Toy(Base):
    version: Literal["1"]
    tensors: dict[str, Tensor] = Field(min_length=1)
    ranks: dict[Literal["tp", "ep"], str] = {}
    tiles: tuple[int, ...] = Field((), max_length=2)

    @model_validator(mode="after")
    def _has_codes(self) -> "Toy":
        if all(tensor.role != "codes" for tensor in self.tensors.values()):
            raise ValueError("no tensor holds codes")
        return self


MODELS: dict[str, type[BaseModel]] = {"toy": Toy, "spec": Spec}


# --- bad specs -------------------------------------------------------------------------------------------------------


def split_fixture(path: Path) -> tuple[type[BaseModel] | None, str]:
    lines = path.read_text(encoding="utf-8").split("\n")
    model = MODELS[lines.pop(0).removeprefix("# model: ")] if lines[0].startswith("# model: ") else None
    size = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return model, "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:size])


def report_of(path: Path) -> str:
    model, _ = split_fixture(path)
    if model is Spec:
        with contextlib.chdir(path.parent):
            found, _ = lint([path.name])
        return "\n\n".join(finding.render() for finding in found) or "nothing was found"
    try:
        tree = read(path.read_text(encoding="utf-8"), path.name)
        if model is not None:
            validate(tree, model)
    except LayoutError as error:
        return str(error)
    return "nothing was found"


@pytest.mark.parametrize("path", sorted(ERRORS.glob("*.yaml")), ids=lambda path: path.stem)
def test_bad_spec(path: Path) -> None:
    _, expected = split_fixture(path)
    assert report_of(path) == expected


def test_every_code_has_a_bad_spec() -> None:
    heads = " ".join(split_fixture(path)[1] for path in ERRORS.glob("*.yaml"))
    untested = {code for code, name in CODES.items() if f"{code} {name}:" not in heads}
    assert untested == {"LD002"}  # see test_files


# --- what is read ----------------------------------------------------------------------------------------------------

GOOD = """\
# a comment
version: "1"
split: k = kw kp:(32/bits)
n: &n {a: [1, -20, true], 'it''s': "x # y"}
again: *n
text: &t plain
y: *t
list:
- {}
- []
-   - ''
    - false
doc: |
  two
  lines

folded: one
  line
"""


def test_plain_data() -> None:
    inner = {"a": [1, -20, True], "it's": "x # y"}
    assert read(GOOD, "x.yaml").data == {
        "version": "1", "split": "k = kw kp:(32/bits)", "n": inner, "again": inner, "text": "plain", "y": "plain",
        "list": [{}, [], ["", False]], "doc": "two\nlines\n", "folded": "one line",
    }


def covered(tree: Tree, span: Span) -> str:
    lines = list(tree.lines[span.line - 1 : span.end_line])
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("version",), '"1"'),
        (("split",), "k = kw kp:(32/bits)"),
        (("n", "a"), "[1, -20, true]"),
        (("n", "a", 1), "-20"),
        (("n", "it's"), '"x # y"'),
        (("again",), "*n"),
        (("again", "a", 1), "-20"),  # where it was written
        (("text",), "plain"),  # without its anchor
        (("list",), "- {}\n- []\n-   - ''\n    - false"),
        (("list", 2), "- ''\n    - false"),
        (("doc",), "|\n  two\n  lines"),
        (("folded",), "one\n  line"),
        (("folded", "no", 3), "one\n  line"),  # the nearest that encloses it
        (("no",), GOOD.removeprefix("# a comment\n").rstrip()),
    ],
)
def test_spans_of_values(path: tuple[str | int, ...], text: str) -> None:
    tree = read(GOOD, "x.yaml")
    assert covered(tree, tree.span(path)) == text


def test_spans_of_keys() -> None:
    tree = read(GOOD, "x.yaml")
    assert {covered(tree, span) for path, span in tree.keys.items() if len(path) == 1} == set(tree.data)
    assert covered(tree, tree.keys["n", "it's"]) == "'it''s'"


@pytest.mark.parametrize(
    ("written", "start", "end", "shown"),
    [
        ("k = kw kp:8", 4, 6, "kw"),
        ('"k = kw kp:8"', 4, 6, "kw"),
        ("'k = kw kp:8'", 4, 6, "kw"),
        ("'it''s ''k'' x'", 7, 9, "'' "),
        ("'it''s ''k'' x'", 9, 10, "x"),
        ("&anchor k = kw", 4, 6, "kw"),
        ("é · kw  # comment", 4, 6, "kw"),
        ("{a: k = kw}", 4, 6, "{a: k = kw}"),  # no text at all
        (r'"k\t= kw"', 4, 6, r'"k\t= kw"'),  # escapes: the whole scalar
        ("k =\n    kw", 4, 6, "k =\n    kw"),
        ("|\n    k = kw", 4, 6, "|\n    k = kw"),
        ("'k =\n\n    kw'", 4, 6, "'k =\n\n    kw'"),
    ],
)
def test_places_inside_text(written: str, start: int, end: int, shown: str) -> None:
    tree = read(f"a:\n  b: {written}\n", "x.yaml")
    assert covered(tree, tree.inside(("a", "b"), start, end)) == shown


def test_a_place_behind_text_is_its_end() -> None:
    tree = read("a: 'xy'\n", "x.yaml")
    assert tree.inside(("a",), 2, 2) == Span("x.yaml", 1, 7, 1, 7)
    assert tree.inside(("a",), 5, 9) == Span("x.yaml", 1, 7, 1, 7)
    assert tree.inside(("a", "no"), 0, 1) == Span("x.yaml", 1, 4, 1, 8)


def test_a_place_inside_an_alias_is_the_alias() -> None:
    tree = read("a: &xy x\nb: *xy\n", "x.yaml")
    assert tree.inside(("b",), 0, 1) == Span("x.yaml", 2, 4, 2, 7)


def test_findings_name_value_key_or_part() -> None:
    tree = read("a:\n  bits: 4 8\n", "x.yaml")
    path = ("a", "bits")
    assert tree.diagnostic("LD101", "n", "m", path).span == Span("x.yaml", 2, 9, 2, 12)
    assert tree.diagnostic("LD101", "n", "m", path, key=True).span == Span("x.yaml", 2, 3, 2, 7)
    finding = tree.diagnostic("LD101", "n", "m", path, help="h", within=(2, 3))
    assert finding.span == Span("x.yaml", 2, 11, 2, 12)
    assert (finding.source, finding.help) == (("  bits: 4 8",), "h")


@pytest.mark.parametrize("text", ["n", "y", "=", "1.2.3", "0b", "e5", "a:b", "16:32x", "<<", "2020-1", "+", "nan"])
def test_plain_text_stays_text(text: str) -> None:
    assert read(f"a: {text}\n", "x.yaml").data == {"a": text}


AMBIGUOUS = [
    "yes", "ON", "True", "~", "NULL", "1.0", ".5", "1.", "1e-3", "1e5", "-.inf", ".NaN", "1_0.5", "0x1F", "0o17", "017",
    "+3", "1_000", "-0b1", "16:32", "1:30.5", "16:99", "2020-01-01", "2020-1-1 10:00:00", "!", "!x", "!!str 1",
    "1234567890123456789",
]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_ambiguous_text_is_refused_but_may_be_quoted(text: str) -> None:
    for bad in (f"a: {text}\n", f"- {text}\n", f"{text}: a\n", f"[{text}]\n"):
        with pytest.raises(LayoutError):
            read(bad, "x.yaml")
    assert read(f'a: "{text}"\n"{text}": 1\n', "x.yaml").data == {"a": text, text: 1}


def test_independent_findings_come_together_and_in_order() -> None:
    with pytest.raises(LayoutError) as caught:
        read("a: yes\nb: 1.0\na: {c: ~, 3: x}\nd: *e\nf: [\n", "x.yaml")
    codes = [finding.code for finding in caught.value.diagnostics]
    assert codes == ["LD004", "LD006", "LD003", "LD008", "LD012", "LD014", "LD001"]


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 500_000, "LD015"),
        ("{" * 100_000, "LD015"),
        ("- " * 300_000, "LD015"),
        ("? " * 300_000, "LD015"),
        ("{a: " * 33 + "1" + "}" * 33, "LD015"),
        ("a: &a " + "[" * 31 + "]" * 31 + "\nb: [[*a]]", "LD015"),
        ("[" + "1," * 20_000 + "]", "LD018"),
        ("[" + "1," * 300_000, "LD018"),
        ("a: &a [" + "1," * 1000 + "]\nb: [" + "*a," * 20 + "]", "LD018"),
        ("a: &a 1\nb: [" + "*a," * 65 + "]", "LD014"),
        ("a: 1" + "_" * 1_000_000 + "x", None),
        ("a: 1" + "0" * 1_000_000, "LD016"),
        ("a: '" + "''" * 500_000 + "'", None),
        ("#" * MAX_BYTES, "LD008"),
        ("\n" * MAX_BYTES, "LD008"),
        ("x" * (MAX_BYTES + 1), "LD002"),
    ],
    ids=lambda value: None if value is None or len(value) < 9 else value[:6],
)
def test_hostile_text_ends_soon(text: str, code: str | None) -> None:
    started = time.monotonic()
    try:
        read(text, "x.yaml")
        found = None
    except LayoutError as error:
        str(error)
        found = error.diagnostics[0].code
    assert found == code
    assert time.monotonic() - started < 10


def test_just_within_the_limits() -> None:
    assert read("{a: " * 32 + "1" + "}" * 32, "x.yaml").data
    assert read("a: &a 1\nb: [" + "*a," * 64 + "]", "x.yaml").data
    assert read("a: 123456789012345678", "x.yaml").data == {"a": 123456789012345678}


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: \xc2\xb7\r\nb: 1\r\n")  # a byte order mark at the front is no finding
    tree = read_file(good)
    assert tree.data == {"a": "·", "b": 1}
    assert str(tree.span(("b",))) == f"{good}:2:4"
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xb7\n")
    (tmp_path / "zero.yaml").write_bytes(b"a: 1\nb: \0\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    expected = {
        "none.yaml": "LD002 unreadable-file: cannot read `{}`: no such file or directory\n"
        "  = help: check the path, and who may read it",
        "": "LD002 unreadable-file: `{}` is a directory\n  = help: name a file",
        "latin.yaml": "LD002 unreadable-file: `{0}` is not UTF-8 in line 2\n --> {0}:2:1\n  = help: save it as UTF-8",
        "large.yaml": "LD002 unreadable-file: `{}` is larger than 1048576 bytes",
        "zero.yaml": "LD017 odd-character: the character U+0000 cannot stand in a spec\n"
        " --> {}:2:4\n  |\n2 | b: \ufffd\n  |    ^",
    }
    for name, report in expected.items():
        with pytest.raises(LayoutError) as caught:
            read_file(tmp_path / name)
        assert str(caught.value) == report.format(tmp_path / name)


# --- validation ------------------------------------------------------------------------------------------------------


def test_a_good_spec_and_its_free_keys() -> None:
    text = 'version: "1"\nx-why: [1]\ntensors: {w: {order: k, x-n: {y: 1}, from: it}, x-old: 3}\ntiles: [1, 2]\n'
    toy = validate(read(text, "x.yaml"), Toy)
    assert toy == Toy(version="1", tensors={"w": Tensor(order="k", **{"from": "it"})}, tiles=(1, 2))


def test_part_of_a_tree() -> None:
    tree = read("tensors:\n  w: {order: k, bitts: 8}\n", "x.yaml")
    with pytest.raises(LayoutError, match="unknown key `bitts`") as caught:
        validate(tree, Tensor, ("tensors", "w"))
    assert caught.value.diagnostics[0].span == Span("x.yaml", 2, 17, 2, 22)


def test_a_branch_label_that_is_also_a_key() -> None:
    # pydantic says ("pads", 0, "to", "to"): first the branch, then the key.
    tree = read("order: k\npads: [{kind: to, to: x}]\n", "x.yaml")
    with pytest.raises(LayoutError) as caught:
        validate(tree, Tensor)
    assert covered(tree, caught.value.diagnostics[0].span) == "x"


@dataclass(frozen=True)
class Parsed:
    text: str


class Odd(Base):
    names: tuple[str, ...] | Annotated[Parsed, BeforeValidator(lambda v: Parsed(v) if isinstance(v, str) else v)] = ()
    some: list[int] = Field([], min_length=1)
    limit: Annotated[float, Field(allow_inf_nan=False)] = 0


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("names: 3", ["expected a list or text for `names`, found the integer `3`"]),
        ("some: [x]", ["expected an integer in `some`, found text `x`"]),  # and not "too short" as well
        ("limit: inf", ["expected a finite number"]),  # a kind of error that we have no words for
    ],
)
def test_pydantic_never_speaks_itself(text: str, messages: list[str]) -> None:
    with pytest.raises(LayoutError) as caught:
        validate(read(text, "x.yaml"), Odd)
    assert [finding.message for finding in caught.value.diagnostics] == messages


# --- no input escapes ------------------------------------------------------------------------------------------------

PIECES = [
    "a", "b", ": ", ":", "- ", "\n", "\n  ", "\n    ", "\t", "{", "}", "[", "]", ", ", "&a ", "*a", "!x ", "? ", "|",
    ">-", "'", '"', "\\", "\\U", "#", " #", "%YAML 1.9", "---", "...", "~", "1", "1.0", "yes", "<<", "\r", "·", "\x85",
    "\u2028", "\ufeff", "\0", "\ud800",
]
SOUP = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))


def outcome(text: str) -> object:
    try:
        tree = read(text, "x.yaml")
    except LayoutError as error:
        assert str(error)
        assert all("Traceback" not in finding.message for finding in error.diagnostics)
        return error.diagnostics
    for path, span in tree.spans.items():
        assert 1 <= span.line <= span.end_line <= len(tree.lines)
        assert tree.inside(path, 0, 1).line >= 1
    try:
        validate(tree, Toy)
    except LayoutError as error:
        assert str(error)
    return tree


@settings(deadline=None)
@given(SOUP)
@example('a: "\\UFFFFFFFF"')
@example("%YAML 1." + "9" * 5000 + "\n---\na: 1")
@example("? - a\n: b")
@example("&a : *a")
def test_any_text(text: str) -> None:
    outcome(text)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_specs(seed: int, changes: int) -> None:
    dice = random.Random(seed)
    texts = [GOOD, *(path.read_text(encoding="utf-8") for path in sorted(ERRORS.glob("*.yaml")))]
    text = dice.choice(texts)
    for _ in range(changes):
        start = dice.randrange(len(text) + 1)
        end = start + dice.choice([0, 0, 1, 2, 9])
        text = text[:start] + dice.choice(["", *PIECES, dice.choice(texts)[start:end]]) + text[end:]
    outcome(text)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml has one parser only")
@settings(deadline=None)
@given(SOUP)
@example(GOOD)
def test_both_parsers_put_things_in_the_same_place(text: str) -> None:
    fast = outcome(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        slow = outcome(text)
    if isinstance(fast, Tree) and isinstance(slow, Tree):  # libyaml accepts a few texts that the Python parser refuses
        assert fast == slow


def rewrite(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    head = [lines.pop(0)] if lines[0].startswith("# model: ") else []
    while lines and lines[0].startswith("#"):
        lines.pop(0)
    for _ in range(3):  # the report's own length moves the lines that it speaks of
        path.write_text("\n".join([*head, *lines]), encoding="utf-8")
        report = [f"# {line}".rstrip() for line in report_of(path).split("\n")]
        head = [*(line for line in head if line.startswith("# model: ")), *report]


if __name__ == "__main__":
    for fixture in sorted(ERRORS.glob("*.yaml")):
        rewrite(fixture)
