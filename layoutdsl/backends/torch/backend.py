"""The conversion with torch: whole words at a time where it can be, else code by code, in pieces that stay in a cache.

    lower       boxes as exchanges of codes between words; words carries them out, orders sorts first
    programs    what is left, and what may be refused: a piece of a box is read, recoded and written
    sources     the inputs, through orders where an axis is gathered; operands what stands beside a code

Works on any device and never loops over elements.

Without `out` every tensor is made in one pass, and nothing is returned where a value is refused. With `out`, every
check and every recode that may refuse runs first, and nothing is written before all have passed; outputs that overlap
inputs, or stand on another device, are made apart and copied. Refusals name the first place in the order in which the
reference backend walks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.moves import shares, writes
from layoutdsl.backends.torch.checks import check_holds
from layoutdsl.backends.torch.codes import Codes
from layoutdsl.backends.torch.launches import carry_on_words
from layoutdsl.backends.torch.pieces import scratch
from layoutdsl.backends.torch.programs import Carrier, Vanished
from layoutdsl.backends.torch.recodes import STORED
from layoutdsl.backends.torch.reductions import Reductions
from layoutdsl.backends.torch.sources import Sources, data
from layoutdsl.codes import code_named
from layoutdsl.plan import Check, Lost, Plan, Program, TensorInfo

__all__ = ["Converter", "amend", "carry_into", "carry_out", "run", "scratch"]


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    return carry_out(Converter, plan, tensors, out, report)


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    """Carry out a plan that writes only some places of its outputs: all others stay as `out` has them. Elements that
    share a place which another plan writes are compared with what stands there."""
    carry_into(Converter, plan, tensors, out)


@torch.no_grad()
def carry_out(
    kind: type[Converter],
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None,
    report: list[Lost] | None,
) -> dict[str, torch.Tensor]:
    """Run a plan with a converter of that kind."""
    given = buffers.inputs(plan, tensors)
    target = buffers.allocate(plan, tensors, out)
    converter = kind(plan, given, buffers.device_of(target or tensors))
    converter.target = target
    converter.counted = {name for name, _ in plan.losses} if report is not None else set()
    if out is None or _apart(given, target):
        converter.prepare()
        if out is not None:
            converter.verify()
        converter.clear()
        converter.write()
        if report is not None:
            report += converter.lost()
        return target
    for name, made in carry_out(kind, plan, tensors, None, report).items():
        target[name].copy_(made.view(target[name].shape).view(target[name].dtype))
    return target


@torch.no_grad()
def carry_into(
    kind: type[Converter], plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]
) -> None:
    """Amend `out` with a converter of that kind."""
    given = buffers.inputs(plan, tensors)
    target = buffers.allocate(plan, tensors, out)
    if not _apart(given, target):
        apart = {name: tensor.to(buffers.device_of(tensors), copy=True) for name, tensor in target.items()}
        carry_into(kind, plan, tensors, apart)
        for name, made in apart.items():
            target[name].copy_(made)
        return
    converter = kind(plan, given, buffers.device_of(target or tensors))
    converter.target = target
    converter.prepare()
    converter.verify()
    converter.write()


def _apart(given: Mapping[str, list[torch.Tensor]], target: Mapping[str, torch.Tensor]) -> bool:
    """Whether the outputs share no memory with the inputs and stand on their device."""
    sources = [flat for flats in given.values() for flat in flats]
    if len({tensor.device for tensor in (*sources, *target.values())}) > 1:
        return False
    return not any(
        flat.data_ptr() < tensor.data_ptr() + tensor.nbytes and tensor.data_ptr() < flat.data_ptr() + flat.nbytes
        for flat in sources for tensor in target.values()
    )


class Converter:
    """One conversion into `target`, on whose device the inputs are. `prepare` runs the checks and reductions, then
    `verify` finds what `write` would refuse.

    The cpu backend has its own way with a program: `verify_program` and `write_program`.
    """

    def __init__(self, plan: Plan, given: Mapping[str, list[torch.Tensor]], device: torch.device):
        self.plan, self.sources, self.device = plan, Sources(plan, given, device), device
        self.target: Mapping[str, torch.Tensor] = {}
        self.count = plan.experts[2] or 1
        self.reductions = Reductions(self.sources, self.count, plan.habits.int16 == "stepwise")
        self.counted: set[str] = set()
        self.vanished: dict[tuple[str, int], Vanished] = {}

    def prepare(self) -> None:
        for check in self.plan.checks:
            for expert in range(self.count if self.plan.input[check.tensor].experts else 1):
                self._check(check, expert)
        for reduction in self.plan.reductions:
            self.reductions.find(reduction)

    def verify(self) -> None:
        for program in self.plan.programs:
            self.verify_program(program, self.plan.output[program.output])
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            for expert in range(self._copies(info) if info.role == "k_perm" else 0):
                self.sources.k_perm(source, info, expert)

    def verify_program(self, program: Program, info: TensorInfo) -> None:
        for expert, view in enumerate(self._views(info) if program.recode.name != "shape" else ()):
            # Elements that share a target are compared in a copy of what stands there.
            scratch = Codes(view.clone(), code_named(info.code).bits) if shares(program) else None
            Carrier(program, self.sources, self.reductions, expert, scratch).carry()

    def clear(self) -> None:
        """Zeros where a plan that was never proven writes nothing."""
        for program in self.plan.programs:
            if writes(program) < self.plan.output[program.output].codes:
                buffers.flat(self.target[program.output]).zero_()

    def write(self) -> None:
        """What no move writes stays as it is."""
        self.vanished.clear()
        for program in self.plan.programs:
            info = self.plan.output[program.output]
            self.write_program(program, info, self._views(info))
        for source, output in self.plan.passed:
            info = self.plan.output[output]
            for expert, view in enumerate(self._views(info)):
                k_perm = info.role == "k_perm"
                view.copy_(self.sources.k_perm(source, info, expert) if k_perm else self.sources.given[source][expert])

    def write_program(self, program: Program, info: TensorInfo, views: Sequence[torch.Tensor]) -> None:
        """Run a program into the flat bytes of each expert's output."""
        if program.recode.name == "shape":
            values = torch.tensor(program.values, dtype=STORED[buffers.element_bits(info)], device=self.device)
            for view in views:
                view.copy_(values.view(torch.uint8))
            return
        sure = {expert: view for expert, view in enumerate(views) if self._takes_all(program, expert)}
        done = carry_on_words(program, info, self.sources, sure)
        for expert, view in enumerate(views):
            lost = self.vanished.setdefault((info.name, expert), []) if info.name in self.counted else None
            target = Codes(view, code_named(info.code).bits)
            Carrier(program, self.sources, self.reductions, expert, target, lost).carry(done.get(expert, ()))

    def _takes_all(self, program: Program, expert: int) -> bool:
        """Whether no code is refused, so that all may go at once."""
        names = {name for _, _, name in data(program.sources, program.moves)}
        return all(self.sources.refuses_none(program.recode, name, expert) for name in names)

    def lost(self) -> list[Lost]:
        """What `write` has lost to 0."""
        counts = {key: [sum(column) for column in zip(*pieces)] for key, pieces in self.vanished.items() if pieces}
        return [
            Lost(name, self.plan.source_experts[expert], count, of)
            for (name, expert), (count, of) in counts.items() if count
        ]

    def _check(self, check: Check, expert: int) -> None:
        check_holds(check, self.sources, expert)

    def _copies(self, info: TensorInfo) -> int:
        return self.count if info.experts and not info.shared else 1

    def _views(self, info: TensorInfo) -> list[torch.Tensor]:
        """The flat bytes of an output, per expert."""
        return buffers.experts_of(info, self.target[info.name], self._copies(info))
