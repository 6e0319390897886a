"""The way back: what a plan does not name as irreversible comes back byte for byte, on every backend; what it names, at
most as far off as it says.
"""

from __future__ import annotations

import doctest

import plans
import pytest
import torch
from hypothesis import given
from test_backends import MODULES, PAIRS, PEER, cases, examples, inputs_of, names_of, raw
from test_update import acceptable, bytes_of

from layoutdsl import LayoutError, Plan, compile_plan, irreversible
from layoutdsl.backends import BACKENDS
from layoutdsl.recodes import Habits

EVERY = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "cuda"])  # it has tensors on a GPU
Tensors = dict[str, torch.Tensor]


def there_and_back(plan: Plan, tensors: Tensors, backend: str = "torch") -> Tensors:
    back = plan.inverse()
    made = plan.run(tensors, backend=backend)
    return back.run({name: made[name] for name in back.input}, backend=backend)


def slices(plan: Plan, tensors: Tensors) -> Tensors | None:
    """The rank's slices of the source tensors, in their own format; None where its own rules would cut elsewhere."""
    if plan.slots:
        tensors = {name: tensor[list(plan.slots)] for name, tensor in tensors.items()}
        return tensors if plan.ranks.tp == 1 else None
    if plan.ranks.tp * plan.ranks.ep == 1 or plan.sharded or plan.source.spec in names_of("kernel"):
        return tensors
    params = {f"{side}.{name}": value for side in ("source", "target") for name, value in plan.source.params}
    params |= {f"module.{name}": value for name, value in plan.module.params}
    spec, ranks = plan.source.spec, plan.ranks
    options = {"tp": ranks.tp, "rank": ranks.rank, "ep": ranks.ep, "ep_rank": ranks.ep_rank}
    try:
        own = compile_plan(
            spec, spec, plan.module.spec, dict(plan.sizes), params=params, grains=dict(plan.grains), **options
        )
    except LayoutError:  # part of an order is no order
        return None
    cuts = [[(e.matrix, e.axis, e.part, e.start, e.length) for e in one.extents] for one in (plan, own)]
    return own.run(tensors) if cuts[0] == cuts[1] else None


def lost(plan: Plan) -> set[str]:
    return {name for name, _ in plan.irreversible()}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids=str)
def test_what_is_not_named_comes_back(family, source, target, module):
    @examples(2)
    @given(cases(family, source, target, module))
    def holds(case):
        plan, tensors = case.plan, acceptable(case.plan, case.seed, case.mood)
        if tensors is None:
            return
        try:
            here = there_and_back(plan, tensors)
        except LayoutError:  # scales that one side does not hold, kernels that pad otherwise
            return
        wanted = slices(plan, tensors)
        for name in plan.input.keys() - lost(plan) if wanted is not None else ():
            assert (here[name].shape, here[name].dtype) == (wanted[name].shape, wanted[name].dtype)
            assert raw(here[name]) == raw(wanted[name]), name

    holds()


@EVERY
@pytest.mark.parametrize("name", plans.CASES)
def test_every_backend_goes_back(name, backend):
    plan = plans.plan_named(name)
    tensors = plans.inputs_of(plan)
    here, wanted = there_and_back(plan, tensors, backend), slices(plan, tensors)
    assert bytes_of(here) == bytes_of(there_and_back(plan, tensors))
    for one in plan.input.keys() - lost(plan) if wanted is not None else ():
        assert raw(here[one]) == raw(wanted[one]), one


def back_of(source: str, target: str, sizes: dict | None = None, module: str = "linear", **params) -> list[str]:
    plan = compile_plan(source, target, module, sizes or {"n": 128, "k": 256}, params=params)
    return [f"{name}: {reason}" for name, reason in plan.irreversible()]


@pytest.mark.parametrize("target", ["marlin_int4_a16", "marlin_int4_a16_n128", "awq", "ct_int"])
@pytest.mark.parametrize("group", [-1, 32, 128])
def test_gptq_comes_back(target, group):
    params = {"group": group, "source.zero_points": True, "target.zero_points": True}
    assert back_of("gptq", target, **params) == []
    assert target == "awq" or back_of("gptq", target, group=group) == []
    assert back_of("gptq", "marlin_int8_a16", bits=8, group=group) == []


def test_what_is_named():
    rounded = "int16_scale: scales become multiples of 1/4096 of the largest, off by at most 1/8192 of it"
    assert back_of("gptq", "marlin_int4_a8int8") == [
        f"linear.scales: {rounded}", "linear.scales: int16_undo: rounded once to float16"
    ]  # fmt: skip
    assert back_of("gptq", "marlin_int4_a16", {"n": 128, "k": 250}, group=-1) == [
        "linear.qweight: what stands for no element comes back as padding"
    ]
    sizes = {"e": 2, "i": 64, "h": 128}
    assert back_of("gptq", "marlin_int4_a16", sizes, "moe_gated", group=32, act_order=True) == [
        "w13.gate.qweight: its inputs stay sorted by `w13.gate.g_idx`",
        "w13.gate.qweight: its outputs stay sorted by `w2.g_idx`",
        "w13.up.qweight: its inputs stay sorted by `w13.gate.g_idx`",
        "w13.up.qweight: its outputs stay sorted by `w2.g_idx`",
        "w13.gate.scales: its outputs stay sorted by `w2.g_idx`",
        "w13.up.scales: its outputs stay sorted by `w2.g_idx`",
        "w13.gate.g_idx: it is made anew (recode `ramp`)",
        "w13.up.g_idx: it is made anew (recode `ramp`)",
        "w2.qweight: its inputs stay sorted by `w2.g_idx`",
        "w2.g_idx: it is made anew (recode `ramp`)",
    ]
    assert back_of("nvfp4", "marlin_nvfp4_a16", dtype="float16") == [
        "linear.weight: signs of scales stay in the codes", "linear.weight_scale: signs of scales stay in the codes"
    ]  # fmt: skip
    assert back_of("nvfp4", "marlin_nvfp4_a16", dtype="bfloat16")[1:] == [
        "linear.weight_scale: nvfp4_scale: block scales under 2^-13 of the largest become 0; the run counts them",
        "linear.weight_scale: signs of scales stay in the codes",
        "linear.weight_scale: a power of two stays where it was moved, between the global and the block scales",
        "linear.weight_scale_2: a power of two stays where it was moved, between the global and the block scales",
    ]
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 256}, tp=2, rank=1,
                        params={"split": "k", "bias": True})  # fmt: skip
    assert plan.irreversible() == (("linear.bias", "it is made anew (recode `constant`)"),)
    params = {"input_scale": True, "scale_dtype": "bfloat16", "scale": "channel", "dtype": "bfloat16"}
    assert back_of("fp8", "marlin_fp8_a16", **params)[-1] == (
        "linear.input_scale: it is no part of the way back: the plan passes it through"
    )


# --- how far off what is named may be ---------------------------------------------------------------------------------


def values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_rounded_scales_are_as_near_as_stated(dtype, digits):
    params = {"scale": "channel", "scale_dtype": "float32", "dtype": dtype}
    plan = compile_plan("fp8", "marlin_fp8_a16", "linear", {"n": 512, "k": 128}, params=params)
    assert dict(plan.losses)["linear.weight_scale"].startswith(
        f"round_scale: rounded once to {dtype}, off by at most 2^-{digits} of the scale"
    )
    tensors = inputs_of(plan, 1, "mild")
    was, now = (values(one["linear.weight_scale"]) for one in (tensors, there_and_back(plan, tensors)))
    assert ((now - was).abs() <= was.abs() * 2.0**-digits).all()
    assert (now != was).any()


@pytest.mark.parametrize("habits", [Habits(), PEER])
def test_int16_scales_are_as_near_as_stated(habits):
    sizes, params = {"e": 2, "i": 128, "h": 256}, {"group": 64, "dtype": "float16"}
    plan = compile_plan("gptq", "marlin_int4_a8int8", "moe_plain", sizes, params=params, habits=habits)
    stepwise = habits.int16 == "stepwise"
    assert ("off by at most 1/8192 of it and 2^-9 of the scale" in plan.losses[0][1]) == stepwise
    tensors = plans.inputs_of(plan)
    here = there_and_back(plan, tensors)
    for name in ("w13.scales", "w2.scales"):
        was, now = values(tensors[name]), values(here[name])
        rounded = now.abs() * 2.0**-11  # int16_undo: rounded once to float16
        bound = was.abs().max() / 8192 + (was.abs() * 2.0**-9 if stepwise else 0)
        assert ((now - was).abs() <= bound + rounded).all()
        assert (now != was).any()


def test_only_the_least_block_scales_become_0():
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "linear", {"n": 128, "k": 256}, params={"dtype": "bfloat16"})
    tensors = inputs_of(plan, 1, "wild")
    tensors["linear.weight_scale"].view(torch.uint8).bitwise_and_(0x7F)
    here = there_and_back(plan, tensors)
    was, now = (values(one["linear.weight_scale"]) * values(one["linear.weight_scale_2"]) for one in (tensors, here))
    gone = (now == 0) & (was != 0)
    assert gone.any()
    assert (was[gone] < was.max() * 2.0**-13).all()
    assert torch.equal(now[~gone], was[~gone])


def test_a_reciprocal_is_as_near_as_stated():
    params = {"writer": "compressed_tensors", "dtype": "float16"}
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "linear_fused", {"n": (64, 64, 64), "k": 64}, params=params)
    assert "off by at most 2^-24 of the scale" in dict(plan.losses)["linear.global_scale"]
    tensors = inputs_of(plan, 1, "mild")
    here = there_and_back(plan, tensors)
    for name in plan.input:
        if name.endswith("global_scale"):
            was, now = values(tensors[name]), values(here[name])
            assert ((now - was).abs() <= was.abs() * 2.0**-23).all()  # once there, once back


# --- where there is no way back ---------------------------------------------------------------------------------------


def test_kernels_that_pad_otherwise():
    plan = compile_plan("own_fp8_a16", "own_fp8_a16", "linear", {"n": 64, "k": 64}, params={"source.group": 64})
    with pytest.raises(LayoutError) as refusal:
        plan.inverse()
    assert str(refusal.value).splitlines() == [
        "LP353 no-way-back: there is no way back: kernel `own_fp8_a16` has `linear.weight_scale` as [2, 64] of float16 "
        "at these sizes, this plan makes [1, 64] of float16",
        "  = help: between kernels each side pads and groups by its own rule; go back to a checkpoint format",
    ]


def test_pads_of_symmetric_weights_beside_zero_points_have_their_place():
    """Pads in a group with a zero point come after those beyond the outputs, whatever the source."""
    params = {"group": -1, "source.zero_points": False, "target.zero_points": True}
    compile_plan("ct_int", "marlin_int4_a16", "linear", {"n": 48, "k": 100}, params=params)


def test_the_examples():
    assert doctest.testmod(irreversible).failed == 0
