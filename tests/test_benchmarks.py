"""Every benchmark, run at a tiny size so that it does not rot; what it measures against is held to our own result."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import MODULES, Figure, report, timing
from benchmarks.inputs import inputs, outputs
from benchmarks.pairs import pairs
from benchmarks.peer_steps import repacked
from benchmarks.repack import plan_of
from layoutdsl import compile_plan

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def threads_as_before():
    """Benchmarks set how many there are."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_runs(name):
    figures = list(import_module(f"benchmarks.{name}").measure("quick"))
    assert figures and all(figure.value >= 0 for figure in figures)
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names), "figures of several processes are matched by name"


@pytest.mark.parametrize("size", [128, 384])
@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_the_engines_steps_give_our_bytes(size, backend):
    plan = plan_of(size)
    given = inputs(plan)
    assert torch.equal(repacked(given["linear.qweight"]), plan.run(given, backend=backend)["linear.weight"])


def test_pairs_are_those_that_compile():
    """Each checkpoint has a kernel, each kernel a checkpoint, and act-order and zero points are among them."""
    found = list(pairs({"n": 128, "k": 256}))
    assert {pair.kind for pair in found} == {"row-major", "inputs outermost", "act-order"}
    assert len({pair.name for pair in found}) == len(found)
    specs = {path.stem for kind in ("checkpoint", "kernel") for path in (ROOT / "specs" / kind).glob("*.yaml")}
    named = {part for pair in found for part in (pair.plan.source.spec, pair.plan.target.spec)}
    assert specs - named == {"plain"}
    for pair in found:
        assert pair.plan.run(inputs(pair.plan)), "inputs that the plan refuses"


def test_inputs_are_not_all_alike():
    """A benchmark on zeros measures something else."""
    for tensor in inputs(plan_of(256)).values():
        raw = tensor.view(torch.uint8)
        assert len(raw.unique()) > 1 or int(raw[0, 0]) == 0x77  # zero points of 8, stored less one


def test_inputs_of_experts_have_their_own_order_each():
    sizes, params = {"e": 3, "i": 128, "h": 128}, {"group": 32, "act_order": True}
    given = inputs(compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, params=params))
    gate, up = given["w13.gate.g_idx"], given["w13.up.g_idx"]
    assert torch.equal(gate, up) and not torch.equal(gate[0], gate[1])


def test_outputs_are_in_memory():
    plan = plan_of(256)
    out = outputs(plan)
    assert {name: tensor.shape for name, tensor in out.items()} == {
        info.name: torch.Size(info.full_shape) for info in plan.outputs
    }


def test_every_work_has_its_turn_after_a_copy():
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    assert set(timing.against_copy("quick", lambda: calls.append("copy"), **works)) == {"a", "b"}
    assert calls == ["copy", "a", "copy", "b"] * 2  # a round that does not count, and one that does


def test_bounds_and_what_is_missed():
    within, over, under = (Figure("ratio", value, "times", 4.0, "", 2.0) for value in (3.0, 4.1, 1.9))
    assert [figure.missed for figure in (within, over, under)] == ["", "OVER", "UNDER"]
    assert within.wanted == "at least 2, at most 4"
    assert report.line(over).endswith("4.100 times  (at least 2, at most 4, OVER)  ")
    assert report.from_json(report.to_json(under)) == under


def test_the_median_of_processes_counts():
    runs = [[Figure("a", value, "s", None, note)] for value, note in ((3.0, "third"), (1.0, "first"), (2.0, "second"))]
    assert report.merged(runs) == [Figure("a", 2.0, "s", None, "second")]
    with pytest.raises(AssertionError, match="different"):
        report.merged([runs[0], [Figure("b", 1.0, "s", None)]])


def test_a_table_names_the_machine():
    text = report.markdown("repack", "What it is.\n", [Figure("a", 2.0, "s", 1.0, "note")], 3)
    assert "| a | 2.000 s | at most 1 | OVER | note |" in text.splitlines()
    assert f"Python {sys.version.split()[0]}" in text and f"torch {torch.__version__}" in text


def test_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "compile_time", "--quick", "--json"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = [json.loads(text) for text in done.stdout.splitlines()]
    assert figures and all(figure["ok"] and figure["limit"] is None for figure in figures)
