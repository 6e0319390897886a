"""The laws of a plan, checked on its numbers against the specs it names, before any data.

    header    sizes, ranks, parameters and extents are what specs and request say; a kernel's tiles and groups fit
    agree     what one matrix writes along an axis inside the module, the next one reads
    meaning   every run stands, on both sides, where the specs put the element it names
    complete  a matrix' logical elements are each moved once; over all ranks, each source element as often as stated
    once      every target element is written exactly once, pads included
    value     a recode leaves the value that both sides' codes stand for, on samples of every kind of code
    neutral   each pad has a true reason
    duties    what the caller must do follows from the extents

Provenance needs no law of its own: a scale's program is complete and means what both specs say at every weight that
shares it, so each weight meets its own scale. The prover shares with the compiler only resolve (what a spec says) and
recodes.apply (what a recode means); it neither compiles nor compares with a compiled plan.

`given` reads what the plan says it is; `program`, with `moves`, `pads` and `value`, proves one program; `beside` proves
what is no program; `ranks` proves the plans of all ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence

from layoutdsl.plan import Plan
from layoutdsl.prove.beside import prove_beside
from layoutdsl.prove.given import Given, broken, read
from layoutdsl.prove.program import prove_program
from layoutdsl.prove.ranks import prove_across

__all__ = ["prove", "prove_ranks"]


def prove(plan: Plan, *, specs: tuple[str, ...] = ()) -> None:
    """Check every law; LayoutError names the law and the element that breaks it."""
    _proven(plan, specs)


def prove_ranks(plans: Sequence[Plan], *, specs: tuple[str, ...] = ()) -> None:
    """The same for the plans of all ranks, and that together they read every source element as often as stated."""
    prove_across([_proven(plan, specs) for plan in plans])


def _proven(plan: Plan, specs: tuple[str, ...]) -> Given:
    given = read(plan, specs)
    targets = [(pair, tensor) for pair in given.pairs for found in pair.target.values() for tensor in found]
    if [program.output for program in plan.programs] != [tensor.name for _, tensor in targets]:
        broken("once", "the programs are not one per target tensor, in their order")
    for (pair, tensor), program in zip(targets, plan.programs):
        prove_program(given, pair, tensor, program)
    prove_beside(given)
    return given
