"""compute-sanitizer over small conversions and GEMMs: memory, races, uninitialised memory, barriers.

As a script of its own it is what the sanitizer runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import wheels
from rows import ABSENT, FAILED, PASSED, Row

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SECONDS = 40
FOUND = 9
"""Exit status where the tool has found something."""

PLANS = ("gptq_moe_padded", "awq_fill", "fp8_block_fused", "gptq_act_order_split_k", "nvfp4_moe")
GEMMS = (
    ("u4b8", "float16", 64, {"m": 16, "n": 128, "k": 64, "depth": 4, "stages": 4}),
    ("u8b128", "bfloat16", -1, {"m": 32, "n": 64, "k": 128, "depth": 4, "stages": 4}),
    ("nvfp4", "float16", None, {"m": 16, "n": 64, "k": 128, "depth": 4, "stages": 4}),
    ("u4b8_s8", "float16", 64, {"m": 16, "n": 64, "k": 128, "depth": 4, "stages": 4}),
)
"""Cases of tests/gemm_cases.py, their groups, and tiles; two blocks share the inputs of each."""

DONE = "all is done"


def check(backend: str) -> Iterator[Row]:
    tool = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if backend == "host" or tool is None:
        why = "needs a GPU" if tool else "compute-sanitizer is not installed"
        yield Row("sanitizer", ", ".join(TOOLS), ABSENT, why)
        return
    with ThreadPoolExecutor() as pool:
        yield from pool.map(lambda name: Row("sanitizer", name, *watched(tool, name)), TOOLS)


def watched(tool: str, name: str) -> tuple[str, str]:
    """Result of one tool, and what it said."""
    command = [tool, "--tool", name, "--error-exitcode", str(FOUND), sys.executable, __file__]
    # Each tensor has to be an allocation of its own, or an access beside one would be inside torch's pool.
    variables = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=variables)
    except subprocess.TimeoutExpired:
        return ABSENT, f"not done after {SECONDS} s"
    return judged(done.returncode, done.stdout + done.stderr)


def judged(status: int, said: str) -> tuple[str, str]:
    lines = [line.lstrip("= ") for line in said.splitlines() if line.strip("= ") not in ("", "COMPUTE-SANITIZER")]
    if status == FOUND:
        return FAILED, lines[0]
    if status == 0 and DONE in said:
        return PASSED, lines[-1]
    return ABSENT, lines[-1] if lines else f"ended with {status}"


def small() -> None:
    """A few conversions, products and a mixture of experts, as short as can be."""
    import torch
    from reference import inputs_of, plan_named

    for name in PLANS:
        plan = plan_named(name)
        plan.run({key: tensor.cuda() for key, tensor in inputs_of(plan).items()}, backend="cuda")
    multiplied("cuda")
    torch.cuda.synchronize()
    print(DONE)


def multiplied(device: str) -> None:
    """Products with padding on all sides, and a mixture of experts, some of which no token has chosen."""
    import torch
    from gemms import chosen, draw

    from layoutdsl import MarlinLinear, MarlinMoE
    from layoutdsl.gemm.table import Tile

    for name, dtype, group, tile in GEMMS:
        case = draw(name, dtype, "linear", {"n": 72, "k": 200}, group=group, params={"bias": True})
        layer = MarlinLinear(case.plan).load_checkpoint(case.tensors).to(device)
        with chosen(Tile(**tile), splits=2):
            layer(case.x(17).to(device))
    case = draw("u4b8", "bfloat16", "moe_gated", {"e": 4, "i": 72, "h": 128}, group=64)
    experts = MarlinMoE(case.plan, activation="silu").load_checkpoint(case.tensors).to(device)
    ids = torch.tensor([[0, 2], [2, 3], [2, 0]], device=device)
    with chosen(Tile(**GEMMS[1][-1]), splits=1):
        experts(case.x(3, "w13").to(device), ids, torch.ones(3, 2, device=device))


if __name__ == "__main__":
    wheels.unpack()
    sys.path.insert(0, str(wheels.ROOT))
    small()
