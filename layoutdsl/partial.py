"""Parts of a plan that can be carried out on their own, as source tensors arrive one by one.

A step is all that becomes possible once certain tensors of one expert are there. GPTQ's words need nothing else to
become Marlin's; where they are sorted by g_idx as well, they wait for it:

    >>> from layoutdsl import compile_plan
    >>> def needs(**params):
    ...     plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 128},
    ...                         params={"group": 32, "qzeros": False, **params})
    ...     return [" ".join(sorted(step.needs)) for step in steps(plan)]
    >>> needs()
    ['linear.qweight', 'linear.scales', 'linear.g_idx']
    >>> needs(act_order=True)
    ['linear.g_idx linear.qweight', 'linear.scales']

`partial` is the plan of some steps for some experts, over the full shapes: a backend's `amend` carries it out and
leaves alone what no move of it writes. What comes from no source is a step without needs: pads, constants, stored
shapes. Nothing here is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from layoutdsl.plan import Check, Move, Operand, Plan, Program, Reduction, TensorInfo

NO_PART = -1
"""Stands beside the parts of a program for what comes from no source."""


@dataclass(frozen=True)
class Step:
    """What can be done for one expert once all tensors of `needs` are there.

    once: for all experts together, since what it writes or looks at is theirs together. spans: the reduction over all
    experts that it takes part in. writes: outputs, and the part of each that is written.
    """

    needs: frozenset[str]
    once: bool = False
    spans: str = ""
    writes: tuple[tuple[str, int], ...] = ()
    checks: tuple[Check, ...] = ()
    passed: tuple[tuple[str, str], ...] = ()

    @property
    def outputs(self) -> frozenset[str]:
        """The names of the outputs into which it writes."""
        return frozenset(name for name, _ in self.writes) | {name for _, name in self.passed}


class Parts:
    """A plan's steps, and the plans of some of them, each made once: backends keep what they know of a plan."""

    def __init__(self, plan: Plan):
        self.plan, self.steps = plan, steps(plan)
        self._made: dict[tuple[frozenset[int], int], Plan] = {}

    def of_some(self, numbers: frozenset[int], count: int) -> Plan:
        """The plan of these steps for so many experts, whichever they are."""
        if (numbers, count) not in self._made:
            self._made[numbers, count] = of_some(self.of(numbers, range(count)), count)
        return self._made[numbers, count]

    def of(self, numbers: frozenset[int], experts: Sequence[int]) -> Plan:
        """The same for these experts, by their numbers in the source."""
        return partial(self.plan, [self.steps[at] for at in numbers], experts)


def steps(plan: Plan) -> tuple[Step, ...]:
    """All that a plan does, once, in as many steps as differ in what they need."""
    found: dict[tuple[frozenset[str], bool, str], Step] = {}
    for one in (*_of_programs(plan), *_of_passed(plan), *_of_checks(plan)):
        key = one.needs, one.once, one.spans
        other = found.get(key, replace(one, writes=(), checks=(), passed=()))
        found[key] = replace(
            other,
            writes=(*other.writes, *one.writes),
            checks=(*other.checks, *one.checks),
            passed=(*other.passed, *one.passed),
        )
    return tuple(found.values())


def partial(plan: Plan, taken: Collection[Step], experts: Sequence[int]) -> Plan:
    """The plan that takes these steps for some experts, by their numbers in the source: its outputs are the full ones
    of so many experts, its inputs those that the steps need. Where there are no experts, (0,) stands for all."""
    written: dict[str, set[int]] = {}
    for output, part in (one for step in taken for one in step.writes):
        written.setdefault(output, set()).add(part)
    passed = tuple(one for one in plan.passed if any(one in step.passed for step in taken))
    needed = frozenset[str]().union(*(step.needs for step in taken))
    made = {*written, *(output for _, output in passed)}
    programs = tuple(_only(p, written[p.output]) for p in plan.programs if p.output in written)
    used = {program.reduction for program in programs}
    total, _, _ = plan.experts
    return replace(
        plan,
        experts=(total, experts[0], len(experts)) if total else plan.experts,
        slots=tuple(experts) if total else (),
        inputs=tuple(info for info in plan.inputs if info.name in needed),
        outputs=tuple(replace(o, experts=len(experts) if o.experts else 0) for o in plan.outputs if o.name in made),
        programs=programs,
        reductions=tuple(reduction for reduction in plan.reductions if reduction.name in used),
        checks=tuple(check for check in plan.checks if any(check in step.checks for step in taken)),
        passed=passed,
    )


def of_some(plan: Plan, count: int) -> Plan:
    """A plan of so many experts, whichever they are: it takes their tensors alone, and calls them 0, 1 and so on."""
    if not plan.experts[0]:
        return plan
    return replace(
        plan,
        experts=(count, 0, count),
        slots=(),
        inputs=tuple(replace(info, experts=count if info.experts else 0) for info in plan.inputs),
    )


def numbered(plan: Plan, experts: Sequence[int]) -> Plan:
    """The same plan where its experts have these numbers: it takes tensors by them, and calls them so."""
    if not plan.experts[0]:
        return plan
    total = max(experts) + 1
    return replace(
        plan,
        experts=(total, experts[0], len(experts)),
        slots=tuple(experts),
        inputs=tuple(replace(info, experts=total if info.experts else 0) for info in plan.inputs),
    )


# --- what needs what --------------------------------------------------------------------------------------------------


def _of_programs(plan: Plan) -> Iterator[Step]:
    reductions = {reduction.name: reduction for reduction in plan.reductions}
    for program in plan.programs:
        parts = sorted({run.part for move in program.moves if move.kind == "data" for run in move.n})
        needs = {part: _needs(program, part) for part in parts}
        if program.values or any(move.kind != "data" for move in program.moves):
            needs[NO_PART] = frozenset()
        if program.reduction:
            reduction = reductions[program.reduction]
            together = _needs_of(plan, reduction)
            spans = reduction.name if reduction.scope == "tensor" and together else ""
            yield Step(together, False, spans, tuple((program.output, part) for part in needs))
            continue
        if any(run.join for move in program.moves for run in (*move.n, *move.k)):
            needs |= dict.fromkeys(parts, frozenset[str]().union(*needs.values()))
        once = _once(plan, plan.output[program.output])
        for part, names in needs.items():
            yield Step(names, once, writes=((program.output, part),))


def _needs(program: Program, part: int) -> frozenset[str]:
    """The tensors that a part of an output is made of."""
    beside = (*program.operands, *([program.fill] if program.fill else []))
    found: set[str] = set()
    for one in (program, *beside):
        for move in one.moves:
            if move.kind == "data" and any(run.part == part for run in move.n):
                found.add(one.sources[part])
                found |= {lookup.tensor for lookup in (move.gather_n, move.gather_k) if lookup is not None}
    return frozenset(found)


def _needs_of(plan: Plan, reduction: Reduction) -> frozenset[str]:
    program = next(program for program in plan.programs if program.output == reduction.output)
    parts = {run.part for move in program.moves if move.kind == "data" for run in move.n}
    found = frozenset(name for name, _ in reduction.globals)
    return found.union(*(_needs(program, part) for part in parts))


def _of_passed(plan: Plan) -> Iterator[Step]:
    for source, output in plan.passed:
        info = plan.output[output]
        matrix = output.split(".")[0]
        needs = frozenset({source})
        if info.role == "k_perm":
            # With the first weights that it sorts: they say how many inputs each of its groups must have.
            sorted_by_it = (
                _needs(program, run.part)
                for program in plan.programs
                if program.output.startswith(f"{matrix}.")
                for move in program.moves
                if move.gather_k is not None
                for run in move.n
            )
            needs = next(sorted_by_it, needs)
        yield Step(needs, _once(plan, info), passed=((source, output),))


def _of_checks(plan: Plan) -> Iterator[Step]:
    for check in plan.checks:
        needs = frozenset({check.tensor, check.other}) - {""}
        yield Step(needs, _once(plan, plan.input[check.tensor]), checks=(check,))


def _once(plan: Plan, info: TensorInfo) -> bool:
    return bool(plan.experts[0]) and (info.shared or not info.experts)


# --- what is left of a program ----------------------------------------------------------------------------------------


def _only(program: Program, parts: set[int]) -> Program:
    """A program that writes these parts alone."""
    fill = _operand(program.fill, parts) if program.fill else None
    return replace(
        program,
        sources=_named(program.sources, parts),
        moves=tuple(_moves(program.moves, parts)),
        operands=tuple(_operand(operand, parts) for operand in program.operands),
        fill=fill if fill and fill.moves else None,
    )


def _operand(operand: Operand, parts: set[int]) -> Operand:
    return replace(operand, sources=_named(operand.sources, parts), moves=tuple(_moves(operand.moves, parts)))


def _named(sources: Sequence[str], parts: set[int]) -> tuple[str, ...]:
    return tuple(name if part in parts else "" for part, name in enumerate(sources))


def _moves(moves: Sequence[Move], parts: set[int]) -> Iterator[Move]:
    for move in moves:
        n = tuple(run for run in move.n if run.part in parts) if move.kind == "data" else move.n
        if n and (move.kind == "data" or NO_PART in parts):
            yield replace(move, n=n)
