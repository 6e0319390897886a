"""The cpu backend: its kernels' text, which programs share them, and that nothing is left to torch. That it gives the
reference's bytes is said here for listed plans, and in test_backends.py for drawn ones."""

import ast
import sys

import pytest
import torch
from plans import NAMES, inputs_of, plan_named

from layoutdsl import LayoutError, compile_plan
from layoutdsl.backends.cpu import backend as cpu_backend
from layoutdsl.backends.cpu import jobs as cpu_jobs
from layoutdsl.backends.cpu import kernels as cpu_kernels
from layoutdsl.backends.cpu import prepared as cpu_prepared
from layoutdsl.backends.cpu import run as cpu_run
from layoutdsl.backends.cpu import sharing as cpu_sharing
from layoutdsl.backends.cpu import source as cpu_source
from layoutdsl.backends.cpu.forms import Form, Moving
from layoutdsl.backends.cpu.prepared import prepared
from layoutdsl.backends.cpu.turns import STORE, STREAM
from layoutdsl.cli import main

GPTQ = ("gptq", "marlin_int4_a16", "linear")


def raw(tensors: dict) -> dict[str, bytes]:
    return {name: bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) for name, tensor in tensors.items()}


def forms(plan) -> set[Form]:
    """The kernels of a plan."""
    lowered = cpu_jobs.lower(plan)
    every = (*lowered.writes, *lowered.unsigned, *lowered.compares, *lowered.largest)
    return {job.form for jobs in every for job in jobs}


@pytest.mark.parametrize("name", NAMES)
def test_listed_plans_give_the_reference_bytes(name, monkeypatch):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    out = {info.name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    wanted = raw(plan.run(tensors, backend="reference"))
    monkeypatch.setattr(cpu_backend, "exact", None)  # nothing is left to torch
    assert raw(plan.run(tensors, backend="cpu")) == wanted
    plan.run(tensors, backend="cpu", out=out)
    assert raw(out) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_python_and_named_in_the_listing(name):
    plan = plan_named(name)
    listing = cpu_source.listing(plan)
    ast.parse(listing)
    assert all(cpu_source.source(form) in f"{listing}\n" for form in forms(plan))
    writes = cpu_jobs.lower(plan).writes
    for program, jobs in zip(plan.programs, writes):
        assert sum(job.codes for job in jobs) in (plan.output[program.output].codes, 0), program.output
        assert jobs or program.recode.name == "shape"


def test_shapes_ranks_and_experts_share_kernels():
    """The weights' kernels of a sharded layer of experts are those of a plain one, but for fills."""
    params = {"group": 64}
    small = compile_plan(*GPTQ, {"n": 512, "k": 2048}, params=params)
    large = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 9, "i": 1536, "h": 2048}, params=params, tp=2)
    weights = {form for form in forms(large) if isinstance(form, Moving) and form.network.bits == 4}
    assert weights and weights <= forms(small)
    small.run(inputs_of(small), backend="cpu")
    compiled = cpu_kernels.kernel.cache_info().misses
    other = compile_plan(*GPTQ, {"n": 1024, "k": 2048}, params=params)
    other.run(inputs_of(other), backend="cpu")
    assert cpu_kernels.kernel.cache_info().misses == compiled + len(forms(other) - forms(small))


def test_many_threads_give_the_same_bytes(monkeypatch):
    plan = compile_plan(*GPTQ, {"n": 512, "k": 512}, params={"group": 64})
    tensors = inputs_of(plan)
    wanted = raw(plan.run(tensors))
    monkeypatch.setattr(cpu_sharing, "SHARE", 1024)
    monkeypatch.setattr(cpu_sharing, "threads", lambda: 5)
    assert raw(plan.run(tensors, backend="cpu")) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_outputs_past_the_caches_have_the_same_bytes(name, monkeypatch):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    monkeypatch.setattr(cpu_run, "STREAMED", 0)
    assert raw(plan.run(tensors, backend="cpu")) == raw(plan.run(tensors))


def test_what_is_written_past_the_caches(monkeypatch):
    """One expert of a large output as well as all of it; not a small output."""
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 512, "h": 512}, params={"group": 64})
    tensors, modes = inputs_of(plan), []
    out = plan.run(tensors)
    size = out["w13.weight"].nbytes
    kept = cpu_run.Run._modes
    monkeypatch.setattr(cpu_run.Run, "_modes", lambda *given: modes.append(kept(*given)) or modes[-1])
    for least, mode in ((size, STREAM), (size + 1, STORE)):
        monkeypatch.setattr(cpu_run, "STREAMED", least)
        name = "w13.gate.qweight"
        plan.updates(out, backend="cpu").update(name, tensors[name][1], expert=1)
        assert mode in modes[-1]
        assert (STREAM in modes[-1]) == (mode == STREAM)


def test_a_move_beyond_its_tensor_is_left_to_torch():
    """A kernel does not look where it writes: a plan that was never proven must not reach it."""
    plan = compile_plan(*GPTQ, {"n": 64, "k": 128}, params={"group": 64})
    wrong = type(plan).from_json(plan.to_json().replace('"loops":[[8,', '"loops":[[16,', 1), prove=False)
    assert wrong != plan
    assert prepared(plan) is not None and prepared(wrong) is None


def test_a_kernel_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    written = cpu_kernels._written("answer = 42\n", "layoutdsl_test.py")
    assert written.read_text() == "answer = 42\n" and not written.is_relative_to(tmp_path)


def test_kernels_are_loaded_from_disk(monkeypatch, tmp_path):
    """One that is there is not compiled again; one that was cut short, or is another's, is as good as none."""
    compiled, compile_one = [], cpu_kernels._compiled
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_kernels, "_compiled", lambda *given: compiled.append(given) or compile_one(*given))
    plan = compile_plan(*GPTQ, {"n": 256, "k": 256}, params={"group": 64})
    tensors = inputs_of(plan)
    wanted, folder = raw(plan.run(tensors)), tmp_path / "layoutdsl"

    def compilations() -> int:
        compiled.clear()
        cpu_kernels.kernel.cache_clear()
        cpu_prepared._prepared.cache_clear()
        assert raw(plan.run(tensors, backend="cpu")) == wanted
        return len(compiled)

    count = len(forms(plan))
    assert (compilations(), compilations()) == (count, 0)
    one, *_, other = sorted(folder.glob("*.o"))
    other.write_bytes(one.read_bytes()[:-1])
    assert (compilations(), compilations()) == (1, 0)
    monkeypatch.setattr(cpu_kernels.machine, "processor", lambda: "another")
    cpu_kernels._used.cache_clear()
    assert compilations() == count
    monkeypatch.undo()
    cpu_kernels._used.cache_clear()
    assert not [path for path in folder.iterdir() if path.suffix not in (".o", ".py") and path.is_file()]


def test_emit(capsys):
    arguments = ["plan", "gptq", "marlin_int4_a16", "--module", "linear", "--size", "n=256", "--size", "k=256"]
    assert main([*arguments, "--param", "group=64", "--emit", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith('# for linear.weight\n"""4-bit codes, ')
    assert "def kernel(jobs, places, found, scratch, first, last):" in shown


def test_numba_that_is_not_installed(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("layoutdsl.backends.cpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    plan = compile_plan(*GPTQ, {"n": 64, "k": 128}, params={"group": 64})
    with pytest.raises(LayoutError) as refusal:
        plan.run(inputs_of(plan), backend="cpu")
    assert str(refusal.value).splitlines() == [
        "LP151 not-installed: backend `cpu` needs numba, which is not installed",
        "  = help: pip install 'layoutdsl[torch,cpu]'",
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("largest", [1.0, 1.9921875, 1.1171875, 0.0])
def test_scales_of_16_bits_are_multiples_of_the_largest_as_in_float64(dtype, largest):
    """All there are, up to the largest: they are divided in float32."""
    sizes, params = {"n": 512, "k": 4096}, {"group": 32, "dtype": dtype}
    plan = compile_plan("ct_int", "marlin_int4_a8int8", "linear", sizes, params=params)
    tensors = inputs_of(plan)
    name = next(name for name in tensors if name.endswith("weight_scale"))
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype)).double()
    codes = torch.where(codes.abs() <= largest, codes, 0.0).reshape(512, -1)
    tensors[name] = codes.to(getattr(torch, dtype))
    assert raw(plan.run(tensors, backend="cpu")) == raw(plan.run(tensors, backend="torch"))


SIZES = {"linear": {"n": 264, "k": 2080}, "moe_gated": {"e": 3, "i": 104, "h": 160}}


@pytest.mark.parametrize("module", SIZES)
@pytest.mark.parametrize("code", [0x80, 0xB8, 0x81])
def test_one_scale_with_a_sign(module, code, monkeypatch):
    """Wherever it stands, minus zero too: without one the weights are only moved."""
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", module, SIZES[module])
    tensors = inputs_of(plan)
    names = [name for name in tensors if name.endswith("weight_scale")]
    for name in names:
        tensors[name].view(torch.uint8).bitwise_and_(0x7F)
    monkeypatch.setattr(cpu_backend, "exact", None)
    used = []
    monkeypatch.setattr(cpu_kernels, "kernel", lambda form, made=cpu_kernels.kernel: (used.append(form), made(form))[1])
    assert raw(plan.run(tensors, backend="cpu")) == raw(plan.run(tensors, backend="torch"))
    assert "fold_sign" not in {getattr(form, "recode", "") for form in used}
    for name in names:
        codes = tensors[name].view(torch.uint8).view(-1)
        for at in (0, 37, len(codes) // 2, len(codes) - 1):
            held, codes[at] = int(codes[at]), code
            assert raw(plan.run(tensors, backend="cpu")) == raw(plan.run(tensors, backend="torch")), (name, at)
            codes[at] = held


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("at", [0, 37, -1])
def test_a_scale_that_is_no_number_is_refused_before_anything_is_written(code, at):
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "linear", SIZES["linear"])
    tensors = inputs_of(plan)
    tensors["linear.weight_scale"].view(torch.uint8).view(-1)[at] = code
    out = {info.name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    held = raw(out)
    with pytest.raises(LayoutError) as refusal:
        plan.run(tensors, backend="cpu", out=out)
    assert "NaN" in str(refusal.value)
    assert raw(out) == held
