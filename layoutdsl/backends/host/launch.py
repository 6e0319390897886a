"""Launches of kernels on this machine's CPU, where every access is checked and counted.

    launcher = Launcher(Schedule("random", seed=3))
    launcher.reads("weight", weight)
    launcher.writes("out", out)
    launcher.launch(kernel, grid, [weight.data_ptr(), out.data_ptr(), n])
    launcher.counters[kernel.name].global_loads.sectors

A kernel is anything with name, source, threads and shared. Each buffer that it may reach is said before: by address, so
tables of addresses are buffers as well as what they point to. What a kernel does wrong is a LayoutError that names the
kernel, block, thread and line: LP303 outside of a buffer, LP304 not aligned, LP305 threads that part ways at a barrier,
LP306 all wait, LP307 a race on shared memory. Refuses launches that no GPU would take (LP302).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from numbers import Integral
from typing import Any, Protocol

from layoutdsl.backends.host import build as host_build
from layoutdsl.backends.host import interface as host_interface
from layoutdsl.backends.host.counters import Counters
from layoutdsl.backends.host.interface import COPYING, FAULTS, ORDERS
from layoutdsl.errors import LayoutError, did_you_mean

WARP, MOST_THREADS, MOST_SHARED, MOST_BLOCKS = 32, 1024, 227 << 10, 2**31 - 1


@dataclass(frozen=True)
class _Refused:
    code: str
    name: str
    help: str


_REFUSED = {
    "bounds": _Refused("LP303", "out-of-bounds", "guard the access, or tell the launcher of the buffer that it means"),
    "alignment": _Refused("LP304", "misaligned", "an access of n bytes stands at a multiple of n"),
    "divergence": _Refused("LP305", "divergent", "threads come to each barrier and collective all together"),
    "deadlock": _Refused("LP306", "deadlock", "blocks that wait for each other must be resident: Schedule(resident=)"),
    "race": _Refused("LP307", "race", "a barrier must stand between them: sync_block, or sync_warp inside of one warp"),
    "memory": _Refused("LP308", "no-memory", "have fewer blocks resident: Schedule(resident=)"),
}
"""What each fault of the runtime is refused as."""


class Kernel(Protocol):
    """`threads` and bytes of dynamic `shared` memory per block; `source` defines LD_KERNEL(name, ...)."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared(self) -> int: ...


def _wrong_launch(what: str, help: str) -> LayoutError:
    return LayoutError(what, code="LP302", name="wrong-launch", help=help)


def _check_named(what: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise _wrong_launch(f"there is no {what} {name!r}", did_you_mean(name, names) or f"take {', '.join(names)}")


@dataclass(frozen=True)
class Schedule:
    """In which order threads run. A correct kernel gives the same in all of them.

    order     forward, reverse: blocks and warps by turns; random: any next; ahead: one warp as long as it can
    copying   asynchronous copies are made when they are issued (early), when waited for (late), or either (mixed)
    resident  how many blocks run side by side: kernels whose blocks wait for each other need as many
    seed      of all that is random
    """

    order: str = "forward"
    copying: str = "early"
    resident: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        _check_named("order", self.order, ORDERS)
        _check_named("way of copying", self.copying, COPYING)
        if not isinstance(self.resident, Integral) or not 0 < self.resident <= MOST_BLOCKS:
            raise _wrong_launch(f"{self.resident!r} blocks side by side", f"1 to {MOST_BLOCKS} blocks are resident")
        if not isinstance(self.seed, Integral) or not 0 <= self.seed < 1 << 64:
            raise _wrong_launch(f"{self.seed!r} is no seed", "a seed is a number from 0 on, below 2^64")


FORWARD = Schedule()


def schedules(resident: int = 1, seeds: int = 1) -> list[Schedule]:
    """Every order with every way of copying, for `seeds` seeds."""
    return [Schedule(order, copying, resident, seed) for order, copying, seed in product(ORDERS, COPYING, range(seeds))]


class Launcher:
    """Launches kernels one after the other; `counters` sums up what each of them, by name, did."""

    def __init__(self, schedule: Schedule = FORWARD, build: str = "plain"):
        _check_named("build", build, host_build.BUILDS)
        self.schedule = schedule
        self.build = build
        self.counters: dict[str, Counters] = {}
        self._buffers: dict[tuple[int, int], _Buffer] = {}
        self._table: ctypes.Array[host_interface.Buffer] | None = None

    def reads(self, name: str, tensor: Any) -> None:
        """Kernels may read a tensor or array of this name: a contiguous one, that the launcher keeps alive."""
        self._add(name, tensor, 0)

    def writes(self, name: str, tensor: Any) -> None:
        """Kernels may read and write a tensor or array of this name; otherwise as `reads`."""
        self._add(name, tensor, 1)

    def _add(self, name: str, tensor: Any, writable: int) -> None:
        start, size = _stretch(name, tensor)
        known = self._buffers.get((start, size))
        if size and (known is None or writable > known.writable):
            self._buffers[start, size] = _Buffer(start, size, name, writable, tensor)
            self._table = None

    def launch(self, kernel: Kernel, grid: int, arguments: Sequence[int]) -> None:
        """Run `grid` blocks to their end. Every argument is an 8-byte integer: an address or a number."""
        numbers = [_eight_bytes(at, value) for at, value in enumerate(arguments)]
        loaded = _loaded(kernel.name, kernel.source, self.build)
        _check_launch(kernel, grid, arguments, loaded)
        if self._table is None:
            self._table = _apart(self._buffers.values())
        schedule = self.schedule
        request = host_interface.Request(
            entry=loaded.entry,
            arguments=(ctypes.c_uint64 * len(numbers))(*numbers),
            buffers=self._table,
            buffer_count=len(self._table),
            seed=schedule.seed,
            blocks=grid,
            threads=kernel.threads,
            shared=kernel.shared,
            resident=schedule.resident,
            order=ORDERS.index(schedule.order),
            copying=COPYING.index(schedule.copying),
        )
        result = host_interface.Result()
        with _RUNNING:
            loaded.launch(request, result)
            counted = host_interface.counters(result)
        self.counters[kernel.name] = self.counters.get(kernel.name, Counters()) + counted
        if result.fault:
            raise _refusal(kernel, result)


_RUNNING = threading.Lock()
"""The runtime's state is that of one launch."""


@dataclass(frozen=True)
class _Buffer:
    start: int
    bytes: int
    name: str
    writable: int
    held: Any


def _stretch(name: str, tensor: Any) -> tuple[int, int]:
    """Address and bytes of a torch tensor or a numpy array."""
    torch_one = hasattr(tensor, "data_ptr")
    if not torch_one and not hasattr(tensor, "ctypes"):
        raise _wrong_launch(f"`{name}` is a {type(tensor).__name__}", "name a torch tensor or a numpy array")
    if not (tensor.is_contiguous() if torch_one else tensor.flags.c_contiguous):
        raise _wrong_launch(f"`{name}` is not contiguous", "name the tensor that it is a part of, or its .contiguous()")
    return tensor.data_ptr() if torch_one else tensor.ctypes.data, tensor.nbytes


def _apart(buffers: Iterable[_Buffer]) -> ctypes.Array[host_interface.Buffer]:
    """In the order of their addresses; buffers that overlap (views, one tensor as two) become one."""
    apart: list[host_interface.Buffer] = []
    for buffer in sorted(buffers, key=lambda buffer: (buffer.start, -buffer.bytes)):
        if apart and buffer.start < apart[-1].start + apart[-1].bytes:
            apart[-1].bytes = max(apart[-1].bytes, buffer.start + buffer.bytes - apart[-1].start)
            apart[-1].writable |= buffer.writable
            continue
        apart.append(host_interface.Buffer(buffer.start, buffer.bytes, buffer.name.encode(), buffer.writable))
    return (host_interface.Buffer * len(apart))(*apart)


@lru_cache(maxsize=1024)
def _loaded(name: str, source: str, build: str) -> host_interface.Loaded:
    host_build.check_loaded(build)
    try:
        return host_interface.Loaded(host_build.loadable(source, build), name)
    except AttributeError:
        raise _wrong_launch(
            f"kernel `{name}` is not in its source: no line of it begins with `LD_KERNEL({name},`",
            "name the kernel as its source does",
        ) from None


def _eight_bytes(at: int, value: Any) -> int:
    if hasattr(value, "data_ptr") or not hasattr(value, "__index__"):
        raise _wrong_launch(
            f"argument {at} is of type {type(value).__name__}",
            "an argument is an integer: tensor.data_ptr() of a tensor, a number that is not whole by its bits",
        )
    return int(value) & 2**64 - 1


def _check_launch(kernel: Kernel, grid: int, arguments: Sequence[int], loaded: host_interface.Loaded) -> None:
    wrong = None
    if kernel.threads % WARP or not 0 < kernel.threads <= MOST_THREADS:
        wrong = f"{kernel.threads} threads per block: a block has whole warps of {WARP}, at most {MOST_THREADS} threads"
    elif kernel.threads > loaded.max_threads:
        wrong = f"{kernel.threads} threads per block: LD_KERNEL allows it {loaded.max_threads}"
    elif not 0 <= kernel.shared <= MOST_SHARED:
        wrong = f"{kernel.shared} bytes of shared memory: a block has at most {MOST_SHARED}"
    elif not 0 < grid <= MOST_BLOCKS:
        wrong = f"{grid} blocks: a grid has 1 to {MOST_BLOCKS}"
    elif len(arguments) != loaded.parameters:
        wrong = f"{len(arguments)} arguments: it has {loaded.parameters} parameters"
    if wrong is not None:
        raise _wrong_launch(f"kernel `{kernel.name}` launched with {wrong}", "launch it as LD_KERNEL and GPUs have it")


def _refusal(kernel: Kernel, result: host_interface.Result) -> LayoutError:
    of = _REFUSED[FAULTS[result.fault]]
    place = f" {result.file.decode()}:{result.line}" if result.file else ""
    who = f"kernel `{kernel.name}`, block {result.block}, thread {result.thread},{place}"
    return LayoutError(f"{who}: {result.text.decode(errors='replace')}", code=of.code, name=of.name, help=of.help)
