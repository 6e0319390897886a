"""Kernels for the tests of the host, and their launches on numpy arrays."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from layoutdsl.backends.host.build import COMPILERS
from layoutdsl.backends.host.launch import FORWARD, Launcher, Schedule
from layoutdsl.backends.kernel_sources import folder

if not any(map(shutil.which, COMPILERS)):
    pytest.skip("no C++ compiler is installed", allow_module_level=True)

PRIMITIVES = tuple(re.findall(r"^LD_KERNEL\((\w+)", (folder() / "primitives_check.cu").read_text(), re.MULTILINE))

FAULTY = (Path(__file__).parent / "host_faults.cu").read_text()
FAULTS = {name: number for number, name in enumerate(re.findall(r"^    ([A-Z_]+)(?: = 1)?,", FAULTY, re.MULTILINE), 1)}


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str = FAULTY
    threads: int = 64
    shared: int = 0


def launched(
    of: Kernel,
    grid: int,
    given: dict[str, np.ndarray],
    made: dict[str, np.ndarray],
    *numbers: int,
    schedule: Schedule = FORWARD,
    build: str = "plain",
) -> Launcher:
    """The launcher after a launch with the addresses of `given`, then of `made`, which it changes, then numbers."""
    launcher = Launcher(schedule, build)
    for name, array in given.items():
        launcher.reads(name, array)
    for name, array in made.items():
        launcher.writes(name, array)
    addresses = [array.ctypes.data for array in (*given.values(), *made.values())]
    launcher.launch(of, grid, [*addresses, *numbers])
    return launcher


def aligned(shape: int | tuple[int, ...], dtype: str = "u1") -> np.ndarray:
    """Zeros at a multiple of 256 bytes, as an allocator of a GPU would place them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 256, dtype=np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype).reshape(shape)
