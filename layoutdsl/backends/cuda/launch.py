"""Kernels onto a GPU, on the stream that torch uses there at the moment.

A launch is asynchronous, allocates nothing and asks nothing of the GPU once its kernel is loaded, so a CUDA graph may
capture it after one run outside; a kernel that is not loaded by then is refused (LP348). Each GPU loads a kernel once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from cuda import core
from cuda.bindings import driver

from layoutdsl.backends.cuda.compile import compiled
from layoutdsl.backends.cuda.toolkit import arch_of, check_arch, done
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    from layoutdsl.backends.repack.lower import Kernel

FREE_SHARED = 48 << 10
"""Bytes of shared memory that a kernel has without asking for them."""


class Launcher:
    """Launches kernels on one GPU; LayoutError for one that kernels are not compiled for.

    Requires a driver: without one, cuda.core waits for ever on its second try.
    """

    def __init__(self, device: torch.device):
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self.arch = arch_of(*torch.cuda.get_device_capability(self.device))
        check_arch(self.arch)

    def reads(self, name: str, tensor: torch.Tensor) -> None:
        """Kernels reach all memory of their GPU: nothing has to be said before."""

    writes = reads

    def launch(self, kernel: Kernel, grid: int, arguments: Sequence[int]) -> None:
        """Start `grid` blocks. Arguments are 8 bytes each: addresses and sizes. LayoutError where the kernel does not
        compile, wants more shared memory than this GPU has, or is not loaded while the stream is captured."""
        with torch.cuda.device(self.device):
            # A thread of which torch has asked nothing yet has no context, and torch makes none by naming a device.
            core.Device(self.device.index).set_current()
            loaded = _loaded(kernel, self.arch, self.device.index)
            stream = core.Stream.from_handle(torch.cuda.current_stream(self.device).cuda_stream)
            config = core.LaunchConfig(grid=grid, block=kernel.threads, shmem_size=kernel.shared)
            core.launch(stream, config, loaded, *map(_signed, arguments))


def _signed(value: int) -> int:
    """The same 8 bytes as a number that cuda.core takes."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@cache
def _loaded(kernel: Kernel, arch: str, index: int) -> core.Kernel:
    """The kernel on the GPU of that index, which has to be torch's current one."""
    if torch.cuda.is_current_stream_capturing():
        raise LayoutError(
            f"kernel `{kernel.name}` is captured, and is not loaded on GPU {index} yet",
            code="LP348",
            name="captured-cold",
            help="run the same call once before the capture, with as many rows: other sizes may take other kernels",
        )
    loaded = core.ObjectCode.from_cubin(compiled(kernel, arch).code).get_kernel(kernel.name)
    if kernel.shared > FREE_SHARED:
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        done(driver.cuKernelSetAttribute(most, kernel.shared, loaded.handle, done(driver.cuDeviceGet(index))[0]))
    return loaded
