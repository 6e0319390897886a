"""Write docs/gemm-kernels.md: what NVRTC makes of the listed GEMM kernels (tests/gemm_listed.py). Needs no GPU.

    python scripts/gemm_tables.py            write it: a few minutes, the first time
    python scripts/gemm_tables.py --check    exit 1 where it is not as it would be written
    python scripts/gemm_tables.py --all      write nothing: every listed form with every tile of data/gemm.yaml that it
                                             may get, and which of them have a stack
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cuda.pathfinder import find_nvidia_binary_utility

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import gemm_listed  # noqa: E402

from layoutdsl.backends.cuda import toolkit  # noqa: E402
from layoutdsl.backends.cuda.compile import compiled  # noqa: E402
from layoutdsl.errors import LayoutError  # noqa: E402
from layoutdsl.gemm import needed  # noqa: E402
from layoutdsl.gemm.instance import Instance  # noqa: E402

PAGE = ROOT / "docs" / "gemm-kernels.md"
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
SHOWN = "sm_89"
"""Whose instructions are counted: the first arch that multiplies all that kernels multiply."""

MMA = ("HMMA", "IMMA", "QMMA")
DECODES = ("LOP3", "PRMT", "SHF", "HADD2", "HMUL2", "HFMA2")

HEAD = """<!-- Written by scripts/gemm_tables.py: change what it reads, not this text. -->

# The GEMM kernels, compiled

A GEMM is compiled for the code of its weights, the type that tensor cores multiply, the scales and the tile of a block
(`kernels/gemm/shape.cuh`). These are the kernels that the tests run on the CPU and hold against float64, and what
NVRTC {version} makes of each.

A name says code, type, scales, and the tile: m rows of activations, n columns, k inputs at a time, shared by d warps of
each 64 columns, s times in shared memory; `experts` are kernels whose rows are sorted by expert.

## Registers and sizes

Each cell: registers of a thread, KB of the compiled kernel and, where a thread has any, bytes of its stack. On no arch
does a main loop spill a register (reach the stack): the tests hold that. Shared memory is that of a block.
Products of e4m3 begin with sm_89.

"""

LOOPS = """
## Main loops, as compiled for {arch}

Counted in the disassembly, from the loop's first instruction to the branch back: the shortest loop that has all tensor
core instructions of the kernel and asynchronous copies. What is in a loop over the steps of a stage counts for each of
them. One turn, for a warp: instructions of tensor cores (HMMA, IMMA, QMMA: `mma`), of fragments from shared memory
(LDSM: `ldmatrix`), other loads from it (LDS), asynchronous copies (LDGSTS).

*Decoding* is how many LOP3, PRMT, SHF and HADD2, HMUL2, HFMA2 (with `.BF16` or without) the loop has for each weight of
a lane, so it includes the multiplication with the group's scale, and the few of these that find addresses. A lane's
weights are those of its mma: 4 of each 16 x 8
that m16n8k16 takes, 8 of m16n8k32, once for all rows of the tile. *All* are all instructions of the loop for each
weight, but for those of tensor cores. With 8-bit activations and several groups, sums are scaled instead of weights:
that is in *all*, and becomes more with the rows of a tile.

"""


@dataclass(frozen=True)
class Compiled:
    registers: int
    stack: int
    size: int


@dataclass(frozen=True)
class Loop:
    """Instructions of one turn of the main loop."""

    counts: Counter
    weights: int

    def of(self, *names: str) -> int:
        return sum(self.counts[name] for name in names)

    def per_weight(self, count: int) -> str:
        return f"{count / self.weights:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/gemm-kernels.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is stale")
    parser.add_argument("--all", action="store_true", help="write nothing; look at every kernel of the table")
    asked = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        if asked.all:
            return _all(pool)
        pairs = [(kernel, arch) for arch in ARCHS for kernel in gemm_listed.kernels() if exists(kernel, arch)]
        made = dict(zip(pairs, pool.map(measured, *zip(*pairs), chunksize=4)))
        gemms = [kernel for kernel in gemm_listed.kernels() if isinstance(kernel, Instance)]
        text = page(made, dict(zip(gemms, pool.map(main_loop, gemms))))
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if not asked.check:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    print(f"{PAGE.name} {'is stale' if asked.check else 'written'}")
    return int(asked.check)


def _all(pool: ProcessPoolExecutor) -> int:
    every = [
        replace(form, tile=tile).kernel
        for form in gemm_listed.FORMS
        for tile in gemm_listed.tiles(form.classed)
    ]  # fmt: skip
    pairs = [(kernel, arch) for kernel in every for arch in ARCHS if exists(kernel, arch)]
    bad = 0
    for (kernel, arch), made in zip(pairs, pool.map(measured, *zip(*pairs), chunksize=4)):
        if made.stack:
            bad += 1
            print(f"{kernel.name} {arch}: {made.registers} registers, {made.stack} bytes of stack", flush=True)
    print(f"{bad} of {len(pairs)} have a stack")
    return int(bool(bad))


# --- the page ---------------------------------------------------------------------------------------------------------


def page(made: dict[tuple[Any, str], Compiled], loops: dict[Instance, Loop]) -> str:
    lines = [f"| kernel | shared KB | {' | '.join(ARCHS)} |", f"|---|---|{'---|' * len(ARCHS)}"]
    for kernel in gemm_listed.kernels():
        cells = [cell(made.get((kernel, arch))) for arch in ARCHS]
        lines.append(f"| {kernel.name} | {kernel.shared / 1024:.3g} | {' | '.join(cells)} |")
    text = HEAD.format(version=version()) + "\n".join(lines) + "\n"
    text += LOOPS.format(arch=SHOWN)
    lines = ["| kernel | mma | LDSM | LDS | LDGSTS | decoding | all |", f"|---|{'---|' * 6}"]
    lines += [f"| {kernel.name} | {' | '.join(loop_cells(loop))} |" for kernel, loop in loops.items()]
    return text + "\n".join(lines) + "\n"


def version() -> str:
    return ".".join(map(str, toolkit.compiler().version))


def cell(made: Compiled | None) -> str:
    if made is None:
        return ""
    return f"{made.registers}, {made.size / 1024:.1f}" + (f", stack {made.stack}" if made.stack else "")


def loop_cells(loop: Loop) -> list[str]:
    numbers = [loop.of(*MMA), loop.of("LDSM"), loop.of("LDS"), loop.of("LDGSTS")]
    rest = sum(loop.counts.values()) - loop.of(*MMA)
    return [*map(str, numbers), loop.per_weight(loop.of(*DECODES)), loop.per_weight(rest)]


def exists(kernel: Any, arch: str) -> bool:
    """Whether tensor cores of that arch multiply what the kernel does, and can make it."""
    try:
        needed.check_arch(kernel, arch)
    except LayoutError:
        return False
    return True


# --- what a kernel became ---------------------------------------------------------------------------------------------


def measured(kernel: Any, arch: str) -> Compiled:
    code = compiled(kernel, arch).code
    said = _tool("cuobjdump", "-res-usage", code)
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", said).groups())
    return Compiled(registers, stack, len(code))


def main_loop(kernel: Instance, arch: str = SHOWN) -> Loop:
    """The shortest loop that has all tensor core instructions and copies. Where a shorter one in it has the former, its
    instructions count as often as it turns for a stage. AssertionError where there is none."""
    names, targets, loops = [], {}, []
    for line in _tool("nvdisasm", "-c", compiled(kernel, arch).code).splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            targets[label[1]] = len(names)
        if found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+ )?\s*(\w+)([^;]*);", line):
            names.append(found[1])
            to = re.search(r"\((\.L_x_\d+)\)", found[2])
            if found[1] == "BRA" and to and to[1] in targets:
                loops.append((targets[to[1]], len(names)))
    products = [at for at, name in enumerate(names) if name in MMA]
    copies = [at for at, name in enumerate(names) if name == "LDGSTS"]
    whole = sorted((b - a, a, b) for a, b in loops if products and a <= products[0] and products[-1] < b)
    stages = [(a, b) for _, a, b in whole if any(a <= at < b for at in copies)]
    assert stages, f"{kernel.name} has no loop with all its tensor core instructions"
    (_, *steps), stage = whole[0], stages[0]
    inner, counts = Counter(names[slice(*steps)]), Counter(names[slice(*stage)])
    codes = 8 if kernel.kind in ("s8", "e4m3") else 4
    weights = len(products) // (kernel.m // 16) * codes
    turns = 1 if tuple(steps) == stage else 2 * kernel.k // kernel.depth // weights
    for name, count in inner.items():
        counts[name] += (turns - 1) * count
    return Loop(counts, weights * turns)


def _tool(name: str, option: str, code: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        return subprocess.run([_path(name), option, file.name], capture_output=True, text=True, check=True).stdout


@cache
def _path(name: str) -> str:
    return find_nvidia_binary_utility(name)


if __name__ == "__main__":
    raise SystemExit(main())
