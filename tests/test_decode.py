"""Both sides of a plan read from their specs alone: against the decoders of the tests, and against each other.

`decode` shares with the decoders nothing but bits. `compare` must find every single code that is changed, wherever it
stands, and must find nothing in what a plan has made.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from conversions import Job, given, rows, stored, tensor
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from plans import NAMES, inputs_of, plan_named
from test_round_trip import CASES, jobs

import layoutdsl.decode as decoding
from layoutdsl import LayoutError, Plan, compile_plan, library
from layoutdsl.checkpoints.compare import Comparison, compare
from layoutdsl.codes import code_named
from layoutdsl.decode import Reading, decode, padding, places
from layoutdsl.model import Format
from layoutdsl.prove.given import Given, Pair, read
from layoutdsl.resolve import Matrix, Side, Stretch, bind, tensors

EXAMPLES = 2


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- against the decoders of the tests --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kernel", "module"), CASES)
def test_every_format_is_worth_what_its_decoder_says(name, kernel, module):
    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @drawn(jobs(name, kernel, module), st.integers(0, 2**32 - 1))
    def holds(job, seed):
        files = job.draw(np.random.default_rng(seed))
        plan = job.plan
        source = given(plan, files)
        made = plan.run(source)
        for pair in read(plan, ()).pairs:
            for at, expert in enumerate(job.held):
                check_source(job, read(plan, ()), pair, files, expert)
                check_kernel(job, read(plan, ()), pair, made, at)
        assert compare(plan, source, made).weights == sum(
            pair.matrix.n_length * pair.matrix.k.length * len(job.held) for pair in read(plan, ()).pairs
        )

    holds()


def check_source(job: Job, sides: Given, pair: Pair, files: dict[str, list], expert: int) -> None:
    matrix = next(matrix for matrix in job.matrices if matrix.name == pair.matrix.name)
    one = {
        name: tensor(arrays[expert], getattr(torch, sides.plan.input[name].dtypes[0])) for name, arrays in files.items()
    }
    found = whole(decode(sides.source, pair.matrix, one))
    for part, wanted in enumerate(job.values(files, matrix, expert, job.source.decode)):
        wanted = wanted[job.cut(len(wanted), matrix.cut == "n"), job.cut(matrix.k, matrix.cut == "k")]
        np.testing.assert_array_equal(found[part], wanted)


def check_kernel(job: Job, sides: Given, pair: Pair, made: dict[str, torch.Tensor], at: int) -> None:
    matrix = next(matrix for matrix in job.matrices if matrix.name == pair.matrix.name)
    arrays = {name: array_of(found) for name, found in made.items()}
    wanted = stored(job, sides.plan, arrays, matrix, at)
    lengths = [stretch.length for stretch in pair.matrix.n]
    one = expert_of(sides.plan, made, at)
    found = whole(decode(sides.target, pair.matrix, one, dict(sides.plan.groups)[matrix.name]))
    if job.kernel.startswith("marlin_mx"):
        # The kernels read the scale byte 0 as 0, their decoder as 2^-127.
        wanted = np.where(np.abs(wanted) <= 448 * 2.0**-127, 0, wanted)
        found = {part: np.where(np.abs(values) <= 448 * 2.0**-127, 0, values) for part, values in found.items()}
    for part, place in enumerate(rows(job, sides.plan, matrix, lengths)):
        np.testing.assert_array_equal(found[part], wanted[place, : pair.matrix.k.length])


def whole(blocks) -> dict[int, np.ndarray]:
    """The values per part."""
    found: dict[int, list[torch.Tensor]] = {}
    for block in blocks:
        assert block.values.dtype == torch.float64
        assert block.values.shape == (len(block.n), len(block.k))
        found.setdefault(block.part, []).append(block.values)
    return {part: torch.cat(values).numpy() for part, values in found.items()}


def expert_of(plan: Plan, made: dict[str, torch.Tensor], at: int) -> dict[str, torch.Tensor]:
    apart = {info.name for info in plan.outputs if info.experts and not info.shared}
    return {name: found[at] if name in apart else found for name, found in made.items()}


def array_of(found: torch.Tensor) -> np.ndarray:
    if found.dtype in (torch.int32, torch.int64, torch.float32, torch.uint8):
        return found.numpy()
    bits = found.view(torch.int16 if found.element_size() == 2 else torch.uint8).numpy()
    return bits.view(np.uint16) if bits.itemsize == 2 else bits


# --- decode itself ----------------------------------------------------------------------------------------------------


def test_blocks_of_rows_make_up_the_whole(monkeypatch) -> None:
    plan = plan_named("gptq_moe_padded")
    sides = read(plan, ())
    one = expert_of(plan, plan.run(inputs_of(plan)), 1)
    for pair in sides.pairs:
        at_once = whole(decode(sides.target, pair.matrix, one, 32))
        monkeypatch.setattr(decoding, "PIECE", 5 * pair.matrix.k.length)
        blocks = list(decode(sides.target, pair.matrix, one, 32))
        monkeypatch.undo()
        assert max(len(block.n) for block in blocks) == 5
        for part, values in whole(blocks).items():
            assert np.array_equal(values, at_once[part])
            start, n = pair.matrix.n[part].start, [block.n for block in blocks if block.part == part]
            assert torch.cat(n).tolist() == list(range(start, start + len(values)))
        first = pair.matrix.k.start
        assert all(block.k.tolist() == list(range(first, first + pair.matrix.k.length)) for block in blocks)


@pytest.mark.parametrize("split", ["none", "n", "k"])
def test_sorted_inputs_come_in_the_order_of_the_checkpoint(split: str) -> None:
    """k_perm says which inputs a rank of a cut k holds: each rank has its columns of the whole."""
    params = {"group": 64, "act_order": True, "zero_points": True, "target.zero_points": True, "split": split}
    plans = [
        compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 256}, params=params, tp=2, rank=rank)
        for rank in range(2)
    ]
    files = inputs_of(plans[0])
    (pair,) = (sides := read(plans[0], ())).pairs
    stretches = Stretch("n", 64, 0, 64, 64), Stretch("k", 256, 0, 256, 256)
    matrix = Matrix("linear", (), stretches[:1], stretches[1], pair.matrix.pad, 64, None, True)
    wanted = torch.from_numpy(whole(decode(sides.source, matrix, files))[0])
    seen = set()
    for plan in plans:
        (pair,) = (sides := read(plan, ())).pairs
        made = plan.run(files)
        for block in decode(sides.target, pair.matrix, made, 64, k_perm=made["linear.k_perm"]):
            assert block.k.tolist() == sorted(made["linear.k_perm"].tolist())
            assert torch.equal(block.values, wanted[block.n][:, block.k])
            seen |= {(int(n), int(k)) for n in block.n for k in block.k}
    assert len(seen) == 64 * 256


def test_a_group_that_is_not_there_is_refused() -> None:
    plan = plan_named("gptq_act_order_split_k")
    sides = read(plan, ())
    for wrong in (-1, 4):
        files = inputs_of(plan)
        files["linear.g_idx"][130] = wrong
        with pytest.raises(LayoutError, match=rf"`linear.g_idx` puts input 2 into group {wrong}, which `linear\.\w+`"):
            list(decode(sides.source, sides.pairs[0].matrix, files))


def test_tensors_that_are_missing_or_too_long_are_named() -> None:
    plan = plan_named("awq_fill")
    sides = read(plan, ())
    files = inputs_of(plan)
    with pytest.raises(LayoutError, match=r"`linear\.scales` has 144 bytes, expected 288") as caught:
        list(decode(sides.source, sides.pairs[0].matrix, files | {"linear.scales": files["linear.scales"][:1]}))
    assert "float16 of shape [2, 72]" in str(caught.value.help)
    del files["linear.qzeros"]
    with pytest.raises(LayoutError, match=r"tensor `linear\.qzeros` is missing"):
        list(decode(sides.source, sides.pairs[0].matrix, files))


FORMATS = [spec for path in library.files() if isinstance(spec := library.read_spec(path), Format)]


@pytest.mark.parametrize("spec", FORMATS, ids=lambda spec: spec.name)
def test_products_fit_float64(spec: Format) -> None:
    """What decode's first lines say of exactness, for every format at its sizes to try."""
    for entry in spec.try_:
        n, k = entry["n"], entry["k"]
        params = bind(spec, {name: value for name, value in entry.items() if name not in ("n", "k")})
        matrix = Matrix("m", (), (Stretch("n", n, 0, n, n),), Stretch("k", k, 0, k, k), "part", n, None, True)
        found = {stored.role: stored.code for stored in tensors(Side(spec, params, "whole"), matrix)}
        bits = sum(significant(found[role]) for role in ("codes", "scale", "global_scale") if role in found)
        assert bits <= 53


def significant(code) -> int:
    if code.kind == "float":
        return code.mantissa + 1
    return 1 if code.kind == "power" else code.bits + code.is_weight_integer


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_code_is_a_weight_s_or_padding(name: str) -> None:
    plan = plan_named(name)
    sides = read(plan, ())
    made = expert_of(plan, plan.run(inputs_of(plan)), 0)
    for pair in sides.pairs:
        found = [stored for tensors_ in pair.target.values() for stored in tensors_]
        reading = Reading(found, made, sides.group("target"))
        pads: dict[str, list[torch.Tensor]] = {}
        for pad in padding(reading, pair.matrix, kernel=sides.pads):
            plane = pad.window.planes[pad.tensor.role]
            at = plane.n[pad.rows].unsqueeze(1) + plane.meets
            pads.setdefault(pad.tensor.name, []).append(at.reshape(-1))
        for stored_ in found:
            if stored_.role in ("act_order", "weight_shape"):
                continue
            seen = torch.cat([*logical(pair, stored_), *pads.get(stored_.name, [])]).to(torch.int64)
            assert torch.equal(seen.unique(), torch.arange(stored_.codes)), stored_.name
            own, beside = (
                torch.cat(logical(pair, stored_)),
                torch.cat([torch.tensor([-1]), *pads.get(stored_.name, [])]),
            )
            assert not torch.isin(own, beside).any(), stored_.name


def logical(pair: Pair, stored_) -> list[torch.Tensor]:
    """Addresses of the matrix' own elements."""
    k = torch.arange(pair.matrix.k.length)
    return [
        (places(n_view, torch.arange(pair.matrix.n[part].length))[:, None] + places(k_view, k)).reshape(-1).unique()
        for part in stored_.parts
        for n_view, k_view in [stored_.view(part)]
    ]


# --- compare ----------------------------------------------------------------------------------------------------------


def converted(name: str) -> tuple[Plan, dict, dict]:
    plan = plan_named(name)
    files = inputs_of(plan)
    return plan, files, plan.run(files)


def refusal(plan: Plan, files: dict, made: dict) -> str:
    with pytest.raises(LayoutError) as caught:
        compare(plan, files, made)
    assert caught.value.diagnostics[0].code == "LP222"
    return caught.value.message


@pytest.mark.parametrize("name", NAMES)
def test_every_flip_is_found(name: str) -> None:
    """One bit of one code at a time, in every tensor of the target: weights, scales, zero points, biases, padding."""
    plan, files, made = converted(name)
    compare(plan, files, made)
    dice = random.Random(name)
    for info in plan.outputs:
        bits = 32 if info.role == "weight_shape" else code_named(info.code).bits
        flat = made[info.name].reshape(-1).view(torch.uint8)
        for _ in range(5):
            at = dice.randrange(flat.numel() * 8 // bits) * bits + dice.randrange(bits)
            flat[at // 8] ^= 1 << at % 8
            with pytest.raises(LayoutError):
                compare(plan, files, made)
            flat[at // 8] ^= 1 << at % 8
    compare(plan, files, made)


def test_the_first_difference_is_told_with_its_place_and_how_many_there_are() -> None:
    plan, files, made = converted("gptq_moe_padded")
    tile = made["w13.weight"][1]
    tile ^= 0x33333333
    assert (
        refusal(plan, files, made)
        == "`w13.weight` at expert 1, part gate, n 96, k 0: a weight is worth 7.0 x 1.9248046875 = 13.4736328125, "
        "expected 4.0 x 1.9248046875 = 7.69921875; 32,768 of 66,432 values differ"
    )


def test_swapped_scales_are_found() -> None:
    plan, files, made = converted("ct_int_narrowed")
    scales = made["linear.weight_scale"]
    scales[1, [3, 4]] = scales[1, [4, 3]]
    message = refusal(plan, files, made)
    assert message.startswith("`linear.weight_scale` at n ") and message.endswith("; 128 of 8,192 values differ")


def test_a_wrong_code_beside_a_scale_of_zero_is_found() -> None:
    plan = plan_named("ct_int_narrowed")
    files = inputs_of(plan)
    files["linear.weight_scale"].zero_()
    made = plan.run(files)
    made["linear.weight"][0, 0] ^= 1
    assert "x 0.0 = " in refusal(plan, files, made)


def test_a_zero_of_the_other_sign_is_found() -> None:
    plan, files, _ = converted("fp8_per_tensor")
    for info in plan.inputs:
        if info.role == "codes":
            files[info.name].view(torch.uint8).zero_()
    made = plan.run(files)
    made["linear.weight"][0, 0] ^= 0x80
    assert "-0.0 x " in refusal(plan, files, made)


def test_a_code_that_is_no_number_is_found_on_both_sides() -> None:
    plan, files, made = converted("fp8_block_fused")
    made["linear.weight"].fill_(0x7F7F7F7F)
    for name in ("linear.q.weight", "linear.k.weight", "linear.v.weight"):
        files[name].view(torch.uint8).fill_(0x7F)
    assert "nan" in refusal(plan, files, made)


@pytest.mark.parametrize("pads", ["neutral", "zero"])
def test_a_pad_that_is_not_neutral_is_found(pads: str) -> None:
    plan, files, made = converted("awq_fill" if pads == "neutral" else "awq_habits")
    made["linear.weight_scale"][1, -1] = 1.0
    assert refusal(plan, files, made).startswith("`linear.weight_scale` in its padding, counted on to n ")
    plan, files, made = converted("awq_fill" if pads == "neutral" else "awq_habits")
    made["linear.weight"][-1, -1] ^= 1
    assert refusal(plan, files, made).startswith("`linear.weight` in its padding, counted on to n ")


def test_what_is_beside_the_weights_is_compared_too() -> None:
    plan, files, made = converted("fp8_per_tensor")
    made["linear.bias"][0] += 1
    assert "`linear.bias` at part q, n 0, k 0: it is worth " in refusal(plan, files, made)
    plan, files, made = converted("fp8_per_tensor")
    made["linear.k.input_scale"] *= 2
    assert refusal(plan, files, made).startswith("`linear.k.input_scale` differs from the source's bytes")
    plan, files, made = converted("gptq_act_order_moe")
    made["w13.k_perm"][1] = made["w13.k_perm"][1].flip(0)
    assert refusal(plan, files, made).startswith("`w13.k_perm` of expert 1 differs from the inputs sorted by group")
    plan, files, made = converted("gptq_to_ct_int")
    made["w2.weight_shape"][1, 0] = 35
    assert refusal(plan, files, made).startswith("`w2.weight_shape` of expert 1 says [35, 12], the matrix is [36, 12]")


def test_only_the_first_of_summed_ranks_adds_the_bias() -> None:
    plan, files, made = converted("sharded_inside_a_group")
    assert plan.ranks.rank == 1 and not made["linear.bias"].any()
    made["linear.bias"][5] = files["linear.bias"][5]
    assert "expected 0.0" in refusal(plan, files, made)


def test_a_tensor_of_another_plan_is_refused() -> None:
    plan, files, made = converted("awq_fill")
    scale = made["linear.weight_scale"]
    with pytest.raises(LayoutError, match=r"`linear.weight_scale` is float16 \[1, 128\], expected float16 \[2, 128\]"):
        compare(plan, files, made | {"linear.weight_scale": scale[:1]})
    with pytest.raises(LayoutError, match=r"is float32 \[2, 128\], expected float16 \[2, 128\]"):
        compare(plan, files, made | {"linear.weight_scale": scale.float()})
    with pytest.raises(LayoutError, match=r"the plan writes no tensor `linear\.scale`"):
        compare(plan, files, made | {"linear.scale": scale})
    del made["linear.weight_scale"]
    with pytest.raises(LayoutError, match=r"tensor `linear\.weight_scale` is missing"):
        compare(plan, files, made)


# --- declared losses --------------------------------------------------------------------------------------------------


def test_losses_are_measured() -> None:
    """Exact plans have none; others are off by no more than their bound says, and by something."""
    assert compare(*converted("gptq_moe_padded")).losses == ()
    (scale,) = compare(*converted("fp8_per_tensor")).losses
    assert scale.tensor == "linear.weight_scale" and "rounded once to bfloat16" in scale.bound
    assert 0 < scale.error <= 2.0**-8 and scale.of == 64 + 32 + 40


def test_int16_scales_are_relative_to_the_largest() -> None:
    plan, files, made = converted("gptq_int8_a8int8")
    (loss,) = compare(plan, files, made).losses
    scales = files["linear.scales"].double()
    least, largest = scales.min().item(), scales.max().item()
    assert 0 < loss.error <= largest / 8192 / least
    files["linear.scales"][0, 0] = files["linear.scales"].max() * 1.5
    assert refusal(plan, files, made).endswith("16,320 of 16,384 values differ")


def test_block_scales_that_vanish_are_an_error_of_one() -> None:
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "linear", {"n": 64, "k": 128}, params={"dtype": "bfloat16"})
    files = inputs_of(plan)
    files["linear.weight_scale"].view(torch.uint8)[:] = 0x7E
    files["linear.weight_scale"].view(torch.uint8)[3, 2] = 1
    (loss,) = compare(plan, files, plan.run(files)).losses
    assert loss.error == 1.0 and "become 0" in loss.bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_dividing_global_scale_is_rounded_once(dtype: str) -> None:
    params = {"writer": "compressed_tensors", "dtype": dtype}
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "linear", {"n": 64, "k": 128}, params=params)
    files = inputs_of(plan)
    files["linear.weight_global_scale"].fill_(3.0)
    made = plan.run(files)
    found = {loss.tensor: loss.error for loss in compare(plan, files, made).losses}
    assert 0 < found["linear.global_scale"] <= 2.0**-24
    made["linear.global_scale"].view(torch.int32)[:] += 1
    assert refusal(plan, files, made).startswith("`linear.weight_scale` times `linear.global_scale` at n 0, k 0: ")


def test_comparisons_add_up() -> None:
    one, other = compare(*converted("fp8_per_tensor")), compare(*converted("gptq_moe_padded"))
    both = one + other
    assert (both.weights, both.others, both.pads) == (
        one.weights + other.weights,
        one.others + other.others,
        one.pads + other.pads,
    )
    assert both.losses == one.losses and one + Comparison() == one
