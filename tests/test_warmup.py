"""`layoutdsl warmup`: what it compiles is what a run asks for, and the second time all is there."""

import re

import pytest

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from cuda.pathfinder import DynamicLibNotFoundError

from layoutdsl import compile_plan, warmup
from layoutdsl.backends.cuda import toolkit as cuda_toolkit
from layoutdsl.backends.cuda.compile import compiled
from layoutdsl.cli import main
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
    found = {source.name for source, target in warmup._pairs((), ()) if next(warmup.plans((source, target)), None)}
    assert found == {"gptq", "awq", "ct_int", "fp8", "fp8_block", "mxfp4", "mxfp8", "nvfp4"}  # plain goes to none


def test_act_order_and_eight_bits_are_among_a_pairs_plans():
    params = [dict(plan.source.params) for plan in warmup.plans((load_spec("gptq"), load_spec("marlin_int8_a16")))]
    assert {one["bits"] for one in params} == {8} and {one["act_order"] for one in params} == {False, True}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((*PAIR, "--arch", "sm_75"), "LP321 unsupported-arch: sm_75 is older than sm_80"),
        (("gptq", "--arch", "sm_80"), "LP333 half-a-pair: `gptq` has no target"),
        (("gptq", "marlin_fp8_a16", "--arch", "sm_80"), "LP334 no-plan: `gptq` is not converted to `marlin_fp8_a16`"),
        (("gtpq", "marlin_int4_a16", "--arch", "sm_80"), "LP107 no-such-spec: there is no spec `gtpq`"),
        (("gptq", "linear", "--arch", "sm_80"), "LP106 wrong-kind: `linear` is a module spec"),
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
