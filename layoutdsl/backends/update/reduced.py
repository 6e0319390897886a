"""Reductions over all experts whose scales come one after another.

Until the scales of all experts have been seen nothing can be written that follows from them. Afterwards those of some
are written without the others': the tops of all are kept as numbers, and the scales of one expert that has the largest
top, the witness. A plan of some experts and the witness finds what one of all would, as long as that stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from layoutdsl import recodes
from layoutdsl.backends import buffers
from layoutdsl.backends.torch.reductions import Reductions
from layoutdsl.backends.torch.sources import Sources
from layoutdsl.backends.update.pieces import Pieces, inputs
from layoutdsl.errors import LayoutError
from layoutdsl.ledger import piece_of
from layoutdsl.partial import Step, partial
from layoutdsl.plan import Plan, Reduction


@dataclass(frozen=True)
class Top:
    """The largest scale of one expert; `folded` says that its parts have different global scales, whose ratios are
    folded into the scales."""

    value: float
    folded: bool = False


Tops = Mapping[int, Top]
"""By the number of the rank's expert."""


class Spanning:
    """One reduction, the step that takes part in it, and what has been seen."""

    def __init__(self, plan: Plan, reduction: Reduction, step: Step):
        self.plan, self.reduction, self.step = plan, reduction, step
        self.tops: Tops = {}
        self.witness: tuple[float, dict[str, torch.Tensor]] | None = None

    def look(self, slots: Sequence[int], there: Pieces) -> Tops:
        """The tops of all experts that have been seen, with these."""
        some, name = partial(self.plan, [self.step], self._experts(slots)), self.reduction.name
        given = inputs(some, there)
        sources = Sources(some, buffers.inputs(some, given), buffers.device_of(given))
        found = Reductions(sources, len(slots), some.habits.int16 == "stepwise")
        found.find(self.reduction)
        folded = [any(found.ratios.get((name, at), ())) for at in range(len(slots))]
        return {**self.tops, **{slot: Top(found.tops[name, at], folded[at]) for at, slot in enumerate(slots)}}

    def check(self, slots: Sequence[int], seen: Tops) -> None:
        """LayoutError where what has been written for other experts would be another with these tops."""
        assert self.witness is not None
        largest, now = self.witness[0], max(top.value for top in seen.values())
        here = max(largest, *(seen[slot].value for slot in slots))
        if all(self._told(here if at in slots else largest, top) == self._told(now, top) for at, top in seen.items()):
            return
        needs = " and ".join(f"`{name}`" for name in sorted(self.step.needs))
        what = "the largest scale" if self.reduction.kind == "largest" else "the largest block scale"
        raise LayoutError(
            f"`{self.reduction.output}` is relative to {what} of all experts, which this update changes",
            code="LP352",
            name="changes-all",
            help=f"begin anew with `plan.updates(out)` and give {needs} of all experts; nothing else is needed",
        )

    def beside(self, slots: Sequence[int]) -> tuple[int, Pieces]:
        """Another expert, by its number in the source, with the scales of the witness."""
        assert self.witness is not None
        experts = self._experts(slots)
        other = next(expert for expert in self.plan.source_experts if expert not in experts)
        return other, {piece_of(self.plan, name, other): one for name, one in self.witness[1].items()}

    def note(self, slots: Sequence[int], seen: Tops, there: Pieces) -> None:
        """These tops have been seen, and of these experts all has been written that follows."""
        self.tops = seen
        if not slots or len(seen) == 1:
            return
        top, slot = max((seen[slot].value, slot) for slot in slots)
        if self.witness is None or len(slots) == len(seen) or top > self.witness[0]:
            (expert,) = self._experts([slot])
            scales = {name: there[piece_of(self.plan, name, expert)] for name in self.step.needs}
            self.witness = top, {name: one.detach().clone() for name, one in scales.items()}

    def _experts(self, slots: Sequence[int]) -> list[int]:
        return [self.plan.source_experts[slot] for slot in slots]

    def _told(self, largest: float, top: Top) -> float:
        """What the recode of an expert's scales is told: the largest, or by how much to shift."""
        if self.reduction.kind == "largest":
            return largest
        recode = next(program.recode for program in self.plan.programs if program.output == self.reduction.output)
        return recodes.nvfp4_shift(largest, recode.target, recode.power, top.folded)
