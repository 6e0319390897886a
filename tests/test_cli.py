"""The command line as its user meets it: what is printed where, the exit status, and what is never loaded."""

import fcntl
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutdsl import Plan, cli, compile_plan, flags
from layoutdsl.conform import Outcome
from layoutdsl.errors import LayoutError
from layoutdsl.library import load_spec, shipped

LINEAR = ["plan", "gptq", "marlin_int4_a16", "--module", "linear", "--size", "n=200", "--size", "k=200"]


class Done:
    """What one command printed, and its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*argv: str) -> Done:
        status = cli.main(argv)
        return Done(status, *capsys.readouterr())

    return call


# --- help, usage, faults ----------------------------------------------------------------------------------------------


def test_no_command_shows_the_help(run: Any) -> None:
    done = run()
    assert done.status == 2 and done.err == ""
    assert all(f"    {command} " in done.out for command in ("lint", "plan", "conform", "schema", "convert"))


def test_version(run: Any) -> None:
    done = run("--version")
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(r"layoutdsl [0-9]+\.[0-9]+\.[0-9]+\n", done.out)


@pytest.mark.parametrize("command", ["lint", "plan", "conform", "schema", "convert"])
def test_every_command_has_help(run: Any, command: str) -> None:
    done = run(command, "--help")
    assert done.status == 0 and done.out.startswith(f"usage: layoutdsl {command}")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plna"], "invalid choice: 'plna'"),
        (["plan", "gptq"], "the following arguments are required: target, --module, --size"),
        ([*LINEAR, "--size", "n"], "argument --size: expected NAME=VALUE, found `n`"),
        ([*LINEAR, "--size", "m=many"], "argument --size: expected AXIS=N or AXIS=N,N,..., found `m=many`"),
        ([*LINEAR, "--size", "m=-4"], "argument --size: expected AXIS=N or AXIS=N,N,..., found `m=-4`"),
        ([*LINEAR, "--size", "n=8"], "--size n=... is given twice"),
        ([*LINEAR, "--param", "a=1", "--param", "a=2"], "--param a=... is given twice"),
        ([*LINEAR, "--param", "=4"], "argument --param: expected NAME=VALUE, found `=4`"),
        ([*LINEAR, "--tp", "two"], "argument --tp: invalid int value: 'two'"),
        ([*LINEAR, "--experts-map", "0,1,"], "argument --experts-map: expected experts apart by commas, such as"),
        ([*LINEAR, "--only"], "argument --only: expected one argument"),
        ([*LINEAR, "--js"], "unrecognized arguments: --js"),
        (["lint", "--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_wrong_usage_is_status_2(run: Any, argv: list[str], words: str) -> None:
    done = run(*argv)
    assert (done.status, done.out) == (2, "")
    assert words in done.err


def test_a_refusal_is_status_1_and_goes_to_stderr(run: Any) -> None:
    done = run("plan", "gtpq", *LINEAR[2:])
    assert (done.status, done.out) == (1, "")
    assert done.err == "LP107 no-such-spec: there is no spec `gtpq`\n  = help: did you mean `gptq`?\n"
    done = run(*LINEAR, "--param", "grup=64")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("LP101 unknown-parameter: no side has a parameter `grup`")
    done = run(*LINEAR, "--tp", "2", "--rank", "2")
    assert (done.status, done.err.split("\n")[0]) == (1, "LP110 ranks: rank 2 of 2 tp ranks does not exist")


def test_a_fault_of_ours_is_one_line_and_status_2(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("two\nlines")

    monkeypatch.delenv("LAYOUTDSL_TRACEBACK", raising=False)
    monkeypatch.setattr("layoutdsl.compile.compile_plan", broken)
    done = run(*LINEAR)
    line = ("this is a fault of layoutdsl: RuntimeError: two lines "
            "(LAYOUTDSL_TRACEBACK=1 shows where; please report it)\n")
    assert (done.status, done.out, done.err) == (2, "", line)
    monkeypatch.setenv("LAYOUTDSL_TRACEBACK", "1")
    done = run(*LINEAR)
    assert done.status == 2
    assert done.err.startswith("Traceback (most recent call last):") and done.err.endswith(line)


def test_what_is_not_installed_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors")

    monkeypatch.setattr("layoutdsl.compile.compile_plan", missing)
    done = run(*LINEAR)
    words = "layoutdsl: this needs safetensors, which is not installed: pip install 'layoutdsl[torch]'\n"
    assert (done.status, done.err) == (2, words)


def test_an_interrupt_of_the_first_moment_is_quiet(tmp_path: Path) -> None:
    """While modules are imported nothing of ours has begun; the command is what pyproject.toml names."""
    root = Path(__file__).resolve().parent.parent
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"layoutdsl": "layoutdsl.__main__:main"}
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), str(root)])
    done = subprocess.run([sys.executable, "-m", "layoutdsl", "lint"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_is_quiet(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("layoutdsl.compile.compile_plan", interrupted)
    done = run(*LINEAR)
    assert (done.status, done.out, done.err) == (130, "", "")


def script(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import sys, layoutdsl.cli; sys.exit(layoutdsl.cli.main())", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_a_reader_that_has_enough_is_no_fault() -> None:
    with script("schema") as child:
        assert child.stdout is not None and child.stderr is not None
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # so small that the command cannot be done before the reader leaves
            fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, 4096)
        child.stdout.read(1)
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141


def test_a_terminal_without_unicode_is_no_fault() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    with script("plan", "nöpe", *LINEAR[2:], env=env) as child:
        _, err = child.communicate()
    assert child.returncode == 1
    assert err.startswith(b"LP107 no-such-spec: there is no spec `n\\xf6pe`")


# --- specs of the user ------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a format of the user's own."""
    text = (shipped() / "checkpoint" / "gptq.yaml").read_text(encoding="utf-8")
    folder = tmp_path / "project" / "formats"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(text.replace("checkpoint: gptq", "checkpoint: mine"), encoding="utf-8")
    return folder


def test_a_spec_is_a_name_or_a_path(run: Any, mine: Path) -> None:
    rest = LINEAR[2:]
    assert run("plan", "mine", *rest).status == 1
    by_name = run("plan", "mine", *rest, "--specs", str(mine))
    by_path = run("plan", str(mine / "mine.yaml"), *rest)
    assert by_name.status == by_path.status == 0
    assert by_name.out == by_path.out
    assert by_name.out.startswith("mine -> marlin_int4_a16, module linear\n")


def test_specs_of_the_nearest_pyproject(run: Any, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, deep = mine.parent, mine.parent / "a" / "b"
    deep.mkdir(parents=True)
    (project / "pyproject.toml").write_text('[tool.layoutdsl]\nspecs = ["formats"]\n')
    (project / "a" / "pyproject.toml").write_text("[tool.ruff]\n")  # not ours: the one above counts
    monkeypatch.chdir(deep)
    assert run("plan", "mine", *LINEAR[2:]).status == 0
    (deep / "pyproject.toml").write_text("[tool.layoutdsl]\n")
    assert run("plan", "mine", *LINEAR[2:]).status == 1
    assert run("plan", "mine", *LINEAR[2:], "--specs", str(mine)).status == 0


def test_several_folders_of_specs(run: Any, mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert run("plan", "mine", *LINEAR[2:], "--specs", str(other), "--specs", str(mine)).status == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[tool.layoutdsl]\nspecs = "formats"\n', "[tool.layoutdsl] specs must be a list of folders"),
        ("[tool.layoutdsl]\nspecs = [1]\n", "[tool.layoutdsl] specs must be a list of folders"),
        ("[tool]\nlayoutdsl = 3\n", "[tool.layoutdsl] must be a table"),
        ("[tool.layoutdsl]\n\nspec = []\n", ":3: [tool.layoutdsl] has no key `spec`: did you mean `specs`?"),
        ('[tool.layoutdsl]\nspecs = [\n  "none"]\n', ":2: [tool.layoutdsl] specs names `none`, and there is no "),
        ("[tool.layoutdsl]\ncolour = 1\n", ":2: [tool.layoutdsl] has no key `colour`: its keys are specs, lint"),
        ("[tool.layoutdsl\n", "cannot be read"),
    ],
)
def test_a_bad_pyproject(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = run(*LINEAR)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"layoutdsl: {tmp_path / 'pyproject.toml'}") and words in done.err


# --- lint -------------------------------------------------------------------------------------------------------------


def test_lint(run: Any, mine: Path) -> None:
    good, bad = mine / "mine.yaml", mine / "bad.yaml"
    done = run("lint", str(good), "--ignore", "duplicate-spec")
    assert (done.status, done.out, done.err) == (0, "1 file, no findings\n", "")
    bad.write_text("version: 1.0\n")
    done = run("lint", str(mine), "--ignore", "duplicate-spec")
    assert (done.status, done.err) == (1, "")
    assert done.out == (
        f"LD006 unquoted-float: `1.0` reads as a floating-point number\n --> {bad}:1:10\n  |\n1 | version: 1.0\n"
        '  |          ^^^\n  = help: quote it: "1.0"\n  = see: docs/rules.md#ld006\n\n1 finding in 2 files\n'
    )


# --- plan -------------------------------------------------------------------------------------------------------------

def test_json_is_the_plan(run: Any) -> None:
    params = ("group=64", "zero_points=true", "target.dtype=bfloat16")
    done = run(*LINEAR, "--json", *(word for param in params for word in ("--param", param)))
    assert done.status == 0
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 200, "k": 200},
                        params={"group": 64, "zero_points": True, "target.dtype": "bfloat16"})
    assert Plan.from_json(done.out) == plan
    assert json.loads(done.out) == json.loads(plan.to_json())
    # Legible: a row of scalars is one line.
    assert '\n   ["group", 64],\n' in done.out
    assert not re.search(r"\n\s*-?[0-9]+,?\n", done.out)


MOE = ["plan", "gptq", "marlin_int4_a16", "--module", "moe_gated", "--size", "e=3", "--size", "i=256",
       "--size", "h=256", "--json"]


def test_only_some_matrices(run: Any) -> None:
    plan = Plan.from_json(run(*MOE, "--only", "w2", "--only", "w2").out)
    assert plan == compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 3, "i": 256, "h": 256}, only=("w2",))
    assert {info.name.split(".")[0] for info in plan.outputs} == {"w2"}
    done = run(*MOE, "--only", "w3")
    assert (done.status, done.err.split("\n")) == (1, [
        "LP113 unknown-matrix: module `moe_gated` has no matrix `w3`", "  = help: did you mean `w13`?", ""])


def test_a_map_of_experts(run: Any) -> None:
    plan = Plan.from_json(run(*MOE, "--ep", "2", "--ep-rank", "1", "--experts-map", "0,1,2,0").out)
    assert (plan.places, plan.slots) == (4, (2, 0))
    done = run(*MOE, "--experts-map", "0,1,3")
    assert (done.status, done.err.split("\n")[0]) == (
        1, "LP114 expert-map: the map of experts has expert 3; module `moe_gated` has 3")
    done = run(*MOE, "--experts-map", "0,1")
    assert (done.status, done.err.split("\n")[0]) == (
        1, "LP114 expert-map: the map of experts has no place for expert 2; module `moe_gated` has 3")
    assert run(*LINEAR, "--experts-map", "0").err == (
        "LP114 expert-map: module `linear` has no experts, but a map of 1 places for them is given\n"
        "  = help: leave the map out\n")


def test_the_help_names_axes_that_there_are(run: Any) -> None:
    """`--size` says which axes the commonest modules have."""
    text = " ".join(run("plan", "--help").out.split()).partition("before sharding: ")[2].partition(";")[0]
    named = re.findall(r"((?:\w+, )*\w+) of (\w+)(?: and (\w+))?", text)
    assert len(named) == 4
    for axes, *modules in named:
        for module in filter(None, modules):
            spec = load_spec(module, kind="module")
            assert set(axes.split(", ")) - {"kv"} == set(spec.axes) - set(spec.default), module


def test_values_of_parameters() -> None:
    given = ["a=true", "b=false", "c=128", "d=-1", "e=bfloat16", "f=q,k,v", "source.g=True", "h=1.5", "i = x=y"]
    assert [flags.param(text) for text in given] == [
        ("a", True), ("b", False), ("c", 128), ("d", -1), ("e", "bfloat16"), ("f", "q,k,v"), ("source.g", "True"),
        ("h", "1.5"), ("i", "x=y"),
    ]
    assert [flags.size(text) for text in ("n=64", "n=512,128,128")] == [("n", 64), ("n", (512, 128, 128))]


# --- conform, schema, convert -----------------------------------------------------------------------------------------


def conforming(monkeypatch: pytest.MonkeyPatch, cases: list[str | None], rows: list[str | None]) -> None:
    monkeypatch.setattr("layoutdsl.conform.index", lambda folder: {"policy": {}})
    monkeypatch.setattr("layoutdsl.conform.cases", lambda folder, **_: (
        Outcome(f"case-{at}", wrong) for at, wrong in enumerate(cases)))
    monkeypatch.setattr("layoutdsl.conform.policy", lambda folder: (
        Outcome(f"row-{at}", wrong) for at, wrong in enumerate(rows)))


@pytest.mark.parametrize(
    ("cases", "rows", "status", "lines"),
    [
        ([None, None], [None] * 3, 0, ["3 policy rows checked, 0 wrong", "2 passed, 0 failed"]),
        ([None, "differs"], [None], 1, [
            "failed: case-1: differs", "1 policy rows checked, 0 wrong", "1 passed, 1 failed"]),
        ([None], [None, "the rule says 3"], 1, [
            "wrong: row-1: the rule says 3", "2 policy rows checked, 1 wrong", "1 passed, 0 failed"]),
        ([], [], 1, ["0 policy rows checked, 0 wrong", "0 passed, 0 failed"]),  # nothing checked is not well
    ],
)
def test_conform(run: Any, monkeypatch: pytest.MonkeyPatch, cases: Any, rows: Any, status: int, lines: Any) -> None:
    conforming(monkeypatch, cases, rows)
    done = run("conform", "somewhere")
    assert (done.status, done.out.split("\n"), done.err) == (status, [*lines, ""], "")


def test_conform_without_cases_or_backend(run: Any, tmp_path: Path) -> None:
    done = run("conform", str(tmp_path))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"LP180 no-cases: `{tmp_path / 'index.json'}` cannot be read")
    done = run("conform", str(tmp_path), "--backend", "tporch")
    assert done.err == "LP150 no-such-backend: there is no backend `tporch`\n  = help: did you mean `torch`?\n"


def test_conform_takes_a_folder_of_cases_alone(run: Any, tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden"
    index = json.loads((golden / "index.json").read_text())
    case = min(index["cases"], key=lambda case: (golden / case["file"]).stat().st_size)
    (tmp_path / case["file"]).write_bytes((golden / case["file"]).read_bytes())
    (tmp_path / "index.json").write_text(json.dumps({"cases": [case]}))
    done = run("conform", str(tmp_path))
    assert (done.status, done.out) == (0, "0 policy rows checked, 0 wrong\n1 passed, 0 failed\n")


def test_schema(run: Any, tmp_path: Path) -> None:
    done = run("schema")
    assert done.status == 0
    assert set(json.loads(done.out)) == {"checkpoint", "kernel", "module"}
    done = run("schema", "--out", str(tmp_path / "docs"))
    assert (done.status, done.out.split()) == (0, [
        str(tmp_path / "docs" / f"{kind}.json") for kind in ("checkpoint", "kernel", "module")])
    (tmp_path / "file").write_text("")
    done = run("schema", "--out", str(tmp_path / "file"))
    assert (done.status, done.err) == (2, f"layoutdsl: cannot write to {tmp_path / 'file'}: file exists\n")


def test_convert_is_imported_when_it_is_asked_for(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []

    def add_arguments(parser: Any) -> None:
        parser.add_argument("src")

    stub = SimpleNamespace(add_arguments=add_arguments, command=lambda args: seen.append(args) or 1)
    monkeypatch.setitem(sys.modules, "layoutdsl.checkpoints.convert", stub)
    monkeypatch.setattr("layoutdsl.checkpoints.convert", stub, raising=False)
    assert run("convert", "here", "--specs", str(tmp_path)).status == 1
    assert (seen[0].src, seen[0].specs) == ("here", (str(tmp_path),))
    monkeypatch.setitem(sys.modules, "layoutdsl.checkpoints.convert", None)
    assert run("schema").status == 0


def test_a_full_disk_is_neither_success_nor_our_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.main(["schema"]) == 2
    assert capsys.readouterr().err == "layoutdsl: [Errno 28] No space left on device\n"


def test_conform_says_once_that_a_backend_does_not_work_here(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_name: str) -> str:
        raise LayoutError("there is no driver", code="LP322", name="no-driver")

    monkeypatch.setattr("layoutdsl.backends.device", none)
    done = run("conform", str(Path(__file__).parent / "golden"), "--backend", "cuda")
    assert (done.status, done.out, done.err.count("LP322")) == (1, "", 1)
