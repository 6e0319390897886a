"""How findings are said: text, concise, JSON, GitHub's annotations, SARIF."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from layoutdsl import cli
from layoutdsl.errors import Diagnostic, Edit, Span
from layoutdsl.lint import report
from layoutdsl.lint.run import Fault, Outcome
from layoutdsl.lint.settings import FORMATS

SCHEMA = Path(__file__).parent / "fixtures" / "sarif" / "sarif-schema-2.1.0.json"

BAD = """\
version: 1
checkpoint: bad
doc: a bad spec
source: made up
tensors:
  w:
    role: codes
    splt: "k = kw kp:8"
    dtype: int32
value: w
try: [{n: 64, k: 128}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    (tmp_path / "my specs").mkdir()
    (tmp_path / "my specs" / "bad.yaml").write_text(BAD)
    return tmp_path


@pytest.fixture
def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(form: str, *argv: str) -> str:
        assert cli.main(["lint", str(folder), "--output-format", form, *argv]) == 1
        done = capsys.readouterr()
        assert done.err == ""
        return done.out

    return call


def made(*findings: Diagnostic, faults: tuple[Fault, ...] = ()) -> Outcome:
    return Outcome(findings, (Path("a.yaml"),), faults)


def test_the_command_knows_every_format() -> None:
    assert tuple(report.FORMATS) == FORMATS


def test_text(said: Any) -> None:
    assert said("text") == (
        "LD023 wrong-value: expected `1` for `version`, found the integer `1`\n"
        " --> my specs/bad.yaml:1:10\n"
        "  |\n"
        "1 | version: 1\n"
        "  |          ^\n"
        '  = help: quote it: "1"\n'
        "  = see: docs/rules.md#ld023\n"
        "\n"
        "LD021 missing-key: missing key `order` in `w`\n"
        " --> my specs/bad.yaml:6:3\n"
        "  |\n"
        "6 |   w:\n"
        "  |   ^\n"
        "  = see: docs/rules.md#ld021\n"
        "\n"
        "LD020 unknown-key: unknown key `splt`\n"
        " --> my specs/bad.yaml:8:5\n"
        "  |\n"
        '8 |     splt: "k = kw kp:8"\n'
        "  |     ^^^^\n"
        "  = help: did you mean `split`? allowed here: `name`, `dtype`, `code`, `split`, `order`, `shape`, `scaled`, "
        "`plus`, `reciprocal`, `role`, `when`, `derive`, `cases`, `doc`\n"
        "  = see: docs/rules.md#ld020\n"
        "\n"
        "3 findings in 1 file (--fix mends 1)\n"
    )


def test_concise(said: Any) -> None:
    assert said("concise") == (
        "my specs/bad.yaml:1:10: LD023 wrong-value: expected `1` for `version`, found the integer `1`\n"
        "my specs/bad.yaml:6:3: LD021 missing-key: missing key `order` in `w`\n"
        "my specs/bad.yaml:8:5: LD020 unknown-key: unknown key `splt`\n"
        "3 findings in 1 file (--fix mends 1)\n"
    )


def test_json(said: Any) -> None:
    found = json.loads(said("json"))
    assert set(found) == {"version", "files", "findings", "faults"}
    assert (found["version"], found["files"], found["faults"]) == (1, 1, [])
    assert found["findings"][0] == {
        "code": "LD023",
        "name": "wrong-value",
        "message": "expected `1` for `version`, found the integer `1`",
        "help": 'quote it: "1"',
        "page": "docs/rules.md#ld023",
        "file": "my specs/bad.yaml",
        "line": 1,
        "column": 10,
        "end_line": 1,
        "end_column": 11,
        "source": ["version: 1"],
        "fix": {"line": 1, "column": 10, "end_line": 1, "end_column": 11, "text": '"1"'},
    }
    assert [finding["code"] for finding in found["findings"]] == ["LD023", "LD021", "LD020"]


def test_json_without_a_place() -> None:
    (finding,) = json.loads(report.as_json(made(Diagnostic("LD032", "no-specs", "no place"))))["findings"]
    assert (finding["code"], finding["file"], finding["fix"], finding["source"]) == ("LD032", None, None, [])


def test_a_file_that_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "latin.yaml").write_bytes(b"a: 1\nb: \xb7\n")
    said = dict.fromkeys(FORMATS, "")
    for form in FORMATS:
        assert cli.main(["lint", "none.yaml", "latin.yaml", "--output-format", form]) == 1
        said[form] = capsys.readouterr().out
    places = [(finding["file"], finding["line"]) for finding in json.loads(said["json"])["findings"]]
    assert places == [("none.yaml", 1), ("latin.yaml", 2)]
    assert re.findall("^(.*): LD002", said["concise"], re.MULTILINE) == ["none.yaml:1:1", "latin.yaml:2:1"]
    assert re.findall("file=(.*?),line=(.*?),", said["github"]) == [("none.yaml", "1"), ("latin.yaml", "2")]
    assert re.findall('"uri": "(.*)"', said["sarif"]) == ["none.yaml", "latin.yaml"]
    assert "--> none.yaml:1:1\n" in said["text"]


# --- GitHub -----------------------------------------------------------------------------------------------------------


def test_annotations(said: Any) -> None:
    first, second, _ = said("github").splitlines()
    assert first == (
        "::error file=my specs/bad.yaml,line=1,endLine=1,col=10,endColumn=11,title=LD023 wrong-value::"
        'expected `1` for `version`, found the integer `1`%0Ahelp: quote it: "1"%0Asee: docs/rules.md#ld023'
    )
    assert second.startswith("::error file=my specs/bad.yaml,line=6,endLine=6,col=3,endColumn=4,title=LD021 ")


def test_an_annotation_of_several_lines_has_no_columns() -> None:
    span = Span("a.yaml", 3, 5, 4, 9)
    text = report.github(made(Diagnostic("LD904", "tried-twice", "twice", span)))
    assert text == "::error file=a.yaml,line=3,endLine=4,title=LD904 tried-twice::twice%0Asee: docs/rules.md#ld904"


def test_annotations_are_escaped() -> None:
    span = Span("a,b:c.yaml", 3, 5, 3, 9)
    text = report.github(made(Diagnostic("XX001", "x", "100% of\r\n::error::a, b", span)))
    assert text == (
        "::error file=a%2Cb%3Ac.yaml,line=3,endLine=3,col=5,endColumn=9,title=XX001 x::"
        "100%25 of%0D%0A::error::a, b"
    )


@pytest.mark.parametrize("form", ["concise", "github"])
def test_a_name_neither_moves_the_cursor_nor_begins_a_line(form: str) -> None:
    span = Span("a\x1b[2J\n::error::b\r.yaml", 3, 5, 3, 9)
    text = report.FORMATS[form](made(Diagnostic("XX001", "x", "no `\x1b[1m`\nat all", span)))
    assert text.replace("\n", "").isprintable()
    assert [line for line in text.splitlines() if "XX001" in line] == text.splitlines()[:1]


def test_annotations_of_nothing_are_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--output-format", "github"]) == 0
    assert capsys.readouterr().out == ""


def test_paths_are_those_of_the_checkout(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GitHub looks for the files from the root of the repository, wherever the step has run."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    monkeypatch.chdir(folder / "my specs")
    assert cli.main(["lint", "bad.yaml", "--output-format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=my specs/bad.yaml,line=1,")
    assert cli.main(["lint", "bad.yaml", "--output-format", "sarif"]) == 1
    (place,) = set(re.findall(r'"uri": "(.*?)"', capsys.readouterr().out))
    assert place == "my%20specs/bad.yaml"


# --- SARIF ------------------------------------------------------------------------------------------------------------


def valid(text: str) -> dict[str, Any]:
    log = json.loads(text)
    errors = [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator().iter_errors(log)]
    assert not errors
    return log["runs"][0]


def validator() -> Draft4Validator:
    return Draft4Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_the_schema_finds_faults() -> None:
    assert not validator().is_valid({"version": "2.1.0"})
    assert not validator().is_valid({"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x", "colour": 1}}}]})


def test_sarif(said: Any) -> None:
    run = valid(said("sarif"))
    rules, results = run["tool"]["driver"]["rules"], run["results"]
    assert [rule["id"] for rule in rules] == ["LD020", "LD021", "LD023"]
    assert all("## Why is this bad" in rule["help"]["markdown"] for rule in rules)
    assert [(result["ruleId"], rules[result["ruleIndex"]]["id"]) for result in results] == [
        ("LD023", "LD023"), ("LD021", "LD021"), ("LD020", "LD020"),
    ]
    place = results[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "my%20specs/bad.yaml", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 1, "startColumn": 10, "endLine": 1, "endColumn": 11}
    (change,) = results[0]["fixes"][0]["artifactChanges"]
    assert change["replacements"][0]["insertedContent"] == {"text": '"1"'}
    assert run["invocations"][0]["executionSuccessful"] is True
    assert run["columnKind"] == "unicodeCodePoints"


def outcomes() -> Iterator[Outcome]:
    yield made()
    yield made(Diagnostic("LD002", "unreadable-file", "no place"))
    yield made(Diagnostic("XX001", "no-rule", "text", Span("../outside/a b.yaml", 1, 1, 2, 1)))
    span = Span("a.yaml", 3, 1, 3, 4)
    yield made(Diagnostic("LD904", "tried-twice", "text", span, fix=Edit(Span("a.yaml", 3, 1, 4, 1), "")))
    yield made(faults=(Fault("a.yaml", "the rule LD904", RuntimeError("no")),))


@pytest.mark.parametrize("outcome", [*outcomes()], ids=["clean", "no place", "no rule", "fix", "fault"])
def test_every_log_is_valid(outcome: Outcome) -> None:
    run = valid(report.sarif(outcome))
    assert len(run["results"]) == len(outcome.findings)
    assert run["invocations"][0]["executionSuccessful"] is not bool(outcome.faults)


def test_a_name_that_is_not_utf8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"bad\xff.yaml")
    (folder / name).write_text(BAD)
    assert cli.main(["lint", name, "--output-format", "sarif"]) == 1
    assert '"uri": "bad%FF.yaml"' in capsys.readouterr().out
    for form in FORMATS:
        assert cli.main(["lint", str(folder), "--output-format", form]) == 1


def prints(text: str) -> dict[str, str]:
    return {result["ruleId"]: fingerprint(result) for result in valid(text)["results"]}


def fingerprint(result: dict[str, Any]) -> str:
    return result["partialFingerprints"]["primaryLocationLineHash"]


def test_an_alert_is_known_again(said: Any, folder: Path) -> None:
    """Lines that come and go above it do not matter; its own line, its file and its rule do."""
    file, before = folder / "my specs" / "bad.yaml", prints(said("sarif"))
    assert len(set(before.values())) == 3
    file.write_text("# one\n\n# two\n" + BAD.replace("    dtype", "    # three\n    dtype"))
    assert prints(said("sarif")) == before
    file.write_text(BAD.replace('splt: "k', 'splt: "n'))
    after = prints(said("sarif"))
    assert after["LD020"] != before["LD020"] and after["LD023"] == before["LD023"]
    file.rename(folder / "other.yaml")
    assert not set(prints(said("sarif")).values()) & set(before.values())


def test_alerts_of_one_line_are_told_apart() -> None:
    one = Diagnostic("LD904", "tried-twice", "text", Span("a.yaml", 3, 1, 3, 4), source=("x: 1",))
    two = Diagnostic("LD904", "tried-twice", "text", Span("a.yaml", 3, 6, 3, 9), source=("x: 1",))
    first, second = map(fingerprint, valid(report.sarif(made(one, two)))["results"])
    assert first.split(":")[0] == second.split(":")[0] and (first[-2:], second[-2:]) == (":1", ":2")
