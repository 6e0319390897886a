"""What the way back does not restore: the source tensors that a plan's inverse makes with other bytes, and why.

A recode may have rounded. Beside that an order of inputs, a sign, or a power of two can have moved to where the
kernel wants it, which is exact and yet not undone; and what a rank or the kernel does not keep cannot come back:

    >>> from layoutdsl import compile_plan
    >>> def show(source, target, **params):
    ...     plan = compile_plan(source, target, "linear", {"n": 128, "k": 256}, params=params)
    ...     for name, reason in plan.irreversible():
    ...         print(f"{name}: {reason}")
    >>> show("gptq", "marlin_int4_a16")
    >>> show("gptq", "marlin_int4_a16", act_order=True)
    linear.qweight: its inputs stay sorted by `linear.g_idx`
    linear.g_idx: it is made anew (recode `ramp`)

Every tensor that is not named comes back byte for byte, as the rank's own slice.
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.compile import invert
from layoutdsl.plan import Plan, Program


def irreversible(plan: Plan, specs: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """(source tensor, what is lost), in the order of the inputs; several where there are several reasons. LayoutError
    where the plan has no inverse."""
    back = invert(plan, specs=specs)
    found = [*_recoded(plan, back), *_moved(plan, back), *_made_anew(plan, back)]
    return tuple(one for name in plan.input for one in dict.fromkeys(found) if one[0] == name)


def _recoded(plan: Plan, back: Plan) -> Iterator[tuple[str, str]]:
    """Values that are rounded, on the way there or back."""
    losses = dict(plan.losses)
    for program in plan.programs:
        if program.output in losses:
            yield from ((name, losses[program.output]) for name in _read(program))
    yield from back.losses


def _moved(plan: Plan, back: Plan) -> Iterator[tuple[str, str]]:
    """What has been put elsewhere, and stays there."""
    for program in plan.programs:
        for move in program.moves:
            for lookup, what in ((move.gather_k, "inputs"), (move.gather_n, "outputs")):
                if lookup is not None:
                    names = dict.fromkeys(program.sources[run.part] for run in move.n)
                    yield from ((name, f"its {what} stay sorted by `{lookup.tensor}`") for name in names)
        if program.recode.name == "fold_sign":
            scales = [name for operand in program.operands for name in operand.sources if name]
            yield from ((name, "signs of scales stay in the codes") for name in (*_read(program), *scales))
    power = "a power of two stays where it was moved, between the global and the block scales"
    for one in (plan, back):
        for reduction in one.reductions:
            users = [program for program in one.programs if program.reduction == reduction.name]
            moves = len(set(reduction.globals)) > 1 or any(user.recode.target == "s0e5m3b" for user in users)
            if reduction.kind == "nvfp4" and moves:
                names = [name for user in users for name in (_read(user) if one is plan else [user.output])]
                yield from ((name, power) for name in names)


def _made_anew(plan: Plan, back: Plan) -> Iterator[tuple[str, str]]:
    """What is made from no source, and has not been checked to be that; what holds no element."""
    checked = {check.tensor for check in plan.checks if check.kind != "same"}
    programs = {program.output: program for program in back.programs}
    for name in plan.input:
        if name not in programs:
            yield name, "it is no part of the way back: the plan passes it through"
            continue
        program = programs[name]
        kinds = {move.kind for move in program.moves}
        if "value" in kinds and name not in checked:
            yield name, f"it is made anew (recode `{program.recode.name}`)"
        if "pad" in kinds or program.fill:
            yield name, "what stands for no element comes back as padding"


def _read(program: Program) -> list[str]:
    """The sources of a program, but for those that the rank holds nothing of."""
    parts = (run.part for move in program.moves if move.kind == "data" for run in move.n)
    return list(dict.fromkeys(program.sources[part] for part in parts))
