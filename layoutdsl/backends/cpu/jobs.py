"""A plan as jobs for the kernels of the cpu backend: which grids of blocks make which output.

Each move is a product of runs along n and along k. The largest blocks that fit are taken first; what is left at the
edges is cut again, until elements that fit no block are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from layoutdsl.backends.cpu import blocks, singles
from layoutdsl.backends.cpu.axes import Carved, carve, moving, size, writers
from layoutdsl.backends.cpu.forms import Job, Largest, Single
from layoutdsl.backends.cpu.making import AWAY, Choice, Making, Orders, loops_of
from layoutdsl.backends.cpu.network import BITS, Digit, Loop, taken
from layoutdsl.backends.cpu.operands import Second, Unknown
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Move, Operand, Plan, Program, Reduction
from layoutdsl.recodes import Recode

SMALL = 1 << 15
"""Codes, of all experts, that are not worth a kernel of vectors."""

TOTAL = ("fp8_nibbles", "plain_nibbles", "fold_sign", "constant", "ramp", "shape", "largest")
"""Recodes that refuse no code."""

WORDS = (256, 64, 8)
"""Bits that are filled at once."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """The jobs of a plan, for each program: those that write, those that look whether a code is refused, and those that
    compare elements with one that shares their target. unsigned: those that write where no scale has a sign, of
    programs that give codes the signs of scales that a reduction reads. largest: of each reduction."""

    writes: tuple[tuple[Job, ...], ...]
    looks: tuple[tuple[Job, ...], ...]
    compares: tuple[tuple[Job, ...], ...]
    unsigned: tuple[tuple[Job, ...], ...]
    largest: tuple[tuple[Job, ...], ...]


def lower(plan: Plan) -> Lowered:
    """The jobs of a plan. Raises Unknown."""
    made = {program.output: _Lowering(plan, program) for program in plan.programs}
    stepwise = plan.habits.int16 == "stepwise"
    return Lowered(
        tuple(tuple(one.writes()) for one in made.values()),
        tuple(tuple(one.looks()) for one in made.values()),
        tuple(tuple(one.compares()) for one in made.values()),
        tuple(tuple(one.unsigned()) for one in made.values()),
        tuple(tuple(made[of.output].largest(of.kind == "largest" and stepwise)) for of in plan.reductions),
    )


def scales_of(plan: Plan, program: Program) -> Reduction | None:
    """The reduction that reads the scales whose signs a program gives to its codes."""
    if program.recode.name != "fold_sign":
        return None
    read = {one.output: one.sources for one in plan.programs}
    found = (one for one in plan.reductions if read[one.output] == program.operands[0].sources)
    return next(found, None)


def _grids(ns: Sequence[Run], ks: Sequence[Run], choices: Callable[..., Iterator[Choice]]) -> Iterator[Job]:
    """Jobs that make the product of runs: the best choice for the largest of them, then what that leaves."""
    left = [(list(ns), list(ks))]
    while left:
        ns, ks = left.pop()
        if not ns or not ks:
            continue
        for digits, make in choices(ns, ks):
            n, n_rests = _carved(ns, [digit for digit in digits if digit.axis == 0])
            k, k_rests = _carved(ks, [digit for digit in digits if digit.axis == 1])
            job = make(n, k) if n and k else None
            if job is not None:
                yield job
                left += [(n_rests, ks), ([one.kept for one in n], k_rests)]
                break
        else:
            raise Unknown


def _carved(runs: Iterable[Run], digits: Sequence[Digit]) -> tuple[list[Carved], list[Run]]:
    """What runs have of some digits, and what is left of them."""
    found: list[Carved] = []
    rests: list[Run] = []
    for run in runs:
        made = carve(run, [(digit.dst, digit.src) for digit in digits])
        found += [made] if made is not None else []
        rests += made.rests if made is not None else [run]
    return found, rests


class _Lowering:
    """The jobs of one program."""

    def __init__(self, plan: Plan, program: Program):
        self.plan, self.program = plan, program
        self.info = plan.output[program.output]
        self.bits = code_named(self.info.code).bits
        same = code_named(program.recode.source).bits == code_named(program.recode.target).bits
        unchanged = program.recode.name == "offset" and program.recode.power == 0 and same
        self.recode = "copy" if unchanged else program.recode.name
        self.copies = plan.experts[2] or 1 if self.info.experts and not self.info.shared else 1
        self.second = Second(plan, program.operands[0]) if program.operands else None

    def writes(self) -> Iterator[Job]:
        if self.program.fill is not None:
            yield from _Lowering(self.plan, _filling(self.program, self.program.fill)).writes()
        for move in self.program.moves:
            if move.kind == "pad":
                yield from self._filled(move, move.pad, None)
            elif self.recode in ("constant", "largest"):
                yield from self._filled(move, self.program.recode.power, self.program.recode)
            elif move.kind == "value":
                yield from singles.counted(self._making(-1, (None, None)), self._form("value"), move)
            else:
                yield from self._data(move)

    def looks(self) -> Iterator[Job]:
        """All source codes, each once, in their order in memory; for no program that compares, or that refuses none."""
        if any(_shares(move) for move in self.program.moves):
            return
        if self.program.fill is not None:
            yield from _Lowering(self.plan, _filling(self.program, self.program.fill)).looks()
        if self.recode in TOTAL or (self.recode == "copy" and not self._making(-1, (None, None)).refuses):
            return
        for move in self.program.moves:
            for making, *both in self._parts(move) if move.kind == "data" else ():
                alone = making.second is None and making.orders == (None, None)
                ns, ks = ([_only_source(run) for run in runs] if alone else runs for runs in both)
                making = replace(making, writes=False)
                yield from _grids(ns, ks, lambda n, k, making=making: self._choices(making, n, k))

    def compares(self) -> Iterator[Job]:
        for move in self.program.moves if self.recode != "constant" else ():
            if move.kind == "data" and _shares(move):
                for making, ns, ks in self._parts(move):
                    if ns and ks:
                        both = (_carved(runs, ())[0] for runs in (ns, ks))
                        job = singles.single(making, self._form("compare"), None, *both)
                        assert job is not None
                        yield job

    def unsigned(self) -> Iterator[Job]:
        if scales_of(self.plan, self.program) is not None:
            recode = replace(self.program.recode, name="copy")
            yield from _Lowering(self.plan, replace(self.program, recode=recode, operands=())).writes()

    def largest(self, signs: bool) -> Iterator[Job]:
        source = self.program.recode.source
        for move in self.program.moves:
            for making, *both in self._parts(move) if move.kind == "data" else ():
                alone = making.orders == (None, None)
                ns, ks = ([_only_source(run) for run in runs] if alone else runs for runs in both)
                making = replace(making, writes=False, second=None)

                def choices(ns: Sequence[Run], ks: Sequence[Run], making: Making = making) -> Iterator[Choice]:
                    rest, inside = _loops(ns, ks), (BITS // making.source_bits).bit_length() - 1
                    digits = [taken(rest, 1 << at, "src") for at in range(inside)]
                    if None not in digits and making.orders == (None, None):
                        form = Largest(source, signs, vectors=True)
                        yield [one for one in digits if one], lambda n, k: singles.single(making, form, None, n, k)
                    yield (), lambda n, k: singles.single(making, Largest(source, signs), None, n, k)

                yield from _grids(ns, ks, choices)

    def _parts(self, move: Move) -> Iterator[tuple[Making, list[Run], list[Run]]]:
        """By part the runs along n and along k, their positions AWAY where they are looked up."""
        for part in dict.fromkeys(run.part for run in move.n):
            n = (move.gather_n, part) if move.gather_n is not None else None
            k = (move.gather_k, 0) if move.gather_k is not None else None
            ns = [_moving(run, n) for run in move.n if run.part == part]
            yield self._making(part, (n, k)), ns, [_moving(run, k) for run in move.k]

    def _making(self, part: int, orders: Orders) -> Making:
        return Making(self.plan, self.program, self.recode, self.second, part, orders)

    def _filled(self, move: Move, code: int, recode: Recode | None) -> Iterator[Job]:
        """Words of one code, which a recode makes if one is given."""
        ns, ks = ([_only_target(run) for run in runs if not run.join] for runs in (move.n, move.k))
        making = replace(self._making(-1, (None, None)), second=None)

        def choices(ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
            for width in (*(width for width in WORDS if width > self.bits), self.bits):
                rest = _loops(ns, ks)
                digits = [taken(rest, 1 << at, "dst") for at in range((width // self.bits).bit_length() - 1)]
                if None not in digits:
                    fill = lambda n, k, width=width: singles.filled(making, width, code, recode, (n, k))  # noqa: E731
                    yield [digit for digit in digits if digit], fill

        yield from _grids(ns, ks, choices)

    # data -------------------------------------------------------------------------------------------------------------

    def _data(self, move: Move) -> Iterator[Job]:
        for making, *both in self._parts(move):
            ns, ks = ([run for run in map(writers, runs) if run is not None] for runs in both)
            yield from _grids(ns, ks, lambda n, k, making=making: self._choices(making, n, k))

    def _choices(self, making: Making, ns: Sequence[Run], ks: Sequence[Run]) -> Iterator[Choice]:
        if sum(map(size, ns)) * sum(map(size, ks)) * self.copies >= SMALL:
            yield from blocks.choices(making, ns, ks)
        pair = taken(_loops(ns, ks), 1, "dst") if self.bits == 4 else None
        if pair is not None:
            yield (pair,), lambda n, k: singles.single(making, self._form("write"), pair, n, k)
        yield (), lambda n, k: singles.single(making, self._form("write"), None, n, k)

    def _form(self, how: str) -> Single:
        return Single(
            how,
            self.recode,
            self.program.recode.source,
            self.program.recode.target,
            operand=self.second.operand.code if self.second is not None else "",
            stepwise=self.recode == "int16_scale" and self.plan.habits.int16 == "stepwise",
            counts=how == "write" and self._making(-1, (None, None)).counts,
        )


def _loops(ns: Sequence[Run], ks: Sequence[Run]) -> list[Loop]:
    """Those of the largest runs."""
    return [*loops_of(0, max(ns, key=size)), *loops_of(1, max(ks, key=size))]


def _moving(run: Run, order: object) -> Run:
    """A run without loops that only count, its positions AWAY where it is looked up."""
    run, by = moving(run), AWAY if order is not None else 1
    return replace(run, src=run.src * by, loops=tuple((count, dx, dst, src * by) for count, dx, dst, src in run.loops))


def _only_target(run: Run) -> Run:
    """A run without its source."""
    return replace(run, src=0, loops=tuple((count, dx, dst, 0) for count, dx, dst, _ in run.loops if count > 1 and dst))


def _only_source(run: Run) -> Run:
    """A run of all its source's codes, each once, which are its target too."""
    return replace(run, dst=run.src, loops=tuple((count, dx, src, src) for count, dx, _, src in run.loops if src))


def _shares(move: Move) -> bool:
    """Whether some elements are compared with others that share their target."""
    return any(run.join or any(loop[2] == 0 for loop in moving(run).loops) for run in (*move.n, *move.k))


def _filling(program: Program, fill: Operand) -> Program:
    """Pads that repeat a source's value as a program of their own."""
    if any(_shares(move) for move in fill.moves):
        raise Unknown
    recode = Recode("offset", fill.code, program.recode.target, fill.plus)
    return replace(
        program, sources=fill.sources, recode=recode, moves=fill.moves, operands=(), fill=None, reduction=""
    )
