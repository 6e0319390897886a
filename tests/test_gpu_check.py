"""scripts/gpu_check without a GPU: its comparisons on the host backend, and that it sees what is wrong and goes on."""

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from plans import inputs_of, plan_named

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from layoutdsl.backends.host import build as host_build

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check"


@pytest.fixture(scope="module")
def script():
    """The script as a module, and its folder in reach for the checks."""
    sys.path.insert(0, str(SCRIPT))
    spec = spec_from_file_location("gpu_check", SCRIPT / "__main__.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT))


@pytest.fixture(scope="module")
def compiler():
    try:
        host_build.compiler()
    except host_build.LayoutError as error:
        pytest.skip(error.message)


def run(*argv: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *argv], cwd=ROOT, capture_output=True, text=True)


# --- the script -------------------------------------------------------------------------------------------------------


def test_table_and_json(tmp_path, compiler):
    checks = ("installed", "primitives", "graphs", "bandwidth", "gemm_times")
    done = run("--host", "--json", str(tmp_path / "found.json"), *checks)
    found = json.loads((tmp_path / "found.json").read_text())
    rows = {(row["check"], row["name"]): row["result"] for row in found["rows"]}
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows["installed", "NVRTC"] == rows["primitives", "ldmatrix"] == "passed"
    assert rows["graphs", "capture and replay"] == rows["bandwidth", "over a device copy"] == "not available"
    assert rows["gemm_times", "GEMMs and mixtures of experts"] == "not available"
    assert sum(check == "primitives" for check, _ in rows) > 15
    assert len(done.stdout.splitlines()) == 4 + len(rows)
    assert re.search(r"^\| primitives \| ldmatrix \| passed \| \d+ bytes \| +[\d.]+ \|$", done.stdout, flags=re.M)


def test_no_gpu():
    from layoutdsl import LayoutError
    from layoutdsl.backends.cuda import toolkit as cuda_toolkit

    try:
        cuda_toolkit.gpus()
    except LayoutError as error:
        done = run()
        assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", str(error))
    else:
        pytest.skip("there is a GPU")


def test_unknown_check():
    done = run("primitive")
    assert done.returncode == 2 and "no check is called primitive; there are installed, primitives" in done.stderr


def test_a_check_that_hangs_is_stopped(script, monkeypatch):
    monkeypatch.setitem(script.LIMITS, "recorded", 0.3)
    (row,) = script.apart("recorded", "cuda")
    assert (row.name, row.result, row.said) == ("as a whole", "failed", "not done after 0.3 s")


def test_a_check_that_breaks_fails(script, monkeypatch):
    monkeypatch.setitem(script.LIMITS, "nothing", 60)
    (row,) = script.apart("nothing", "host")
    assert row.result == "failed" and "invalid choice: 'nothing'" in row.said


def test_every_check_is_a_module_and_all_end_in_six_minutes(script):
    assert sum(script.LIMITS.values()) < 355
    for name in script.LIMITS:
        assert "def check(backend: str) -> Iterator[Row]:" in (SCRIPT / f"{name}.py").read_text()


def test_wheels_are_of_pinned_versions(script):
    import wheels

    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert set(wheels.NAMES) <= pinned


def test_wheels_are_put_first(script, monkeypatch, tmp_path):
    import wheels

    path = list(sys.path)
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.setattr(wheels, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(wheels, "SITE", tmp_path / "site")
    wheels.unpack()
    assert not (tmp_path / "site").exists()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "site").mkdir()
    wheels.unpack()
    assert path[0] == str(tmp_path / "site")


def test_a_bar_in_a_cell(script):
    from rows import PASSED, Machine, Row, as_table

    table = as_table(Machine("a", "b", "c"), [Row("x", "y|z", PASSED, "two\nlines", 1.25)])
    assert table.splitlines() == [
        "a; b; commit c",
        "",
        "| check | of | result |  | seconds |",
        "| --- | --- | --- | --- | ---: |",
        "| x | y\\|z | passed | two lines | 1.2 |",
    ]


# --- the comparisons --------------------------------------------------------------------------------------------------


def test_a_primitive_that_is_wrong_is_seen(script, compiler, monkeypatch):
    import primitives

    once = primitives.on_host("lop3", primitives.given("lop3"), primitives.host_launch.Schedule())
    once[1000] ^= 1
    right = primitives.on_host
    monkeypatch.setattr(primitives, "on_host", lambda name, read, schedule: (
        once if schedule.order == "random" else right(name, read, schedule)))
    assert primitives.held("lop3", "host") == ("failed", "1 bytes differ, first at 1000")


def test_sums_of_tensor_cores_are_exact(script, compiler):
    """However a GPU adds them up: every partial sum is a whole number that a float holds."""
    import primitives

    for name in ("mma_f16", "mma_bf16", "mma_e4m3"):
        made = primitives.on_host(name, primitives.given(name), primitives.host_launch.Schedule())
        sums = made.view(torch.float32).reshape(-1, 16)[:, :4]
        assert sums.abs().max() < 1 << 12 and bool((sums == sums.round()).all()) and sums.unique().numel() > 100


@pytest.mark.parametrize("name", ["awq_fill", "gptq_act_order_split_k"])
def test_a_plan_is_held_against_the_reference(script, compiler, name, monkeypatch):
    import reference

    plan = plan_named(name)
    assert reference.held(plan, inputs_of(plan), "host") == ([], len(plan.outputs))
    right = reference.outcome
    monkeypatch.setattr(reference, "outcome", lambda work, given, **options: (
        right(work, given, **options) if options["backend"] == "reference" else "refused"))
    wrong, _ = reference.held(plan, inputs_of(plan), "host")
    assert wrong == ["new tensors differ", "tensors given as `out` differ", "amended tensors differ"]


def test_values_that_are_refused(script, compiler):
    import reference

    rows = list(reference.refused("host"))
    assert len(rows) == 3 and {row.result for row in rows} == {"passed"}


def test_recorded_cases(script, compiler, monkeypatch):
    import recorded

    monkeypatch.setattr(recorded, "HOST_EVERY", 90)
    (row,) = recorded.check("host")
    assert (row.name, row.result, row.said) == ("2 cases", "passed", "2 byte-equal")


@pytest.fixture
def listed(script):
    """The listed kernels by number."""
    import gemms

    return gemms.LISTED


@pytest.mark.parametrize("kind", ["u4b8", "s8"])
def test_a_gemm_is_held_against_float64(script, compiler, listed, kind):
    import gemms

    entry = next(one for one in listed if not one.by_experts and kind in (one.kernel.code, one.kernel.kind))
    result, said = gemms.held(entry, "host", splits=2)
    assert result == "passed" and said.endswith("% of the bound or less, 2 blocks for each tile")


@pytest.mark.parametrize("by_8_bits", [False, True])
def test_a_mixture_is_held_against_float64(script, compiler, listed, by_8_bits):
    import gemms

    entry = next(one for one in listed if one.by_experts and bool(one.kernel.result) == by_8_bits)
    assert gemms.held(entry, "host", splits=1)[0] == "passed"


def test_a_gemm_that_is_wrong_is_seen(script, listed, monkeypatch):
    import gemms
    import numpy as np

    made, wanted = torch.zeros(2, 3), gemms.Product(np.zeros((2, 3)), np.full((2, 3), 0.5))
    assert gemms.judged([(made, wanted)]) == ("passed", "6 results, off by 0% of the bound or less")
    for wrong in (1.0, float("nan")):
        made[1, 2] = wrong
        assert gemms.judged([(made, wanted)]) == ("failed", "1 of 6 results are off by more than the bound")
    monkeypatch.setattr(gemms, "dense", lambda *_: ([], False))
    entry = next(one for one in listed if not one.by_experts)
    assert gemms.held(entry, "host", 1) == ("failed", "the results of a second call differ")


def test_what_the_sanitizer_runs_can_run(script, compiler):
    import sanitizer

    sanitizer.multiplied("cpu")


def test_times_in_words_and_numbers(script):
    import gemm_times

    row = gemm_times.judged("gemm_times", "x", {"ours": 2e-5, "torch": 5e-5}, size=10_000_000, speed=1e12)
    assert row.said == "20.0 us; weights once 10.0 (50%); torch 50.0 (2.50x)"
    assert row.figures == {"ours us": 20.0, "torch us": 50.0, "weights once us": 10.0}
    assert row.result == "passed"
    assert gemm_times.judged("", "x", {"ours": 2e-5, "torch": 1e-5}, 1, 1e12).result == "below the aim"


def test_everything_that_is_timed_has_a_plan_and_kernels(script):
    import gemm_times

    found = gemm_times.needed(multiprocessors=132)
    codes = {"u4b8", "e4m3", "e2m1"}
    assert {kernel.code for kernel in found} == codes and {kernel.rows for kernel in found} == {"dense", "experts"}


def test_engines_that_are_not_here(script, monkeypatch):
    import gemm_peers
    import gemm_times

    assert set(gemm_peers.SHAPES) <= set(gemm_times.TIMED)
    assert [row.result for row in gemm_peers.check("host")] == ["not available"] * 2
    monkeypatch.setattr(gemm_peers, "PEERS", {"one": ("no_such_engine", None)})
    (row,) = gemm_peers.check("cuda")
    assert (row.result, row.said) == ("not available", "ModuleNotFoundError: No module named 'no_such_engine'")


def test_an_engine_that_breaks_is_said(script, monkeypatch):
    import gemm_peers

    def broken(*_):
        raise RuntimeError("not for this torch\nat all")

    monkeypatch.setattr(gemm_peers, "PEERS", {"one": ("json", broken)})
    monkeypatch.setattr(gemm_peers, "copy_speed", lambda: 1e12)
    monkeypatch.setattr(gemm_peers, "compared", lambda who, make, timed: make())
    (row,) = gemm_peers.check("cuda")
    assert (row.name, row.result, row.said) == ("one", "not available", "RuntimeError: not for this torch")


SUMMARY = "========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("status", "said", "result"),
    [
        (0, f"========= COMPUTE-SANITIZER\nall is done\n{SUMMARY}", ("passed", "ERROR SUMMARY: 0 errors")),
        (
            9,
            "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 16\n=========     at k+0x10\n",
            ("failed", "Invalid __global__ write of size 16"),
        ),
        (
            1,
            "========= COMPUTE-SANITIZER\n========= Error: Device not supported.\n",
            ("not available", "Error: Device not supported."),
        ),
        (0, "", ("not available", "ended with 0")),
    ],
)
def test_what_the_sanitizer_says(script, status, said, result):
    import sanitizer

    assert sanitizer.judged(status, said) == result
