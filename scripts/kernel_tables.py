"""Write docs/repack-kernels.md: what NVRTC makes of the generated repack, arch by arch. Needs no GPU.

    python scripts/kernel_tables.py            write it
    python scripts/kernel_tables.py --check    exit 1 where it is not as it would be written
"""

from __future__ import annotations

import argparse
import io
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cuda.core import Program, ProgramOptions

from layoutdsl import Plan, compile_plan
from layoutdsl.backends import kernel_sources
from layoutdsl.backends.cuda import toolkit
from layoutdsl.backends.repack import numbers, source
from layoutdsl.backends.repack.lower import Kernel

PAGE = Path(__file__).resolve().parent.parent / "docs" / "repack-kernels.md"
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")

HEAD = """<!-- Written by scripts/kernel_tables.py: change what it reads, not this text. -->

# The kernels of the generated repack

`layoutdsl plan ... --emit cuda` prints the kernels that a plan makes; these are some of them, and what NVRTC {version}
makes of each. Where whole words can be moved, a warp moves a *tile*: rows of the source, 16 bytes per lane, into shared
memory, codes exchanged in registers, rows of the target out of shared memory. All else goes over a *grid*, code by
code. No kernel says anything of sizes, ranks or experts: that is all in its arguments.

Each cell: registers of a thread, and KB of the compiled kernel. None spills a register, which the tests hold, on every
arch. Shared memory is that of a block.

"""


@dataclass(frozen=True)
class Listed:
    """A kernel of a plan: the first whose name begins so, of those for an output."""

    what: str
    kernel: str
    output: str
    source: str
    target: str
    params: tuple[tuple[str, Any], ...] = ()
    module: str = "linear"
    sizes: tuple[tuple[str, int], ...] = (("n", 256), ("k", 512))


LISTED = (
    Listed("GPTQ int4 to Marlin", "tile", "linear.weight", "gptq", "marlin_int4_a16", (("group", 128),)),
    Listed("AWQ to Marlin", "tile", "linear.weight", "awq", "marlin_int4_a16", (("group", 128),)),
    Listed("rows of k (int4) to Marlin", "tile", "linear.weight", "ct_int", "marlin_int4_a16", (("group", 128),)),
    Listed("GPTQ int8 to Marlin", "tile", "linear.weight", "gptq", "marlin_int8_a16",
           (("group", 128), ("bits", 8))),
    Listed("FP8 to Marlin", "tile", "linear.weight", "fp8", "marlin_fp8_a16"),
    Listed("MXFP4 to Marlin", "tile", "linear.weight", "mxfp4", "marlin_mxfp4_a16"),
    Listed("NVFP4 to Marlin", "tile", "linear.weight", "nvfp4", "marlin_nvfp4_a16"),
    Listed("GPTQ int4, FP8 activations", "tile", "linear.weight", "gptq", "marlin_int4_a8fp8", (("group", 128),)),
    Listed("int4 with zero points, FP8 activations", "tile", "linear.weight", "ct_int", "marlin_int4_a8fp8",
           (("group", 128), ("zero_points", True))),
    Listed("GPTQ to compressed-tensors", "tile", "linear.weight_packed", "gptq", "ct_int",
           (("group", 128), ("bits", 4))),
    Listed("float16 scales to Marlin", "tile", "linear.weight_scale", "gptq", "marlin_int4_a16", (("group", 32),),
           sizes=(("n", 512), ("k", 1024))),
    Listed("pads", "rows_fill", "w13.weight", "fp8", "marlin_fp8_a16", (("contract", "vllm"),), "moe_gated",
           (("e", 2), ("i", 96), ("h", 256))),
    Listed("what FP8 weights must not hold", "rows_check", "linear.weight", "fp8", "marlin_fp8_a16"),
    Listed("zero points that must be 8", "rows_equal", "linear.qzeros", "gptq", "marlin_int4_a16", (("group", 32),),
           sizes=(("n", 1024), ("k", 1024))),
    Listed("act-order GPTQ int4 to Marlin", "grid_write", "linear.weight", "gptq", "marlin_int4_a16",
           (("group", 128), ("act_order", True))),
    Listed("zero points of AWQ", "grid_write", "linear.zero_point", "awq", "marlin_int4_a16",
           (("group", 128), ("target.zero_points", True))),
    Listed("block scales of FP8", "grid_write", "linear.weight_scale", "fp8_block", "marlin_fp8_a16"),
    Listed("block scales of MXFP4", "grid_write", "linear.weight_scale", "mxfp4", "marlin_mxfp4_a16"),
    Listed("block scales of NVFP4", "grid_write", "linear.weight_scale", "nvfp4", "marlin_nvfp4_a16",
           (("dtype", "bfloat16"),)),
    Listed("largest block scale of NVFP4", "grid_largest", "linear.weight_scale", "nvfp4", "marlin_nvfp4_a16"),
    Listed("int16 scales", "grid_write", "linear.weight_scale", "gptq", "marlin_int8_a8int8",
           (("group", 128), ("bits", 8))),
    Listed("global scales that share a place", "grid_compare", "w13.global_scale", "nvfp4", "marlin_nvfp4_a16", (),
           "moe_gated", (("e", 2), ("i", 64), ("h", 64))),
)  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    registers: int
    spilled: int
    size: int


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/repack-kernels.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is stale")
    check = parser.parse_args().check
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if not check:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    print(f"{PAGE.name} {'is stale' if check else 'written'}")
    return int(check)


def page() -> str:
    version = ".".join(map(str, toolkit.compiler().version))
    lines = [f"| kernel | does | shared KB | {' | '.join(ARCHS)} |", f"|---|---|{'---|' * (1 + len(ARCHS))}"]
    for what, kernel in kernels():
        cells = [cell(compiled(kernel, arch)) for arch in ARCHS]
        lines.append(f"| {what} | {done_by(kernel)} | {kernel.shared / 1024:.3g} | {' | '.join(cells)} |")
    return HEAD.format(version=version) + "\n".join(lines) + "\n"


def cell(made: Compiled) -> str:
    return f"{made.registers}, {made.size / 1024:.1f}"


def done_by(kernel: Kernel) -> str:
    """The title that the text begins with."""
    return kernel.source.splitlines()[0].removeprefix("// ").split(". Generated")[0]


@cache
def kernels() -> tuple[tuple[str, Kernel], ...]:
    """The listed kernels, with what each is for, and the one that writes tables of addresses."""
    return *((listed.what, _kernel(listed)) for listed in LISTED), ("addresses", numbers.numbers_kernel())


def _kernel(listed: Listed) -> Kernel:
    found = source.kernels(_plan(listed))
    return next(
        kernel for kernel, outputs in found.items()
        if kernel.name.startswith(f"{listed.kernel}_") and listed.output in outputs
    )  # fmt: skip


def _plan(listed: Listed) -> Plan:
    return compile_plan(listed.source, listed.target, listed.module, dict(listed.sizes), params=dict(listed.params))


def compiled(kernel: Kernel, arch: str) -> Compiled:
    """What NVRTC makes of a kernel, as it says itself."""
    said = io.StringIO()
    options = ProgramOptions(name="kernel.cu", arch=arch, fma=False, ptxas_options=["-v"])
    code = Program(kernel_sources.joined(kernel.source), "c++", options).compile("cubin", logs=said)
    text = said.getvalue()
    spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", text))
    (registers,) = re.findall(r"Used (\d+) registers", text)
    return Compiled(int(registers), spilled, len(bytes(code.code)))


if __name__ == "__main__":
    raise SystemExit(main())
