"""What a plan has made, held against what it was made of: every value is decoded on both sides and must be equal.

    found = compare(plan, source, target)    # source: tensors as Plan.run takes them; target: what it returns

The plan's moves are not looked at: both sides are read by `decode`, from the specs alone. Where a plan declares a loss,
the source's scales are recoded first as the plan says, and the error is measured. Equal means equal in every bit, the
sign of a zero included. Levels (codes less zero points) and scales are compared apart, so that a wrong code beside a
scale of 0 is found as well, and no product is ever rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.places import place
from layoutdsl.backends.torch.recodes import STORED, signed
from layoutdsl.checkpoints.losses import Recoded
from layoutdsl.checkpoints.sides import Part, Sides
from layoutdsl.decode import SCALES, Pad, padding
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan
from layoutdsl.prove.given import Pair

Two = tuple[torch.Tensor, torch.Tensor]
"""Levels [rows, k], and scales [rows, sets of inputs that meet the same ones]."""


@dataclass(frozen=True)
class Loss:
    """One tensor that a plan declares lossy: the declared bound in words, and the largest relative error among `of`
    values."""

    tensor: str
    bound: str
    error: float
    of: int


@dataclass(frozen=True)
class Comparison:
    """How much was compared and found equal: weights, other values (biases, input scales, orders, shapes), and pads
    found to be neutral."""

    weights: int = 0
    others: int = 0
    pads: int = 0
    losses: tuple[Loss, ...] = ()

    def __add__(self, more: Comparison) -> Comparison:
        return Comparison(
            self.weights + more.weights,
            self.others + more.others,
            self.pads + more.pads,
            self.losses + more.losses,
        )


def compare(
    plan: Plan, source: buffers.Given, target: Mapping[str, torch.Tensor], *, specs: tuple[str, ...] = ()
) -> Comparison:
    """Hold one rank's tensors against the source's.

    source: tensors by the plan's names, as Plan.run takes them. target: as Plan.run returns them. specs: folders of
    the user's own specs. Raises LayoutError where a tensor is missing or of another shape, where the plan is not what
    its specs make of it, and for the first value that differs, with how many of its matrix do.
    """
    sides = Sides(plan, source, target, specs)
    return sum((_Matrix(sides, pair).compared() for pair in sides.given.pairs), Comparison())


class _Matrix:
    """One matrix on both sides, all experts."""

    def __init__(self, sides: Sides, pair: Pair):
        self.sides, self.pair, self.plan = sides, pair, sides.plan
        self.found = Comparison()
        self.differ, self.first = 0, ""
        self.errors: dict[str, Loss] = {}
        scale, made = pair.first("source", "scale"), pair.first("target", "scale")
        # Signs that a scale of the target cannot hold stand in its codes.
        self.folds = bool(scale and made and scale.code.sign and made.code.kind == "float" and not made.code.sign)
        self.lossy = any(stored.name in sides.losses for role in SCALES for stored in pair.target.get(role, ()))

    @cached_property
    def recoded(self) -> Recoded:
        return Recoded(self.sides, self.pair)

    def compared(self) -> Comparison:
        for expert in self.sides.experts:
            for part in self.sides.parts(self.pair, expert):
                self._weights(part)
                self._other(part, "bias", len(part.n))
                self._other(part, "input_scale", 1)
            self._passed(expert)
            self._shapes(expert)
            self._padding(expert)
        if self.differ:
            of = self.found.weights + self.found.others + self.found.pads
            raise LayoutError(
                f"{self.first}; {self.differ:,} of {of:,} values differ",
                code="LP222",
                name="value-differs",
                help="convert the checkpoint anew; if the same value differs again, a spec or layoutdsl is at fault",
            )
        return replace(self.found, losses=tuple(self.errors.values()))

    def _differs(self, count: int, sentence: str) -> None:
        self.differ += count
        self.first = self.first or sentence

    def _counted(self, *, weights: int = 0, others: int = 0, pads: int = 0) -> None:
        self.found += Comparison(weights, others, pads)

    def _place(self, part: Part, n: int, k: int) -> str:
        return place(
            self.plan, self.pair.matrix.name, part.expert, part.part, int(part.n_source[n]), int(part.k_source[k])
        )

    # weights ----------------------------------------------------------------------------------------------------------

    def _weights(self, part: Part) -> None:
        if not len(part.n) or not len(part.k):
            return  # a rank without a head of its own
        source, target = part.windows()
        first, spread = part.columns()
        source_scales, target_scales = part.windows(k=first)
        for rows in source.blocks():
            levels, scales = source.levels(rows), source_scales.scales(rows)
            if self.folds:
                levels *= torch.where(scales < 0, -1.0, 1.0).to(levels.dtype)[:, spread]
                scales = scales.abs()
            if self.lossy:
                exact, scales = scales, self.recoded.scales(part.expert, part.part, source_scales, rows)
                self._measure(SCALES, part.part, scales, exact)
            found = target.levels(rows), target_scales.scales(rows)
            self._counted(weights=found[0].numel())
            bad = _apart(levels, found[0]), _apart(scales, found[1])
            if bad[0] is not None or bad[1] is not None:
                self._weights_differ(part, rows.start, spread, (levels, scales), found, bad)

    def _weights_differ(
        self,
        part: Part,
        row: int,
        spread: torch.Tensor,
        wanted: Two,
        found: Two,
        bad: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> None:
        every = torch.zeros_like(found[0], dtype=torch.bool) if bad[0] is None else bad[0].clone()
        if bad[1] is not None:
            every |= bad[1][:, spread]
        n, k = _first(every)
        roles = SCALES if bad[0] is None or not bad[0][n, k] else ("codes",)
        tensors = [part.target.holder(role, part.part) for role in roles]
        names = " times ".join(f"`{tensor.name}`" for tensor in tensors if tensor is not None)
        one, other = (_product(float(two[0][n, k]), float(two[1][n, spread[k]])) for two in (found, wanted))
        where = self._place(part, row + n, k)
        self._differs(int(every.count_nonzero()), f"{names} at {where}: a weight is worth {one}, expected {other}")

    # all else ---------------------------------------------------------------------------------------------------------

    def _other(self, part: Part, role: str, rows: int) -> None:
        """Biases and input scales, which have a place of their own in the target."""
        tensor, here = part.target.holder(role, part.part), slice(0, rows)
        if tensor is None:
            return
        source, target = part.windows(here, slice(0, 1))
        found = target.worth(role, here)
        wanted = torch.zeros_like(found)  # of ranks whose outputs are added up, the first alone adds the bias
        if role != "bias" or self.pair.matrix.bias_here:
            wanted = source.worth(role, here)
            if tensor.name in self.sides.losses:
                exact, wanted = wanted, self.recoded.other(role, part.part, source, here)
                self._measure((role,), part.part, wanted, exact)
        self._counted(others=found.numel())
        bad = _apart(wanted, found)
        if bad is not None:
            n, _ = _first(bad)
            words = f"it is worth {float(found[n])!r}, expected {float(wanted[n])!r}"
            self._differs(int(bad.count_nonzero()), f"`{tensor.name}` at {self._place(part, n, 0)}: {words}")

    def _passed(self, expert: int) -> None:
        """What passes through under its own name, and the order that the caller gathers its input by."""
        for source, output in self.plan.passed:
            if output.split(".")[0] != self.pair.matrix.name:
                continue
            if self.plan.output[output].role == "k_perm":
                order = self.sides.sorted(self.pair, expert)
                assert order is not None
                wanted, what = buffers.flat(order.to(torch.int32)), "the inputs sorted by group"
            else:
                wanted, what = self.sides.flat("source", source, expert), "the source's bytes"
            self._counted(others=self.plan.output[output].codes)
            if not torch.equal(self.sides.flat("target", output, expert), wanted):
                self._differs(1, f"`{output}`{self._of(expert)} differs from {what}")

    def _shapes(self, expert: int) -> None:
        for stored in self.pair.target.get("weight_shape", ()):
            flat = self.sides.flat("target", stored.name, expert)
            found = [int(value) for value in flat.view(STORED[flat.numel() * 8 // stored.codes])]
            wanted = list(self.sides.programs[stored.name].values)
            self._counted(others=len(wanted))
            if found != wanted:
                self._differs(1, f"`{stored.name}`{self._of(expert)} says {found}, the matrix is {wanted}")

    def _of(self, expert: int) -> str:
        return f" of expert {self.plan.source_experts[expert]}" if self.plan.experts[0] else ""

    # padding ----------------------------------------------------------------------------------------------------------

    def _padding(self, expert: int) -> None:
        target = self.sides.reading("target", self.pair, expert)
        for pad in padding(target, self.pair.matrix, kernel=self.sides.given.pads):
            codes = pad.codes
            bad = self._harmful(pad, codes)
            self._counted(pads=codes.numel())
            if bad.any():
                n, k = _first(bad)
                where = place(self.plan, self.pair.matrix.name, expert, pad.part, int(pad.n[n]), int(pad.k[k]))
                words = f"code {int(codes[n, k])} is not neutral"
                self._differs(
                    int(bad.count_nonzero()), f"`{pad.tensor.name}` in its padding, counted on to {where}: {words}"
                )

    def _harmful(self, pad: Pad, codes: torch.Tensor) -> torch.Tensor:
        """Which pads are not what the plan says, or not harmless for the reason that it gives."""
        program = self.sides.programs[pad.tensor.name]
        moves = [move for move in program.moves if move.kind == "pad"]
        reasons, stated = {move.reason for move in moves}, {move.pad for move in moves}
        bad = torch.zeros_like(codes, dtype=torch.bool)
        if len(stated) == 1 and program.fill is None:
            bad = codes != signed(stated.pop(), codes.element_size() * 8)
        if pad.tensor.role == "zero_point" or "unread" in reasons:
            return bad  # whether zero points do harm is seen at the codes beside them
        if reasons <= {"code"}:
            worse = _apart(torch.zeros_like(pad.alone), pad.alone)
            return bad if worse is None else bad | worse
        return bad | (~pad.values.isfinite() if reasons & {"input", "weight"} else pad.values != 0)

    # losses -----------------------------------------------------------------------------------------------------------

    def _measure(self, roles: Sequence[str], part: int, made: torch.Tensor, exact: torch.Tensor) -> None:
        """Note the largest relative error of each lossy tensor, from the product of all."""
        tensors = [stored for role in roles for stored in self.pair.target.get(role, ())]
        lossy = [stored for stored in tensors if part in stored.parts and stored.name in self.sides.losses]
        error = ((made - exact) / exact).abs().nan_to_num(0.0, torch.inf)
        for stored in lossy:
            # Beside a global scale that is rounded, block scales are exact or become 0.
            own = error if len(lossy) == 1 else error[(made == 0) == (stored.role == "scale")]
            worst = float(own.amax()) if own.numel() else 0.0
            known = self.errors.get(stored.name, Loss(stored.name, self.sides.losses[stored.name], 0.0, 0))
            self.errors[stored.name] = replace(known, error=max(known.error, worst), of=known.of + made.numel())


def _apart(wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor | None:
    """Where two tensors are not the same numbers, bit by bit; NaN and infinities are none. None: nowhere."""
    bits = torch.int32 if found.dtype == torch.float32 else torch.int64
    # A finite sum is the quick proof that all are.
    if torch.equal(wanted.view(bits), found.view(bits)) and (found.sum().isfinite() or found.isfinite().all()):
        return None
    return (wanted.view(bits) != found.view(bits)) | ~found.isfinite()


def _first(bad: torch.Tensor) -> tuple[int, int]:
    return divmod(int(bad.reshape(-1).to(torch.uint8).argmax()), bad.shape[1])


def _product(level: float, scale: float) -> str:
    return f"{level!r} x {scale!r} = {level * scale!r}"
