"""Each device primitive on the GPU against its host body: the functions of primitives.cu leave the same bytes on both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from layoutdsl import LayoutError
from layoutdsl.backends import host_launch
from rows import ABSENT, FAILED, PASSED, Row

SOURCE = (Path(__file__).parent / "primitives.cu").read_text(encoding="utf-8")
NAMES = tuple(re.findall(r"case \d+: return (\w+)", SOURCE))
GRIDS = {"indices": 3, "release": 2}
"""Blocks, where it is not one."""

SHARED, READ, WRITTEN = 8192, 1 << 18, 1 << 20
"""Bytes of shared memory, and of what the kernels read and write."""


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str
    threads: int
    shared: int


KERNEL = Kernel("primitives", SOURCE, 64, SHARED)


def check(backend: str) -> Iterator[Row]:
    for name in NAMES:
        try:
            yield Row("primitives", name, *held(name, backend))
        except LayoutError as error:
            yield Row("primitives", name, ABSENT if error.diagnostics[0].name == "no-compiler" else FAILED, error.message)


def held(name: str, backend: str) -> tuple[str, str]:
    """Result, and which bytes differ. The host is held against itself where threads run in another order."""
    if name == "products_e4m3" and backend == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return ABSENT, "there from sm_89 on"
    read = given(name)
    wanted = on_host(name, read, host_launch.Schedule(resident=2))
    if backend == "host":
        made = on_host(name, read, host_launch.Schedule("random", "late", resident=2))
    else:
        made = on_gpu(name, read)
    if torch.equal(made, wanted):
        return PASSED, f"{int((wanted != 0).sum())} bytes, not zero"
    different = (made != wanted).nonzero()
    return FAILED, f"{len(different)} bytes differ, first at {int(different[0])}"


def on_host(name: str, read: torch.Tensor, schedule: host_launch.Schedule) -> torch.Tensor:
    written = torch.zeros(WRITTEN, dtype=torch.uint8)
    launcher = host_launch.Launcher(schedule)
    launcher.reads("of", read)
    launcher.writes("to", written)
    launcher.launch(KERNEL, GRIDS.get(name, 1), [written.data_ptr(), read.data_ptr(), NAMES.index(name)])
    return written


def on_gpu(name: str, read: torch.Tensor) -> torch.Tensor:
    from layoutdsl.backends.cuda_launch import Launcher

    read, written = read.cuda(), torch.zeros(WRITTEN, dtype=torch.uint8, device="cuda")
    arguments = [written.data_ptr(), read.data_ptr(), NAMES.index(name)]
    Launcher(read.device).launch(KERNEL, GRIDS.get(name, 1), arguments)
    return written.cpu()


def given(name: str) -> torch.Tensor:
    """What a kernel reads: random bytes, but floats near each 16-bit code, and small whole numbers where they are
    multiplied, so that every sum is exact in any order."""
    dice = torch.Generator().manual_seed(NAMES.index(name))
    if name == "conversions":
        return _near_halves(dice).view(torch.uint8)
    if name.startswith("products_"):
        return _operands(name.removeprefix("products_"), dice)
    return torch.randint(256, (READ,), dtype=torch.uint8, generator=dice)


def _near_halves(dice: torch.Generator) -> torch.Tensor:
    """65536 floats, as int32: any bits, and the neighbours of 16-bit codes and of the middles between two."""
    codes = torch.randint(1 << 16, (1 << 14,), generator=dice)
    halves = codes.to(torch.int16).view(torch.float16).float().view(torch.int32).long()
    nudged = torch.randint(-1, 2, codes.shape, generator=dice)
    return torch.cat([
        torch.randint(1 << 32, codes.shape, generator=dice),
        halves + nudged,
        halves + (1 << 12) + nudged,
        (codes << 16) + (1 << 15) + nudged,
    ]).to(torch.int32)


def _operands(kind: str, dice: torch.Generator) -> torch.Tensor:
    """For each of 64 lanes 32 bytes of factors and four sums."""
    dtype, sums = {
        "f16": (torch.float16, torch.float32), "bf16": (torch.bfloat16, torch.float32),
        "e4m3": (torch.float8_e4m3fn, torch.float32), "s8": (torch.int8, torch.int32),
    }[kind]
    count = 32 // dtype.itemsize
    factors = torch.randint(-8, 9, (64, count), generator=dice).to(dtype).view(torch.uint8)
    added = torch.randint(-99, 100, (64, 4), generator=dice).to(sums).view(torch.uint8)
    return torch.cat([factors, added], dim=1).reshape(-1)
