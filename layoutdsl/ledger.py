"""Which source tensors have been given to a plan, which of its steps that makes possible, and what is still waited for.

A piece is one source tensor, or one expert of it; a job is a step (partial.py) for one of the rank's experts. A job is
done when all pieces that it needs are there, and a piece is held until every job that needs it has been done with it.
Given again, it is due for all of them again, and so are the pieces that these take beside it:

    >>> from layoutdsl import compile_plan
    >>> plan = compile_plan("awq", "marlin_int4_a16", "linear", {"n": 64, "k": 96}, params={"group": 64})
    >>> ledger, weight, zeros = Ledger(plan), Piece("linear.qweight", None), Piece("linear.qzeros", None)
    >>> ledger.note({weight}, ledger.ready({weight}))
    >>> print(*ledger.pending)
    `linear.qweight` waits for `linear.qzeros`
    >>> ledger.note({zeros}, ledger.ready({zeros}))
    >>> ledger.pending, *map(str, ledger.missing)
    ((), '`linear.scales`')
    >>> ledger.note({zeros}, ledger.ready({zeros}))
    >>> print(*ledger.pending)
    `linear.qzeros` waits for `linear.qweight`

(The padded inputs of the last group repeat its zero points, so that weights cannot be written before these are known.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from layoutdsl.plan import Plan, TensorInfo


class Piece(NamedTuple):
    """One source tensor, or one expert of it, counted as in the checkpoint. expert: None where there are none, or where
    all have one."""

    name: str
    expert: int | None

    def __str__(self) -> str:
        return f"`{self.name}`" + ("" if self.expert is None else f" of expert {self.expert}")


@dataclass(frozen=True)
class Pending:
    """A piece that is held: what it leads to cannot be written before others are there, or are there again."""

    piece: Piece
    waits_for: tuple[Piece, ...]

    def __str__(self) -> str:
        return f"{self.piece} waits for {', '.join(map(str, self.waits_for))}"


class Job(NamedTuple):
    """A step of the plan for one of the rank's experts, both by number."""

    step: int
    slot: int


class Ledger:
    """What has been given and done. See the module's docstring."""

    def __init__(self, plan: Plan):
        self.plan, self.steps = plan, plan.parts.steps
        self._slots: dict[int | None, list[int]] = {None: [*range(self.slots)]}
        for slot, expert in enumerate(plan.source_experts):
            self._slots.setdefault(expert, []).append(slot)
        self._steps = {name: [at for at, step in enumerate(self.steps) if name in step.needs] for name in plan.input}
        self._free = [at for at, step in enumerate(self.steps) if not step.needs]
        self._needs: dict[Job, frozenset[Piece]] = {}
        self._due: dict[Piece, set[Job]] = {}
        self._given: set[Piece] = set()
        self._begun: set[Job] = set()
        self._settled: set[str] = set()

    @property
    def held(self) -> Set[Piece]:
        """The pieces that some job has still to be done with."""
        return self._due.keys()

    @property
    def settled(self) -> Set[str]:
        """The reductions over all experts that have been carried out."""
        return self._settled

    @property
    def pending(self) -> tuple[Pending, ...]:
        """The pieces that are held, and what each waits for."""
        return self.pending_of(self.held)

    def pending_of(self, pieces: Collection[Piece]) -> tuple[Pending, ...]:
        """Those of these pieces that are held."""
        held = self.held & set(pieces)
        if not held:
            return ()
        spanning = {step.spans for step in self.steps} - self._settled - {""}
        waits = {name: self._lacking(self.spanning(name)) for name in spanning}
        found: list[Pending] = []
        for piece in self.sorted(held):
            others = self._lacking(self._due[piece])
            for name in {self.steps[job.step].spans for job in self._due[piece]} & waits.keys():
                others |= waits[name]
            found.append(Pending(piece, self.sorted(others)))
        return tuple(found)

    @property
    def missing(self) -> tuple[Piece, ...]:
        """The pieces that have not been given yet."""
        needed = frozenset[Piece]().union(*map(self.needs, self.jobs(range(self.slots))))
        return self.sorted(needed - self._given)

    @property
    def progress(self) -> dict[str, tuple[int, int]]:
        """Of each output, how many of the jobs that write it have been done with what was given last, and how many
        there are. Pads and constants count only where an output has nothing else."""
        found: dict[str, list[bool]] = {}
        for fixed in (False, True):
            for at, step in enumerate(self.steps):
                written = {name for name, _ in step.writes} | {name for _, name in step.passed}
                if written and fixed is not bool(step.needs):
                    done = [self._is_done(job) for job in self.jobs(range(self.slots), [at])]
                    for name in written - (found.keys() if fixed else set()):
                        found.setdefault(name, []).extend(done)
        return {name: (sum(done), len(done)) for name, done in found.items()}

    def _is_done(self, job: Job) -> bool:
        needs = self.needs(job)
        if not needs:
            return job in self._begun
        return needs <= self._given and not any(job in self._due.get(piece, ()) for piece in needs)

    @property
    def slots(self) -> int:
        """How many experts the rank has; 1 where there are none."""
        return len(self.plan.source_experts)

    def jobs(self, slots: Iterable[int], steps: Collection[int] | None = None) -> Iterator[Job]:
        """Those of some experts: with all steps, or with these."""
        numbers = range(len(self.steps)) if steps is None else steps
        for slot in slots:
            yield from (Job(at, slot) for at in numbers if slot == 0 or not self.steps[at].once)

    def needs(self, job: Job) -> frozenset[Piece]:
        """The pieces that a job takes."""
        found = self._needs.get(job)
        if found is None:
            expert = self.plan.source_experts[job.slot]
            found = frozenset(piece_of(self.plan, name, expert) for name in self.steps[job.step].needs)
            self._needs[job] = found
        return found

    def ready(self, new: Set[Piece]) -> list[Job]:
        """The jobs that can be done, and must be, once these pieces are there. What takes no piece is done once, with
        the first piece of its expert."""
        there = self.held | new
        found: list[Job] = []
        slots = sorted({slot for piece in new for slot in self._slots[piece.expert]})
        steps = sorted({*self._free, *(at for piece in new for at in self._steps[piece.name])})
        for job in self.jobs(slots, steps):
            needs = self.needs(job)
            if needs <= there and (needs & new if needs else job not in self._begun):
                found.append(job)
        return found

    def note(self, new: Set[Piece], done: Collection[Job]) -> None:
        """These pieces have been given, and with them these jobs have been done."""
        self._given.update(new)  # |= with the keys of a dict would make a new set of all
        self._begun |= {job for job in done if not self.steps[job.step].needs}
        self._settled |= {self.steps[job.step].spans for job in done} - {""}
        for piece in new:
            self._due[piece] = {*self.jobs(self._slots[piece.expert], self._steps[piece.name])}
        for job in done:
            for piece in self.needs(job):
                self._due[piece].discard(job)
        self._due = {piece: jobs for piece, jobs in self._due.items() if jobs}

    def spanning(self, name: str) -> list[Job]:
        """The jobs of all experts that take part in a reduction over all of them."""
        return [job for job in self.jobs(range(self.slots)) if self.steps[job.step].spans == name]

    def sorted(self, pieces: Collection[Piece]) -> tuple[Piece, ...]:
        """In the order of the plan's inputs, expert by expert."""
        order = {name: at for at, name in enumerate(self.plan.input)}
        return tuple(sorted(pieces, key=lambda piece: (order[piece.name], piece.expert or 0)))

    def _lacking(self, jobs: Collection[Job]) -> set[Piece]:
        return set[Piece]().union(*map(self.needs, jobs)) - self.held


def piece_of(plan: Plan, name: str, expert: int) -> Piece:
    """What one expert has of an input."""
    return Piece(name, expert if is_apart(plan.input[name]) else None)


def is_apart(info: TensorInfo) -> bool:
    """Whether each expert has its own."""
    return bool(info.experts) and not info.shared
