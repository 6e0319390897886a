"""The cpu backend: its kernels' text, which programs share them, and what it leaves to torch. That it gives the
reference's bytes is said here for listed plans, and in test_backends.py for drawn ones."""

import ast
import sys

import pytest
import torch
from plans import NAMES, inputs_of, plan_named

from layoutdsl import LayoutError, compile_plan
from layoutdsl.backends import cpu, cpu_lower, cpu_source
from layoutdsl.cli import main

GPTQ = ("gptq", "marlin_int4_a16", "linear")


def raw(tensors: dict) -> dict[str, bytes]:
    return {name: bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) for name, tensor in tensors.items()}


def of_kernels(plan) -> dict[str, tuple]:
    """The launches of each output that kernels make."""
    found = {program.output: cpu_lower.launches(plan, program) for program in plan.programs}
    return {output: made for output, made in found.items() if made is not None}


@pytest.mark.parametrize("name", NAMES)
def test_listed_plans_give_the_reference_bytes(name):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    out = {info.name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    wanted = raw(plan.run(tensors, backend="reference"))
    assert raw(plan.run(tensors, backend="cpu")) == wanted
    plan.run(tensors, backend="cpu", out=out)
    assert raw(out) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_python_and_named_in_the_listing(name):
    plan = plan_named(name)
    listing = cpu_source.listing(plan)
    ast.parse(listing)
    for launches in of_kernels(plan).values():
        assert all(cpu_source.source(launch.form) in f"{listing}\n" for launch in launches)
    left = [program.output for program in plan.programs if program.output not in of_kernels(plan)]
    assert listing.endswith(f"left to the torch backend: {', '.join(left)}") or not left


def test_shapes_ranks_and_experts_share_kernels():
    """The forms of a large, sharded, padded layer of experts are those of a small plain one, but for fills."""
    params = {"group": 64}
    small = compile_plan(*GPTQ, {"n": 64, "k": 128}, params=params)
    large = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 9, "i": 1536, "h": 2048}, params=params, tp=2)

    def forms(plan):
        return {x.form for launches in of_kernels(plan).values() for x in launches if x.form.how != "fill"}

    assert forms(large) and forms(large) <= forms(small)
    for plan in (small, plan_named("gptq_moe_padded")):
        plan.run(inputs_of(plan), backend="cpu")
    compiled = cpu.kernel.cache_info().misses
    other = compile_plan(*GPTQ, {"n": 128, "k": 128}, params=params)
    other.run(inputs_of(other), backend="cpu")
    assert cpu.kernel.cache_info().misses == compiled


def test_swaps_are_as_few_as_digits_that_move():
    """GPTQ's eight nibbles along k to Marlin: four digits of a 64-bit word move, and no two inside it."""
    (launch,) = of_kernels(compile_plan(*GPTQ, {"n": 64, "k": 128}, params={"group": 128}))["linear.weight"]
    assert launch.form == cpu_lower.Form(
        "move", 4, 64, 3, (("word", 0, 0), ("word", 1, 1), ("word", 0, 2), ("word", 2, 3))
    )


def test_many_threads_give_the_same_bytes(monkeypatch):
    plan = compile_plan(*GPTQ, {"n": 512, "k": 512}, params={"group": 64})
    tensors = inputs_of(plan)
    wanted = raw(plan.run(tensors))
    monkeypatch.setattr(cpu, "SHARE", 1024)
    monkeypatch.setattr(cpu.numba, "get_num_threads", lambda: 5)
    assert raw(plan.run(tensors, backend="cpu")) == wanted


def test_a_move_beyond_its_tensor_is_left_to_torch():
    """A kernel does not look where it writes: a plan that was never proven must not reach it."""
    plan = compile_plan(*GPTQ, {"n": 64, "k": 128}, params={"group": 64})
    wrong = type(plan).from_json(plan.to_json().replace('"loops":[[8,', '"loops":[[16,', 1), prove=False)
    assert wrong != plan
    assert len(of_kernels(wrong)) == len(of_kernels(plan)) - 1


def test_a_kernel_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    written = cpu._written("answer = 42\n", "layoutdsl_test.py")
    assert written.read_text() == "answer = 42\n" and not written.is_relative_to(tmp_path)


def test_emit(capsys):
    arguments = ["plan", "gptq", "marlin_int4_a16", "--module", "linear", "--size", "n=64", "--size", "k=128"]
    assert main([*arguments, "--param", "group=64", "--emit", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith('# for linear.weight\n"""4-bit codes, 8 words of 64 bits at a time.')
    assert "def kernel(to, of, outer, inner, reads, writes, fill, first, last):" in shown


def test_numba_that_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "layoutdsl.backends.cpu")
    monkeypatch.setitem(sys.modules, "numba", None)
    plan = compile_plan(*GPTQ, {"n": 64, "k": 128}, params={"group": 64})
    with pytest.raises(LayoutError) as refusal:
        plan.run(inputs_of(plan), backend="cpu")
    assert str(refusal.value).splitlines() == [
        "LP151 not-installed: backend `cpu` needs numba, which is not installed",
        "  = help: pip install 'layoutdsl[torch,cpu]'",
    ]
