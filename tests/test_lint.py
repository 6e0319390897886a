"""`lint` as a function: which files it takes, what it finds in each, and how it says so. Single findings in bad specs
have their exact reports in tests/errors; see test_source.py."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutdsl.errors import Diagnostic, LayoutError, Span
from layoutdsl.library import shipped
from layoutdsl.lint.report import summary
from layoutdsl.lint.run import Outcome, lint

GOOD = """\
version: "1"
checkpoint: {name}
doc: a good spec
source: made up
parts: {{orders: [[gate, up]]}}
tensors:
  w: {{role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {{kp}}"}}
  s: {{role: scale, dtype: float16, split: "k = g gi:32", order: "g, n (gi)"}}
value: w * s
try:
  - {{n: 64, k: 128}}
  - {{n: 20, k: 72}}
  - {{n: 64, k: 256}}
"""


def write(path: Path, **changes: str) -> Path:
    text = GOOD.format(name=path.stem)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def heads(found: list[Diagnostic]) -> list[str]:
    return [f"{finding.span or ''} {finding.code} {finding.message}".strip() for finding in found]


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, tuple[str, ...]]]:
    """Proofs that succeed, and the calls that asked for them."""
    calls: list[tuple[str, Any, tuple[str, ...]]] = []

    def prove_spec(spec: Any, entry: Any, specs: tuple[str, ...]) -> None:
        calls.append((spec.name, dict(entry), specs))

    monkeypatch.setitem(sys.modules, "layoutdsl.logical", SimpleNamespace(prove_spec=prove_spec))
    return calls


def failing(monkeypatch: pytest.MonkeyPatch, errors: dict[int, LayoutError]) -> None:
    """Proofs that fail for the sizes whose n is named."""

    def prove_spec(spec: Any, entry: Any, specs: tuple[str, ...]) -> None:
        if entry["k"] in errors:
            raise errors[entry["k"]]

    monkeypatch.setitem(sys.modules, "layoutdsl.logical", SimpleNamespace(prove_spec=prove_spec))


# --- which files ------------------------------------------------------------------------------------------------------


def test_shipped_specs_are_clean() -> None:
    found, files = lint([])
    assert heads(found) == []
    assert files == sum("names" not in path.parts for path in shipped().rglob("*.yaml"))


def test_folders_of_the_user_are_linted_with_the_shipped(tmp_path: Path, proofs: list[Any]) -> None:
    write(tmp_path / "mine.yaml")
    _, shipped_files = lint([])
    found, files = lint([], [str(tmp_path)])
    assert (found, files) == ([], shipped_files + 1)
    assert proofs[-1][2] == (str(tmp_path),)


def test_paths_take_the_place_of_the_default(tmp_path: Path, proofs: list[Any]) -> None:
    write(tmp_path / "one" / "a.yaml")
    write(tmp_path / "one" / "deep" / "b.yaml", **{"gi:32": "gi:64"})
    write(tmp_path / "two.yaml", **{"gi:32": "gi:128"})
    (tmp_path / "one" / "notes.txt").write_text("no spec")
    (tmp_path / "one" / "names").mkdir()
    (tmp_path / "one" / "names" / "llama.yaml").write_text("a: 1\n")  # names of a model's tensors, no spec
    (tmp_path / "one" / ".hidden").mkdir()
    (tmp_path / "one" / ".hidden" / "c.yaml").write_text("a: 1\n")
    found, files = lint([str(tmp_path / "one"), str(tmp_path / "two.yaml"), str(tmp_path / "one" / "a.yaml")])
    assert (found, files) == ([], 3)
    assert [name for name, _, _ in proofs] == ["a"] * 3 + ["b"] * 3 + ["two"] * 3


def test_paths_are_shown_from_where_one_stands(
    tmp_path: Path, proofs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "specs" / "a.yaml", u4b8="u4b9x")
    monkeypatch.chdir(tmp_path)
    for given in ("specs", str(tmp_path / "specs"), "specs/a.yaml"):
        found, _ = lint([given])
        assert found[0].span is not None and found[0].span.file == str(Path("specs/a.yaml"))


def test_what_is_not_there(tmp_path: Path) -> None:
    found, files = lint([str(tmp_path / "none.yaml"), str(tmp_path)])
    assert files == 1
    assert heads(found) == [
        f"{tmp_path}/none.yaml:1:1 LD002 cannot read `{tmp_path}/none.yaml`: no such file or directory",
        f"LD032 `{tmp_path}` holds no spec",
    ]


# --- what is found ----------------------------------------------------------------------------------------------------


def test_a_link_to_itself_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    found, files = lint([str(tmp_path)])
    assert ([finding.code for finding in found], files) == (["LD002"], 1)
    assert "too many levels of symbolic links" in found[0].message


def test_a_folder_is_no_spec(tmp_path: Path, proofs: list[Any]) -> None:
    (tmp_path / "folder.yaml").mkdir()
    write(tmp_path / "folder.yaml" / "a.yaml")
    found, files = lint([str(tmp_path)], (str(tmp_path),))
    assert (heads(found), files) == ([], 1)


def test_a_file_that_fails_stops_no_other(tmp_path: Path, proofs: list[Any]) -> None:
    write(tmp_path / "a.yaml", **{"version:": "version"})
    write(tmp_path / "b.yaml", u4b8="u4b9x", float16="float61", **{"kw, n": "kw, m"})
    write(tmp_path / "c.yaml", **{"gi:32": "gi"})
    write(tmp_path / "d.yaml")
    found, files = lint([str(tmp_path)])
    assert files == 4
    places = [re.sub(r".*/", "", head) for head in heads(found)]
    assert places == [
        "a.yaml:2:11 LD001 `:` begins a mapping where none can stand",
        "b.yaml:7:40 LD310 `u4b9x` is no element code",
        "b.yaml:7:76 LD101 the order of `w` leaves out `n` of axis n",
        "b.yaml:7:81 LD102 `m` is no digit of tensor `w`",
        "b.yaml:8:27 LD311 `float61` is no dtype",
        "c.yaml:8:52 LD024 tensor `s`: expected the size of digit `gi`, as in `gi:8`, found the end of the split",
    ]
    assert {name for name, _, _ in proofs} == {"d"}


def test_every_size_is_proven(tmp_path: Path, proofs: list[Any]) -> None:
    lint([str(write(tmp_path / "a.yaml"))])
    assert [entry for _, entry, _ in proofs] == [{"n": 64, "k": 128}, {"n": 20, "k": 72}, {"n": 64, "k": 256}]


def test_a_failed_proof_is_shown_at_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.yaml")
    own = Diagnostic("LP201", "law-once", "written twice", Span("other.yaml", 1, 1, 1, 2))
    failing(monkeypatch, {
        72: LayoutError("code 3 is written twice", code="LP200", name="law-once", help="look at `order`"),
        256: LayoutError.of([Diagnostic("LP200", "law-once", "code 3 is written twice"), own]),
    })
    found, _ = lint([str(path)])
    # The same finding is not made again at the next size; one that has its place keeps it.
    assert heads(found) == ["other.yaml:1:1 LP201 written twice", f"{path}:12:5 LP200 code 3 is written twice"]
    assert found[1].render().splitlines()[2:] == [
        "   |", "12 |   - {n: 20, k: 72}", "   |     ^^^^^^^^^^^^^^", "   = help: look at `order`",
    ]


def test_a_fault_of_our_own_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {72: AssertionError("ours")})  # type: ignore[dict-item]
    with pytest.raises(AssertionError, match="ours"):
        lint([str(write(tmp_path / "a.yaml"))])


def test_a_spec_is_named_as_its_file(tmp_path: Path, proofs: list[Any]) -> None:
    path = write(tmp_path / "a.yaml", **{"checkpoint: a": "checkpoint: b"})
    assert heads(lint([str(path)])[0]) == [f"{path}:2:13 LD030 the file `a.yaml` holds the checkpoint `b`"]


def test_names_stand_once_in_a_folder(tmp_path: Path, proofs: list[Any]) -> None:
    first, second = write(tmp_path / "x" / "a.yaml"), write(tmp_path / "y" / "a.yaml")
    assert heads(lint([str(tmp_path)])[0]) == [f"{second}:2:13 LD031 `a` is also the name of `{first}`"]
    # Two folders may each have their own: the first that is searched counts.
    assert lint([str(tmp_path / "x"), str(tmp_path / "y")])[0] == []


def test_one_may_copy_a_shipped_spec(tmp_path: Path, proofs: list[Any]) -> None:
    text = (shipped() / "checkpoint" / "gptq.yaml").read_text(encoding="utf-8")
    (tmp_path / "gptq.yaml").write_text(text, encoding="utf-8")
    assert lint([], [str(tmp_path)])[0] == []


# --- how it is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "files", "last"),
    [
        (0, 22, "22 files, no findings"), (0, 1, "1 file, no findings"), (0, 0, "0 files, no findings"),
        (1, 1, "1 finding in 1 file"), (3, 2, "3 findings in 2 files"),
    ],
)
def test_the_last_line_counts(count: int, files: int, last: str) -> None:
    found = [Diagnostic("LD001", "syntax", f"number {at}") for at in range(count)]
    assert summary(Outcome(tuple(found), tuple(map(Path, "abcdefghijklmnopqrstuvw"[:files])))) == last
