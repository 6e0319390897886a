"""`lint` and `rule` as their user meets them: what is selected, suppressed and mended, settings, exit statuses."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutdsl import cli
from layoutdsl.lint import fix, rule
from layoutdsl.lint.run import run as examine
from layoutdsl.lint.select import Selection

TWICE = """\
version: "1"
checkpoint: {name}
doc: a spec
source: made up
parts: {{orders: [[gate, up]]}}
tensors:
  w: {{role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {{kp}}"}}
  s: {{role: scale, dtype: float16, split: "k = g gi:32", order: "g, n (gi)"}}
value: w * s
try: [{{n: 64, k: 120}}, {{n: 64, k: 120}}]
"""
LIST = "try: [{n: 64, k: 120}, {n: 64, k: 120}]"

ROOT = str(Path(__file__).resolve().parent.parent)


class Done:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err
        self.found = re.findall(r"^([^ ]*): (L[DP]\d{3}) ", out, re.MULTILINE)


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `lint --output-format concise` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")
    monkeypatch.delenv("LAYOUTDSL_TRACEBACK", raising=False)

    def call(*argv: str) -> Done:
        form = () if "--output-format" in argv else ("--output-format", "concise")
        status = cli.main(["lint", *form, *argv])
        return Done(status, *capsys.readouterr())

    return call


def write(name: str, text: str = TWICE, **changes: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = text.format(name=path.stem)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


# --- selecting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ((), ["LD030", "LD904"]),
        (("--select", "LD9"), ["LD904"]),
        (("--select", "name-mismatch"), ["LD030"]),
        (("--select", "LD030,LD904"), ["LD030", "LD904"]),
        (("--select", "LD1", "--select", "LD904"), ["LD904"]),
        (("--select", "LD1", "--extend-select", "tried-twice"), ["LD904"]),
        (("--ignore", "LD"), []),
        (("--ignore", "LD904"), ["LD030"]),
        (("--ignore", "tried-twice,name-mismatch"), []),
        (("--ignore", "LD", "--extend-select", "LD90"), ["LD904"]),  # the longer one decides
        (("--select", "LD904", "--ignore", "LD904"), []),  # of two as long, what is ignored
        (("--select", "ALL", "--ignore", "LD0"), ["LD904"]),
        (("--select", "ld904"), ["LD904"]),
        (("--select", "ld9,Name-Mismatch"), ["LD030", "LD904"]),
        (("--select", "all", "--ignore", "ld0"), ["LD904"]),
    ],
)
def test_codes_beginnings_and_names_select(lint: Any, argv: tuple[str, ...], found: list[str]) -> None:
    write("b.yaml", **{"checkpoint: b": "checkpoint: a"})
    done = lint(".", *argv)
    assert [code for _, code in done.found] == found
    assert done.status == bool(found)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("QQ9999", "no rule has the code or name `QQ9999`: `layoutdsl rule` lists them"),
        ("tried-twise", "no rule has the code or name `tried-twise`: did you mean `tried-twice`?"),
        ("LE", "no rule has the code or name `LE`"),
        ("LD904,LD77", "no rule has the code or name `LD77`"),
        ("", "expected codes or names, found ``"),
        (" , ", "expected codes or names, found ` , `"),
    ],
)
@pytest.mark.parametrize("flag", ["--select", "--extend-select", "--ignore"])
def test_what_selects_nothing_is_refused(lint: Any, flag: str, word: str, said: str) -> None:
    done = lint(flag, word)
    assert (done.status, done.out) == (2, "")
    assert f"argument {flag}: {said}" in done.err


def test_no_path_is_not_the_current_folder(lint: Any) -> None:
    write("a.yaml")
    done = lint("")
    assert (done.status, done.out) == (2, "")
    assert "argument PATH: expected a file or folder, found nothing" in done.err


def test_what_keeps_a_spec_from_being_read_is_always_said(lint: Any) -> None:
    """Else a file that cannot be looked at would pass."""
    write("a.yaml", **{"version:": "version"})
    write("b.yaml", **{"role: scale": "role: scales"})
    done = lint(".", "--select", "LD9")
    assert (done.status, [code for _, code in done.found]) == (1, ["LD001", "LD023"])


# --- suppressing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LIST}  # layoutdsl: ignore[LD904] why not", []),
        (f"{LIST}# layoutdsl: ignore[LD904] libyaml takes it", ["LD904"]),
        (f"{LIST} #layoutdsl:ignore[ tried-twice ]  why not", []),
        (f"# layoutdsl: ignore[LD904] why not\n{LIST}", []),
        (f"# layoutdsl: ignore[LD904] why not\n# more of it\n{LIST}", []),
        (f"# layoutdsl: ignore[LD904] why not\n\n{LIST}", []),
        (f"# layoutdsl: ignore[LD904] why not\n\n# more of it\n\n{LIST}", []),
        (f"# layoutdsl: ignore[LD904] why not\nx-a: 1\n{LIST}", ["LD040", "LD904"]),
        (f"{LIST}  # layoutdsl: ignore[ld904] why not", []),
        (f"{LIST}  # LayoutDSL: ignore[LD904] why not", []),
        (f"{LIST}  # LayoutDSL: ignores[LD904] why not", ["LD904", "LD042"]),
        (f"{LIST}\n\n# layoutdsl: ignore[LD904] below\n\n", ["LD904", "LD040"]),
        (f"{LIST}\n# layoutdsl: ignore[LD904] below", ["LD904", "LD040"]),
        (f"# layoutdsl: ignore-file[LD904] why not\n\n\n{LIST}", []),
        (f"{LIST}\n# layoutdsl: ignore-file[LD904] why not", []),
        (f"{LIST}  # layoutdsl: ignore[LD904]", ["LD041"]),
        (f"{LIST}  # layoutdsl: ignore[LD904, LD030] why not", ["LD040"]),
        (f"{LIST}  # layoutdsl: ignore[LD030]", ["LD904", "LD040"]),
        (f"{LIST}  # layoutdsl: ignore[LD9] why not", ["LD904", "LD042"]),
        (f"{LIST}  # layoutdsl: ignore why not", ["LD904", "LD042"]),
        (f"{LIST}  # layoutdsl: ignore[] why not", ["LD904", "LD042"]),
        (f"{LIST}  # layoutdsl: ignore[nothing-near] why not", ["LD904", "LD042"]),
        (f"{LIST}  # see layoutdsl: ignore[LD904] as an example", ["LD904"]),
        (f"{LIST}\nx-a: '# layoutdsl: ignore[LD030] text'", ["LD904"]),
        (f"{LIST}\nx-a: |\n  text\n  # layoutdsl: ignore[LD030] text\nx-b: plain # layoutdsl: ignore[LD030] none",
         ["LD904", "LD040"]),
        (f"{LIST}\nx-a: >-\n  # layoutdsl: ignore-file[LD904] text", ["LD904"]),
        (f'{LIST}\n"x-# layoutdsl: ignore-file[LD904] text": 1', ["LD904"]),
    ],
)
def test_comments(lint: Any, text: str, found: list[str]) -> None:
    write("a.yaml", **{LIST: text})
    assert [code for _, code in lint("a.yaml").found] == found


def test_a_comment_at_a_size_that_fails_its_proof(lint: Any) -> None:
    comment = "# layoutdsl: ignore[LP101] waits for the parameter"
    write("a.yaml", **{LIST: f"try:\n  {comment}\n  - {{n: 64, k: 128, bits: 4}}"})
    assert lint("a.yaml").found == []


def test_what_keeps_a_spec_from_being_read_is_not_suppressed(lint: Any) -> None:
    write("a.yaml", **{"value: w * s": "value: w * t  # layoutdsl: ignore[LD103, LD107] to come"})
    assert [code for _, code in lint("a.yaml").found] == ["LD107", "LD103"]


def test_of_what_is_not_selected_nothing_is_unused(lint: Any) -> None:
    write("a.yaml", **{LIST: "try: [{n: 64, k: 120}]  # layoutdsl: ignore[LD904] why not"})
    assert lint("a.yaml", "--ignore", "LD9").found == []
    assert lint("a.yaml", "--ignore", "LD040").found == []
    assert [code for _, code in lint("a.yaml").found] == ["LD040"]


def test_files_of_a_run_are_compared(lint: Any) -> None:
    once = {LIST: "try: [{n: 64, k: 120}]"}
    for name in ("a", "b", "c"):
        write(f"{name}.yaml", **once, **({"n: 64": "n: 128"} if name == "b" else {}))
    write("d.yaml", **{LIST: "try: [{n: 64, k: 120}]\nx-a: 1", "gi:32": "gi:64"})
    alike = [("b.yaml:2:13", "LD901"), ("c.yaml:2:13", "LD901")]
    done = lint(".")
    assert done.found == alike and "`c` says the same as the checkpoint `a`" in done.out
    assert lint("a.yaml", "d.yaml", "c.yaml", "b.yaml").found == alike[::-1]
    assert lint("a.yaml", "d.yaml").found == []
    write("c.yaml", **once, **{"checkpoint: c": "checkpoint: c  # layoutdsl: ignore[LD901] for a test"})
    assert lint("a.yaml", "c.yaml").found == []


def test_names_of_a_folder_are_suppressed_in_a_file(lint: Any) -> None:
    once, comment = {LIST: "try: [{n: 64, k: 120}]"}, "# layoutdsl: ignore[LD031] the other goes"
    write("x/a.yaml", **once)
    write("y/a.yaml", **once, **{"checkpoint: a": f"checkpoint: a  {comment}"})
    assert lint(".").found == []


# --- settings ---------------------------------------------------------------------------------------------------------


def settings(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_nearest_settings_of_each_file(lint: Any) -> None:
    for name in ("a.yaml", "b/a.yaml", "b/c/d/a.yaml", "e/a.yaml"):
        write(name)
    settings("pyproject.toml", '[tool.layoutdsl.lint]\nignore = ["LD904"]\n')
    settings("b/pyproject.toml", "[tool.layoutdsl]\n")  # nothing is merged
    settings("e/pyproject.toml", "[tool.ruff]\n")  # not ours
    assert lint("a.yaml", "b/a.yaml", "b/c/d/a.yaml", "e/a.yaml").found == [
        ("b/a.yaml:10:24", "LD904"), ("b/c/d/a.yaml:10:24", "LD904"),
    ]


def test_flags_win(lint: Any) -> None:
    write("b.yaml", **{"checkpoint: b": "checkpoint: a"})
    settings("pyproject.toml", '[tool.layoutdsl.lint]\nselect = ["LD9"]\nignore = ["LD904"]\nextend-select = ["LD1"]\n')
    codes = lambda *argv: [code for _, code in lint("b.yaml", *argv).found]  # noqa: E731
    assert codes() == []
    assert codes("--extend-select", "LD030") == ["LD030"]
    assert codes("--select", "LD904") == ["LD904"]
    assert codes("--select", "ALL") == ["LD030", "LD904"]
    settings("pyproject.toml", '[tool.layoutdsl.lint]\nselect = ["LD"]\n')
    assert codes("--ignore", "LD030") == ["LD904"]


def test_settings_of_a_run(lint: Any) -> None:
    write("a.yaml")
    settings("pyproject.toml", '[tool.layoutdsl.lint]\noutput-format = "github"\nexit-zero = true\n')
    assert cli.main(["lint", "a.yaml"]) == 0
    assert lint("a.yaml").status == 0
    settings("pyproject.toml", "[tool.layoutdsl.lint]\nfix = true\n")
    before = Path("a.yaml").read_text()
    assert lint("a.yaml", "--no-fix").status == 1 and Path("a.yaml").read_text() == before
    assert lint("a.yaml", "--diff").status == 1 and Path("a.yaml").read_text() == before
    assert lint("a.yaml").status == 0 and Path("a.yaml").read_text() != before


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[tool.layoutdsl.lint]\nselect = []\nignor = ["LD9"]\n', ":3", "lint has no key `ignor`: did you mean "
         "`ignore`?"),
        ('[tool.layoutdsl.lint]\n"output_format" = "text"\n', ":2", "lint has no key `output_format`: did you mean "
         "`output-format`?"),
        ("[tool.layoutdsl.lint]\ncolour = 1\n", ":2", "lint has no key `colour`: its keys are select, extend-select, "
         "ignore, output-format, fix, exit-zero"),
        ('[tool.layoutdsl.lint]\nignore = ["LD9", "tried-twise"]\n', ":2", "lint ignore: no rule has the code or name "
         "`tried-twise`: did you mean `tried-twice`?"),
        ('[tool.layoutdsl.lint]\nignore = "LD9"\n', ":2", "lint ignore must be a list of codes and names"),
        ('[tool.layoutdsl.lint]\noutput-format = "xml"\n', ":2", "lint output-format must be one of text, concise, "
         "json, github, sarif"),
        ("[tool.layoutdsl.lint]\nfix = 1\n", ":2", "lint fix must be true or false"),
        ("[tool.layoutdsl]\nlint = 1\n", ":2", " lint must be a table"),
        ("[tool.layoutdsl]\nlnt = {}\n", ":2", " has no key `lnt`: did you mean `lint`?"),
        ("[tool.layoutdsl.lint]\nselect = []\n", ":2", "lint select must name codes or names: with none, "
         "nothing would be found"),
        ("[tool]\nlayoutdsl.lint.select = 1\n", "", "lint select must be a list of codes and names"),
    ],
)
def test_settings_that_mean_nothing_are_refused(lint: Any, tmp_path: Path, text: str, line: str, said: str) -> None:
    write("a.yaml")
    settings("pyproject.toml", text)
    done = lint("a.yaml")
    table, _, sentence = said.partition(" ")
    where = f"{tmp_path / 'pyproject.toml'}{line}: [tool.layoutdsl{'.' * bool(table)}{table}]"
    assert (done.status, done.out, done.err) == (2, "", f"layoutdsl: {where} {sentence}\n")


def test_a_folder_of_specs_that_is_not_there_is_no_fault_of_ours(lint: Any, tmp_path: Path) -> None:
    write("a.yaml")
    done = lint("a.yaml", "--specs", "none")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("LP105 no-such-folder: `none` is no folder of specs")
    settings("pyproject.toml", '[tool.layoutdsl]\nspecs = ["none"]\n')
    done = lint("a.yaml")
    said = f"layoutdsl: {tmp_path}/pyproject.toml:2: [tool.layoutdsl] specs names `none`, and there is no folder "
    assert (done.status, done.out, done.err) == (2, "", f"{said}{tmp_path}/none\n")


# --- mending ----------------------------------------------------------------------------------------------------------


def test_fix(lint: Any) -> None:
    path = write("a.yaml")
    path.chmod(0o640)
    os.symlink("a.yaml", "link.yaml")
    done = lint("link.yaml", "--fix", "--ignore", "LD030")
    assert (done.status, done.out, done.err) == (0, "1 file, no findings\n", "1 finding mended\n")
    assert path.read_text() == TWICE.format(name="a").replace(LIST, "try: [{n: 64, k: 120}]")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and Path("link.yaml").is_symlink()
    assert sorted(entry.name for entry in Path().iterdir()) == ["a.yaml", "link.yaml"]
    assert lint("a.yaml", "--fix").err == ""


def test_diff(lint: Any) -> None:
    before = write("a.yaml", **{'"1"': "1"}).read_text()
    done = lint("a.yaml", "--diff")
    assert (done.status, done.err, Path("a.yaml").read_text()) == (1, "", before)
    assert done.out.startswith("--- a.yaml\n+++ a.yaml\n@@ -1,4 +1,4 @@\n")
    assert '-version: 1\n+version: "1"\n' in done.out
    assert f"-{LIST}\n+try: [{{n: 64, k: 120}}]\n" in done.out  # found once the first is mended
    write("b.yaml", **{LIST: "try: [{n: 64, k: 120}]"})
    done = lint("b.yaml", "--diff")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_what_has_no_fix_stays(lint: Any) -> None:
    write("a.yaml", **{"role: scale": "role: scales", '"1"': "1"})
    done = lint("a.yaml", "--fix")
    assert (done.status, done.err) == (1, "1 finding mended\n")
    assert [code for _, code in done.found] == ["LD023"]


@pytest.mark.parametrize(("end", "mark"), [("\r\n", ""), ("\r", ""), ("\n", "\ufeff"), ("\r\n", "\ufeff")])
def test_all_else_in_a_file_stays(lint: Any, end: str, mark: str) -> None:
    text = f"{mark}# ä\n" + TWICE.format(name="a").replace("version: \"1\"", "version: 1") + "\n# 𝛼 the end"
    Path("a.yaml").write_bytes(text.replace("\n", end).encode())
    assert lint("a.yaml", "--fix").status == 0
    wanted = text.replace("version: 1", 'version: "1"').replace(LIST, "try: [{n: 64, k: 120}]")
    assert Path("a.yaml").read_bytes() == wanted.replace("\n", end).encode()


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("try:\n  - {n: 64, k: 120}\n  - {n: 64, k: 120}", "try:\n  - {n: 64, k: 120}"),
        ("try:\n  - {n: 64, k: 120}\n\n  - k: 120\n    n: 64", "try:\n  - {n: 64, k: 120}"),
        ("try:\n  - {n: 64, k: 120}\n  # one more\n  - {n: 64, k: 120}", None),
        ("try:\n  - {n: 64, k: 120}  # one\n  - {n: 64, k: 120}", None),
        ("try:\n  - {n: 64, k: 120}\n  - {n: 64, k: 120}  # two", None),
        ("try: [{n: 64, k: 120},\n      {n: 64, k: 120},\n      {n: 20, k: 72}]",
         "try: [{n: 64, k: 120},\n      {n: 20, k: 72}]"),
        (f"{LIST}  # layoutdsl: ignore[LD904, LD030] why", f"{LIST}  # layoutdsl: ignore[LD904] why"),
        (f"{LIST}  # layoutdsl: ignore[LD030, LD904] why", f"{LIST}  # layoutdsl: ignore[LD904] why"),
        (f"{LIST}  # layoutdsl: ignore[tried-twise] why", f"{LIST}  # layoutdsl: ignore[tried-twice] why"),
        (f"{LIST}  # layoutdsl: ignore[LD9] meant", f"{LIST}  # layoutdsl: ignore[LD904] meant"),
        (f"{LIST}  # layoutdsl: ignore[LD8] meant", None),  # something is: neither it nor the entry goes
        (f"{LIST}  # layoutdsl: ignore LD904, meant", None),
        (f"# layoutdsl: ignore[ALL] meant\n{LIST}", None),
        (f"# layoutdsl: ignore-file[ALL] meant\n{LIST}", None),
        ("# layoutdsl: ignore[tied-twce] meant\ntry: [{n: 64, k: 120}]", None),  # near to a rule, but not found here
        (f"# layoutdsl: ignore[LD904] meant\n\n# more\n{LIST}", None),
        (f"{LIST}  # layoutdsl: ignore[LD904]", None),  # only its author knows the reason
        ("# layoutdsl: ignore[LD904] why\ntry: [{n: 64, k: 120}]", "try: [{n: 64, k: 120}]"),
        ("try: [{n: 64, k: 120}]  # layoutdsl: ignore[LD904, LD030] why", "try: [{n: 64, k: 120}]"),
        ("try: [{n: 64, k: 120}]\n# layoutdsl: ignore-file[LD904] why", "try: [{n: 64, k: 120}]"),
    ],
)
def test_fixes(lint: Any, text: str, mended: str | None) -> None:
    path = write("a.yaml", **{LIST: text})
    lint("a.yaml", "--fix")
    assert path.read_text() == TWICE.format(name="a").replace(LIST, mended or text)


BAD = sorted((Path(__file__).parent / "lint" / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_fix_mends_what_it_is_for_and_makes_nothing_worse(lint: Any, path: Path) -> None:
    copy = Path(path.name)
    copy.write_bytes(path.read_bytes())
    before = examine([path.name]).findings
    lint(path.name, "--fix")
    after = examine([path.name]).findings
    assert not [finding for finding in after if finding.fix is not None]
    said = [(finding.code, finding.message) for finding in before if finding.fix is None]
    assert {(finding.code, finding.message) for finding in after} <= set(said)


def test_comments_are_judged_before_anything_is_mended() -> None:
    from layoutdsl.errors import Diagnostic, Edit, Span

    def look(text: str) -> list[Diagnostic]:
        code = "LD904" if "b" in text else "LD040"
        at = text.find("b" if "b" in text else "a") + 1
        return [Diagnostic(code, "", "", fix=Edit(Span("x", 1, at, 1, at + 1), ""))] if at else []

    assert fix.settled("ab", "x", look) == ("a", 1)
    assert fix.settled("a", "x", look) == ("", 1)


def test_a_comment_on_what_other_files_make_a_finding_stays(lint: Any) -> None:
    write("x/a.yaml")
    write("x/b.yaml", **{"checkpoint: b": "# layoutdsl: ignore[LD901] on purpose\ncheckpoint: b", '"1"': "1"})
    comment = "checkpoint: a  # layoutdsl: ignore[LD031] the other goes"
    path = write("x/y/a.yaml", **{"checkpoint: a": comment})
    done = lint("x", "--fix")
    assert (done.found, done.err) == ([], "4 findings mended\n")
    assert comment in path.read_text()


def test_edits_that_overlap_wait_for_the_next_round() -> None:
    from layoutdsl.errors import Edit, Span

    edits = [Edit(Span("a", 1, 1, 1, 4), "x"), Edit(Span("a", 1, 3, 1, 6), "y"), Edit(Span("a", 1, 6, 2, 1), "")]
    assert fix.fixed("abcdef\ng", edits) == ("xdeg", 2)
    assert fix.fixed("abc", [Edit(Span("a", 2, 1, 3, 1), "z")]) == ("abcz", 1)


@pytest.mark.parametrize("form", ["text", "sarif"])
def test_output_that_is_closed(lint: Any, form: str) -> None:
    write("a.yaml")
    command = f"{sys.executable} -m layoutdsl lint a.yaml --output-format {form} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT})
    assert (done.returncode, done.stderr) == (1, "")


# --- exit status ------------------------------------------------------------------------------------------------------


def test_exit_zero(lint: Any) -> None:
    write("a.yaml")
    done = lint("a.yaml", "--exit-zero")
    assert (done.status, len(done.found)) == (0, 1)
    assert lint("none.yaml", "--exit-zero", "--output-format", "xml").status == 2


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more rule, which fails in files whose text speaks of it."""

    def check(subject: Any) -> Iterator[Any]:
        yield from ()
        if "fail" in subject.spec.doc:
            raise IndexError("list index\nout of range")

    one = SimpleNamespace(code="LD999", name="broken", also=(), check=check, check_tree=None)
    monkeypatch.setattr("layoutdsl.lint.examine.rules", lambda: (one, *rule.rules()))
    yield


def test_a_rule_that_fails_is_a_sentence_and_stops_nothing(
    lint: Any, broken: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.yaml", **{"doc: a spec": "doc: fail"})
    write("b.yaml", **{"gi:32": "gi:64"})
    done = lint(".")
    assert done.status == 2
    assert done.found == [("a.yaml:10:24", "LD904"), ("b.yaml:10:24", "LD904")]
    assert done.err == (
        "this is a fault of layoutdsl: a.yaml: the rule LD999 failed: IndexError: list index out of range "
        "(LAYOUTDSL_TRACEBACK=1 shows where; please report it)\n"
    )
    assert lint("b.yaml").status == 1
    assert lint(".", "--exit-zero").status == 2
    monkeypatch.setenv("LAYOUTDSL_TRACEBACK", "1")
    assert lint(".").err.startswith("Traceback (most recent call last):")


def test_a_proof_that_fails_is_a_sentence(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutdsl.logical.prove_spec", lambda *_: 1 // 0)
    write("a.yaml")
    done = lint(".")
    assert (done.status, done.found) == (2, [("a.yaml:10:24", "LD904")])
    assert "a.yaml: the proof failed: ZeroDivisionError: " in done.err


def test_a_reader_that_fails_is_a_sentence(lint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutdsl.library.spec_in", lambda _: 1 // 0)
    write("a.yaml")
    done = lint(".")
    assert (done.status, done.found) == (2, [])
    assert "a.yaml: reading it failed: ZeroDivisionError: " in done.err


# --- what is loaded ---------------------------------------------------------------------------------------------------


def test_neither_pydantic_nor_yaml_is_loaded_before_a_spec_is_read() -> None:
    modules = "cli, lint.command, lint.report, lint.sarif, lint.settings, lint.suppress, lint.fix, lint.pages"
    names = ", ".join(f"layoutdsl.{name.strip()}" for name in modules.split(","))
    code = f"import sys, {names}; print([name for name in ('pydantic', 'yaml', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- rule -------------------------------------------------------------------------------------------------------------


def test_rule(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for word in ("LD302", "ld302", "word-width"):
        assert cli.main(["rule", word]) == 0
        pages.append(capsys.readouterr().out)
    assert len(set(pages)) == 1
    head = "# LD302 word-width\n\nThe codes that a word packs do not fill it.\n\n## Why is this bad\n"
    assert pages[0].startswith(head)
    assert cli.main(["rule", "unknown-tensor"]) == 0
    assert capsys.readouterr().out.startswith("# LD103 unknown-axis, also reported as unknown-tensor\n")


def test_all_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rule", "--all"]) == 0
    assert re.findall(r"^# (LD\S+|LP\S+) ", capsys.readouterr().out, re.MULTILINE) == [one.code for one in rule.rules()]
    assert cli.main(["rule"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rule.rules())
    assert all(line.startswith(f"{one.code} {one.name} ") for line, one in zip(lines, rule.rules()))


def test_rules_of_several_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rule", "ld2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines] == [one.code for one in rule.rules() if one.code.startswith("LD2")]
    assert cli.main(["rule", "LD203", "ld204"]) == 0
    assert re.findall(r"^# (LD\S+) ", capsys.readouterr().out, re.MULTILINE) == ["LD203", "LD204"]


def test_no_such_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rule", "word-witdh"]) == 1
    assert capsys.readouterr().err == (
        "LP109 no-such-rule: no rule has the code or name `word-witdh`\n  = help: did you mean `word-width`?\n"
    )


def test_the_longest_word_decides() -> None:
    wanted = Selection.of(["LD", "LD10"], [], ["LD1", "digit-size"])
    has = {code: wanted.has(code) for code in ("LD904", "LD101", "LD105", "LD112", "LP101")}
    assert has == {"LD904": True, "LD101": True, "LD105": False, "LD112": False, "LP101": False}
