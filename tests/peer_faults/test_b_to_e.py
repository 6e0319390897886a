"""B, crashes; C, accepted without a kernel; D, refused though it can be done; E, right by luck."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import Awq, CtInt, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp4Small, Mxfp8, Nvfp4
from conversions import Job, check, run
from decoders import marlin

from peer_faults import refusal

A16, A8INT8, A8FP8 = "marlin_int4_a16", "marlin_int4_a8int8", "marlin_int4_a8fp8"


def moe(source, kernel, *, i, h, e=2, module="moe_gated", **options):
    return Job(source, kernel, module, {"e": e, "i": i, "h": h}, **options)


def linear(source, kernel, *, n, k, **options):
    return Job(source, kernel, "linear", {"n": n, "k": k}, **options)


# --- B ----------------------------------------------------------------------------------------------------------------

ONE_PART = (
    (Fp8({"scale": "channel"}), "marlin_fp8_a16"),
    (Fp8({"scale": "tensor"}), "marlin_fp8_a16"),
    (Fp8Block({}), "marlin_fp8_a16"),
    (Mxfp8({}), "marlin_mxfp8_a16"),
    (Mxfp4({}), "marlin_mxfp4_a16"),
    (Mxfp4Small({}), "marlin_mxfp4_a8fp8"),
    (Nvfp4({}), "marlin_nvfp4_a16"),
    (Gptq({"group": 32}), A16),
    (CtInt({"group": 32}), A16),
    (Awq({"group": 32}), A16),
)


@pytest.mark.parametrize(("source", "kernel"), ONE_PART)
@pytest.mark.parametrize("i", [672, 464, 640])
def test_b1_experts_without_a_gate(source, kernel, i, rng):
    """2688 / 4 and 1856 / 4 of public Nemotron checkpoints need padding, 640 does not."""
    if source.spec in ("gptq", "ct_int", "awq") and i == 464:
        source = type(source)({"group": -1})
    check(moe(source, kernel, i=i, h=128, e=1, module="moe_plain"), rng)


def test_b1_mxfp4_aligned(rng):
    check(moe(Mxfp4({}), "marlin_mxfp4_a16", i=256, h=256, e=1, module="moe_plain"), rng)


@pytest.mark.parametrize(("n", "group"), [(100, 32), (36, -1)])
@pytest.mark.parametrize("bits", [4, 8])
def test_b2_zero_points_of_odd_n(n, group, bits, rng):
    """ceil(n / 8) words of zero points: the rubbish in the unused nibbles is dropped."""
    kernel = A16 if bits == 4 else "marlin_int8_a16"
    check(linear(CtInt({"group": group, "zero_points": True, "bits": bits}), kernel, n=n, k=128), rng)


@pytest.mark.parametrize(
    ("source", "kernel", "k"),
    [
        (Gptq({"group": -1}), A16, 100),
        (CtInt({"group": -1}), A16, 100),
        (Gptq({"group": -1}), A16, 132),
        (Gptq({"group": -1, "bits": 8}), "marlin_int8_a16", 102),
        (CtInt({"group": -1, "bits": 8}), "marlin_int8_a16", 102),
        (Awq({"group": -1}), A16, 100),
        (Awq({"group": 32}), A16, 100),
    ],
)
def test_b3_k_that_no_word_divides(source, kernel, k, rng):
    check(linear(source, kernel, n=64, k=k), rng)


@pytest.mark.parametrize(
    "source", [Gptq({"group": -1}), Gptq({"group": -1, "zero_points": True}), Awq({"group": 32}), CtInt({"group": 64})]
)
@pytest.mark.parametrize(("n", "k"), [(200, 208), (65, 100)])
def test_b4_fp8_activations_on_any_shape(source, n, k, rng):
    check(linear(source, A8FP8, n=n, k=k), rng)


def test_b5_awq_experts_with_one_group(rng):
    made = check(moe(Awq({"group": -1}), A16, i=64, h=128), rng)
    assert made["w13.weight_scale"].shape[1] == made["w2.weight_scale"].shape[1] == 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("module", ["linear", "moe_gated"])
def test_b5_awq_with_one_group_on_two_ranks(module, rank, rng):
    sizes = {"n": 64, "k": 256} if module == "linear" else {"e": 2, "i": 128, "h": 128}
    made = check(Job(Awq({"group": -1}), A16, module, sizes, split="k", tp=2, rank=rank), rng)
    assert all(scale.any() for name, scale in made.items() if name.endswith("weight_scale"))


@pytest.mark.parametrize("byte", [250, 254])
def test_b6_mxfp4_scales_over_249(byte, rng):
    job = moe(Mxfp4Small({}), "marlin_mxfp4_a8fp8", i=64, h=128)
    tensors = job.draw(rng)
    tensors["w2.weight_scale"][0][7, 1] = byte
    refusal(
        lambda: run(job, tensors),
        "`w2.weight_scale` at expert 0, n 7, k 32:",
        "times 2^6",
        f"2^{byte + 6 - 127} is no power of two that e8m0z holds",
        "choose another kernel",
    )
    tensors["w2.weight_scale"][0][7, 1] = 249
    check(job, tensors=tensors)


@pytest.mark.parametrize("source", [Fp8({"scale": "tensor"}), Fp8Block({})])
def test_b7_fp8_with_float32_parameters(source):
    refusal(
        lambda: linear(source, "marlin_fp8_a16", n=64, k=128, dtype="float32").plan,
        "`dtype` of `marlin_fp8_a16` cannot be float32",
        "expected float16, bfloat16",
    )


# --- C: every shape has a tile (Job.check demands it), or is refused --------------------------------------------------


@pytest.mark.parametrize("i", [96, 160, 352, 672, 80])
@pytest.mark.parametrize("source", [Mxfp4({}), Mxfp4({"writer": "gpt_oss"})])
@pytest.mark.parametrize("kernel", ["marlin_mxfp4_a16", "marlin_mxfp4_a8fp8"])
def test_c1_mxfp4_experts_are_padded(i, source, kernel, rng):
    check(moe(Mxfp4Small(source.params), kernel, i=i, h=128, e=1), rng)


@pytest.mark.parametrize(
    ("source", "kernel"),
    [
        (Fp8({"scale": "channel"}), "marlin_fp8_a16"),
        (Fp8Block({}), "marlin_fp8_a16"),
        (Mxfp8({}), "marlin_mxfp8_a16"),
        (Nvfp4({}), "marlin_nvfp4_a16"),
        (Mxfp4({}), "marlin_mxfp4_a16"),
        (Gptq({"group": 64}), A16),
        (Awq({"group": 64}), A8INT8),
    ],
)
@pytest.mark.parametrize("h", [192, 320])
def test_c2_hidden_sizes_that_64_divides(source, kernel, h, rng):
    """Ours pads h where that stores less, and says so; a caller that cannot pad h imposes i 128 and h as it is."""
    job = moe(source, kernel, i=64, h=h)
    check(job, rng)
    plan = job.plan
    wide = {extent.matrix: extent.padded for extent in plan.extents if extent.axis == "h"}
    asked = {(duty.kind, duty.matrix) for duty in plan.duties}
    needed = {("pad_input", "w13"): wide["w13"] > h, ("slice_output", "w2"): wide["w2"] > h}
    assert asked == {duty for duty, is_needed in needed.items() if is_needed}

    job = moe(source, kernel, i=64, h=h, padded={"i": 128, "h": h})
    if source.spec == "fp8_block":
        refusal(
            lambda: job.plan,
            f"`w13` would be padded to 256 x {h} (`i` x `h`)",
            "`h` is no multiple of its groups of 128",
        )
        return
    check(job, rng)
    assert not job.plan.duties


def test_c2_imposed_extents_have_a_tile():
    def plan(**padded):
        return lambda: moe(Fp8({"scale": "channel"}), "marlin_fp8_a16", i=64, h=192, padded=padded).plan

    refusal(
        plan(i=64, h=192),
        "`w2` would be padded to 192 x 64 (`h` x `i`)",
        "fits no tile of kernel `marlin_fp8_a16` (64 x 128 or 128 x 64)",
    )
    refusal(plan(i=32, h=192), "`w13` would be padded to 64 x 192", "less than its 128 x 192", "without `padded`")
    refusal(plan(i=128, H=192), "`moe_gated` has no axis `H` to pad", "did you mean `h`?")


def test_c2_integer_experts_of_hidden_size_2880(rng):
    check(moe(Gptq({"group": 64}), A16, i=64, h=2880, e=1), rng)


@pytest.mark.parametrize("block", [(64, 64), (128, 64)])
def test_c3_fp8_blocks_that_no_kernel_reads(block):
    job = linear(Fp8Block({"block_n": block[0], "group": block[1]}), "marlin_fp8_a16", n=128, k=512)
    refusal(
        lambda: job.plan,
        f"`linear` has groups of {block[1]} along `k`",
        "kernel `marlin_fp8_a16` does not take",
        "it takes one group (-1), 128",
    )


def test_c3_the_way_out(rng):
    """Blocks of 256 inputs are two of 128 with the same scale."""
    job = linear(Fp8Block({"group": 256}), "marlin_fp8_a16", n=128, k=512)
    check(job, rng)
    assert dict(job.plan.groups) == {"linear": 128}


@pytest.mark.parametrize("rows", [64, 1, 100])
def test_c3_blocks_of_any_height(rows, rng):
    check(linear(Fp8Block({"block_n": rows}), "marlin_fp8_a16", n=200, k=256), rng)


# --- D ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("i", [192, 320, 576, 672])
@pytest.mark.parametrize("stored", ["apart", "stacked"])
@pytest.mark.parametrize("module", ["moe_gated", "moe_plain"])
def test_d1_fp8_blocks_that_end_short(i, stored, module, rng):
    """Each part has ceil(i / 128) rows of scales of its own; the last one stands for fewer weights."""
    job = moe(Fp8Block({}), "marlin_fp8_a16", i=i, h=256, e=1, module=module, stored=(stored, "stacked"))
    check(job, rng)


@pytest.mark.parametrize(("tp", "i"), [(2, 384), (3, 384), (4, 512), (2, 768)])
def test_d1_on_ranks(tp, i, rng):
    """A rank's rows begin inside a block of outputs; along k blocks stay whole, or one holds all that a rank has."""
    for rank in range(tp):
        job = moe(Fp8Block({}), "marlin_fp8_a16", i=i, h=128, e=1, tp=tp, rank=rank)
        check(job, rng)
        uneven = (i // tp) % 128 and 128 % (i // tp)
        assert bool(job.plan.grains) == bool(uneven)


@pytest.mark.parametrize("kernel", [A8INT8, A8FP8])
@pytest.mark.parametrize(
    "source", [Awq({"group": 32}), Gptq({"group": 64, "zero_points": True}), CtInt({"group": -1, "zero_points": True})]
)
def test_d2_zero_points_with_8_bit_activations(kernel, source, rng):
    check(linear(source, kernel, n=128, k=256), rng)


@pytest.mark.parametrize("kernel", [A8INT8, A8FP8])
@pytest.mark.parametrize("module", ["moe_gated", "moe_plain"])
def test_d3_gptq_experts_with_8_bit_activations(kernel, module, rng):
    check(moe(Gptq({"group": 64}), kernel, i=128, h=256, module=module), rng)


# --- E ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        Gptq({"group": -1}),
        Gptq({"group": -1, "bits": 8}),
        Awq({"group": -1}),
        CtInt({"group": -1, "zero_points": True}),
    ],
)
def test_e1_pads_are_neutral_codes(source, rng):
    """N 128, K 80: padded inputs meet a real scale, so their code is the zero point: 8, 128, or the output's own."""
    size = source.params.get("bits", 4)
    job = linear(source, {4: A16, 8: "marlin_int8_a16"}[size], n=128, k=80)
    made = check(job, rng)
    assert made["linear.weight_scale"].all()
    codes = marlin.weight_codes(made["linear.weight"], n=128, k=128, bits=size, activation_bits=16)
    neutral = np.full((128, 1), 1 << size - 1)
    if "linear.zero_point" in made:
        neutral = marlin.zero_points(made["linear.zero_point"], n=128, bits=size, activation_bits=16).T
    np.testing.assert_array_equal(codes[:, 80:], np.broadcast_to(neutral, (128, 48)))
