"""Each device primitive on the GPU against its host body: kernels/primitives_check.cu has a kernel for each, and they
must leave the same bytes on both, but for functions of floats, which are near each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rows import ABSENT, FAILED, PASSED, Row

from layoutdsl import LayoutError
from layoutdsl.backends import kernel_sources
from layoutdsl.backends.host import launch as host_launch

SOURCE = (kernel_sources.folder() / "primitives_check.cu").read_text(encoding="utf-8")
FROM_SM_89 = ("mma_e4m3", "floats_to_e4m3")

NAMES = tuple(re.findall(r"^LD_KERNEL\(check_(\w+), 64\)", SOURCE, flags=re.M))

BLOCKS, EACH = 64, 4096
"""Blocks of a launch; bytes that each of them reads, writes, and has as shared memory."""

NEAR = {"fast_exp2": 2.0**-22, "fast_reciprocal": 2.0**-23, "normal_cdf": 2.0**-20}
"""How far functions may be from their value, as a part of it; the host's are rounded, which is 2^-24 more."""


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str = SOURCE
    threads: int = 64
    shared: int = EACH


def check(backend: str) -> Iterator[Row]:
    for name in NAMES:
        try:
            yield Row("primitives", name, *held(name, backend))
        except LayoutError as error:
            absent = error.diagnostics[0].name == "no-compiler"
            yield Row("primitives", name, ABSENT if absent else FAILED, error.message)


def held(name: str, backend: str) -> tuple[str, str]:
    """Result, and what was compared. Without a GPU the host is held against itself with threads in another order."""
    if backend == "cuda" and name in FROM_SM_89 and torch.cuda.get_device_capability() < (8, 9):
        return ABSENT, "GPUs have it from sm_89 on"
    read = given(name)
    wanted = on_host(name, read, host_launch.Schedule())
    made = on_gpu(name, read) if backend == "cuda" else on_host(name, read, host_launch.Schedule("random", "late"))
    if name in NEAR:
        made, wanted = made.view(torch.float32).double(), wanted.view(torch.float32).double()
        made = torch.where((made - wanted).abs() <= wanted.abs() * (NEAR[name] + 2.0**-24) + 2.0**-126, wanted, made)
    if torch.equal(made, wanted):
        return PASSED, f"{int((wanted != 0).sum())} bytes"
    different = (made != wanted).nonzero()
    return FAILED, f"{len(different)} bytes differ, first at {int(different[0])}"


def on_host(name: str, read: torch.Tensor, schedule: host_launch.Schedule) -> torch.Tensor:
    written = torch.zeros_like(read)
    launcher = host_launch.Launcher(schedule)
    launcher.reads("in", read)
    launcher.writes("out", written)
    launcher.launch(Kernel(f"check_{name}"), BLOCKS, [read.data_ptr(), written.data_ptr()])
    return written


def on_gpu(name: str, read: torch.Tensor) -> torch.Tensor:
    from layoutdsl.backends.cuda.launch import Launcher

    read = read.cuda()
    written = torch.zeros_like(read)
    Launcher(read.device).launch(Kernel(f"check_{name}"), BLOCKS, [read.data_ptr(), written.data_ptr()])
    return written.cpu()


def given(name: str) -> torch.Tensor:
    """What a kernel reads: random bytes, but all 16-bit codes or floats near them where these are converted, and small
    whole numbers where a GPU may add up in another order."""
    dice = torch.Generator().manual_seed(NAMES.index(name))
    if name.endswith("_to_float"):
        return torch.arange(1 << 16, dtype=torch.int32).view(torch.uint8)
    if name.startswith("float_to_"):
        return _near_codes(dice).view(torch.uint8)
    if name == "floats_to_e4m3":
        return _near_e4m3(dice).view(torch.uint8)
    if name in ("mma_f16", "mma_bf16", "mma_e4m3"):
        return _operands(name.removeprefix("mma_"), dice)
    if name in NEAR:
        return torch.randn(BLOCKS * EACH // 4, generator=dice).mul(8).view(torch.uint8)
    return torch.randint(256, (BLOCKS * EACH,), dtype=torch.uint8, generator=dice)


def _near_codes(dice: torch.Generator) -> torch.Tensor:
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


def _near_e4m3(dice: torch.Generator) -> torch.Tensor:
    """65536 floats, as int32: any bits, and the neighbours of e4m3 codes and of the middles between two."""
    codes = torch.randint(256, (1 << 14,), generator=dice).to(torch.uint8).view(torch.float8_e4m3fn)
    floats = codes.float().view(torch.int32).long()
    nudged = torch.randint(-1, 2, floats.shape, generator=dice)
    return torch.cat([
        torch.randint(1 << 32, (1 << 15,), generator=dice),
        floats + nudged,
        floats + (1 << 19) + nudged,
    ]).to(torch.int32)


def _operands(kind: str, dice: torch.Generator) -> torch.Tensor:
    """64 bytes for each thread: 32 of factors, of which 24 are used, and four sums."""
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[kind]
    rows = BLOCKS * 64
    factors = torch.randint(-8, 9, (rows, 32 // dtype.itemsize), generator=dice).to(dtype).view(torch.uint8)
    added = torch.randint(-99, 100, (rows, 4), generator=dice).to(torch.float32).view(torch.uint8)
    return torch.cat([factors, added, torch.zeros(rows, 16, dtype=torch.uint8)], dim=1).reshape(-1)
