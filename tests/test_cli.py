"""The command line as its user meets it: what is printed where, the exit status, and what is never loaded; and the
report that `plan` prints, held against counts made without it."""

import fcntl
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutdsl import Plan, cli, compile_plan, explain, flags
from layoutdsl.codes import code_named
from layoutdsl.conform import Outcome
from layoutdsl.layout import Run
from layoutdsl.library import shipped
from layoutdsl.plan import Move

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
        ("[tool]\nlayoutdsl = 3\n", "[tool.layoutdsl] specs must be a list of folders"),
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
    done = run("lint", str(good))
    assert (done.status, done.out, done.err) == (0, "1 file, no findings\n", "")
    bad.write_text("version: 1.0\n")
    done = run("lint", str(mine))
    assert (done.status, done.err) == (1, "")
    assert done.out == (
        f"LD006 unquoted-float: `1.0` reads as a floating-point number\n --> {bad}:1:10\n  |\n1 | version: 1.0\n"
        '  |          ^^^\n  = help: quote it: "1.0"\n\n1 finding in 2 files\n'
    )


# --- plan -------------------------------------------------------------------------------------------------------------

AWQ = ["plan", "awq", "marlin_int4_a16", "--module", "linear", "--size", "n=200", "--size", "k=208"]

REPORT = """\
awq -> marlin_int4_a16, module linear
  sizes   k=208 n=200
  rank    the only one
  source  group=128 dtype=float16 zero_points=true bias=false parts=apart
  target  group=128 dtype=float16 zero_points=true bias=false parts=stacked
  module  split=none
  plan    sha256 ...

Axes
  matrix  axis   part  whole  this rank  padded  why
  linear  k = k          208  0 to 207      256  48 more for whole tiles and whole groups of 128
  linear  n = n          200  0 to 199      256  56 more for whole tiles

Reads
  tensor          dtype    shape      bytes  code
  linear.qweight  int32    208 x 25  20,800  u4
  linear.qzeros   int32    2 x 25       200  u4
  linear.scales   float16  2 x 200      800  float16
  total                              21,800

Writes
  tensor               dtype    shape      bytes  code
  linear.weight        int32    16 x 512  32,768  u4
  linear.weight_scale  float16  2 x 256    1,024  float16
  linear.zero_point    int32    2 x 32       256  u4
  total                                   34,048

Steps
  linear.weight
    from    linear.qweight
    move    41,600 codes, in 2 runs along n and 1 run along k
    recode  none: the same codes
    fill    pads with the zero points of linear.qzeros
  linear.weight_scale
    from    linear.scales
    move    400 codes, in 2 runs along n and 2 runs along k
    recode  none: the same codes
  linear.zero_point
    from    linear.qzeros
    move    400 codes, in 2 runs along n and 2 runs along k
    recode  none: the same codes (u4)

Padding
  tensor                pad code   codes  bytes  why it is harmless
  linear.weight                0  14,336  7,168  it decodes to 0
  linear.weight        from data   9,600  4,800  it repeats its group's zero point, so it decodes to 0
  linear.weight_scale          0     112    224  it decodes to 0
  linear.zero_point            0     112     56  the scale beside it is 0
  12,248 bytes added: 36.0 % of what is stored

Losses
  none: every value is exact, or refused

Duties of the caller
  linear: pad its input along k with 0 zeros before and 48 after
  linear: keep the first 200 of its outputs along n
"""


def test_the_report_of_a_plan(run: Any) -> None:
    done = run(*AWQ)
    assert (done.status, done.err) == (0, "")
    assert re.sub("sha256 [0-9a-f]{64}", "sha256 ...", done.out) == REPORT


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


def test_values_of_parameters() -> None:
    given = ["a=true", "b=false", "c=128", "d=-1", "e=bfloat16", "f=q,k,v", "source.g=True", "h=1.5", "i = x=y"]
    assert [flags.param(text) for text in given] == [
        ("a", True), ("b", False), ("c", 128), ("d", -1), ("e", "bfloat16"), ("f", "q,k,v"), ("source.g", "True"),
        ("h", "1.5"), ("i", "x=y"),
    ]
    assert [flags.size(text) for text in ("n=64", "n=512,128,128")] == [("n", 64), ("n", (512, 128, 128))]


# --- the report against counts made by hand ---------------------------------------------------------------------------

PLANS: dict[str, dict[str, Any]] = {
    "zero points": {"source": "gptq", "target": "marlin_int4_a16", "module": "linear", "sizes": {"n": 100, "k": 200},
                    "params": {"group": 32, "zero_points": True, "bias": True}},
    "parts and experts": {"source": "ct_int", "target": "marlin_int4_a16", "module": "moe_gated",
                          "sizes": {"e": 4, "i": 192, "h": 200}, "params": {"group": 32}, "tp": 2, "rank": 1, "ep": 2},
    "widths": {"source": "ct_int", "target": "marlin_int4_a8fp8", "module": "linear_fused",
               "sizes": {"n": (72, 24, 24), "k": 136}, "params": {"group": 128, "zero_points": True}},
    "int8 scales": {"source": "gptq", "target": "marlin_int8_a8int8", "module": "linear", "sizes": {"n": 72, "k": 72},
                    "params": {"bits": 8, "group": 32}},
    "global scales": {"source": "nvfp4", "target": "marlin_nvfp4_a16", "module": "moe_gated",
                      "sizes": {"e": 2, "i": 80, "h": 144}},
    "blocks": {"source": "fp8_block", "target": "marlin_fp8_a16", "module": "linear", "sizes": {"n": 200, "k": 328}},
    "mx": {"source": "mxfp4", "target": "marlin_mxfp4_a16", "module": "moe_gated",
           "sizes": {"e": 2, "i": 96, "h": 160}, "params": {"dtype": "bfloat16"}},
    "act-order": {"source": "gptq", "target": "marlin_int4_a16", "module": "linear", "sizes": {"n": 64, "k": 136},
                  "params": {"group": 64, "act_order": True}},
    "to a checkpoint": {"source": "marlin_int4_a16", "target": "gptq", "module": "linear",
                        "sizes": {"n": 100, "k": 132}, "params": {"group": 64}},
    "replicas": {"source": "fp8", "target": "marlin_fp8_a16", "module": "linear", "sizes": {"n": 64, "k": 128},
                 "tp": 4, "rank": 2},
}


def plan_of(**given: Any) -> Plan:
    return compile_plan(given.pop("source"), given.pop("target"), given.pop("module"), given.pop("sizes"), **given)


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_of(**PLANS[request.param])


def addresses(move: Move) -> set[int]:
    """Every target element that a move touches, one loop step after the other."""

    def walk(run: Run) -> Iterator[int]:
        for steps in product(*(range(loop[0]) for loop in run.loops)):
            yield run.dst + sum(step * loop[2] for step, loop in zip(steps, run.loops, strict=True))

    return {n + k for along_n in move.n for along_k in move.k for n in walk(along_n) for k in walk(along_k)}


def test_padding_is_all_that_no_data_fills(plan: Plan) -> None:
    found = explain.padding(plan)
    for program in plan.programs:
        info = plan.output[program.output]
        copies = info.experts if info.experts and not info.shared else 1
        data = set[int]().union(*(addresses(move) for move in program.moves if move.kind != "pad"))
        pads = sum(count for name, _, _, count, _ in found if name == info.name)
        assert pads == ((info.codes - len(data)) * copies if program.moves else 0)
        size = sum((size for name, *_, size in found if name == info.name), Fraction(0))
        assert size == Fraction(pads * code_named(info.code).bits, 8)


def test_bytes_are_those_of_the_tensors(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    for info in (*plan.inputs, *plan.outputs):
        stored = torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device="meta")
        assert explain._bytes(info) == stored.numel() * stored.itemsize


def test_reports_are_legible(plan: Plan) -> None:
    lines = plan.explain().split("\n")
    assert all(line == line.rstrip() and line.isascii() for line in lines)
    assert max(map(len, lines)) <= 110
    named = [name for program in plan.programs for name in (program.output, *program.sources)]
    assert all(name in " ".join(lines) for name in named)
    titles = [line for line in lines if line[:1].strip()]
    for title in ("Axes", "Reads", "Writes", "Steps", "Losses", "Duties of the caller"):
        assert title in titles
    assert "\n\n\n" not in "\n".join(lines)


def test_a_plan_from_a_file_is_explained_alike(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()).explain() == plan.explain()


def test_every_recode_and_every_reason_has_words() -> None:
    from layoutdsl import recodes

    names = re.findall(r"^    (\w+)  +\S", recodes.__doc__ or "", re.MULTILINE)
    assert len(names) == 15
    for name in names:
        assert explain.recoded(recodes.Recode(name, "float16", "bfloat16", 3))
    reasons = re.findall(r"^    (\w+)  +\S", Move.__doc__ or "", re.MULTILINE)
    assert {"fill", *reasons} == set(explain.REASONS)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("replicas", ["Replicas", "  each weight is held by 4 tensor-parallel ranks"]),
        ("int8 scales", ["  linear.largest: the largest scale, over the scales that `linear.weight_scale` reads"]),
        ("parts and experts", ["  rank    1 of 2 tensor-parallel, 0 of 2 expert-parallel", "  experts 0 to 1 of 4",
                               "  w2: add up the outputs of all tensor-parallel ranks"]),
        ("act-order", ["    gather  k in the order that sorts linear.g_idx",
                       "    from    linear.g_idx, the order that sorts it"]),
        ("widths", ["  sizes   k=136 n=72,24,24"]),
    ],
)
def test_single_lines_of_reports(name: str, lines: list[str]) -> None:
    assert set(lines) <= set(plan_of(**PLANS[name]).explain().split("\n"))


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
