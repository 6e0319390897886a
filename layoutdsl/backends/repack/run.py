"""A plan carried out by calls of kernels, on whatever a launcher launches them on.

    prepare    tables of addresses, orders, checks and reductions
    verify     every program looks for what it would refuse, and writes nothing
    write      every program writes, and marks what it refuses

All of it is enqueued: nothing is read back but one status, at the end of `verify` and of `write`. Where that is marked,
the torch backend says what is refused, and where. While a CUDA stream is captured nothing can be read: then a value
that is refused is written like any other, and whoever replays the graph reads the status that `enqueue` gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Protocol

import numpy as np
import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.moves import writes
from layoutdsl.backends.repack.axes import DATA, KIND, Grid
from layoutdsl.backends.repack.lower import ALIGNED, Call, Kernel, Lowered, checks, lowered, reductions
from layoutdsl.backends.repack.numbers import NUMBERS, numbers_kernel
from layoutdsl.backends.repack.orders import Orders
from layoutdsl.backends.torch import backend as torch_backend
from layoutdsl.backends.torch.recodes import STORED
from layoutdsl.codes import code_named
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Check, Lost, Plan, Program, TensorInfo

CLEAN = -1
"""The status as long as nothing is refused; also what reductions begin with."""


class Launcher(Protocol):
    def launch(self, kernel: Kernel, grid: int, arguments: Sequence[int]) -> None:
        """Start so many blocks; every argument is an address or a number."""

    def reads(self, name: str, tensor: torch.Tensor) -> None:
        """Kernels may read this tensor."""

    def writes(self, name: str, tensor: torch.Tensor) -> None:
        """Kernels may read and write this tensor."""


def run(
    launcher: Launcher,
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    return torch_backend.carry_out(partial(Conversion, launcher), plan, tensors, out, report)


def amend(launcher: Launcher, plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    torch_backend.carry_into(partial(Conversion, launcher), plan, tensors, out)


def enqueue(
    launcher: Launcher, plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Conversion]:
    """All that writes a plan's outputs into `out`, for a CUDA graph to capture: nothing is read back. Gives the status,
    CLEAN after a replay that refused nothing, and the conversion, whose memory the graph uses.

    `out` shares no memory with the inputs and stands on their device.
    """
    conversion = Conversion(launcher, plan, buffers.inputs(plan, tensors), buffers.device_of(tensors))
    conversion.target = buffers.allocate(plan, tensors, out)
    conversion.prepare()
    conversion.launch_writes()
    return conversion.status, conversion


def scratch(plan: Plan) -> int:
    """Bytes beside inputs and outputs: the tables of all grids, gathered ones for each expert, and copies of the
    outputs whose elements share places."""
    total, experts = 0, plan.experts[2] or 1
    for index, program in enumerate(plan.programs):
        found = lowered(plan, index, ALIGNED)
        for call in (*found.checks, *found.writes, *found.compares):
            if call.grid is not None:
                total += call.grid.n.nbytes + call.grid.k.nbytes
                total += sum(experts * axis.shape[1] * 8 for _, axis, _, lookup in call.grid.lookups if lookup)
        if found.compares:
            info = plan.output[program.output]
            total += info.codes * code_named(info.code).bits // 8 * (experts if info.experts else 1)
    return total


class Conversion:
    """One conversion into `target`, as torch.carry_out and torch.carry_into go through it."""

    def __init__(self, launcher: Launcher, plan: Plan, given: Mapping[str, list[torch.Tensor]], device: torch.device):
        self.launcher, self.plan, self.device = launcher, plan, device
        self.given = {name: [_aligned(plan.input[name], flat) for flat in flats] for name, flats in given.items()}
        self.target: Mapping[str, torch.Tensor] = {}
        self.counted: set[str] = set()
        self.count = plan.experts[2] or 1
        self.status = self._filled("status", CLEAN, 1, torch.int64)
        self.keys = {one.name: self._filled(one.name, CLEAN, self.count, torch.int64) for one in plan.reductions}
        self.zeros = {name: self._filled(f"zeros of {name}", 0, self.count, torch.int32) for name, _ in plan.losses}
        self.orders = Orders(plan, self.given, self.status)
        self.gathered: dict[tuple[Grid, str], torch.Tensor] = {}
        self.programs: list[tuple[Program, Lowered]] = []
        self.addresses, self.rows = self.status, dict[Call, int]()

    def prepare(self) -> None:
        for name, flats in self.given.items():
            for flat in flats:
                self.launcher.reads(name, flat)
        for name, tensor in self.target.items():
            self.launcher.writes(name, tensor)
        self.programs = [
            (program, lowered(self.plan, index, self._aligned(program)))
            for index, program in enumerate(self.plan.programs)
        ]
        checked = self._alignment(check.tensor for check in self.plan.checks)
        looks = (*checks(self.plan, checked), *reductions(self.plan))
        calls = [*looks]
        for _, found in self.programs:
            calls += (*found.checks, *found.writes, *found.compares)
        self.addresses = self._addresses(calls)
        for call in calls:
            self._gather(call)
        for source, output in self.plan.passed:
            if self.plan.output[output].role == "k_perm":
                self.orders.k_perm(source, self.plan.output[output])
        for check in self.plan.checks:
            if check.kind == "shape":
                self._check_shape(check)
        for call in looks:
            self._launch(call)

    def verify(self) -> None:
        for program, found in self.programs:
            for call in found.checks:
                self._launch(call)
            if found.compares:
                apart = self.target[program.output].clone()
                self.launcher.writes(f"{program.output}, apart", apart)
                for call in (*found.writes, *found.compares):
                    self._launch(call, apart)
        self.settle()

    def clear(self) -> None:
        """Zeros where a plan that was never proven writes nothing."""
        for program in self.plan.programs:
            if writes(program) < self.plan.output[program.output].codes:
                buffers.flat(self.target[program.output]).zero_()

    def write(self) -> None:
        self.launch_writes()
        self.settle()

    def launch_writes(self) -> None:
        for zeros in self.zeros.values():
            zeros.zero_()
        for program, found in self.programs:
            target = self.target[program.output]
            if program.recode.name == "shape":
                _write_shape(program, target)
            for call in (*found.writes, *found.compares):
                self._launch(call, target)
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            passed = self.orders.k_perm(source, info) if info.role == "k_perm" else self.given[source]
            views = buffers.experts_of(info, self.target[output], self.count if info.experts else 1)
            for view, flat in zip(views, passed):
                view.copy_(flat)

    def settle(self) -> None:
        """Raise what is refused, unless a stream is being captured."""
        if _captures(self.device) or int(self.status) == CLEAN:
            return
        converter = torch_backend.Converter(self.plan, self.given, self.device)
        converter.target = self.target
        converter.prepare()
        converter.verify()
        raise AssertionError("kernels refuse what the torch backend does not")

    def lost(self) -> list[Lost]:
        found: list[Lost] = []
        for program, calls in self.programs:
            if program.output not in self.counted:
                continue
            of = sum(_data(call.grid) for call in calls.writes if call.grid is not None)
            for expert, count in enumerate(self.zeros[program.output].tolist()):
                if count:
                    found.append(Lost(program.output, self.plan.source_experts[expert], count, of))
        return found

    # ---- launches

    def _launch(self, call: Call, target: torch.Tensor | None = None) -> None:
        names = {"status": self.status.data_ptr()}
        if target is not None:
            names["to"] = target.data_ptr()
        if call.output in self.zeros:
            names["lost"] = self.zeros[call.output].data_ptr()
        if call.reduction:
            names["keys"] = self.keys[call.reduction].data_ptr()
        names |= self._sources(call) if call.grid is None else self._tables(call, call.grid)
        arguments = [names[one] if isinstance(one, str) else one for one in call.arguments]
        self.launcher.launch(call.kernel, call.blocks, arguments)

    def _tables(self, call: Call, grid: Grid) -> dict[str, int]:
        names = {"addresses": self.addresses.data_ptr() + self.rows[call] * 8}
        for name, table in zip(("n_columns", "k_columns", "actions"), tables(grid, self.device)):
            self.launcher.reads(name, table)
            names[name] = table.data_ptr()
        for name, entries, row, _ in grid.lookups:
            gathered = self.gathered.get((grid, name))
            plain = names[f"{name[0]}_columns"] + row * entries.shape[1] * 8
            names[name] = plain if gathered is None else gathered.data_ptr()
        return names

    def _sources(self, call: Call) -> dict[str, int]:
        """Where the experts' tensors are: at equal steps, or as a row of the table."""
        names: dict[str, int] = {}
        for row, word in zip(range(len(call.sources)), ("from", "beside")):
            found = self._places(call, row)
            step = _step(found)
            table = self.addresses.data_ptr() + (self.rows.get(call, 0) + row * call.experts) * 8
            names |= {word: table, f"{word}_step": -1} if step is None else {word: found[0], f"{word}_step": step}
        return names

    def _addresses(self, calls: Iterable[Call]) -> torch.Tensor:
        """The table of addresses: for each call its sources, for each source the experts. A kernel writes it from its
        arguments, since a copy from the host could not be captured."""
        values: list[int] = []
        known: dict[tuple[object, int], int] = {}
        for call in calls:
            rows = [self._places(call, row) for row in range(len(call.sources))]
            if call.grid is None and all(_step(row) is not None for row in rows):
                continue
            key = call.sources, call.experts
            if key not in known:
                known[key] = len(values)
                values += [address for row in rows for address in row]
            self.rows[call] = known[key]
        values += [0] * (-len(values) % NUMBERS)
        table = torch.empty(len(values), dtype=torch.int64, device=self.device)
        self.launcher.writes("addresses", table)
        for at in range(0, len(values), NUMBERS):
            self.launcher.launch(numbers_kernel(), 1, [table.data_ptr() + at * 8, *values[at : at + NUMBERS]])
        return table

    def _places(self, call: Call, row: int) -> list[int]:
        """The addresses of a source, for each expert of the call; zeros where a part has none."""
        name, first = call.sources[row]
        flats = self.given[name] if name else []
        return [flats[e if len(flats) > 1 else 0].data_ptr() + first if flats else 0 for e in range(call.experts)]

    def _aligned(self, program: Program) -> int:
        """Bytes that all tensors of a program are aligned to."""
        names = (*program.sources, *(program.fill.sources if program.fill else ()))
        return math.gcd(self._alignment(names), self.target[program.output].data_ptr())

    def _alignment(self, names: Iterable[str]) -> int:
        """Bytes that inputs are aligned to, for every expert."""
        return math.gcd(ALIGNED, *(flat.data_ptr() for name in names if name for flat in self.given[name]))

    def _filled(self, name: str, value: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.full((size,), value, dtype=dtype, device=self.device)
        self.launcher.writes(name, made)
        return made

    def _gather(self, call: Call) -> None:
        if call.grid is None:
            return
        n, k, _ = tables(call.grid, self.device)
        for name, _, row, lookup in call.grid.lookups:
            if lookup is not None:
                entries, views = (n, len(lookup.views)) if name.startswith("n") else (k, 1)
                self.gathered[call.grid, name] = self.orders.gathered(lookup, views, entries, row, call.experts)
                self.launcher.reads(f"{name}, gathered", self.gathered[call.grid, name])

    def _check_shape(self, check: Check) -> None:
        for flat in self.given[check.tensor]:
            numbers = flat.view(STORED[flat.numel() * 8 // self.plan.input[check.tensor].codes])
            for at, expect in enumerate(check.expect):
                self.status.masked_fill_(numbers[at] != expect, 0)


def _write_shape(program: Program, target: torch.Tensor) -> None:
    rows = target.reshape(-1, len(program.values))
    for at, value in enumerate(program.values):
        rows[:, at] = value


def _aligned(info: TensorInfo, flat: torch.Tensor) -> torch.Tensor:
    """The bytes, where each code is at a multiple of its size."""
    return flat.clone() if flat.data_ptr() % max(code_named(info.code).bits // 8, 1) else flat


def _captures(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _step(addresses: Sequence[int]) -> int | None:
    """How far apart these are, where that is the same for all, and not backwards."""
    steps = {b - a for a, b in zip(addresses, addresses[1:])} or {0}
    return steps.pop() if len(steps) == 1 and min(steps) >= 0 else None


@cache
def tables(grid: Grid, device: torch.device) -> tuple[torch.Tensor, ...]:
    """A grid's axes and its actions on a device, for as long as the process lives: graphs may hold their addresses."""
    if _captures(device):
        raise LayoutError(
            "this plan has not run on this device yet, and its tables cannot be copied while a stream is captured",
            code="LP310",
            name="not-prepared",
            help="run it once before the capture",
        )
    return tuple(torch.from_numpy(np.ascontiguousarray(one)).to(device) for one in (grid.n, grid.k, grid.actions))


def _data(grid: Grid) -> int:
    """How many codes of the sources a grid recodes."""
    n, k = (np.bincount(axis[KIND], minlength=size) for axis, size in zip((grid.n, grid.k), grid.actions.shape))
    return int(n @ (grid.actions == DATA) @ k)
