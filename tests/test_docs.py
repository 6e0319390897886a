"""The examples in README.md, CONTRIBUTING.md and docs/ are run, and print what stands there.

    ```yaml                a spec, linted with the proofs at its sizes to try
    ```yaml file=NAME      written to the file NAME, for what follows (some are wrong on purpose, so it is not linted)
    ```diff file=NAME      changes that file; `@@` stands between two places
    ```yaml from=PATH      lines out of a file of the repository, in its order
    ```python              run; the blocks of a document share their names
    ```text                directly below python: what it printed
    ```console             lines `$ layoutdsl ...` are run, what stands below each is what it printed

In what is printed a line `...` stands for any lines, and seconds and digests are not compared. Other blocks are prose.
`python tests/test_docs.py` puts what is printed today into the documents; blocks with `...` are left to the author.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from layoutdsl import LayoutError, cli
from layoutdsl.library import spec_of
from layoutdsl.logical import prove_spec

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = ("docs/formats.md", "docs/spec-reference.md")
VOLATILE = ((r" +\d+\.\d\d s\b", " <seconds>"), (r"\b[0-9a-f]{64}\b", "<digest>"))


# ---------------------------------------------------------------- blocks


@dataclass
class Block:
    """A fenced block: its language, the options after it, its lines, and where the first of these stands (from 0)."""

    language: str
    options: dict[str, str]
    lines: list[str]
    at: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def blocks(lines: list[str]) -> Iterator[Block]:
    start: int | None = None
    for at, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = at
            continue
        language, *options = lines[start].removeprefix("```").split() or [""]
        yield Block(language, dict(option.split("=", 1) for option in options), lines[start + 1 : at], start + 1)
        start = None
    assert start is None, f"the block in line {start} is never closed"


def agree(expected: list[str], found: list[str]) -> bool:
    """Whether the lines are the same; `...` stands for any number of them."""
    if not expected:
        return not found
    if expected[0].strip() == "...":
        return any(agree(expected[1:], found[skip:]) for skip in range(len(found) + 1))
    return bool(found) and plain(expected[0]) == plain(found[0]) and agree(expected[1:], found[1:])


def plain(line: str) -> str:
    for pattern, word in VOLATILE:
        line = re.sub(pattern, word, line)
    return line.rstrip()


# ---------------------------------------------------------------- running them


@dataclass
class Document:
    """One document; `run` carries out its blocks in their order, in a folder of its own, and collects what is wrong."""

    path: Path
    names: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    printed: dict[int, tuple[int, list[str]]] = field(default_factory=dict)  # first line -> number of lines, new ones
    count: int = 0

    def run(self) -> None:
        last: tuple[Block, str] | None = None
        lines = self.path.read_text(encoding="utf-8").splitlines()
        for block in blocks(lines):
            is_output = block.language == "text" and last is not None
            if is_output and "".join(lines[last[0].at + len(last[0].lines) + 1 : block.at - 1]).strip() == "":
                self.compare(block, block.lines, last[1].splitlines())
            last = None
            if block.language == "yaml":
                self.yaml(block)
            if block.language == "diff":
                self.diff(block)
            if block.language == "python":
                last = block, self.python(block)
            if block.language == "console":
                self.console(block)

    def fail(self, block: Block, message: str) -> None:
        self.wrong.append(f"{self.path.relative_to(ROOT)}:{block.at}: {message}")

    def compare(self, block: Block, expected: list[str], found: list[str], at: int | None = None) -> None:
        self.count += 1
        if agree(expected, found):
            return
        self.fail(block, "it printed\n" + "\n".join(found))
        if not any(line.strip() == "..." for line in expected):
            self.printed[block.at if at is None else at] = len(expected), found

    def yaml(self, block: Block) -> None:
        self.count += 1
        if "file" in block.options:
            file = Path(block.options["file"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif "from" in block.options:
            rest = iter((ROOT / block.options["from"]).read_text(encoding="utf-8").splitlines())
            for line in block.lines:
                if line.strip() != "..." and not any(line.strip() == other.strip() for other in rest):
                    self.fail(block, f"no such line in {block.options['from']}, or not in this order: {line}")
        else:
            try:
                spec = spec_of(block.text, f"{self.path.name}, line {block.at}")
                for entry in spec.try_:
                    prove_spec(spec, entry)
            except LayoutError as error:
                self.fail(block, str(error))

    def diff(self, block: Block) -> None:
        file = Path(block.options["file"])
        text = file.read_text(encoding="utf-8")
        for hunk in "\n".join(block.lines).split("\n@@\n"):
            lines = hunk.split("\n")
            old, new = ("".join(f"{line[1:]}\n" for line in lines if line[:1] in f" {mark}") for mark in "-+")
            if text.count(old) != 1:
                self.fail(block, f"{file} has {text.count(old)} places for\n{old}")
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")

    def python(self, block: Block) -> str:
        self.count += 1
        out = io.StringIO()
        with tempfile.NamedTemporaryFile("w", suffix=".py", prefix=f"{self.path.stem}-line-{block.at}-") as file:
            file.write(block.text)
            file.flush()
            try:
                with contextlib.redirect_stdout(out):
                    self.names = runpy.run_path(file.name, init_globals=self.names)
            except Exception as error:
                self.fail(block, f"{type(error).__name__}: {error}")
        return out.getvalue()

    def console(self, block: Block) -> None:
        starts = [at for at, line in enumerate(block.lines) if line.startswith("$ ")]
        if not starts or starts[0] != 0:
            self.fail(block, "a console block begins with a command")
        for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
            body, command = block.lines[start + 1 : end], block.lines[start].removeprefix("$ ")
            while command.endswith("\\") and body:
                command, body, start = command[:-1] + body[0], body[1:], start + 1
            self.compare(block, body, shell(command).splitlines(), block.at + start + 1)


def shell(command: str) -> str:
    """What a `layoutdsl` command prints, on either stream."""
    program, *words = shlex.split(command)
    assert program == "layoutdsl", f"only layoutdsl is run, not {program}"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cli.main(words)
    return out.getvalue()


def workplace(folder: Path) -> None:
    """The folder in which a document's commands run: what is read there lies in the repository."""
    for name in ("specs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    os.chdir(folder)


def test_a_code_has_one_name() -> None:
    """But for LP200, whose name says which law is broken; a rule's page says under which other names it is reported."""
    page = (ROOT / "docs/spec-reference.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:\[`|`)(LP[0-9]{3})`.*? \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 90
    assert [code for code, names in rows if ", " in names] == ["LP200"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_do_what_they_say(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    workplace(tmp_path)
    document = Document(path)
    document.run()
    assert not document.wrong, "\n\n".join(document.wrong)


def test_the_readme_has_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    languages = [block.language for block in blocks((ROOT / "README.md").read_text(encoding="utf-8").splitlines())]
    assert {"yaml", "python", "console"} <= set(languages)


# ---------------------------------------------------------------- the harness itself


def test_dots_stand_for_any_lines() -> None:
    assert agree(["a", "...", "d"], ["a", "b", "c", "d"])
    assert agree(["a", "..."], ["a"])
    assert not agree(["a", "...", "d"], ["a", "b"])
    assert not agree(["a"], ["a", "b"])
    assert agree(["wrote 1 kB, 0.21 s"], ["wrote 1 kB, 13.02 s"])


def test_a_wrong_example_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workplace(tmp_path)
    bad = ROOT / "bad.md"  # never written: only its name is used
    text = "```python\nprint(1)\n```\n\n```text\n2\n```\n\n```console\n$ layoutdsl --version\nlayoutdsl 0\n```\n"
    text += '```yaml\nversion: "1"\n```\n```yaml from=specs/module/linear.yaml\nmodule: square\n```\n'
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: text if path == bad else read(path, encoding))
    document = Document(bad)
    document.run()
    assert [line.split(": ")[0] for line in document.wrong] == ["bad.md:5", "bad.md:9", "bad.md:13", "bad.md:16"]


# ---------------------------------------------------------------- links, and what is generated


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ +(.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            dead.append(target)
    assert not dead, f"{path.relative_to(ROOT)} links to {', '.join(dead)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_are_named_are_there(path: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text(encoding="utf-8")):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def test_generated_documents_are_fresh() -> None:
    command = [sys.executable, ROOT / "scripts" / "generate_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: python scripts/generate_docs.py"


# ---------------------------------------------------------------- rewriting


def rewrite(path: Path) -> None:
    """Put what the examples of a document print today into it."""
    here, document = Path.cwd(), Document(path)
    with tempfile.TemporaryDirectory() as folder:
        workplace(Path(folder))
        document.run()
        os.chdir(here)
    lines = path.read_text(encoding="utf-8").splitlines()
    for at, (count, found) in sorted(document.printed.items(), reverse=True):
        lines[at : at + count] = [line.rstrip() for line in found]
    if document.printed:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(document.printed)} blocks rewritten")
    again = Document(path)
    with tempfile.TemporaryDirectory() as folder:
        workplace(Path(folder))
        again.run()
        os.chdir(here)
    for wrong in again.wrong:
        print(wrong)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    for document_path in [Path(name).resolve() for name in sys.argv[1:]] or DOCUMENTS:
        rewrite(document_path)
