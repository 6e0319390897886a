"""One run of a plan by the kernels of the cpu backend.

Kernels do not raise: they tell that something is refused, and all that is here tells it by `Refused` alone. Where it
stands and why is another backend's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from layoutdsl import recodes
from layoutdsl.backends import buffers
from layoutdsl.backends.cpu import checks
from layoutdsl.backends.cpu.calls import Call
from layoutdsl.backends.cpu.forms import LINE, REFUSED, SIGNED, Filling, Job, Largest, Moving, Single
from layoutdsl.backends.cpu.inputs import Source, array_of, targets
from layoutdsl.backends.cpu.prepared import Prepared, copies_of
from layoutdsl.backends.cpu.rules import rule, table
from layoutdsl.backends.cpu.sharing import share
from layoutdsl.backends.cpu.tables import addresses, word_of
from layoutdsl.backends.cpu.text_elements import TABLES
from layoutdsl.backends.cpu.turns import LOOK, STORE, STREAM, VALUE
from layoutdsl.backends.places import ANY, ratios
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.plan import Lost, Plan, Program, Reduction
from layoutdsl.recodes import Recode

STREAMED = 1 << 23
"""Bytes of storage that is written past the caches: it would not be there any more when it is read."""


SCALED = ("rescale", "reciprocal", "int16_undo")
"""Recodes that multiply by a power of two."""


class Refused(Exception):
    """Something in the data is refused, or may be."""


class Run:
    """A plan with its tensors: `prepare`, then `verify` where nothing may be written before all has passed, then
    `write`."""

    def __init__(self, plan: Plan, known: Prepared, sources: Mapping[str, Source], target: Mapping[str, torch.Tensor]):
        self.plan, self.known, self.sources, self.target = plan, known, sources, target
        self.programs = {program.output: program for program in plan.programs}
        self.factors: dict[str, np.ndarray] = {}
        self.shifts: dict[str, np.ndarray] = {}
        self.ratios: dict[str, np.ndarray] = {}
        self.orders: dict[tuple[str, int], np.ndarray] = {}
        self.apart: dict[str, torch.Tensor] = {}
        self.most: dict[tuple[str, int], int] = {}
        self.signed: dict[str, bool] = {}
        self.vanished: dict[str, list[np.ndarray]] = {}
        self.things: dict[Any, np.ndarray] = {}
        self.places = np.zeros(0, dtype=np.int64)
        self.kept: list[np.ndarray] = []

    def prepare(self) -> None:
        """Checks, orders, reductions, and all that kernels are given."""
        if not checks.hold(self.plan, self.sources):
            raise Refused
        self.things = {("of", name): source.addresses for name, source in self.sources.items()}
        self.things |= self._targets(self.target)
        self._order()
        for reduction, made in zip(self.plan.reductions, self.known.largest):
            self._reduce(reduction, made)
        for thing in self.known.layout.places:
            if thing[0] == "with":
                _, output, part, recode, ruled = thing
                self.things[thing] = self._given(self.programs[output], part, recode, ruled)
        self.places = self.known.layout.filled(self.things)

    def verify(self, begun: Mapping[str, torch.Tensor]) -> None:
        """Find what `write` would refuse with no byte of an output written. What is compared is made in tensors apart,
        which begin as those that are given."""
        for call in self.known.looks:
            if not all(map(self._seen, set(call.outputs))):
                self._call(call, self.places, [LOOK] * len(call.jobs))
        if self.known.compared:
            self.apart = {name: begun[name].clone() for name in self.known.compared}
            self._shared(self.known.layout.filled(self.things | self._targets(self.apart)))

    def write(self) -> None:
        for signs in self.known.signs:
            for call in signs.some if self.signed[signs.reduction] else signs.none:
                self._call(call, self.places, self._modes(call))
        for call in self.known.plain:
            self._call(call, self.places, self._modes(call))
        for name, made in self.apart.items():
            buffers.writable(self.target[name]).copy_(made)
        if not self.apart:
            self._shared(self.places)
        for program in self.plan.programs:
            if program.recode.name == "shape":
                target = self.target[program.output]
                target.view(-1, len(program.values)).copy_(torch.tensor(program.values, dtype=target.dtype))
        for source, output in self.plan.passed:
            self._pass(source, output)

    def lost(self) -> list[Lost]:
        """What has become 0."""
        found: list[Lost] = []
        for program in self.plan.programs:
            if program.output in self.vanished:
                counts = sum(self.vanished[program.output])
                codes = self.known.counted[program.output]
                experts = zip(self.plan.source_experts, counts.tolist())
                found += [Lost(program.output, expert, count, codes) for expert, count in experts if count]
        return found

    # calls ------------------------------------------------------------------------------------------------------------

    def _targets(self, tensors: Mapping[str, torch.Tensor]) -> dict[Any, np.ndarray]:
        return {
            ("to", name): targets(tensor, copies_of(self.plan, self.plan.output[name]))
            for name, tensor in tensors.items()
        }

    def _shared(self, places: np.ndarray) -> None:
        for call in (*self.known.shared, *self.known.compares):
            self._call(call, places, [STORE] * len(call.jobs))

    def _modes(self, call: Call) -> list[int]:
        """Whole lines of large outputs are written past the caches."""
        return [
            STREAM
            if job.lines
            and self.target[output].untyped_storage().nbytes() >= STREAMED
            and not (self.things["to", output] % LINE).any()
            else STORE
            for job, output in zip(call.jobs, call.outputs)
        ]

    def _call(self, call: Call, places: np.ndarray, modes: Sequence[int]) -> np.ndarray:
        table = call.told(tuple(modes))
        if isinstance(call.form, Filling) and any(map(_is_largest, call.jobs)):
            table = table.copy()
            for row, job, output in zip(table, call.jobs, call.outputs):
                if _is_largest(job):
                    row[VALUE] = self._largest(self.programs[output])
        found = share(call, table, places)
        if not isinstance(call.form, Largest) and int(np.bitwise_or.reduce(found)) >> REFUSED:
            raise Refused
        if isinstance(call.form, Moving | Single) and call.form.counts and LOOK not in modes:
            for at, (output, copies) in enumerate(zip(call.outputs, call.copies)):
                counts = found[call.turns(at)].reshape(copies, -1).sum(1)
                self.vanished.setdefault(output, []).append(counts)
        return found

    # numbers ----------------------------------------------------------------------------------------------------------

    def _order(self) -> None:
        """The orders that addresses are looked up in, and the lists of addresses in them."""
        looked_up = [thing[1] for thing in self.known.layout.places if thing[0] == "order"]
        wanted = {(lookup.tensor, lookup.group) for lookup, _, _ in looked_up}
        wanted |= {(source, self._group(output)) for source, output in self.plan.passed if self._is_order(output)}
        found = checks.orders(self.plan, self.sources, wanted)
        if found is None:
            raise Refused
        self.orders = found
        for lookup, part, bits in looked_up:
            listed = addresses((lookup, part), found[lookup.tensor, lookup.group])
            listed = listed * bits // 8 if bits else listed
            self.kept.append(listed)
            self.things["order", (lookup, part, bits)] = listed.ctypes.data + listed.strides[0] * np.arange(len(listed))

    def _is_order(self, output: str) -> bool:
        return self.plan.output[output].role == "k_perm"

    def _group(self, output: str) -> int:
        """The group of the order that an output has; any, where no weight of the rank is looked up in it."""
        matrix = output.split(".")[0]
        moves = (move for name, p in self.programs.items() if name.startswith(f"{matrix}.") for move in p.moves)
        return next((move.gather_k.group for move in moves if move.gather_k is not None), ANY)

    def _reduce(self, reduction: Reduction, made: Sequence[Call]) -> None:
        program, count, name = self.programs[reduction.output], self.known.layout.copies, reduction.name
        powers = np.zeros((count, 1), dtype=np.int64)
        if reduction.kind == "nvfp4":
            values = np.stack([self._numbers(tensor)[:, at] for tensor, at in reduction.globals], axis=1)
            powers = np.array([ratios(self.plan, reduction, row, at) for at, row in enumerate(values.tolist())])
            self.factors[name] = 1 / values[:, 0] if reduction.reciprocal else values[:, 0]
        tops = np.full(count, -np.inf)
        places = self.known.layout.filled(self.things)
        signed = False
        for call in made:
            found = self._call(call, places, [LOOK] * len(call.jobs))
            if isinstance(call.form, Largest) and not call.form.signs:
                signed |= bool((found >> SIGNED).any())
                found &= (1 << SIGNED) - 1
            for at, job in enumerate(call.jobs):
                most = found[call.turns(at)].reshape(count, -1).max(1)
                self.most[name, job.part] = max(self.most.get((name, job.part), 0), int(most.max()))
                values = np.array([_value(program.recode.source, one) for one in most.tolist()])
                if np.isnan(values).any() or (values == np.inf).any():
                    raise Refused
                tops = np.maximum(tops, np.ldexp(values, powers[:, job.part if reduction.kind == "nvfp4" else 0]))
        self.signed[name] = signed
        if reduction.scope == "tensor":
            tops[:] = tops.max()
        tops = np.where(tops == -np.inf, 0.0, tops)
        if reduction.kind == "largest":
            self.factors[name] = tops
            return
        recode = program.recode
        self.ratios[name] = powers
        self.shifts[name] = np.array([
            recodes.nvfp4_shift(top, recode.target, recode.power, folded)
            for top, folded in zip(tops.tolist(), powers.any(1).tolist())
        ])  # fmt: skip

    def _seen(self, output: str) -> bool:
        """Whether the largest scale says that none of an output is refused."""
        program = self.programs[output]
        if program.recode.name != "nvfp4_scale" or program.fill is not None:
            return False
        shift, ratios = self.shifts[program.reduction], self.ratios[program.reduction]
        for part in range(len(program.sources)):
            most = self.most.get((program.reduction, part), 0)
            for one in np.unique(shift + ratios[:, part]).tolist():
                made = table(program.recode, one).reshape(2, -1)[: 1 + self.signed[program.reduction]]
                if (made[:, : most + 1] >> REFUSED).any():
                    return False
        return True

    def _numbers(self, tensor: str) -> np.ndarray:
        """[experts, codes] of a float32 input, as float64."""
        source = self.sources[tensor]
        found = np.concatenate(source.codes(32)).view(np.float32).astype(np.float64)
        return np.broadcast_to(found, (self.known.layout.copies, found.shape[1]))

    def _given(self, program: Program, part: int, recode: Recode | None, ruled: bool) -> np.ndarray:
        """For each expert the rule or the table of a recode of narrow codes, or the number that others need."""
        if recode is None:
            return np.zeros(1, dtype=np.int64)
        shift = self.shifts.get(program.reduction, np.zeros(1, dtype=np.int64))
        if recode.name in TABLES and code_named(recode.source).bits <= 8:
            if recode.name == "nvfp4_scale":
                shift = shift + self.ratios[program.reduction][:, part]
            make = rule if ruled else table
            shifts, experts = np.unique(shift, return_inverse=True)
            tables = [make(recode, one) for one in shifts.tolist()]
            self.kept += tables
            return np.array([one.ctypes.data for one in tables], dtype=np.int64)[experts]
        if recode.name == "int16_scale":
            return self.factors[program.reduction].view(np.int64)
        if recode.name == "nvfp4_global":
            return np.ldexp(self.factors[program.reduction], recode.power - shift).view(np.int64)
        return _number(2.0**recode.power if recode.name in SCALED else 0.0)

    def _largest(self, program: Program) -> int:
        """A word of the code that is the factor which all int16 scales leave out."""
        try:
            code = recodes.apply(program.recode, 0, factor=float(self.factors[program.reduction][0]))
        except Unrepresentable:
            raise Refused from None
        return word_of(code, code_named(program.recode.target).bits)

    def _pass(self, source: str, output: str) -> None:
        """What leaves as it came, or the rank's slice of an order, as indices into the whole input."""
        info, target = self.plan.output[output], array_of(self.target[output])
        if not target.size:
            return
        made = target.reshape(copies_of(self.plan, info), -1)
        if self._is_order(output):
            matrix = output.split(".")[0]
            start = next(e.start for e in self.plan.extents if e.matrix == matrix and e.role == "k")
            made.view(np.int32)[:] = self.orders[source, self._group(output)][:, start : start + info.codes]
            return
        at = 0
        for rows in self.sources[source].codes(8):
            made[at : at + len(rows)] = rows
            at += len(rows)


@lru_cache(maxsize=256)
def _number(value: float) -> np.ndarray:
    return np.array([value]).view(np.int64)


def _is_largest(job: Job) -> bool:
    """Whether it fills with what the data alone tells."""
    return job.recode is not None and job.recode.name == "largest"


@lru_cache(maxsize=1024)
def _value(source: str, most: int) -> float:
    """What a kernel has found to be the largest: a code less its sign, or minus that where it is negative."""
    code = code_named(source)
    if most <= -(1 << code.bits - 1):
        return -np.inf
    return -code.decode(-most) if most < 0 else code.decode(most)
