"""GEMM kernels compiled for every arch, without a GPU: all that a warp holds stays in registers."""

from __future__ import annotations

import io
import re

import pytest

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from cuda.core import Program, ProgramOptions

from layoutdsl.backends import kernel_sources
from layoutdsl.gemm.instance import Instance

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
INSTANCES = (
    Instance("u4b8", "f16", "group", 128, m=16, n=128, k=128, depth=4),
    Instance("u4b8", "bf16", "channel", m=64, n=128, k=64, depth=4, rows="experts"),
    Instance("u4", "f16", "group", 32, m=64, n=256, k=64, depth=2),
    Instance("u8b128", "bf16", "group", 64, m=48, n=64, k=128, depth=4),
    Instance("e4m3", "bf16", "channel", m=64, n=256, k=64, depth=2, stages=3),
    Instance("e4m3", "bf16", "e8m0", 32, m=32, n=128, k=64, depth=4),
    Instance("e2m1", "bf16", "s0e5m3", 16, m=64, n=256, k=64, depth=2, rows="experts"),
    Instance("e2m1", "bf16", "e8m0", 32, m=16, n=64, k=128, depth=8),
    Instance("u4b8", "s8", "group", 128, m=48, n=128, k=128, depth=4, result="bf16"),
    Instance("u4", "s8", "group", 32, m=48, n=128, k=128, depth=4, result="bf16"),
    Instance("u8b128", "s8", "channel", m=32, n=64, k=128, depth=4, result="bf16"),
    Instance("u4", "e4m3", "group", 64, m=32, n=64, k=128, depth=4, result="bf16"),
    Instance("u4b8", "e4m3", "channel", m=48, n=128, k=128, depth=4, result="bf16"),
    Instance("e2m1", "e4m3", "e8m0", 32, m=16, n=128, k=64, depth=2, result="bf16"),
)
WITHOUT_E4M3 = ("sm_80", "sm_86")
COMPILED = [(of, arch) for arch in ARCHS for of in INSTANCES if of.kind != "e4m3" or arch not in WITHOUT_E4M3]


@pytest.mark.parametrize(("of", "arch"), COMPILED, ids=lambda one: getattr(one, "name", one))
def test_nothing_is_spilled(of: Instance, arch: str) -> None:
    log = io.StringIO()
    options = ProgramOptions(name="kernel.cu", arch=arch, fma=False, ptxas_options=["-v"])
    Program(kernel_sources.joined(of.source), "c++", options).compile("cubin", logs=log)
    said = log.getvalue()
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", said), said
    assert "warning" not in said, said
    assert int(re.search(r"Used (\d+) registers", said)[1]) * of.threads <= 65536
