"""compute-sanitizer over small conversions: memory, races, uninitialised memory, barriers.

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
SECONDS = 35
FOUND = 9
"""Exit status where the tool has found something."""

PLANS = ("gptq_moe_padded", "awq_fill", "fp8_block_fused", "gptq_act_order_split_k", "nvfp4_moe")
DONE = "the conversions are done"


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
    """A few conversions, as short as can be."""
    import torch
    from reference import inputs_of, plan_named

    for name in PLANS:
        plan = plan_named(name)
        plan.run({key: tensor.cuda() for key, tensor in inputs_of(plan).items()}, backend="cuda")
    torch.cuda.synchronize()
    print(DONE)


if __name__ == "__main__":
    wheels.unpack()
    sys.path.insert(0, str(wheels.ROOT))
    small()
