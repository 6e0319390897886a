"""The laws on what stands beside the programs: reductions, checks of the data, the caller's duties, stated losses."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl import laws, recodes
from layoutdsl.plan import WHY, Check, Duty, Reduction
from layoutdsl.prove.given import Given, Pair, broken, first_odd
from layoutdsl.prove.moves import complete, stand, unused
from layoutdsl.resolve import Stored

Expected = tuple[str, str, tuple[int, ...], str, str]
"""Kind, tensor, what is expected, the other tensor and the reason of a check."""


def prove_beside(given: Given) -> None:
    """All laws on what is no program."""
    plan = given.plan
    reductions, losses = tuple(_reductions(given)), tuple(_losses(given))
    if odd := first_odd(plan.reductions, reductions):
        stated, needed = odd
        what = f"the reduction {needed.kind} over {needed.scope}" if needed else "no reduction"
        broken("value", f"its recode needs {what}", (needed or stated).output)
    if odd := first_odd(plan.losses, losses):
        stated, true = odd
        broken("value", f"what it may lose is {true[1] if true else 'nothing'}", (true or stated)[0])
    _whole_orders(given)
    _checks(given)
    duties = tuple(_duties(given))
    if plan.duties != duties:
        broken("duties", "they are " + ("; ".join(map(str, duties)) or "none"))


def _whole_orders(given: Given) -> None:
    """An order that is copied counts the groups of all inputs, so it can stand only where all are."""
    recode_of = {program.output: program.recode.name for program in given.plan.programs}
    for pair in given.pairs:
        for tensor in pair.target.get("act_order", ()):
            if recode_of[tensor.name] == "copy" and pair.matrix.k.cut:
                broken("value", "its groups are those of all inputs, not of a rank's", tensor.name)


def _reductions(given: Given) -> Iterator[Reduction]:
    recode_of = {program.output: program.recode.name for program in given.plan.programs}
    for pair in given.pairs:
        for tensor in pair.target.get("scale", ()):
            name, kind = pair.matrix.name, recode_of[tensor.name]
            if kind == "nvfp4_scale":
                yield _nvfp4(given, pair, tensor)
            if kind == "int16_scale":
                yield Reduction(f"{name}.largest", "largest", tensor.name, "tensor")


def _nvfp4(given: Given, pair: Pair, tensor: Stored) -> Reduction:
    held = [pair.holder("global_scale", part) for part in pair.parts]
    found = [holder for holder in held if holder is not None]
    if len(found) < len(held):
        broken("value", "the source has no global scale", tensor.name)
    globals_ = tuple((holder.name, holder.view(part)[0].at(0)) for part, holder in enumerate(found))
    scope, reciprocal = given.plan.habits.nvfp4_factor, found[0].reciprocal
    return Reduction(f"{pair.matrix.name}.nvfp4", "nvfp4", tensor.name, scope, globals_, reciprocal)


def _losses(given: Given) -> Iterator[tuple[str, str]]:
    inverts = {reduction.name: reduction.reciprocal for reduction in given.plan.reductions}
    stepwise = given.plan.habits.int16 == "stepwise"
    for program in given.plan.programs:
        reciprocal = inverts.get(program.reduction, False)
        if text := recodes.loss(program.recode, reciprocal=reciprocal, stepwise=stepwise):
            yield program.output, text


def _duties(given: Given) -> Iterator[Duty]:
    for pair in given.pairs:
        m, n, k = pair.matrix, pair.matrix.n[0], pair.matrix.k
        if given.orders[m.name] is not None and k.seen:
            yield Duty("gather_input", m.name, k.axis, tensor=f"{m.name}.k_perm")
        ordered = given.orders[m.name] is not None
        if given.pads:
            for s in (*dict.fromkeys(m.n), *(() if ordered else (k,))):
                if s.seen and s.widest > s.length:
                    yield Duty("lacks", m.name, s.axis, length=s.widest, rest=s.widest - s.length)
        width = k.length if ordered else k.widest  # a gathered input has the rank's own alone
        if given.pads and k.seen and k.padded > width:
            yield Duty("pad_input", m.name, k.axis, front=k.front, rest=k.padded - k.front - width)
        if given.pads and not k.seen:
            written = [other.matrix.n[0].padded for other in given.pairs if other.matrix.n[0].axis == k.axis]
            for short in (padded for padded in written if padded < k.padded):
                yield Duty("write_zeros", m.name, k.axis, rest=k.padded - short)
        if given.pads and n.seen and m.n_padded > m.n_widest:
            yield Duty("slice_output", m.name, n.axis, length=m.n_widest)
        if k.cut:
            yield Duty("sum_over_ranks", m.name, k.axis)


# --- checks of the data -----------------------------------------------------------------------------------------------


def _checks(given: Given) -> None:
    expected = [(pair, tensor, check) for pair in given.pairs for tensor, check in _needed(given, pair)]
    checks = [(check.kind, check.tensor, check.expect, check.other, check.why) for check in given.plan.checks]
    if odd := first_odd(checks, [check for _, _, check in expected]):
        stated, needed = odd
        must = f"must be checked: {needed[-1]}" if needed else "need no such check"
        broken("value", f"its data {must}", (needed or stated)[1])
    for check, (pair, tensor, _) in zip(given.plan.checks, expected):
        _looks_everywhere(given, pair, tensor, check)


def _needed(given: Given, pair: Pair) -> Iterator[tuple[Stored, Expected]]:
    """What the target cannot say must hold in the source: one zero point for all, its shape, its order."""
    codes, whole, k = pair.first("target", "codes"), given.source.mode == "whole", pair.matrix.k
    if codes is not None and "zero_point" not in pair.target:
        bias = codes.code.bias
        for t in pair.source.get("zero_point", ()):
            yield t, ("equal", t.name, (bias - t.plus,), "", WHY["equal"].format(bias, bias - t.plus))
    for t in pair.source.get("weight_shape", ()):
        stretches = (*(pair.matrix.n[part] for part in t.parts), k)
        *n, last = (s.size if whole else s.length for s in stretches)
        yield t, ("shape", t.name, (sum(n), last), "", WHY["shape"])
    first = pair.first("source", "act_order")
    for t in pair.source.get("act_order", ()):
        group = given.group("source")
        if not given.source.params.get("act_order"):
            phase = k.start if whole or not group else k.start % group
            yield t, ("order", t.name, (group, phase), "", WHY["order"])
        elif t is not first and first is not None and given.orders[pair.matrix.name] is not None:
            yield t, ("same", t.name, (), first.name, WHY["same"])


def _looks_everywhere(given: Given, pair: Pair, tensor: Stored, check: Check) -> None:
    if check.kind == "shape":
        if check.moves:
            broken("meaning", "a shape is not moved", tensor.name)
        return
    complete(pair, check.moves, tensor.parts, tensor.name)
    for move in check.moves:
        plain = move.kind == "data" and not move.pad and not move.reason and not move.gather_n and not move.gather_k
        if not plain or any(run.join for run in (*move.n, *move.k)):
            broken("meaning", "a check reads the source as it lies", tensor.name)
        unused((*move.n, *move.k), laws.DST, tensor.name, "n or k")
        for run in move.n:
            stand((run,), tensor.view(run.part)[0], laws.SRC, tensor.name, "n")
        for view in dict.fromkeys(tensor.view(run.part)[1] for run in move.n):
            stand(move.k, view, laws.SRC, tensor.name, "k")
