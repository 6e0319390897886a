"""Every row of a request at every number of ranks: what is chosen, what it costs, or why it is refused.

    covered(asked, [(1, 1), (8, 1)], specs=(), jobs=1)

Each accepted cell stands for plans that were compiled and proven: one of each kind of rank (see ranks.py), while the
stretches of all ranks together are checked to hold every axis. Equal needs are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from layoutdsl.checkpoints.report import AS_IT_IS, size_of
from layoutdsl.compile import compile_plan
from layoutdsl.coverage.needs import Asked, Need, Row
from layoutdsl.coverage.packed import left_over
from layoutdsl.coverage.ranks import kinds
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.explain import padding
from layoutdsl.plan import Plan
from layoutdsl.resolve import CHOICES, Ranks

Count = tuple[int, int]
"""Tensor-parallel and expert-parallel ranks."""

MOST_RANKS = 1024
"""More ranks than any one model is spread over."""

FEW = 48
"""So few plans take less time than starting processes for them."""


@dataclass(frozen=True)
class Outcome:
    """A need that is served: bytes that all ranks store, how many of them are padding, and bytes on the widest rank.
    kinds: how many different ranks there are."""

    choice: str
    groups: tuple[tuple[str, int], ...]
    stored: int
    padding: Fraction
    widest: int
    kinds: int


@dataclass(frozen=True)
class Cell:
    """One row at one number of ranks: an outcome per need, or the findings that refuse some of them."""

    count: Count
    outcomes: tuple[Outcome | Diagnostic, ...]

    @property
    def refused(self) -> tuple[Diagnostic, ...]:
        return tuple(one for one in self.outcomes if isinstance(one, Diagnostic))

    @property
    def served(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if isinstance(one, Outcome))

    @property
    def accepted(self) -> bool:
        return not self.refused

    @property
    def choice(self) -> str:
        """The least plain one of its needs."""
        return max((one.choice for one in self.served), key=_plainness)

    @property
    def stored(self) -> int:
        return sum(one.stored for one in self.served)

    @property
    def overhead(self) -> float:
        """Bytes of padding over all other bytes that ranks store."""
        padding = sum((one.padding for one in self.served), Fraction())
        rest = self.stored - padding
        return float(padding / rest) if rest else 0.0

    @property
    def widest(self) -> int:
        return sum(one.widest for one in self.served)


@dataclass(frozen=True)
class Line:
    """A row with its cells; `apart` says why it is not counted, and then there are no cells."""

    row: Row
    cells: tuple[Cell, ...]
    apart: str = ""


@dataclass
class Refusal:
    """One sentence and all that it is said of: (row, ranks)."""

    finding: Diagnostic
    pairs: list[tuple[str, Count]] = field(default_factory=list[tuple[str, Count]])


@dataclass(frozen=True)
class Coverage:
    """The whole answer."""

    asked: Asked
    counts: tuple[Count, ...]
    lines: tuple[Line, ...]

    @property
    def counted(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if not line.apart)

    @property
    def cells(self) -> Iterator[Cell]:
        return (cell for line in self.counted for cell in line.cells)

    @property
    def of(self) -> int:
        return sum(1 for _ in self.cells)

    @property
    def accepted(self) -> int:
        return sum(cell.accepted for cell in self.cells)

    @property
    def kernels(self) -> tuple[str, ...]:
        found = dict.fromkeys(need.kernel for line in self.lines for _, need in line.row.needs)
        return tuple(name for name in found if name)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        found: dict[tuple[str, str, str | None], Refusal] = {}
        for line in self.counted:
            for cell in line.cells:
                for finding in dict.fromkeys(cell.refused):
                    key = finding.code, finding.message, finding.help
                    found.setdefault(key, Refusal(finding)).pairs.append((line.row.name, cell.count))
        return tuple(found.values())

    def total(self, at: int) -> int | None:
        """Bytes of all rows on the widest rank, at most: of alternatives the largest, and nothing of what may be
        missing. None where a row that counts is refused."""
        alone, choices = 0, dict[str, dict[str, int]]()
        for line in self.counted:
            cell = line.cells[at]
            if line.row.maybe:
                continue
            if not cell.accepted:
                return None
            size, row = cell.widest * line.row.count, line.row
            if not row.choice:
                alone += size
                continue
            ways = choices.setdefault(row.choice, {})
            ways[row.alternative] = ways.get(row.alternative, 0) + size
        return alone + sum(max(ways.values()) for ways in choices.values())


def covered(asked: Asked, counts: Sequence[Count], *, specs: tuple[str, ...] = (), jobs: int = 1) -> Coverage:
    """The answer to all that was asked, at all these numbers of ranks. LayoutError for numbers that are absurd, and for
    what is wrong whatever the shape: a parameter that no side has, a spec that is none."""
    for tp, ep in counts:
        _check_ranks(tp, ep)
    reasons = {need: left_over(need, specs) for row in asked.rows for _, need in row.needs}
    apart = [next((reason for _, need in row.needs if (reason := reasons[need])), "") for row in asked.rows]
    wanted = dict.fromkeys(
        _key(need, count, specs)
        for row, reason in zip(asked.rows, apart) if not reason
        for _, need in row.needs
        for count in counts
    )  # fmt: skip
    found = dict(zip(wanted, _worked_out(tuple(wanted), specs, jobs)))

    def cell(row: Row, count: Count) -> Cell:
        return Cell(count, tuple(
            _spread(found[_key(need, count, specs)], count[1] // _key(need, count, specs)[2]) for _, need in row.needs
        ))  # fmt: skip

    lines = tuple(
        Line(row, () if reason else tuple(cell(row, count) for count in counts), reason)
        for row, reason in zip(asked.rows, apart)
    )
    return Coverage(asked, tuple(counts), lines)


def _check_ranks(tp: int, ep: int) -> None:
    for count, what in ((tp, "tensor-parallel"), (ep, "expert-parallel"), (tp * ep, "tensor- and expert-parallel")):
        if not 1 <= count <= MOST_RANKS:
            raise LayoutError(f"a model cannot have {count} {what} ranks", code="LP110", name="ranks",
                              help=f"ask for 1 to {MOST_RANKS}")  # fmt: skip


Key = tuple[Need, int, int]


def _key(need: Need, count: Count, specs: tuple[str, ...]) -> Key:
    """What is worked out: what has no experts is the same on all expert-parallel ranks."""
    return need, count[0], count[1] if "ep" in need.of_module(specs).ranks else 1


def _spread(found: Outcome | Diagnostic, copies: int) -> Outcome | Diagnostic:
    if isinstance(found, Diagnostic) or copies == 1:
        return found
    return Outcome(found.choice, found.groups, found.stored * copies, found.padding * copies, found.widest, found.kinds)


def _worked_out(keys: Sequence[Key], specs: tuple[str, ...], jobs: int) -> Iterator[Outcome | Diagnostic]:
    if jobs == 1 or len(keys) < FEW:
        yield from (_outcome(key, specs) for key in keys)
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(min(jobs, len(keys))) as pool:
        # Neighbours share specs and sizes, and so what is remembered; small parts keep all processes busy to the end.
        yield from pool.map(_outcome, keys, [specs] * len(keys), chunksize=8)


# --- one need ---------------------------------------------------------------------------------------------------------


def _outcome(key: Key, specs: tuple[str, ...]) -> Outcome | Diagnostic:
    need, tp, ep = key
    try:
        return _served(need, tp, ep, specs)
    except LayoutError as error:
        first = error.diagnostics[0]
        if not "LP110" <= first.code < "LP140":  # the request is wrong whatever the shape, or we are
            raise
        return first


def _served(need: Need, tp: int, ep: int, specs: tuple[str, ...]) -> Outcome:
    first = _compiled(need, Ranks(tp, 0, ep), specs)
    stored, padded, widest = 0, Fraction(), 0
    found = kinds(first, specs)
    for kind in found:
        plan = first if kind.ranks == first.ranks else _compiled(need, kind.ranks, specs)
        assert (plan.grains, plan.groups) == (first.grains, first.groups), "ranks of one module are cut in two ways"
        size = size_of(plan)
        stored += size * kind.count
        padded += sum((row[-1] for row in padding(plan)), Fraction()) * kind.count
        widest = max(widest, size)
    return Outcome(first.choice or AS_IT_IS, first.groups, stored, padded, widest, len(found))


def _compiled(need: Need, ranks: Ranks, specs: tuple[str, ...]) -> Plan:
    return compile_plan(
        need.source, need.target, need.module, dict(need.sizes), params=dict(need.params), tp=ranks.tp,
        rank=ranks.rank, ep=ranks.ep, ep_rank=ranks.ep_rank, only=need.only, specs=specs,
    )  # fmt: skip


def _plainness(choice: str) -> int:
    """What no kernel reads is cut as its neighbours are, and is the plainest."""
    return CHOICES.index(choice) if choice in CHOICES else -1
