"""Ranks that get the same program: it is enough to compile and prove one of each kind.

What a rank's program is, but for where in the source it begins, follows from what the rank holds: how long each of its
stretches is, and where it begins inside the digits of the source. A stretch that begins a whole number of the topmost
digit's weight later meets the same words, groups and blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layoutdsl.layout import Chain
from layoutdsl.library import recall
from layoutdsl.model import Checkpoint, Module
from layoutdsl.plan import Plan, params_of
from layoutdsl.resolve import Matrix, Ranks, Side, Stretch, matrices, tensors


@dataclass(frozen=True)
class Kind:
    """One rank of a kind, and how many there are of it."""

    ranks: Ranks
    count: int


def kinds(plan: Plan, specs: tuple[str, ...]) -> tuple[Kind, ...]:
    """The kinds of all ranks of a module, cut as `plan` cuts it: the first is that of rank 0.

    Requires the plan of rank 0, out of a checkpoint's whole tensors. AssertionError where the ranks together do not
    hold every axis as often as they should.
    """
    cut = _Cut(plan, specs)
    tp, ep = plan.ranks.tp, plan.ranks.ep
    shares = [cut.matrices(Ranks(tp, rank, ep)) for rank in range(tp)]
    check_tiles(shares)
    held = [cut.matrices(Ranks(tp, 0, ep, rank))[0].experts for rank in range(ep)]
    along = _counted([cut.look(share) for share in shares])
    across = _counted([experts and experts[2] for experts in held])
    return tuple(
        Kind(Ranks(tp, rank, ep, ep_rank), count * others) for ep_rank, others in across for rank, count in along
    )


def _counted(looks: Sequence[object]) -> list[tuple[int, int]]:
    """(first of them, how many) of each."""
    return [(looks.index(look), looks.count(look)) for look in dict.fromkeys(looks)]


class _Cut:
    """A module as a plan cuts it."""

    def __init__(self, plan: Plan, specs: tuple[str, ...]):
        source, module = (recall(one.spec, one.digest, specs) for one in (plan.source, plan.module))
        assert isinstance(source, Checkpoint) and isinstance(module, Module) and not plan.sharded
        self.plan, self.module = plan, module
        self.source = Side(source, params_of(plan.source), "whole")
        found = self.matrices(plan.ranks)
        self.periods = [dict(self._periods(matrix)) for matrix in found]
        self.has_bias = any(info.role == "bias" for info in plan.inputs)

    def matrices(self, ranks: Ranks) -> tuple[Matrix, ...]:
        plan = self.plan
        return matrices(
            self.module, params_of(plan.module), dict(plan.sizes), ranks, dict(plan.grains), only=plan.only
        )

    def _periods(self, matrix: Matrix) -> Iterator[tuple[str, int]]:
        """After how many elements of each axis the digits of all source tensors, and the kernel's groups, repeat."""
        n, k = 1, max(dict(self.plan.groups).get(matrix.name, 1), 1)
        for tensor in tensors(self.source, matrix):
            for part in tensor.parts:
                along_n, along_k = tensor.view(part)
                n = math.lcm(n, _top(along_n.chain, matrix.n[part].size))
                k = math.lcm(k, _top(along_k.chain, matrix.k.size))
        yield from (("n", n), ("k", k))

    def look(self, found: Sequence[Matrix]) -> tuple[object, ...]:
        """Equal for ranks that get the same programs."""
        return tuple(
            (_placed(matrix.k, period["k"]), tuple(_placed(stretch, period["n"]) for stretch in matrix.n),
             self.has_bias and matrix.bias_here)
            for matrix, period in zip(found, self.periods)
        )  # fmt: skip


def _top(chain: Chain, size: int) -> int:
    """The weight of the topmost digit that counts at all on an axis of that size."""
    return max(weight for weight, _, _ in chain.digits if weight < max(size, 2))


def _placed(stretch: Stretch, period: int) -> tuple[int, int]:
    """How much a rank holds, and where that begins inside the digits."""
    return (stretch.length, stretch.start % period) if stretch.length else (0, 0)


def check_tiles(shares: Sequence[Sequence[Matrix]]) -> None:
    """The stretches of all ranks lie side by side from the first element of each axis to its last, each held by as many
    ranks as is stated."""
    for matrix in zip(*shares):
        for stretch in zip(*((one.k, *one.n) for one in matrix)):
            axis, times = stretch[0].axis, stretch[0].held(len(stretch))
            held = [(one.start, one.length) for one in stretch if one.length]
            at = 0
            for start, length in sorted(set(held)):
                count = held.count((start, length))
                assert start == at, f"ranks hold `{axis}` up to {at}, and then from {start}"
                assert count == times, f"{count} ranks hold `{axis}` from {start}, {times} should"
                at += length
            assert at == stretch[0].size, f"ranks hold {at} of {stretch[0].size} elements of `{axis}`"
