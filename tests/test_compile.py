"""What compile_plan makes of its arguments: parameters per side, groups, padding, and refusals with a way out."""

import pytest

from layoutdsl import LayoutError, Plan, compile_plan

MOE = {"e": 8, "i": 1408, "h": 2048}


def plan(source: str = "awq", target: str = "marlin_int4_a16", module: str = "linear", sizes=None, **options) -> Plan:
    return compile_plan(source, target, module, sizes or {"n": 256, "k": 512}, **options)


def refusal(**options) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        plan(**options)
    return caught.value


def test_a_bare_parameter_counts_for_every_side_that_has_it():
    made = plan(params={"group": 32, "dtype": "bfloat16"})
    assert dict(made.source.params)["group"] == dict(made.target.params)["group"] == 32
    assert made.output["linear.weight_scale"].dtypes == ("bfloat16",)


def test_the_target_takes_over_what_it_shares_and_can_differ():
    made = plan("gptq", params={"zero_points": True, "target.dtype": "bfloat16"})
    assert "linear.zero_point" in made.output
    assert made.input["linear.scales"].dtypes == ("float16",)
    assert made.output["linear.weight_scale"].dtypes == ("bfloat16",)


def test_a_bare_group_leaves_the_kernel_its_choice():
    """A rank inside one group: one row of scales, unless target.group asks for that many rows."""
    options = {"module": "linear", "sizes": {"n": 64, "k": 128}, "tp": 2}
    bare = plan(params={"group": 128, "split": "k"}, **options)
    assert dict(bare.groups) == {"linear": 0}
    asked = plan(params={"source.group": 128, "target.group": 32, "split": "k"}, **options)
    assert dict(asked.groups) == {"linear": 32}
    assert asked.output["linear.weight_scale"].shape == (asked.extents[0].padded // 32, 64)


def test_a_cut_group_is_refused_with_ways_out_that_work():
    error = refusal(module="moe_gated", sizes=MOE, tp=4)
    assert error.message == (
        "`w2`: 4 tensor-parallel ranks cut axis `i` of 1408 elements through a group of 128: each holds 352"
    )
    assert error.help == (
        "target.group=32 reads them as finer groups, exactly; 1 tensor-parallel rank keeps every group whole"
    )
    for rank in range(4):
        plan(module="moe_gated", sizes=MOE, tp=4, rank=rank, params={"target.group": 32})
    plan(module="moe_gated", sizes=MOE)


def test_groups_that_do_not_nest_are_refused():
    options = {"source": "gptq", "target": "ct_int", "sizes": {"n": 64, "k": 960}}
    error = refusal(params={"source.group": 48, "target.group": 64}, **options)
    assert error.message == "`linear` has groups of 48 along `k`, which do not fit groups of 64 of `ct_int`"
    plan(params={"source.group": 48, "target.group": 16}, **options)


def test_the_tile_family_with_the_fewest_bytes_wins():
    made = plan(sizes={"n": 64, "k": 128}, params={"group": 128})
    assert made.output["linear.weight"].shape == (8, 128)  # n 64, k 128: no padding
    made = plan(sizes={"n": 128, "k": 64}, params={"group": -1})
    assert made.output["linear.weight"].shape == (4, 256)  # n 128, k 64: none either
    made = plan(sizes={"n": 65, "k": 64}, params={"group": -1})
    assert made.output["linear.weight"].shape == (4, 256)  # 128 x 64 and not 128 x 128


def test_input_scales_pass_through_and_are_no_part_of_the_inverse():
    made = plan("fp8", "marlin_fp8_a16", params={"input_scale": True})
    assert made.passed == (("linear.input_scale", "linear.input_scale"),)
    back = made.inverse()
    assert [info.name for info in back.outputs] == ["linear.weight", "linear.weight_scale"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": {"grup": 32}}, "no side has a parameter `grup`"),
        ({"params": {"target.grup": 32}}, "`marlin_int4_a16` has no parameter `grup`"),
        ({"params": {"group": "32"}}, "parameter `group` of `awq` cannot be 32"),
        ({"sizes": {"n": 64}}, "module `linear` needs the size of axis `k` (input features)"),
        ({"sizes": {"n": 64, "k": 0}}, "size `k` of module `linear` cannot be 0"),
        ({"sizes": {"n": (64, 64), "k": 64}}, "size `n` has 2 widths, `linear` has one part"),
        ({"tp": 3, "params": {"split": "n"}}, "axis `n` has 256 elements, which 3 tensor-parallel ranks do not divide"),
        ({"rank": 1}, "rank 1 of 1 tp ranks does not exist"),
        ({"ep": 2}, "module `linear` has no experts for 2 expert-parallel ranks to share"),
        ({"target": "marlin_fp8_a16"}, "`linear.weight` cannot be made"),
        ({"source": "linear"}, "`linear` is a module spec, a checkpoint or kernel spec is needed"),
        ({"source": "aqw"}, "there is no spec `aqw`"),
    ],
)
def test_refusals(options, message):
    error = refusal(**options)
    assert message in error.message
    assert error.help
