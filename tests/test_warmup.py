"""`layoutdsl warmup`: what it compiles is what a run asks for, and the second time all is there."""

import re
from dataclasses import dataclass, field

import pytest
import torch

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from cuda.pathfinder import DynamicLibNotFoundError

from layoutdsl import MarlinLinear, MarlinMoE, compile_plan, warmup
from layoutdsl.backends.cuda import toolkit as cuda_toolkit
from layoutdsl.backends.cuda.compile import compiled
from layoutdsl.cli import main
from layoutdsl.gemm import launch, mixture
from layoutdsl.gemm.instance import Instance
from layoutdsl.library import load_spec

PAIR = ("gptq", "marlin_int4_a16")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Exit status and what was printed, on either stream."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*argv: str) -> tuple[int, str]:
        status = main(["warmup", *argv])
        return status, "".join(capsys.readouterr())

    return call


def counted(said: str) -> tuple[int, int, int]:
    """Kernels, compiled ones, those in the cache."""
    form = r"(\d+) kernels for [\w, ]+, [\d.]+ kB: (\d+) compiled, (\d+) were in the cache, [\d.]+ s\n"
    found = re.fullmatch(form, said)
    assert found, said
    kernels, fresh, cached = map(int, found.groups())
    return kernels, fresh, cached


def test_the_second_time_all_is_there(run):
    status, said = run(*PAIR, "--arch", "sm_80")
    kernels, fresh, cached = counted(said)
    assert (status, fresh, cached) == (0, kernels, 0) and kernels > 1
    status, said = run(*PAIR, "--arch", "sm_80", "--arch", "sm_90a")
    assert (status, counted(said)) == (0, (kernels, kernels, kernels)) and "for sm_80, sm_90a," in said


def test_other_shapes_ranks_and_experts_find_their_kernels(run):
    run(*PAIR, "--arch", "sm_90a")
    for module, sizes in (("linear", {"n": 8192, "k": 28672}), ("moe_gated", {"e": 3, "i": 128, "h": 384})):
        plan = compile_plan(*PAIR, module, sizes, params={"group": 128}, tp=2, rank=1)
        assert all(compiled(kernel, "sm_90a").cached for kernel in warmup.kernels_of(plan))


def test_every_checkpoint_format_has_kernels():
    pairs = [pair for pair, _ in warmup._asked((), (), {})]
    found = {source.name for source, target in pairs if next(warmup.plans((source, target)), None)}
    assert found == {"gptq", "awq", "ct_int", "fp8", "fp8_block", "mxfp4", "mxfp8", "nvfp4"}  # plain goes to none


def test_act_order_and_eight_bits_are_among_a_pairs_plans():
    params = [dict(plan.source.params) for plan in warmup.plans((load_spec("gptq"), load_spec("marlin_int8_a16")))]
    assert {one["bits"] for one in params} == {8} and {one["act_order"] for one in params} == {False, True}


# ---------------------------------------------------------------- GEMMs


@dataclass
class Noted:
    """A launcher that launches nothing: the kernels that it was asked for."""

    kernels: set = field(default_factory=set)

    def reads(self, name, tensor):
        pass

    writes = reads

    def launch(self, kernel, grid, arguments):
        self.kernels.add(kernel)


def test_what_modules_launch_is_there(run, monkeypatch):
    """All numbers of rows, few multiprocessors and many, matrices of each tile family."""
    pair, arch = ("mxfp4", "marlin_mxfp4_a8fp8"), "sm_89"
    assert run(*pair, "--gemm", "--arch", arch)[0] == 0
    layers = [MarlinLinear(compile_plan(*pair, "linear", {"n": n, "k": k})) for n, k in ((72, 2048), (512, 320))]
    experts = [
        MarlinMoE(compile_plan(*pair, module, {"e": 9, "i": 192, "h": 512}, params=params), activation=activation)
        for module, activation, params in (
            ("moe_gated", "silu", {}),
            ("moe_gated", "swiglu_oai", {"target.parts": "alternating"}),
            ("moe_plain", "relu2", {}),
        )
    ]  # fmt: skip
    noted = Noted()
    for processors in (2, 132):
        for module in (launch, mixture):
            monkeypatch.setattr(module, "launcher_of", lambda _: noted)
            monkeypatch.setattr(module, "multiprocessors_of", lambda _, count=processors: count)
        for rows in (1, 17, 40, 700):
            for layer in layers:
                layer(torch.zeros(rows, layer.inputs).bfloat16())
            for layer in experts:
                layer(torch.zeros(rows, 512).bfloat16(), torch.zeros(rows, 2).int(), torch.zeros(rows, 2))
    assert sum(isinstance(kernel, Instance) for kernel in noted.kernels) > 12
    assert {kernel.name.partition("_")[0] for kernel in noted.kernels} == {"gemm", "quantize", "moe", "activate"}
    assert [kernel.name for kernel in noted.kernels if not compiled(kernel, arch).cached] == []


def test_every_kernel_spec_has_gemms():
    pairs = [pair for pair, _ in warmup._asked((), (), {})]
    assert {target.name for source, target in pairs if next(warmup.gemms_of((source, target)), None)} == {
        target.name for _, target in pairs
    }


def test_parameters_leave_out_other_kernels():
    pair = load_spec("gptq"), load_spec("marlin_int4_a16")
    every = {kernel for kernel in warmup.gemms_of(pair) if isinstance(kernel, Instance)}
    assert {(of.code, of.kind, of.group) for of in every} == {
        (code, kind, group) for code in ("u4b8", "u4") for kind in ("f16", "bf16") for group in (0, 32, 64, 128)
    }
    given = {"group": 64, "dtype": "bfloat16", "zero_points": False}
    some = {kernel for kernel in warmup.gemms_of(pair, given=given) if isinstance(kernel, Instance)}
    assert some == {of for of in every if (of.code, of.kind, of.group) == ("u4b8", "bf16", 64)}


def test_kernels_that_no_named_format_asked_for_are_left_out_on_old_archs():
    kernels = list(warmup.gemms_of((load_spec("mxfp4"), load_spec("marlin_mxfp4_a8fp8"))))
    left = {kernel.name.partition("_")[0] for kernel in kernels if not warmup._multiplies("sm_86", kernel, named=False)}
    assert left == {"gemm", "quantize"}
    assert all(warmup._multiplies("sm_120a", kernel, named=False) for kernel in kernels)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((*PAIR, "--arch", "sm_75"), "LP321 unsupported-arch: sm_75 is older than sm_80"),
        (("gptq", "--arch", "sm_80"), "LP333 half-a-pair: `gptq` has no target"),
        (("gptq", "marlin_fp8_a16", "--arch", "sm_80"), "LP334 no-plan: `gptq` is not converted to `marlin_fp8_a16`"),
        (("gtpq", "marlin_int4_a16", "--arch", "sm_80"), "LP107 no-such-spec: there is no spec `gtpq`"),
        (("gptq", "linear", "--arch", "sm_80"), "LP106 wrong-kind: `linear` is a module spec"),
        ((*PAIR, "--gemm", "--arch", "sm_75"), "LP321 unsupported-arch: sm_75 is older than sm_80"),
        (("mxfp4", "marlin_mxfp4_a8fp8", "--gemm", "--arch", "sm_86"),
         "LP347 activations-not-multiplied: activations of float8_e4m3fn need sm_89 or newer"),
        (("gptq", "ct_int", "--gemm", "--arch", "sm_80"), "LP340 no-gemm: no GEMM reads the tensors of `ct_int`"),
        ((*PAIR, "--param", "grop=32", "--arch", "sm_80"), "LP101 unknown-parameter: no side has a parameter `grop`"),
        ((*PAIR, "--param", "group=48", "--arch", "sm_80"), "LP334 no-plan: `gptq` is not converted"),
    ],
)
def test_refusals(run, argv, said):
    status, printed = run(*argv)
    assert status == 1 and printed.startswith(said)


def test_no_gpu_and_no_arch(run, monkeypatch):
    def absent():
        raise DynamicLibNotFoundError("cuda")

    monkeypatch.setattr(cuda_toolkit.cuda_driver, "cuDriverGetVersion", absent)
    said = "LP332 no-arch: there is no NVIDIA driver on this machine, so that no arch is known to compile for"
    assert run(*PAIR) == (1, f"{said}\n  = help: name one: --arch sm_90a\n")


def test_the_gpus_of_this_machine(run, monkeypatch):
    gpus = (cuda_toolkit.Gpu("a", "sm_90a"), cuda_toolkit.Gpu("b", "sm_90a"))
    monkeypatch.setattr(cuda_toolkit, "gpus", lambda: gpus)
    assert "kernels for sm_90a," in run(*PAIR)[1]


def test_a_cache_that_cannot_be_written(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    status, printed = run(*PAIR, "--arch", "sm_80")
    assert status == 1 and printed.startswith("LP331 cache-not-writable: ")
