"""Source tensors applied one by one, in any order, into storage full of rubbish: the bytes of one full run.

What is held, and what it waits for; what is refused; and that an update touches nothing but its own expert.
"""

from __future__ import annotations

import doctest
import random

import numpy as np
import plans
import pytest
import torch
from hypothesis import given
from test_backends import MODULES, PAIRS, PEER, cases, examples, inputs_of, outputs_of, positive, raw

from layoutdsl import LayoutError, Plan, Updates, compile_plan, ledger, partial
from layoutdsl.backends import BACKENDS, update
from layoutdsl.ledger import Piece, is_apart

EVERY = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "cuda"])  # it has tensors on a GPU
Tensors = dict[str, torch.Tensor]
Unit = tuple[str, int | None, torch.Tensor]
"""Name, expert, tensor: the arguments of an update."""


def piece(plan: Plan, tensors: Tensors, name: str, expert: int | None) -> torch.Tensor:
    info = plan.input[name]
    return tensors[name] if expert is None else tensors[name].view(info.experts, *info.shape)[expert]


def units(plan: Plan, tensors: Tensors, dice: random.Random) -> list[Unit]:
    """The inputs, most of them expert by expert, in any order."""
    found: list[Unit] = []
    for info in plan.inputs:
        experts = range(info.experts) if is_apart(info) and dice.random() < 0.8 else [None]
        found += [(info.name, expert, piece(plan, tensors, info.name, expert)) for expert in experts]
    dice.shuffle(found)
    return found


def bytes_of(tensors: Tensors) -> dict[str, bytes]:
    return {name: raw(tensor) for name, tensor in tensors.items()}


# --- any order --------------------------------------------------------------------------------------------------------


def check_any_order(plan: Plan, tensors: Tensors, other: Tensors, seed: int, backend: str) -> None:
    dice = random.Random(seed)
    wanted = bytes_of(plan.run(tensors))
    updates = plan.updates(outputs_of(plan), backend=backend)
    apply_all(updates, units(plan, tensors, dice))
    assert updates.missing == updates.pending == ()
    assert bytes_of(updates) == wanted

    # Other values among them, into what is there and into rubbish; not where they change what all experts share.
    lasting = {name for step in partial.steps(plan) if step.spans for name in step.needs}
    early = [one for one in units(plan, other, dice) if one[0] not in lasting and dice.random() < 0.2]
    late = {name for name, _, _ in early}
    for into in (updates, plan.updates(outputs_of(plan), backend=backend)):
        mixed = early + units(plan, tensors, dice)
        dice.shuffle(mixed)
        apply_all(into, mixed)
        apply_all(into, [one for one in units(plan, tensors, dice) if one[0] in late])
        turns = 0
        while into.pending:
            apply_all(into, [(*one, piece(plan, tensors, *one)) for one in into.pending[0].waits_for])
            turns += 1
            assert turns < 100
        assert bytes_of(into) == wanted


def apply_all(updates: Updates, todo: list[Unit]) -> None:
    """Give all. One that does not agree with other values that another still has is refused, and comes again later."""
    refused = 0
    while todo:
        name, expert, tensor = todo.pop(0)
        before, held = bytes_of(updates), updates.pending
        try:
            applied = updates.plan.update(updates, name, tensor, expert=expert)
        except LayoutError:
            assert (bytes_of(updates), updates.pending) == (before, held)
            todo.append((name, expert, tensor))
            refused += 1
            assert refused < 1000
            continue
        assert {name for name, old in before.items() if raw(updates[name]) != old} <= set(applied.written)
        here = updates.plan.source_experts if is_apart(updates.plan.input[name]) else [None]
        given = {Piece(name, at) for at in (here if expert is None else [expert])}
        assert applied.pending == tuple(one for one in updates.pending if one.piece in given)
        waits = {one for each in updates.pending for one in each.waits_for}
        assert not waits & {one.piece for one in updates.pending}
        assert all(one.waits_for for one in updates.pending)


def acceptable(plan: Plan, seed: int, mood: str) -> Tensors | None:
    """Inputs that the plan takes; None where none of these moods has any."""
    for tried in (mood, "mild", "flat"):
        tensors = inputs_of(plan, seed, tried)
        for name, tensor in tensors.items() if tried != mood else ():
            if plan.input[name].role == "scale":
                positive(tensor, power="mx" in plan.target.spec)
        try:
            plan.run(tensors)
        except LayoutError:
            continue
        return tensors
    return None


@EVERY
@pytest.mark.parametrize("name", plans.NAMES)
def test_any_order_of_listed_plans(name, backend):
    plan = plans.plan_named(name)
    check_any_order(plan, plans.inputs_of(plan), plans.inputs_of(plan, 1), 2, backend)


@EVERY
@pytest.mark.parametrize("name", plans.NAMES)
def test_several_tensors_at_once(name, backend):
    """Some of them, of any experts, then expert by expert all that experts have of their own."""
    plan, dice = plans.plan_named(name), random.Random(3)
    tensors = plans.inputs_of(plan)
    wanted, updates = bytes_of(plan.run(tensors)), plan.updates(outputs_of(plan), backend=backend)
    together = [info.name for info in plan.inputs if not is_apart(info)]
    dice.shuffle(together)
    plan.update_all(updates, {name: tensors[name] for name in together})
    own = [info for info in plan.inputs if is_apart(info)]
    for expert in dice.sample(range(own[0].experts), own[0].experts) if own else []:
        updates.update_all({info.name: piece(plan, tensors, info.name, expert) for info in own}, expert=expert)
    assert updates.missing == updates.pending == ()
    assert bytes_of(updates) == wanted


def test_of_several_tensors_at_once_none_is_applied_where_one_is_refused():
    plan = plans.plan_named("nvfp4_moe")
    tensors, updates = plans.inputs_of(plan), plan.updates(outputs_of(plan))
    some = {name: piece(plan, tensors, name, 0).clone() for name in tensors if is_apart(plan.input[name])}
    before = bytes_of(updates)
    some["w2.weight_scale"].view(torch.uint8).view(-1)[-1] = 0x7F
    with pytest.raises(LayoutError, match="NaN"):
        updates.update_all(some, expert=0)
    with pytest.raises(LayoutError, match=r"`w2\.scale`"):
        updates.update_all(some | {"w2.scale": some["w2.weight"]}, expert=0)
    assert bytes_of(updates) == before and updates.pending == ()


def test_what_one_needs_may_be_given_at_once():
    plan = plans.plan_named("nvfp4_moe")
    tensors = plans.inputs_of(plan)
    out = plan.run(plans.inputs_of(plan, 1))
    for expert in range(2):
        own = {name: piece(plan, tensors, name, expert) for name in tensors if is_apart(plan.input[name])}
        plan.update_all(out, own, expert=expert)
    assert bytes_of(out) == bytes_of(plan.run(tensors))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids=str)
def test_any_order_of_every_pair(family, source, target, module):
    @examples(2)
    @given(cases(family, source, target, module))
    def holds(case):
        tensors, other = (acceptable(case.plan, case.seed + at, case.mood) for at in range(2))
        if tensors is not None and other is not None:
            check_any_order(case.plan, tensors, other, case.seed, "torch")

    holds()


@pytest.mark.parametrize("name", plans.NAMES)
def test_what_is_not_pending_is_as_it_will_be(name):
    """Bits that depend on a piece are final once it is given and not held."""
    plan = plans.plan_named(name)
    tensors, dice = plans.inputs_of(plan), random.Random(5)
    whole = plan.run(tensors)
    depends = {(one, at): differing(plan, tensors, whole, one, at) for one, at, _ in apart(plan, tensors)}
    updates = plan.updates(outputs_of(plan))
    given = set()
    for name_, expert, tensor in dice.sample(apart(plan, tensors), len(apart(plan, tensors))):
        updates.update(name_, tensor, expert=expert)
        given.add((name_, expert))
        for one in given - {each.piece for each in updates.pending}:
            for output, bits in depends[one].items():
                assert not ((flat(updates[output]) ^ flat(whole[output])) & bits).any(), (one, output)


def apart(plan: Plan, tensors: Tensors) -> list[Unit]:
    """The inputs, all of them expert by expert; of other ranks' experts none."""
    return [
        (info.name, at, piece(plan, tensors, info.name, at))
        for info in plan.inputs
        for at in (dict.fromkeys(plan.source_experts) if is_apart(info) else [None])
    ]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def differing(plan: Plan, tensors: Tensors, whole: Tensors, name: str, expert: int | None) -> Tensors:
    """Which bits of each output are others where one piece is; of pieces that cannot be others, none."""
    found = {output: torch.zeros_like(flat(tensor)) for output, tensor in whole.items()}
    for seed in range(1, 4):
        changed = {one: tensor.clone() for one, tensor in tensors.items()}
        piece(plan, changed, name, expert).copy_(piece(plan, plans.inputs_of(plan, seed), name, expert))
        try:
            made = plan.run(changed)
        except LayoutError:
            continue
        for output, bits in found.items():
            bits |= flat(made[output]) ^ flat(whole[output])
    return found


# --- what is held -----------------------------------------------------------------------------------------------------


def shown(updates: Updates, *given: tuple[str, int | None], tensors: Tensors) -> list[str]:
    """What is pending after each of these pieces."""
    found = []
    for name, expert in given:
        updates.update(name, piece(updates.plan, tensors, name, expert), expert=expert)
        found.append("; ".join(map(str, updates.pending)))
    return found


def test_weights_wait_for_the_zero_points_that_their_recode_needs():
    plan = plans.plan_named("ct_int_zero_points_a8fp8")
    tensors, updates = plans.inputs_of(plan), plan.updates()
    assert shown(updates, ("linear.weight_scale", None), ("linear.weight_zero_point", None), tensors=tensors) == [
        "",
        "`linear.weight_zero_point` waits for `linear.weight_packed`",
    ]
    assert list(map(str, updates.missing)) == ["`linear.weight_packed`", "`linear.weight_shape`"]
    assert updates.update("linear.weight_packed", tensors["linear.weight_packed"]).written == ("linear.weight",)
    assert updates.pending == ()
    # Anew, the weights need the zero points again: those are not kept.
    assert shown(updates, ("linear.weight_packed", None), ("linear.weight_zero_point", None), tensors=tensors) == [
        "`linear.weight_packed` waits for `linear.weight_zero_point`",
        "",
    ]


def test_what_is_sorted_waits_for_its_order():
    plan = plans.plan_named("gptq_act_order_moe")
    given = ("w2.qweight", 1), ("w13.up.scales", 1), ("w2.g_idx", 0), ("w2.g_idx", 1)
    assert shown(plan.updates(), *given, tensors=plans.inputs_of(plan)) == [
        "`w2.qweight` of expert 1 waits for `w2.g_idx` of expert 1",
        "`w13.up.scales` of expert 1 waits for `w2.g_idx` of expert 1; "
        "`w2.qweight` of expert 1 waits for `w2.g_idx` of expert 1",
        "`w13.up.scales` of expert 1 waits for `w2.g_idx` of expert 1; "
        "`w2.qweight` of expert 1 waits for `w2.g_idx` of expert 1; "
        "`w2.g_idx` of expert 0 waits for `w13.gate.qweight` of expert 0, `w13.up.qweight` of expert 0, "
        "`w13.gate.scales` of expert 0, `w13.up.scales` of expert 0, `w13.gate.g_idx` of expert 0, "
        "`w2.qweight` of expert 0",
        "`w2.g_idx` of expert 0 waits for `w13.gate.qweight` of expert 0, `w13.up.qweight` of expert 0, "
        "`w13.gate.scales` of expert 0, `w13.up.scales` of expert 0, `w13.gate.g_idx` of expert 0, "
        "`w2.qweight` of expert 0; "
        "`w2.g_idx` of expert 1 waits for `w13.gate.qweight` of expert 1, `w13.up.qweight` of expert 1, "
        "`w13.gate.scales` of expert 1, `w13.gate.g_idx` of expert 1",
    ]


def test_block_scales_of_an_expert_wait_for_all_its_parts():
    plan = plans.plan_named("nvfp4_moe")
    tensors, updates = plans.inputs_of(plan), plan.updates()
    names = ("gate.weight", "gate.weight_scale", "up.weight_scale", "gate.weight_scale_2", "up.weight_scale_2")
    assert shown(updates, *((f"w13.{name}", 1) for name in names), tensors=tensors) == [
        "`w13.gate.weight` of expert 1 waits for `w13.gate.weight_scale` of expert 1",
        "`w13.gate.weight_scale` of expert 1 waits for `w13.up.weight_scale` of expert 1, "
        "`w13.gate.weight_scale_2` of expert 1, `w13.up.weight_scale_2` of expert 1",
        "`w13.gate.weight_scale` of expert 1 waits for `w13.gate.weight_scale_2` of expert 1, "
        "`w13.up.weight_scale_2` of expert 1; "
        "`w13.up.weight_scale` of expert 1 waits for `w13.up.weight` of expert 1, "
        "`w13.gate.weight_scale_2` of expert 1, `w13.up.weight_scale_2` of expert 1",
        "`w13.gate.weight_scale` of expert 1 waits for `w13.up.weight_scale_2` of expert 1; "
        "`w13.up.weight_scale` of expert 1 waits for `w13.up.weight` of expert 1, `w13.up.weight_scale_2` of expert 1; "
        "`w13.gate.weight_scale_2` of expert 1 waits for `w13.up.weight_scale_2` of expert 1",
        "`w13.up.weight_scale` of expert 1 waits for `w13.up.weight` of expert 1",
    ]


def test_what_is_held_is_a_copy():
    plan = plans.plan_named("awq_fill")
    tensors, updates = plans.inputs_of(plan), plan.updates()
    wanted = bytes_of(plan.run(tensors))
    for name in ("linear.qweight", "linear.scales", "linear.qzeros"):
        given = tensors[name].clone()
        updates.update(name, given)
        given.zero_()
    assert bytes_of(updates) == wanted


def test_experts_of_other_ranks_are_passed_over():
    plan = plans.plan_named("gpt_oss_moe")
    tensors, updates = plans.inputs_of(plan), plan.updates(outputs_of(plan))
    before = bytes_of(updates)
    for name in plan.input:
        assert updates.update(name, piece(plan, tensors, name, 0), expert=0) == update.Applied((), ())
    assert bytes_of(updates) == before
    assert {one.expert for one in updates.missing} == {1}
    for name in plan.input:
        updates.update(name, [None, piece(plan, tensors, name, 1)])
    assert bytes_of(updates) == bytes_of(plan.run(tensors))


def test_one_expert_in_several_places():
    params, sizes = {"dtype": "bfloat16"}, {"e": 2, "i": 64, "h": 64}
    plan = compile_plan("fp8_block", "marlin_fp8_a16", "moe_plain", sizes, params=params, experts=(1, 0, 1))
    tensors = inputs_of(plan, 3, "mild")
    updates = plan.updates(outputs_of(plan))
    updates.update("w2.weight", tensors["w2.weight"][1], expert=1)
    made, wanted = updates["w2.weight"], plan.run(tensors)["w2.weight"]
    assert [raw(made[at]) == raw(wanted[at]) for at in range(3)] == [True, False, True]


# --- reductions over all experts --------------------------------------------------------------------------------------


def int8(experts: int = 4) -> Plan:
    sizes = {"e": experts, "i": 128, "h": 128}
    params = {"group": 64, "qzeros": False, "g_idx": False, "source.parts": "apart"}
    return compile_plan("gptq", "marlin_int4_a8int8", "moe_gated", sizes, params=params)


@EVERY
def test_the_largest_scale_of_all_experts(backend):
    plan = int8()
    tensors = plans.inputs_of(plan)
    for name in ("w13.gate.scales", "w13.up.scales"):
        tensors[name].clamp_(max=1.5)
    tensors["w13.up.scales"][2, 0, 0] = 2.0
    updates = plan.updates(outputs_of(plan), backend=backend)
    for name, expert, tensor in apart(plan, tensors):
        if (name, expert) != ("w13.up.scales", 3):
            assert "w13.weight_scale" not in updates.update(name, tensor, expert=expert).written
    one = Piece("w13.up.scales", 3)
    assert [str(each.piece) for each in updates.pending] == [
        *(f"`w13.gate.scales` of expert {at}" for at in range(4)),
        *(f"`w13.up.scales` of expert {at}" for at in range(3)),
    ]
    assert {each.waits_for for each in updates.pending} == {(one,)}
    updates.update(one.name, tensors[one.name][3], expert=3)
    assert bytes_of(updates) == bytes_of(plan.run(tensors))

    tensors["w13.gate.scales"][3] *= 0.75  # the largest stays
    tensors["w13.up.scales"][3] *= 0.5
    updates.update("w13.gate.scales", tensors["w13.gate.scales"][3], expert=3)
    assert list(map(str, updates.pending)) == [f"`w13.gate.scales` of expert 3 waits for {one}"]
    updates.update(one.name, tensors[one.name][3], expert=3)
    assert updates.pending == ()
    assert bytes_of(updates) == bytes_of(plan.run(tensors))


@EVERY
@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_change_of_the_largest_scale_is_refused(backend, factor):
    plan = int8()
    tensors = plans.inputs_of(plan)
    tensors["w2.scales"].clamp_(max=1.5)
    tensors["w2.scales"][2, 0, 0] = 2.0
    updates = plan.updates(backend=backend)
    for name, expert, tensor in apart(plan, tensors):
        updates.update(name, tensor, expert=expert)
    before = bytes_of(updates)
    with pytest.raises(LayoutError) as refusal:
        updates.update("w2.scales", tensors["w2.scales"][2] * factor, expert=2)
    assert str(refusal.value).splitlines() == [
        "LP352 changes-all: `w2.weight_scale` is relative to the largest scale of all experts, which this update "
        "changes",
        "  = help: begin anew with `plan.updates(out)` and give `w2.scales` of all experts; nothing else is needed",
    ]
    assert (bytes_of(updates), updates.pending) == (before, ())
    updates.update("w2.scales", tensors["w2.scales"][1] * 0.5, expert=1)  # others can go on
    tensors["w2.scales"][1] *= 0.5

    tensors["w2.scales"][2] *= factor
    anew = plan.updates(dict(updates), backend=backend)
    for expert in (3, 1, 0, 2):
        anew.update("w2.scales", tensors["w2.scales"][expert], expert=expert)
    assert anew.pending == ()
    assert bytes_of(updates) == bytes_of(plan.run(tensors))
    tensors["w2.scales"] *= 0.25  # or all at once
    updates.update("w2.scales", tensors["w2.scales"])
    assert bytes_of(updates) == bytes_of(plan.run(tensors))


@EVERY
def test_a_new_round_may_change_what_all_experts_share(backend):
    plan = int8()
    tensors, other = (plans.inputs_of(plan, seed) for seed in (0, 1))
    updates = plan.updates(outputs_of(plan), backend=backend)
    total = {name: of for name, (_, of) in updates.progress.items()}
    for step, drawn in enumerate((tensors, other | {"w2.scales": other["w2.scales"] * 4})):
        updates = plan.updates(dict(updates), backend=backend)
        assert updates.progress == {name: (0, of) for name, of in total.items()} and updates.held == 0
        pieces = random.Random(step).sample(apart(plan, drawn), len(apart(plan, drawn)))
        for at in range(0, len(pieces), 7):
            updates.update_each((name, expert, tensor) for name, expert, tensor in pieces[at : at + 7])
            assert (updates.held == 0) is (updates.pending == ())
            assert updates.progress["w2.weight_scale"][0] in (0, total["w2.weight_scale"])
        assert updates.progress == {name: (of, of) for name, of in total.items()} and updates.held == 0
        assert bytes_of(updates) == bytes_of(plan.run(drawn))


@EVERY
def test_one_shift_for_the_block_scales_of_all_experts(backend):
    sizes, params = {"e": 4, "i": 48, "h": 80}, {"dtype": "bfloat16", "parts": "stacked"}
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "moe_gated", sizes, params=params, habits=PEER)
    tensors = plans.inputs_of(plan)
    for name in ("w13.weight_scale", "w2.weight_scale"):
        tensors[name].view(torch.uint8).bitwise_and_(0x7F).clamp_(max=0x50)
    tensors["w2.weight_scale"][1, 0, 0] = 448.0
    updates = plan.updates(outputs_of(plan), backend=backend)
    check = lambda: bytes_of(updates) == bytes_of(plan.run(tensors))  # noqa: E731
    for name, expert, tensor in apart(plan, tensors):
        updates.update(name, tensor, expert=expert)
    assert check()
    again = "w2.weight", "w2.weight_scale", "w2.weight_scale_2"
    tensors["w2.weight_scale"][3].view(torch.uint8).clamp_(min=0x28)  # small beside the largest, of expert 1
    for name in again:
        updates.update(name, tensors[name][3], expert=3)
    assert check()
    tensors["w2.weight_scale"][1, 0, 0] = 320.0  # the shift stays, and so it does where it has become that of 1 alone
    for name in again:
        updates.update(name, tensors[name][1], expert=1)
    assert check()
    before = bytes_of(updates)
    tensors["w2.weight_scale"][1, 0, 0] = 2.0
    updates.update("w2.weight_scale", tensors["w2.weight_scale"][1], expert=1)
    with pytest.raises(LayoutError, match="is relative to the largest block scale of all experts"):
        updates.update("w2.weight_scale_2", tensors["w2.weight_scale_2"][1], expert=1)
    assert bytes_of(updates) == before


# --- what an update costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "share"), [("gptq", 1.0), ("int8", 2.0)])
def test_one_of_many_experts_costs_its_share(name, share, monkeypatch):
    """Bytes read and codes written by the partial plans, which is all that backends carry out; not a timing."""
    count = 256
    sizes, params = {"e": count, "i": 128, "h": 128}, {"group": 64, "qzeros": False, "g_idx": False}
    target = "marlin_int4_a8int8" if name == "int8" else "marlin_int4_a16"
    plan = compile_plan("gptq", target, "moe_plain", sizes, params=params)
    tensors = inputs_of(plan, 1, "flat")
    updates = plan.updates(outputs_of(plan))
    for one, tensor in tensors.items():
        updates.update(one, tensor)
    wanted = bytes_of(plan.run(tensors))
    done: list[Plan] = []
    carry_out = update.amend
    monkeypatch.setattr(update, "amend", lambda name, plan, *rest: (done.append(plan), carry_out(name, plan, *rest)))
    for one in tensors:
        done.clear()
        updates.update(one, tensors[one][7], expert=7)
        assert (
            sum(map(cost, done))
            <= (share if one.endswith("scales") else 1)
            * cost(
                partial.partial(plan, [step for step in partial.steps(plan) if one in step.needs], plan.source_experts)
            )
            / count
        )
    assert bytes_of(updates) == wanted


def cost(plan: Plan) -> int:
    """Bytes that a plan reads, and codes that it writes, of all its experts."""
    written = sum(plan.output[program.output].codes for program in plan.programs)
    return plan.experts[2] * (sum(one.size for one in plan.reads().values()) + written)


@EVERY
def test_other_experts_are_not_touched(backend):
    """Pads are written with the first tensor of their expert."""
    sizes, params = {"e": 4, "i": 96, "h": 96}, {"group": 32, "qzeros": False, "g_idx": False}
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, params=params)
    tensors = plans.inputs_of(plan)
    updates = plan.updates(outputs_of(plan), backend=backend)
    applied = updates.update("w13.up.qweight", tensors["w13.up.qweight"][2], expert=2)
    assert applied.written == tuple(plan.output)
    assert [name for name, (done, _) in updates.progress.items() if done] == ["w13.weight"]
    for name, tensor in updates.items():
        changed = [bool((row.view(torch.uint8) != 0x5A).any()) for row in tensor.view(4, -1)]
        assert changed == [False, False, True, False], name
    applied = updates.update("w13.up.qweight", tensors["w13.up.qweight"][2], expert=2)
    assert applied.written == ("w13.weight",)


# --- what callers give ------------------------------------------------------------------------------------------------


def refusal(updates: Updates | dict, plan: Plan, name: str, tensor, **options) -> str:
    before = bytes_of(dict(updates))
    with pytest.raises(LayoutError) as caught:
        plan.update(updates, name, tensor, **options)
    assert bytes_of(dict(updates)) == before
    return str(caught.value)


def test_what_does_not_fit():
    plan = int8()
    tensors, updates = plans.inputs_of(plan), plan.updates(outputs_of(plan))
    one = tensors["w2.qweight"][0]
    assert "LP160 unknown-tensor: the plan reads no tensor `w2.weight`" in refusal(updates, plan, "w2.weight", one)
    assert "LP162 wrong-shape: `w2.qweight` has the shape" in refusal(updates, plan, "w2.qweight", one)
    assert "`w2.qweight`, expert 1 has the shape" in refusal(updates, plan, "w2.qweight", one[1:], expert=1)
    assert "`w2.qweight`, expert 1 is float32" in refusal(updates, plan, "w2.qweight", one.float(), expert=1)
    for expert in (-1, 4, True, 1.5):
        found = refusal(updates, plan, "w2.qweight", one, expert=expert)
        assert f"LP351 no-such-expert: `w2.qweight` has 4 experts, expert {expert} is given" in found
    linear = plans.plan_named("awq_fill")
    assert "LP351 no-such-expert: `linear.scales` has no experts, expert 0 is given" in refusal(
        linear.updates(), linear, "linear.scales", plans.inputs_of(linear)["linear.scales"], expert=0
    )
    out = outputs_of(plan)
    del out["w2.weight"]
    with pytest.raises(LayoutError, match=r"lacks the tensor `w2.weight`"):
        plan.updates(out)
    with pytest.raises(LayoutError, match="there is no backend `tensor`"):
        plan.updates(backend="tensor").update("w2.qweight", one, expert=1)


@EVERY
def test_a_refused_value_changes_nothing(backend):
    plan = plans.plan_named("nvfp4_moe")
    tensors = plans.inputs_of(plan)
    updates = plan.updates(outputs_of(plan), backend=backend)
    for name, expert, tensor in apart(plan, tensors):
        if name != "w13.up.weight_scale_2":
            updates.update(name, tensor, expert=expert)
    held = updates.pending
    found = refusal(updates, plan, "w13.up.weight_scale_2", tensors["w13.up.weight_scale_2"] * 3)
    assert "LP171 global-scales-differ: `w13.up.weight_scale_2` at expert 0, part up" in found
    assert updates.pending == held
    updates.update("w13.up.weight_scale_2", tensors["w13.up.weight_scale_2"])
    assert bytes_of(updates) == bytes_of(plan.run(tensors))


@EVERY
def test_a_refused_expert_keeps_the_others_from_being_written(backend):
    """Of a whole tensor, though its experts are not all applied alike."""
    plan = plans.plan_named("ct_int_zero_points_a8fp8")
    params, sizes = {"group": 32, "zero_points": True, "shape_tensor": False}, {"e": 3, "i": 64, "h": 64}
    plan = compile_plan("ct_int", "marlin_int4_a8fp8", "moe_plain", sizes, params=params)
    tensors = plans.inputs_of(plan)
    updates = plan.updates(outputs_of(plan), backend=backend)
    updates.update("w2.weight_packed", tensors["w2.weight_packed"][1], expert=1)
    scales = tensors["w2.weight_scale"].clone()
    scales[1] = float("inf")
    found = refusal(updates, plan, "w2.weight_scale", scales)
    assert "LP170 value-refused: `w2.weight_scale` at expert 1" in found
    updates.update("w2.weight_scale", tensors["w2.weight_scale"])


def test_alone_into_the_outputs_of_a_run():
    plan = int8()
    tensors = plans.inputs_of(plan)
    out = plan.run(tensors)
    tensors["w2.qweight"][1] = tensors["w2.qweight"][3]
    applied = plan.update(out, "w2.qweight", tensors["w2.qweight"][1], expert=1, backend="cpu")
    assert "w2.weight" in applied.written
    assert bytes_of(out) == bytes_of(plan.run(tensors))
    assert refusal(out, plan, "w2.scales", tensors["w2.scales"][1], expert=1).splitlines() == [
        "LP350 not-alone: it cannot be applied alone: `w2.scales` of expert 1 waits for `w2.scales` of expert 0, "
        "`w2.scales` of expert 2, `w2.scales` of expert 3",
        "  = help: give them to `updates = plan.updates(out)`, in any order: it holds each until it can be applied",
    ]
    plan.update(out, "w2.scales", tensors["w2.scales"] * 2)  # all of them need no others
    tensors["w2.scales"] *= 2
    assert bytes_of(out) == bytes_of(plan.run(tensors))


@pytest.mark.parametrize("module", [partial, ledger])
def test_the_examples(module):
    assert doctest.testmod(module).failed == 0


# --- what it was not made for, found by hand --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [int, torch.tensor, np.int64])
def test_any_whole_number_is_an_expert(kind):
    plan = mx_plan(2, 64)
    updates, tensors = plan.updates(), mx_tensors(plan)
    for expert in range(2):
        for name, tensor in tensors.items():
            updates.update(name, tensor[expert], expert=kind(expert))
    assert updates.missing == updates.pending == ()
    assert bytes_of(updates) == bytes_of(plan.run(tensors))


@pytest.mark.parametrize("given", [None, 5, "x", [], [("w13.weight", None)]], ids=repr)
def test_what_is_no_mapping_of_tensors(given):
    plan = mx_plan(2, 64)
    for out in (outputs_of(plan), plan.updates()):
        with pytest.raises(LayoutError, match=f"LP166 no-tensor: tensors are given as a {type(given).__name__}"):
            plan.update_all(out, given)


@pytest.mark.parametrize("given", [None, 5, "x", [1], [("w13.weight", None)]], ids=repr)
def test_what_is_no_list_of_tensors(given):
    with pytest.raises(LayoutError, match=r"LP166 no-tensor: .* is given, \(name, expert, tensor\) is needed"):
        mx_plan(2, 64).updates().update_each(given)


def test_an_update_of_nothing():
    """Of tensors that are none nothing is written, and what is written has to be given."""
    plan = mx_plan(2, 64)
    name, tensor = next(iter(mx_tensors(plan).items()))
    for no_tensor in (None, {}, 5):
        assert "LP166 no-tensor" in refusal(plan.updates(), plan, name, no_tensor)
    for out, told in ((None, "LP161 .*`out` lacks the tensor"), (5, "LP166 .*`out` is a int, a mapping from name")):
        with pytest.raises(LayoutError, match=told):
            plan.update(out, name, tensor)


@EVERY
def test_outputs_that_were_made_in_inference_mode(backend):
    plan = plans.plan_named("nvfp4_moe")
    tensors = plans.inputs_of(plan)
    wanted = plan.run(tensors)
    with torch.inference_mode():
        run, updated = ({name: torch.zeros_like(tensor) for name, tensor in wanted.items()} for _ in range(2))
    plan.run(tensors, out=run, backend=backend)
    plan.update_all(updated, tensors, backend=backend)
    assert bytes_of(run) == bytes_of(updated) == bytes_of(wanted)


@pytest.mark.parametrize("expert", [1.0, "1", True, torch.tensor(1.0), [1]])
def test_what_is_no_expert(expert):
    plan = mx_plan(2, 64)
    name, tensor = next(iter(mx_tensors(plan).items()))
    with pytest.raises(LayoutError, match="LP351"):
        plan.updates().update(name, tensor[1], expert=expert)


@EVERY
def test_a_tensor_may_lie_on_the_outputs(backend):
    """Expert 1 is written apart from 0 and 2, since its scales were there first."""
    plan = mx_plan(3, 72)
    tensors, made = mx_tensors(plan), []
    for apart in (False, True):
        updates = plan.updates({name: torch.zeros_like(one) for name, one in outputs_of(plan).items()}, backend=backend)
        updates.update("w13.weight_scale", tensors["w13.weight_scale"][1], expert=1)
        weight = tensors["w13.weight"]
        lying = updates["w13.weight"].view(torch.uint8).view(-1)[: weight.numel()].view(weight.dtype).view(weight.shape)
        lying.copy_(weight)
        updates.update("w13.weight", lying.clone() if apart else lying)
        made.append(raw(updates["w13.weight"]))
    assert made[0] == made[1]


def mx_plan(experts: int, inner: int) -> Plan:
    sizes = {"e": experts, "i": inner, "h": 128}
    return compile_plan("mxfp8", "marlin_mxfp8_a16", "moe_plain", sizes, params={"dtype": "bfloat16"})


def mx_tensors(plan: Plan) -> Tensors:
    numbers = torch.Generator().manual_seed(0)
    return {
        info.name: torch.randint(1, 100, info.full_shape, generator=numbers).to(torch.uint8).view(
            getattr(torch, info.dtypes[0])
        )
        for info in plan.inputs
    }


def test_a_backend_is_refused_before_the_first_tensor():
    plan = compile_plan("mxfp8", "marlin_mxfp8_a16", "linear", {"n": 64, "k": 128}, params={"dtype": "bfloat16"})
    for name in ("nope", None, []):
        with pytest.raises(LayoutError, match="LP150"):
            plan.updates(backend=name)
