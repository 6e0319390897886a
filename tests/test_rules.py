"""The rules of `lint`: each has a page, a bad spec and the nearest good one.

Each file in tests/lint/bad is a spec that begins with the exact report it earns, as comments; its twin of the same name
in tests/lint/good is the nearest spec that is clean. A name begins with the code of the rule that it shows, and more
words may follow that of the rule. Folders beside them hold what such a spec needs of others.

After a change of wording, `python tests/test_rules.py` writes the reports anew: review them as a diff.
"""

import contextlib
import re
from pathlib import Path

import pytest

from layoutdsl.library import read_spec, read_tree, shipped
from layoutdsl.lint.rule import Rule, rule_of, rules
from layoutdsl.lint.run import lint
from layoutdsl.lint.subject import Subject

ROOT = Path(__file__).resolve().parent.parent
BAD, GOOD, ERRORS = ROOT / "tests/lint/bad", ROOT / "tests/lint/good", ROOT / "tests/errors"
PARTS = ["## Why is this bad", "## Example", "## Use instead"]

OF_FOLDERS = {"LD031", "LD032"}
"""Findings that no single file can show: tests/test_lint.py makes the folders."""
OF_FILES = {"LD002"}
"""Findings in what is no text at all: tests/test_source.py makes the files."""
OF_PLANS = {"LD403"}
"""Findings that take a module with parts of unequal widths."""


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def split(path: Path) -> tuple[str, str]:
    """The comment that begins a file, without its marks, and the rest."""
    lines = path.read_text(encoding="utf-8").split("\n")
    size = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:size]), "\n".join(lines[size:])


def report_of(path: Path) -> str:
    with contextlib.chdir(path.parent):
        found, _ = lint([path.name])
    return "\n\n".join(finding.render() for finding in found) or "nothing was found"


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_every_rule_has_a_page(rule: Rule) -> None:
    first, *rest = rule.doc.split("\n")
    assert first.endswith(".") and first[:1].isupper() and len(first) <= 120
    heads = [line for line in rest if line.startswith("#")]
    assert heads == PARTS
    for part, after in zip(PARTS, [*PARTS[1:], "\0"]):
        text = rule.doc.partition(part)[2].partition(after)[0]
        assert len(text.strip()) > 10, f"{part} says nothing"


def test_codes_and_names_stand_once() -> None:
    codes = [rule.code for rule in rules()]
    spoken = [name for rule in rules() for name in (rule.name, *rule.also)]
    assert len(set(codes)) == len(codes)
    assert len(set(spoken)) == len(spoken)


def test_every_code_that_is_raised_has_a_rule_of_its_name() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "layoutdsl").rglob("*.py"))
    made = set(re.findall(r'"(LD[0-9]{3})",\s*(?:name=)?f?"([a-z{}-]+)"', source))
    made |= set(re.findall(r'"(LD[0-9]{3})": "([a-z-]+)"', source))
    assert len(made) > 45
    for code, name in sorted(made):
        rule = rule_of(code)
        assert rule is not None, f"{code} {name} has no file in lint/rules"
        wanted = re.compile(re.sub(r"\{.*?\}", "[a-z]+", name))
        assert any(wanted.fullmatch(known) for known in (rule.name, *rule.also)), f"{code} is {rule.name}, not {name}"
    assert set(re.findall(r'"(LD[0-9]{3})"', source)) <= {rule.code for rule in rules()}
    laws = (ROOT / "docs/laws.md").read_text(encoding="utf-8").partition("| law |")[2].partition("\n\n")[0]
    assert [f"law-{law}" for law in re.findall(r"^\| ([a-z]+) \|", laws, re.MULTILINE)] == list(rule_of("LP200").also)


# --- what they look at -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(shipped().rglob("*/*.yaml")), ids=lambda path: path.stem)
def test_every_size_to_try_of_a_shipped_spec_resolves(path: Path) -> None:
    if path.parent.name == "names":
        return
    subject = Subject(read_spec(path), read_tree(path))
    assert [one.path for one in subject.tries] == [("try", at) for at in range(len(subject.spec.try_))]
    for one in subject.tries:
        assert bool(one.tensors) != bool(one.matrices)
        assert all(tensor.codes > 0 for tensor in one.tensors)


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names(BAD))
def test_bad_spec(name: str) -> None:
    expected, _ = split(BAD / f"{name}.yaml")
    assert report_of(BAD / f"{name}.yaml") == expected
    code = name[:5].upper()
    assert re.search(rf"^{code} ", expected, re.MULTILINE), f"{name} does not show {code}"


@pytest.mark.parametrize("name", names(GOOD))
def test_good_spec(name: str) -> None:
    assert report_of(GOOD / f"{name}.yaml") == "nothing was found"


def test_bad_specs_have_twins() -> None:
    assert set(names(BAD)) <= set(names(GOOD))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_every_rule_has_a_bad_and_a_good_spec(rule: Rule) -> None:
    if rule.code in OF_FOLDERS | OF_FILES | OF_PLANS:
        return
    reports = [split(path)[0] for folder in (BAD, ERRORS) for path in folder.glob("*.yaml")]
    for name in (rule.name, *rule.also):
        if any(re.search(rf"^{rule.code} {name}: ", report, re.MULTILINE) for report in reports):
            break
    else:
        pytest.fail(f"no bad spec shows {rule.code} {rule.name}")
    if rule.check is not None or rule.check_tree is not None:
        slug = f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
        assert any(name.startswith(slug) for name in names(GOOD)), f"tests/lint/good/{slug}.yaml is not there"


if __name__ == "__main__":
    for path in sorted(BAD.glob("*.yaml")):
        before = ""
        while (text := path.read_text(encoding="utf-8")) != before:  # lines move with the length of the report
            head = "".join(f"# {line}".rstrip() + "\n" for line in report_of(path).split("\n"))
            before = text
            path.write_text(head + split(path)[1], encoding="utf-8")
