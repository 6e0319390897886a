"""Launches of GEMMs on torch tensors: every limit is looked at before, in words, and nothing else is launched.

    y = gemm(x, Stored(weight, scale), facts)

On a GPU the kernels run on torch's current stream, with nothing read back, so a CUDA graph may capture them once the
same kernels have run outside: with as many rows, for other numbers may take others. Tensors on the CPU go through the
host runner, which checks every access and is slow: for tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Protocol

import torch

from layoutdsl import backends
from layoutdsl.backends.host.launch import Launcher as HostLauncher
from layoutdsl.errors import LayoutError
from layoutdsl.gemm import checks, table
from layoutdsl.gemm.checks import MAKES, Stored, scale_of
from layoutdsl.gemm.facts import KINDS, Facts, up
from layoutdsl.gemm.instance import Instance
from layoutdsl.gemm.quantize import quantizer
from layoutdsl.gemm.table import Tile

CHUNK = 8
"""Elements of 16 bits that a kernel reads at once."""

HOST_MULTIPROCESSORS = 4
"""What the host runner counts as: few, so that its grids stay small, but enough to split k where k is long."""


class Launcher(Protocol):
    def launch(self, kernel: Any, grid: int, arguments: list[int]) -> None: ...
    def reads(self, name: str, tensor: torch.Tensor) -> None: ...
    def writes(self, name: str, tensor: torch.Tensor) -> None: ...


@dataclass(frozen=True)
class Inputs:
    """Rows of activations as kernels read them, behind `front` stored inputs; scales: of 8-bit ones, float32 [rows]."""

    rows: torch.Tensor
    front: int
    scales: torch.Tensor | None = None

    @staticmethod
    def of(launcher: Launcher, x: torch.Tensor, facts: Facts) -> Inputs:
        """x itself, a copy that kernels can read, or x in 8 bits, with zeros for the padded inputs."""
        if facts.kind not in MAKES:
            return Inputs(*readable(x, facts.front))
        rows, front = readable(x, facts.front)
        if rows.shape[1] % CHUNK:  # the kernel that quantizes reads whole chunks
            rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % CHUNK))
        made = MAKES[facts.kind]
        codes = torch.empty((len(x), facts.k), dtype=getattr(torch, made), device=x.device)
        scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
        reach(launcher, {"x": spanned(rows)}, {"codes": codes, "scales": scales})
        kernel = quantizer(facts.dtype, made, facts.k)
        places = (codes.data_ptr(), scales.data_ptr(), rows.data_ptr())
        stride = rows.stride(0) * rows.element_size()
        launcher.launch(kernel, len(x), kernel.arguments(*places, stride=stride, front=front, valid=rows.shape[1]))
        return Inputs(codes, 0, scales)


def gemm(
    x: torch.Tensor,
    stored: Stored,
    facts: Facts,
    *,
    launcher: Launcher | None = None,
    multiprocessors: int = 0,
) -> torch.Tensor:
    """x @ weight.T + bias: [rows, outputs] of x's dtype from x [rows, valid].

    x is read where it lies if its rows are a multiple of 8 elements apart, begin at multiples of 16 bytes and `front`
    is a multiple of 8; else it is copied into rows that are. `launcher` and `multiprocessors` are those of x's device
    unless stated.
    """
    checks.all_fits(x, stored, facts)
    out = torch.empty((len(x), facts.outputs), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    launcher = launcher or launcher_of(x.device)
    inputs = Inputs.of(launcher, x, facts)
    choice = table.choose(
        facts.code, facts.kind, rows=len(x), n=facts.n, k=facts.k,
        multiprocessors=multiprocessors or multiprocessors_of(x.device),
    )  # fmt: skip
    multiply(
        launcher, instance(facts, choice.tile), inputs, stored, facts, out,
        tiles=-(-len(x) // choice.tile.m), splits=choice.splits,
    )  # fmt: skip
    return out


def multiply(
    launcher: Launcher,
    kernel: Instance,
    inputs: Inputs,
    stored: Stored,
    facts: Facts,
    out: torch.Tensor,
    *,
    tiles: int,
    splits: int,
    beside: Mapping[str, torch.Tensor] | None = None,
    numbers: Sequence[int] = (),
) -> None:
    """Launch a kernel for so many tiles of rows, into `out`, whose rows are contiguous. `beside` are the tensors behind
    a dense kernel's arguments, and `numbers` what follows them. Requires what `gemm` checks."""
    rows, across = inputs.rows, facts.n // kernel.n
    grid = tiles * across * splits
    checks.grid_fits(grid, len(out))
    partials = arrivals = None
    if splits > 1:
        partials = torch.empty(grid * kernel.m * kernel.n, dtype=torch.float32, device=out.device)
        arrivals = torch.zeros(tiles * across, dtype=torch.int32, device=out.device)
    columns, beside = columns_of(facts, out.device), beside or {}
    reads = {"x": spanned(rows), "columns": columns, **dict(stored.items()), **beside}
    if inputs.scales is not None:
        reads["scales of x"] = inputs.scales
    reach(launcher, reads, {"y": out, "partials": partials, "arrivals": arrivals})
    launcher.launch(
        kernel,
        grid,
        [
            address(rows),
            address(inputs.scales),
            *(address(getattr(stored, field.name)) for field in fields(stored)),
            *map(address, (columns, out, partials, arrivals)),
            *(len(out), facts.n, facts.k, rows.stride(0), inputs.front, rows.shape[1], out.shape[1], splits),
            *map(address, beside.values()),
            *numbers,
        ],
    )


# --- what a kernel is given -------------------------------------------------------------------------------------------


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def reach(launcher: Launcher, reads: Mapping[str, torch.Tensor], writes: Mapping[str, torch.Tensor | None]) -> None:
    for name, tensor in reads.items():
        launcher.reads(name, tensor)
    for name, made in writes.items():
        if made is not None:
            launcher.writes(name, made)


def spanned(rows: torch.Tensor) -> torch.Tensor:
    """All memory from the first element of some rows to their last, as one stretch."""
    if not rows.numel():
        return rows.new_empty(0)
    last = sum((size - 1) * stride for size, stride in zip(rows.shape, rows.stride()))
    return rows.as_strided((last + 1,), (1,))


def readable(x: torch.Tensor, front: int) -> tuple[torch.Tensor, int]:
    """Rows that a kernel reads 16 bytes at a time, and how many stored inputs stand before: x itself, or a copy."""
    whole = x.shape[1] > 1 and x.stride(1) == 1 and x.data_ptr() % 16 == 0 and front % CHUNK == 0
    if whole and (len(x) == 1 or x.stride(0) % CHUNK == 0):
        return x.as_strided(x.shape, (up(x.shape[1], CHUNK), 1)) if len(x) == 1 else x, front
    within, width = front % CHUNK, front % CHUNK + x.shape[1]
    copy = x.new_zeros((len(x), max(CHUNK, up(width, CHUNK))))
    copy[:, within:width] = x
    return copy, front - within


_COLUMNS: dict[tuple[Facts, torch.device], torch.Tensor] = {}


def columns_of(facts: Facts, device: torch.device) -> torch.Tensor:
    """int32 [n]: which of the caller's outputs each stored one is, or -1. Made once; LayoutError where that would be
    while the device's current stream is captured."""
    found = _COLUMNS.get((facts, device))
    if found is None:
        if captures(device):
            raise LayoutError(
                "a GEMM is captured that has never run",
                code="LP348",
                name="captured-cold",
                help="run it once before the capture: kernels are compiled and tables made by the first call",
            )
        # It stays for ever, so it must not lie in a graph's own pool of memory, in which the first call of a layer that
        # torch.compile(mode="reduce-overhead") made may be. Such a pool is one thread's: another allocates outside.
        with ThreadPoolExecutor(1) as apart:
            made = apart.submit(torch.tensor, facts.places(), dtype=torch.int32, device=device)
            found = _COLUMNS[facts, device] = made.result()
    return found


def captures(device: torch.device) -> bool:
    """Whether a CUDA graph is made of what is launched there now."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@cache
def instance(facts: Facts, tile: Tile, rows: str = "dense") -> Instance:
    """The kernel for a matrix and a tile."""
    scale, group = scale_of(facts)
    code, result = checks.NAMED.get(facts.code, facts.code), KINDS[facts.dtype] if facts.kind in MAKES else ""
    return Instance(
        code, facts.kind, scale, group, tile.m, tile.n, tile.k, tile.depth, tile.stages, rows=rows, result=result
    )


# --- where it runs ----------------------------------------------------------------------------------------------------


def launcher_of(device: torch.device) -> Launcher:
    """A launcher on a GPU, or the host runner. LayoutError where what it needs is not here."""
    return HostLauncher() if device.type == "cpu" else _cuda_launcher(device)


@cache
def _cuda_launcher(device: torch.device) -> Launcher:
    backends.device("cuda")
    from layoutdsl.backends.cuda.launch import Launcher as CudaLauncher

    return CudaLauncher(device)


@cache
def multiprocessors_of(device: torch.device) -> int:
    if device.type == "cpu":
        return HOST_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
