"""What compile_plan makes of its arguments: parameters per side, groups, padding, and refusals with a way out."""

import shutil

import numpy as np
import pytest
import torch

from layoutdsl import LayoutError, Plan, compile_plan, library
from layoutdsl.compile import forget

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


def test_a_bare_group_is_the_targets_where_the_source_has_none():
    """One scale per channel, read in groups: repeated for each."""
    options = {"source": "fp8", "target": "own_fp8_a16", "sizes": {"n": 128, "k": 384}}
    for group in (128, 64, 32):
        made = plan(params={"group": group, "dtype": "bfloat16"}, **options)
        assert dict(made.groups) == {"linear": group}
        assert made.output["linear.weight_scale"].shape == (384 // group, 128)
    error = refusal(params={"group": 48, "dtype": "bfloat16"}, **options)
    assert error.diagnostics[0].name == "group-not-taken"


def test_a_cut_group_is_refused_with_ways_out_that_work():
    """Only where its size is imposed: else the cut or the groups give way (see test_planner.py)."""
    options = {"module": "mlp_gated", "sizes": {"i": 1408, "h": 256}, "tp": 4, "grains": {"i": 32}}
    error = refusal(params={"target.group": 128}, **options)
    assert error.message == (
        "`down`: 4 tensor-parallel ranks cut axis `i` of 1408 elements at 352, through a group of 128"
    )
    assert error.help == "`--param target.group=32` works, each scale for 4 finer groups"
    for rank in range(4):
        plan(rank=rank, params={"target.group": 32}, **options)
        plan(rank=rank, **options)


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


def test_the_way_back_between_kernels():
    made = plan("marlin_int4_a16", "marlin_int4_a8fp8", "moe_gated", {"e": 2, "i": 192, "h": 256}, params={"group": 64})
    assert dict(made.inverse().groups) == {"w13": 64, "w2": 64}
    finer = plan("marlin_int4_a16", "marlin_int4_a16", params={"source.group": 128, "target.group": 64})
    with pytest.raises(LayoutError, match="`linear` has groups of 64 along `k`, which groups of 128 of kernel"):
        finer.inverse()


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
        ({"params": {"group": "32"}}, "parameter `group` of `awq` cannot be the text \"32\""),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 1.0}, "`tp` is 1.0, a whole number is needed"),
        ({"tp": True}, "`tp` is True, a whole number is needed"),
        ({"tp": 0}, "`tp` is 0, a number of ranks from 1 to 4096 is needed"),
        ({"ep": -1}, "`ep` is -1, a number of ranks from 1 to 4096 is needed"),
        ({"rank": None}, "`rank` is None, a whole number is needed"),
        ({"sizes": [64, 64]}, "`sizes` is [64, 64], a mapping from axis to value is needed"),
        ({"sizes": {"n": "64", "k": 64}}, "`sizes['n']` is '64', a whole number, or a list of widths is needed"),
        ({"sizes": {1: 64}}, "a key of `sizes` is 1, text, the name of its axis, is needed"),
        ({"params": "group=3"}, "`params` is 'group=3', a mapping from parameter to value is needed"),
        ({"params": {"group": 1.5}}, "`params['group']` is 1.5, true or false, a whole number, or text is needed"),
        ({"padded": {"n": 2**50}}, f"`padded['n']` is {2**50}, a whole number from 1 to {2**40} is needed"),
        ({"habits": "zero"}, "`habits` is 'zero', a layoutdsl.Habits is needed"),
        ({"specs": "formats"}, "`specs` is 'formats', a list of folders is needed"),
        ({"specs": ["/does/not/exist"]}, "`/does/not/exist` is no folder of specs"),
        ({"source": None}, "`source` is None, the name or path of a spec, or a loaded one is needed"),
        ({"source": "a" * 5000}, "`source` is str, the name or path of a spec, or a loaded one is needed"),
    ],
)
def test_wrong_arguments_have_a_sentence(options, message):
    error = refusal(**options)
    assert error.message == message
    assert error.help


def test_fused_parts_state_their_widths():
    error = refusal(module="linear_fused", sizes={"n": 192, "k": 64})
    assert error.message == "size `n` is one number, but the parts of `linear` (q, k, v) may differ in width"
    assert error.help == "state one width per part, as in n=192,192,192"


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1], "tensors are given as a list, a mapping from name to tensor is needed"),
        (np.zeros((64, 1)), "`linear.weight` is of type ndarray, a torch tensor is needed"),
        (torch.zeros(64, 64, device="meta"), "`linear.weight` is a meta tensor, a dense one in memory is needed"),
        (torch.zeros(64, 64).to_sparse(), "`linear.weight` is torch.sparse_coo, a dense one in memory is needed"),
        (torch.zeros(64, 32), "`linear.weight` is float32, expected float8_e4m3fn"),
        (torch.zeros(64, 32).to(torch.float8_e4m3fn), "`linear.weight` has the shape [64, 32], expected [64, 64]"),
    ],
)
def test_wrong_tensors_have_a_sentence(given, message, backend):
    made = plan("fp8", "marlin_fp8_a16", sizes={"n": 64, "k": 64})
    with pytest.raises(LayoutError) as caught:
        made.run(given if isinstance(given, list) else {"linear.weight": given}, backend=backend)
    assert caught.value.message == message
    assert caught.value.help


# --- asked again ------------------------------------------------------------------------------------------------------


def test_a_plan_that_was_compiled_before_is_the_same_object():
    first = plan(params={"group": 32}, tp=2, rank=1)
    assert plan(params={"group": 32}, tp=2, rank=1) is first
    assert plan(params={"group": 32}, tp=2, rank=0) is not first
    forget()
    assert plan(params={"group": 32}, tp=2, rank=1) == first


def test_true_is_not_one():
    plan("gptq", params={"group": 32, "zero_points": True})
    with pytest.raises(LayoutError):
        plan("gptq", params={"group": 32, "zero_points": 1})
    plan(sizes={"n": 256, "k": 512}, tp=1)
    with pytest.raises(LayoutError):
        plan(sizes={"n": 256, "k": 512}, tp=True)


def test_a_spec_that_changes_gives_another_plan(tmp_path, monkeypatch):
    shutil.copytree(library.shipped(), tmp_path / "specs")
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "specs")
    monkeypatch.setattr(library, "_RECENT", {})
    file = tmp_path / "specs" / "kernel" / "marlin_int4_a16.yaml"
    build = {"target": "marlin_int4_a16_n128", "sizes": {"n": 192, "k": 512}}
    first, of_build = plan(sizes={"n": 192, "k": 512}), plan(**build)
    file.write_text(file.read_text() + "# another text\n")
    assert plan(sizes={"n": 192, "k": 512}).target.digest != first.target.digest
    assert plan(**build).target.digest != of_build.target.digest
    file.unlink()
    with pytest.raises(LayoutError):
        plan(sizes={"n": 192, "k": 512})
