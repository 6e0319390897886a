"""`layoutdsl diff`: what it says moves is held against layouts that numpy writes out; versions come from real git."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError, cli, library
from layoutdsl.diff import picture, text
from layoutdsl.diff.compare import LONGEST_AXIS, Difference, difference
from layoutdsl.diff.data import data_of
from layoutdsl.diff.versions import Version, opened, version_of
from layoutdsl.library import files, read_spec
from layoutdsl.lint import ink
from layoutdsl.model import Format, Module

ROOT = Path(__file__).resolve().parent.parent
MARLIN = ROOT / "specs" / "kernel" / "marlin_int4_a16.yaml"
SVG = "{http://www.w3.org/2000/svg}"

DIGITS = {"kt": 2, "k1": 2, "k0": 4, "nt": 3, "n1": 2, "n0": 4}
"""Name -> size: what the specs below have at n=24 and k=16."""

SPEC = """\
version: "1"
checkpoint: small
doc: a small format
source: nowhere
params: {{group: {{type: group, default: 8}}, dtype: [float16, bfloat16], zero_points: {{type: bool, default: false}}}}
parts: {{stored: [stacked, apart], orders: [[gate, up]]}}
tensors:
  weight:
    role: codes
    dtype: int32
    code: u4b8
    split: "k = kt k1:2 k0:4 · n = nt n1:2 n0:4"
    order: "{order}"
    cases: [{{when: zero_points, code: u4}}]
  scales: {{role: scale, dtype: "{{dtype}}", split: "k = g gi:(group)", order: "g, n (gi)"}}
  zeros: {{role: zero_point, when: zero_points, dtype: float16, split: "k = g gi:(group)", order: "g, n (gi)"}}
value: "(weight - zeros) * scales"
try: [{{n: 24, k: 16}}]
"""
BASE = SPEC.format(order="kt, nt k1 n0 {k0 n1}")


def version(spec: str, label: str = "a version") -> Version:
    return version_of(library.tree_of(spec, f"{label}.yaml"), label)


def compared(before: str, after: str, **given: Any) -> Difference:
    return difference(version(before, "before"), version(after, "after"), **given)


def changed(*pairs: tuple[str, str]) -> Difference:
    """What comes of replacing parts of the text."""
    after = BASE
    for old, new in pairs:
        assert old in after
        after = after.replace(old, new)
    return compared(BASE, after)


@pytest.fixture
def diff(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    def call(*argv: Any) -> SimpleNamespace:
        status = cli.main(["diff", *map(str, argv)])
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return call


# --- layouts written out ----------------------------------------------------------------------------------------------


@st.composite
def orders(draw: st.DrawFn) -> tuple[str, ...]:
    """Digits in an order, the last two of which fill a word of eight codes."""
    word = draw(st.sampled_from([pair for pair in itertools.permutations(DIGITS, 2) if product(pair) == 8]))
    rest = draw(st.permutations([name for name in DIGITS if name not in word]))
    return (*rest, *word)


def product(names: Sequence[str]) -> int:
    return math.prod(DIGITS[name] for name in names)


def spec_of(order: Sequence[str]) -> str:
    first, *stored, one, two = order
    return SPEC.format(order=f"{first}, {' '.join(stored)} {{{one} {two}}}")


def addresses(order: Sequence[str]) -> np.ndarray:
    """The address of each element, n by k: numpy's own transposition, without any of our views."""
    axes = ("nt", "n1", "n0", "kt", "k1", "k0")
    sizes = [DIGITS[name] for name in axes]
    elements = np.arange(math.prod(sizes)).reshape(sizes).transpose([axes.index(name) for name in order]).reshape(-1)
    found = np.empty_like(elements)
    found[elements] = np.arange(elements.size)
    return found.reshape(24, 16)


@settings(max_examples=25, deadline=None)
@given(orders(), orders())
def test_counts_are_those_of_every_address(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Moved elements are counted as by looking at each; examples stand where they are said to; both ways are alike."""
    moved = int((addresses(one) != addresses(other)).sum())
    found, back = compared(spec_of(one), spec_of(other)), compared(spec_of(other), spec_of(one))
    assert found.is_same == back.is_same == (one == other)
    if not moved:
        assert not found.moved and not back.moved
        return
    counts = [(c.moves.moved, c.moves.elements) for both in (found, back) for c in both.moved if len(c.settings) > 1]
    assert counts == [(moved, 24 * 16)] * 2
    (change,) = [change for change in found.moved if len(change.settings) > 1]
    for example in data_of(found)["tensors"][found.changes.index(change)]["examples"]:
        for side, order in (("before", one), ("after", other)):
            words = 24 * 16 // 8 // DIGITS[order[0]]
            place = example[side]
            assert addresses(order)[example["n"], example["k"]] == (
                (place["row"][0] * words + place["word"]) * 8 + place["bit"] // 4
            )
    first = np.sort(addresses(one)[addresses(one) != addresses(other)])[0]
    assert change.moves.first == first


@settings(max_examples=25, deadline=None)
@given(orders(), st.data())
def test_two_digits_that_change_places_are_named(order: tuple[str, ...], data: st.DataObject) -> None:
    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(6), 2)
        if (one < 4) == (other < 4) or DIGITS[order[one]] == DIGITS[order[other]]
    ]
    one, other = data.draw(st.sampled_from(pairs))
    after = list(order)
    after[one], after[other] = after[other], after[one]
    found = compared(spec_of(order), spec_of(after))
    facts = [fact for change in found.moved for fact in change.facts if fact.kind == "order"]
    assert facts and {fact.said.partition(":")[0] for fact in facts} == {
        f"digits `{order[one]}` and `{order[other]}` change places"
    }
    both_packed, both_stored = one > 3, other < 4
    how = "the order inside a word" if both_packed else "the order of words" if both_stored else "elements go between"
    assert all(how in fact.said for fact in facts)


GRID = re.compile(r"^  ([-+ ])\s+(\d+)\s+(\d+)  (.*)$", re.MULTILINE)


@settings(max_examples=25, deadline=None)
@given(orders(), orders())
def test_the_grid_shows_what_stands_where(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Every cell of the text grid is the element at that address, and `=` stands where both have the same."""
    found = compared(spec_of(one), spec_of(other))
    change = next((change for change in found.moved if len(change.settings) > 1), None)
    if change is None:
        return
    rows = GRID.findall("\n".join(text.grid(change)))
    assert 0 < len(rows) <= 2 * text.LINES
    places = {sign: {int(at): divmod(element, 16) for element, at in enumerate(addresses(order).reshape(-1))}
              for sign, order in (("-", one), ("+", other), (" ", one))}  # fmt: skip
    for sign, row, word, cells in rows:
        order = other if sign == "+" else one
        first = (int(row) * (24 * 16 // 8 // DIGITS[order[0]]) + int(word)) * 8
        was, is_now = ([places[key][first + at] for at in range(8)] for key in ("-", "+"))
        wanted = [f"{n},{k}" for n, k in (is_now if sign == "+" else was)]
        if sign == "+":
            wanted = ["=" if old == new else cell for old, new, cell in zip(was, is_now, wanted)]
        assert cells.split() == wanted
        assert (sign == " ") == (was == is_now)


def test_elements_that_share_a_value_count_once() -> None:
    """Blocks of 4 outputs and 8 inputs: 6 by 2 values, of which the first and the last stay."""
    line = 'split: "k = g gi:(group)", order: "g, n (gi)"}\n  zeros'
    blocks = 'split: "k = g gi:(group) · n = nb ni:4", order: "{}"}}\n  zeros'
    before, after = (BASE.replace(line, blocks.format(order)) for order in ("g, nb (gi ni)", "nb, g (gi ni)"))
    found = compared(before, after, params={"group": 8})
    plain = [change for change in found.moved if "names" not in dict(change.settings[0].params)]
    assert {(c.tensor, c.moves.moved, c.moves.elements) for c in plain} == {("scales", 10, 12)}


@pytest.mark.parametrize("other", [("kt", "nt", "n0", "k1", "k0", "n1"), ("kt", "nt", "k1", "n0", "n1", "k0")])
def test_the_picture_shows_what_stands_where(other: tuple[str, ...]) -> None:
    one = ("kt", "nt", "k1", "n0", "k0", "n1")
    found = compared(spec_of(one), spec_of(other))
    drawn = picture.drawing_of(found)
    assert drawn == picture.drawing_of(compared(spec_of(one), spec_of(other)))
    tree = ElementTree.fromstring(drawn)
    for side, order in (("before", one), ("after", other)):
        places = {int(at): divmod(element, 16) for element, at in enumerate(addresses(order).reshape(-1))}
        panel = next(group for group in tree.iter(f"{SVG}g") if group.get("class") == side)
        cells = [(group.get("class"), group[0].text or "", group[-1].text) for group in panel.iter(f"{SVG}g")][1:]
        assert cells
        for kind, hover, said in cells:
            row, word, bit = map(int, re.findall(r"row (\d+), word (\d+), bits (\d+)", hover)[0])
            n, k = places[(row * 24 + word) * 8 + bit // 4]
            assert said == f"{n},{k}" and hover.startswith(f"n {n}, k {k};")
            assert (kind == "plain") == (addresses(one)[n, k] == addresses(other)[n, k])
    arrows = [path for path in tree.iter(f"{SVG}path") if path.get("class") == "arrow"]
    assert bool(arrows) == (other[-1] == "n1")  # none where all stay in their words


# --- one cause, one fact ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", list(files()), ids=lambda path: path.stem)
def test_a_spec_does_not_differ_from_itself(diff: Any, path: Path) -> None:
    done = diff(path, path)
    assert done.status == 0 and "no element moves, the versions are the same" in done.out


def test_other_words_for_the_same_layout() -> None:
    renamed = ("n0:4", "nlow:4"), ("k1 n0", "k1 nlow")
    found = changed(("doc: a small", "doc: another"), *renamed, ("try: [", "try: [{n: 8, k: 8}, "))
    assert found.is_same
    said = " ".join(text.text_of(found).split())
    assert "no element moves, both texts describe the same layout" in said
    assert "they differ in `doc`, `tensors.weight` and `try`" in said


FACTS = {
    "code": ([("code: u4b8", "code: u4")], "weight", "code", "u4b8", "u4"),
    "dtype": ([("dtype: float16, split", "dtype: bfloat16, split")], "zeros", "dtype", "float16", "bfloat16"),
    "scaled": ([("role: scale,", "role: scale, scaled: -8,")], "scales", "scaled", "2^0", "2^-8"),
    "plus": ([("role: zero_point,", "role: zero_point, plus: 1,")], "zeros", "plus", "0", "1"),
    "reciprocal": ([("role: scale,", "role: scale, reciprocal: true,")], "scales", "reciprocal", "the value",
                   "one over the value"),
    "name": ([("role: scale,", "role: scale, name: s,")], "scales", "name", "scales", "s"),
    "shape": ([("kt, nt k1", "kt nt k1")], "weight", "shape", "[2, 24]", "[48]"),
    "groups": ([("default: 8}", "default: 8}"), ('scales: {role: scale, dtype: "{dtype}", split: "k = g gi:(group)"',
                'scales: {role: scale, dtype: "{dtype}", split: "k = g gi:4"')], "scales", "sharing", "8", "4"),
}  # fmt: skip


@pytest.mark.parametrize("case", FACTS)
def test_a_fact_and_its_values(case: str) -> None:
    pairs, tensor, kind, before, after = FACTS[case]
    found = changed(*pairs)
    facts = [(change.tensor, fact.kind, fact.before, fact.after) for change in found.changes for fact in change.facts]
    assert (tensor, kind, before, after) in facts
    assert {change.tensor for change in found.changes} == {tensor}
    assert not found.is_same and bool(found.moved) == (case == "groups")


def test_a_tensor_that_is_removed_and_one_that_is_new() -> None:
    gone = ("  zeros: {role: zero_point, when: zero_points, dtype: float16, split: \"k = g gi:(group)\", "
            "order: \"g, n (gi)\"}\n")  # fmt: skip
    found = changed((gone, ""), ("(weight - zeros)", "weight"))
    (change,) = [change for change in found.changes if change.tensor == "zeros"]
    assert change.status == "removed" and all(dict(at.params)["zero_points"] for at in change.settings)
    assert [fact.kind for fact in found.stated] == ["value"]
    back = difference(found.after, found.before)
    assert [change.status for change in back.changes] == ["added"]


def test_only_the_settings_where_a_case_holds() -> None:
    found = changed(("when: zero_points, code: u4}", 'when: zero_points, code: u4, order: "kt, nt n0 k1 {k0 n1}"}'))
    (change,) = found.changes
    assert change.tensor == "weight" and [dict(at.params)["zero_points"] for at in change.settings] == [True]
    assert "  at n=24 k=16 zero_points=true" in text.text_of(found)


def test_a_case_that_no_setting_takes_is_told_of() -> None:
    """Not called the same: what cannot be seen at the sizes that were compared may still differ."""
    found = changed(("cases: [", "cases: [{when: n > 100000, code: u4}, "))
    for both in (found, difference(found.after, found.before)):
        assert {fact.kind for fact in both.stated} == {"when", "untried"} and not both.is_same
    assert "no element moves, but the versions are not the same" in text.text_of(found)


def test_the_order_of_parts() -> None:
    found = changed(("[[gate, up]]", "[[up, gate]]"))
    assert [fact.kind for fact in found.stated] == ["parts"]
    assert {change.tensor for change in found.moved} == {"weight", "scales", "zeros"} - {"zeros"}
    (at,) = {setting for change in found.moved for setting in change.settings}
    assert dict(at.params)["parts"] == "stacked" and "of up moves from" in text.text_of(found)


def test_a_part_order_that_a_version_lacks_is_a_refusal() -> None:
    found = changed(("[[gate, up]]", "[[q, k, v]]"))
    assert {refusal.label for refusal in found.refusals} == {"before", "after"}
    assert "has no layout at" in text.text_of(found) and not found.is_same


def test_parameters() -> None:
    found = changed(("dtype: [float16, bfloat16]", "dtype: [bfloat16, float16], twice: {type: bool, default: true}"))
    assert [fact.said for fact in found.stated] == ["parameter `dtype` is another", "parameter `twice` is new"]
    # Each version has another default: both are asked for the same value.
    assert not found.changes and all("dtype" in dict(at.params) for at in found.settings)


def test_padding_of_a_kernel(tmp_path: Path, diff: Any) -> None:
    other = tmp_path / MARLIN.name
    other.write_text(MARLIN.read_text(encoding="utf-8").replace("{n: 64, k: 128}, ", ""), encoding="utf-8")
    done = diff(MARLIN, other, "--size", "n=64", "--size", "k=128")
    assert done.status == 1 and "n 64, k 128" in done.out and "n 128, k 128" in done.out
    assert "`accepts`: `tiles` is another" in done.out


def test_lane_order_of_a_kernel(tmp_path: Path, diff: Any) -> None:
    other = tmp_path / MARLIN.name
    text_ = MARLIN.read_text(encoding="utf-8").replace("kt, nt c kq j {k0 b k3}", "kt, nt kq c j {k0 b k3}")
    other.write_text(text_, encoding="utf-8")
    done = diff(MARLIN, other, "--output-format", "json")
    (tensor,) = json.loads(done.out)["tensors"]
    assert done.status == 1 and tensor["tensor"] == "weight"
    assert tensor["facts"][0]["message"] == "digits `c` and `kq` change places: lane order"


def test_formats_that_have_no_tensor_name_in_common_meet_by_role() -> None:
    found = difference(opened("gptq"), opened("awq"))
    assert {"qweight", "scales"} <= {*found.same, *(change.tensor for change in found.changes)}
    across = difference(opened("gptq"), opened("marlin_int4_a16"))
    assert {"qweight", "scales"} <= {change.tensor for change in across.moved}


MODULES = [path for path in files() if isinstance(read_spec(path), Module)]


def test_modules(tmp_path: Path, diff: Any) -> None:
    (path,) = [path for path in MODULES if path.stem == "moe_gated"]
    other = tmp_path / path.name
    other.write_text(path.read_text(encoding="utf-8").replace("[gate, up]", "[up, gate]"), encoding="utf-8")
    done = diff(path, other, "--svg", tmp_path / "x.svg")
    assert done.status == 1 and "matrix `w13` is another" in done.out
    assert "it holds something else at e=4 i=256 h=512" in done.out
    ElementTree.fromstring((tmp_path / "x.svg").read_text(encoding="utf-8"))


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "status", "code"),
    [
        (["gptq", "gptq"], 0, ""),
        (["gptq", "awq"], 1, ""),
        (["gptq", "moe_gated"], 1, "LP106"),
        (["gptq", "gptq", "gptq"], 2, "one or two versions"),
        (["gptq", "awk"], 1, "did you mean `awq`?"),
        (["gptq", "gptq", "--size", "h=4"], 1, "LP191"),
        (["gptq", "gptq", "--size", "n=4", "--size", "n=4"], 1, "LP191"),
        (["gptq", "gptq", "--param", "grup=4"], 1, "did you mean `group`?"),
        (["gptq", "gptq", "--size", f"n={LONGEST_AXIS + 1}"], 1, "LP117"),
        (["moe_gated", "moe_gated", "--size", "n=4"], 1, "LP191"),
        (["moe_gated", "moe_plain", "--size", "h=0"], 1, "size `h` cannot be 0"),
        (["gptq", "awq", "--size", "n=0"], 1, "size `n` cannot be 0"),
        (["gptq", "gptq", "--size", "n=4,0"], 1, "size `n` cannot be 0"),
        (["gptq", "awq", "--param", "bits=5"], 1, "`gptq` and `awq` cannot be compared: no setting suits both"),
        (["gptq", "awq", "--param", "bits=5"], 1, "parameter `bits` of `gptq` cannot be 5"),
        (["gptq", "gptq", "--svg", "nowhere/x.svg"], 1, "LP115"),
        (["HEAD:nothing.yaml", "gptq"], 1, "LP190"),
        (["gptq:--help", "gptq"], 1, "LP190"),
    ],
)
def test_status(diff: Any, argv: list[str], status: int, code: str) -> None:
    done = diff(*argv)
    assert done.status == status and code in done.err and "Traceback" not in done.err


def test_sizes_and_parameters_that_are_given_hold_in_every_setting(diff: Any) -> None:
    done = diff("gptq", "gptq", "--size", "n=64", "--param", "group=32", "--output-format", "json")
    found = json.loads(done.out)["settings"]
    assert found and all(at["sizes"]["n"] in (64, [64, 64]) and at["params"]["group"] == 32 for at in found)


def test_the_largest_sizes_take_seconds(diff: Any) -> None:
    import time

    start = time.process_time()
    done = diff("gptq", "awq", "--size", f"n={LONGEST_AXIS}", "--size", f"k={LONGEST_AXIS}")
    assert done.status == 1 and time.process_time() - start < 20 and len(done.out) < 20_000


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_every_form_is_the_same_each_time(diff: Any, form: str) -> None:
    one, other = (diff("gptq", "marlin_int4_a16", "--output-format", form).out for _ in range(2))
    assert one == other and "qweight" in one


def test_markdown_keeps_what_a_spec_says_inside_code() -> None:
    found = changed(("try:", "x-note: 1\ntry:"), ("dtype: [float16, bfloat16]", 'dtype: [float16, bfloat16, "`|<b>`"]'))
    said = text.markdown_of(found)
    assert "`[float16, bfloat16, '|<b>']`" in said


def test_colours_are_for_terminals() -> None:
    found = changed(("kt, nt k1", "kt, k1 nt"))
    assert "\x1b[" not in text.text_of(found)
    coloured = text.text_of(found, colour=True)
    assert "\x1b[31m" in coloured and re.sub(r"\x1b\[\d*m", "", coloured) == text.text_of(found)


def test_a_dumb_terminal_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(ink.sys, "stdout", SimpleNamespace(isatty=lambda: True))
    for term, wanted in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", term)
        assert ink.is_wanted() == wanted


def test_lines_keep_to_a_hundred_columns_but_for_what_a_spec_says() -> None:
    said = text.text_of(changed(("kt, nt k1", "kt, k1 nt")))
    assert max(map(len, said.splitlines())) <= text.WIDTH


# --- git --------------------------------------------------------------------------------------------------------------

BUILD = """\
version: "1"
kernel: build
base: base
doc: a build
source: nowhere
try: [{n: 64, k: 128}]
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a spec, and a build of a kernel; the file of the base has changed since the last commit."""
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.chdir(tmp_path)
    specs = tmp_path / "specs"
    specs.mkdir()
    kernel = MARLIN.read_text(encoding="utf-8").replace("kernel: marlin_int4_a16", "kernel: base")
    for name, content in (("small", BASE), ("base", kernel), ("build", BUILD)):
        (specs / f"{name}.yaml").write_text(content, encoding="utf-8")
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    (specs / "small.yaml").write_text(BASE.replace("kt, nt k1", "kt, k1 nt"), encoding="utf-8")
    (specs / "base.yaml").write_text(kernel.replace("kt, nt c kq j", "kt, nt kq c j"), encoding="utf-8")
    return tmp_path


def git(*argv: str, **env: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(["git", *argv], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_path_alone_is_held_against_the_last_commit(repository: Path, diff: Any) -> None:
    done = diff("specs/small.yaml")
    assert done.status == 1 and "digits `nt` and `k1` change places" in done.out
    assert done.out.startswith("HEAD:./specs/small.yaml -> specs/small.yaml\n")


def test_git_takes_the_name_of_the_last_version(
    repository: Path, diff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "other").mkdir()
    whole = repository / "specs" / "small.yaml"
    for here, path in (("specs", "small.yaml"), ("other", "../specs/small.yaml"), (".", whole)):
        monkeypatch.chdir(repository / here)
        said = diff(path).out
        name = said.partition(" -> ")[0]
        assert diff(name, path).out == said


def test_a_revision(repository: Path, diff: Any) -> None:
    assert diff("main:specs/small.yaml", "HEAD:./specs/small.yaml").status == 0
    assert diff("main:specs/small.yaml", "specs/small.yaml").status == 1
    assert diff("specs/small.yaml", "main:specs/small.yaml").status == 1


def test_a_build_at_a_revision_has_its_base_from_there(repository: Path, diff: Any) -> None:
    done = diff("specs/build.yaml")
    assert done.status == 1 and "digits `c` and `kq` change places: lane order" in done.out


def test_findings_in_a_revision_point_into_it(repository: Path, diff: Any) -> None:
    (repository / "specs" / "small.yaml").write_text("version: 1\n", encoding="utf-8")
    git("add", ".")
    done = diff(":specs/small.yaml", "main:specs/small.yaml")
    assert done.status == 1 and " --> :specs/small.yaml:1:" in done.err


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diff: Any) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "small.yaml").write_text(BASE, encoding="utf-8")
    done = diff(tmp_path / "small.yaml")
    assert done.status == 1 and "LP190" in done.err and "not a git repository" in done.err


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diff: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = diff("main:specs/small.yaml", "gptq")
    assert done.status == 1 and "git cannot be run: no such file or directory" in done.err


def test_a_revision_is_no_option(repository: Path, diff: Any) -> None:
    """Argparse takes `--x:y` for a flag; what comes from elsewhere is refused before git sees it."""
    for name in ("--textconv:specs/small.yaml", "-p:x", "a\nb:c"):
        with pytest.raises(LayoutError) as refused:
            opened(name)
        assert refused.value.diagnostics[0].code == "LP190" and "is no revision and path" in refused.value.message


def test_no_filter_of_a_repository_runs(repository: Path, diff: Any) -> None:
    (repository / ".gitattributes").write_text("*.yaml diff=evil filter=evil\n", encoding="utf-8")
    for key in ("diff.evil.textconv", "filter.evil.smudge", "diff.evil.command", "core.pager", "core.fsmonitor"):
        git("config", key, f"touch {repository / 'ran'};")
    diff("specs/small.yaml")
    assert not (repository / "ran").exists()


def test_as_the_diff_of_git(repository: Path) -> None:
    """Git shows layouts in place of lines, goes on after a file that is no spec, and names bases beside the path."""
    command = f"{sys.executable} -m layoutdsl diff"
    (repository / "specs" / "build.yaml").write_text(BUILD.replace("a build", "the build"), encoding="utf-8")
    (repository / "specs" / "afresh.yaml").write_text(BASE.replace("small", "afresh"), encoding="utf-8")
    (repository / "specs" / "none.yaml").write_text("no spec\n", encoding="utf-8")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "second")
    (repository / "specs" / "none.yaml").write_text("no spec either\n", encoding="utf-8")
    said = git("diff", "HEAD~1", GIT_EXTERNAL_DIFF=command)
    assert "specs/small.yaml at " in said and "digits `nt` and `k1` change places" in said
    assert "specs/afresh.yaml: a new spec" in said
    assert "build: no element moves, both texts describe the same layout; they differ in `doc`" in said
    assert "specs/none.yaml: the layouts cannot be compared" in git("diff", GIT_EXTERNAL_DIFF=command)


def test_git_may_have_enough(repository: Path) -> None:
    """A status of ours that is not 0 git takes for the death of its program, and says so."""
    with subprocess.Popen(
        ["git", "-c", f"diff.external={sys.executable} -m layoutdsl diff", "diff", "specs/small.yaml"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), "GIT_PAGER": "cat"},
    ) as done:  # fmt: skip
        assert done.stdout is not None and done.stderr is not None
        done.stdout.close()
        assert done.stderr.read() == b""


def test_as_a_difftool(repository: Path) -> None:
    said = git("difftool", "--no-prompt", "-x", f"{sys.executable} -m layoutdsl diff", "--", "specs/small.yaml")
    assert "digits `nt` and `k1` change places" in said


def test_formats_are_all_compared() -> None:
    """No shipped format is refused at all of its settings."""
    for path in files():
        if isinstance(spec := read_spec(path), Format):
            found = difference(opened(str(path)), opened(str(path)))
            assert len(found.settings) >= len(spec.try_) and not found.refusals


# --- pictures of a terminal -------------------------------------------------------------------------------------------


def test_a_report_has_colours_that_change_no_word() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "layoutdsl", "lint", "tests/lint/bad/ld406_order_of_another_extent.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    report = done.stdout
    assert done.returncode == 1 and "\x1b" not in report
    coloured = ink.inked(report)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == report
    first, *_, carets = [line for line in coloured.splitlines() if "\x1b[1;31m" in line]
    assert first.startswith("\x1b[1;31mLD406 order-of-another-extent\x1b[0m") and "^\x1b[0m" in carets


def test_a_picture_of_a_terminal_has_its_letters_and_colours() -> None:
    scripts = str(ROOT / "scripts")
    sys.path.insert(0, scripts)
    try:
        from terminal_picture import picture as terminal  # pyright: ignore
    finally:
        sys.path.remove(scripts)
    lines = ["a <\x1b[1;31mred\x1b[0m> b", "x" * 12 + " " + "y" * 12]
    drawn = ElementTree.fromstring(terminal("A line", lines, columns=16))
    rows = [row for row in drawn.iter(f"{SVG}text") if row.get("class") == "left"]
    assert ["".join(row.itertext()) for row in rows] == ["a\u00a0<red>\u00a0b", "x" * 12, "y" * 12]
    assert [(span.get("class"), span.text) for span in rows[0]] == [("bold red", "red")]
