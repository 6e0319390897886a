"""A1, A2, A7, A8, A10, A12: orders of scales and biases, widths of fused layers, one decision about activations."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import Awq, CtInt, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp8, Nvfp4
from conversions import Job, check, compare, run
from decoders import marlin

from layoutdsl import compile_plan
from peer_faults import refusal

INTEGER = (Gptq({}), Gptq({"zero_points": True}), CtInt({}), CtInt({"zero_points": True}), Awq({}))


def moe(source, kernel, *, i, h, e=2, module="moe_gated", **options):
    return Job(source, kernel, module, {"e": e, "i": i, "h": h}, **options)


def of(source, **params):
    return type(source)(source.params | params)


def name(value):
    return f"{value.spec}{'_zp' * bool(value.zero_points)}" if hasattr(value, "spec") else None


# --- A1, A2: which order of scales ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", INTEGER, ids=name)
@pytest.mark.parametrize(("i", "h", "group"), [(128, 2048, 128), (64, 512, 64), (32, 256, 32), (256, 128, 128)])
def test_a1_w13_scales_follow_its_own_groups(source, i, h, group, rng):
    """I = g with H > g: w13 has several groups, w2 one. H = g with I > g: the reverse."""
    made = check(moe(of(source, group=group), "marlin_int4_a16", i=i, h=h), rng)
    assert made["w13.weight_scale"].shape[1] == max(h // group, 1)


def test_a1_would_show(rng):
    """Read in the order of one group, w13's several groups of scales give nine wrong weights in ten."""
    job = moe(Gptq({}), "marlin_int4_a16", i=128, h=256)
    tensors, plan = job.draw(rng), job.plan
    made = run(job, tensors, plan=plan)
    scales = np.empty_like(made["w13.weight_scale"])
    scales[..., marlin.grouped_columns(256)] = made["w13.weight_scale"][..., marlin.channel_columns(256)]
    wrong = [
        (want != got).mean()
        for matrix, _, want, got in compare(job, plan, tensors, made | {"w13.weight_scale": scales})
        if matrix.name == "w13"
    ]
    assert min(wrong) > 0.85


@pytest.mark.parametrize("source", INTEGER, ids=name)
def test_a2_w2_scales_after_padding(source, rng):
    """I 32 in groups of 32 is one group, whatever k is padded to; the zero points go along."""
    check(moe(of(source, group=32), "marlin_int4_a16", i=32, h=128), rng)


@pytest.mark.parametrize("source", INTEGER, ids=name)
def test_a2_with_the_groups_kept(source, rng):
    """Where the caller keeps the source's groups, padding adds a second, and its row: the order is that of two."""
    job = moe(of(source, group=32), "marlin_int4_a16", i=32, h=128, params={"target.group": 32})
    assert check(job, rng)["w2.weight_scale"].shape[1] == 2


# --- A7: widths of fused parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(96, 48, 48), (128, 64, 64)])
@pytest.mark.parametrize("stored", ["stacked", "apart"])
def test_a7_scales_per_part(widths, stored, rng):
    source = Fp8({"scale": "part"})
    check(Job(source, "marlin_fp8_a16", "linear_fused", {"n": widths, "k": 128}, stored=(stored, "stacked")), rng)


def test_a7_widths_are_demanded():
    def plan(sizes):
        return lambda: compile_plan("fp8", "marlin_fp8_a16", "linear_fused", sizes, params={"source.scale": "part"})

    refusal(plan({"k": 128}), "linear_fused", "axis `n`", "output features of each part", "--size n=")
    refusal(
        plan({"n": (96, 96), "k": 128}), "size `n` has 2 widths", "`linear` has 3 parts (q, k, v)", "one width per part"
    )


# --- A8: biases of experts --------------------------------------------------------------------------------------------

BIASED = (
    (Fp8({"scale": "channel"}), "marlin_fp8_a16"),
    (Fp8Block({}), "marlin_fp8_a16"),
    (Mxfp8({}), "marlin_mxfp8_a16"),
    (Nvfp4({}), "marlin_nvfp4_a16"),
    (Mxfp4({}), "marlin_mxfp4_a16"),
    (Gptq({}), "marlin_int4_a16"),
    (Awq({}), "marlin_int4_a8fp8"),
)


@pytest.mark.parametrize(("source", "kernel"), BIASED, ids=name)
@pytest.mark.parametrize("i", [128, 96])
@pytest.mark.parametrize("module", ["moe_gated", "moe_plain"])
def test_a8_biases_are_padded_and_permuted(source, kernel, i, module, rng):
    made = check(moe(of(source, bias=True), kernel, i=i, h=128, module=module), rng)
    assert made["w13.bias"].any() and made["w2.bias"].any()


@pytest.mark.parametrize("rank", [0, 1])
def test_a8_only_one_rank_adds_the_bias_of_a_sum(rank, rng):
    made = check(moe(Mxfp8({"bias": True}), "marlin_mxfp8_a16", i=256, h=128, tp=2, rank=rank), rng)
    assert made["w13.bias"].any() and made["w2.bias"].any() == (rank == 0)


# --- A10: one decision about activations ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["marlin_int4_a16", "marlin_int4_a8int8", "marlin_int4_a8fp8"])
def test_a10_the_kernel_alone_decides(kernel, rng, monkeypatch):
    """AWQ experts: one name stands for the layout of the weights and for what the kernel multiplies them with."""
    monkeypatch.setenv("VLLM_MARLIN_INPUT_DTYPE", "int8")
    made = check(moe(Awq({"group": 32}), kernel, i=64, h=128), rng)
    assert ("w13.input_global_scale" in made) == (kernel == "marlin_int4_a8int8")


# --- A12: fewer groups than ranks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("source", INTEGER, ids=name)
def test_a12_every_rank_takes_the_one_group(source, rank, rng):
    """Row-parallel, K 128 in one group of 128, two ranks."""
    made = check(Job(source, "marlin_int4_a16", "linear", {"n": 128, "k": 128}, split="k", tp=2, rank=rank), rng)
    assert len(made["linear.weight_scale"]) == 1 and made["linear.weight_scale"].all()


@pytest.mark.parametrize(
    "source", [Gptq({"group": 32, "act_order": True}), CtInt({"group": 32, "act_order": True})], ids=name
)
@pytest.mark.parametrize("split", ["n", "k"])
def test_a12_slices_in_act_order(source, split, rng):
    """A slice of unsorted inputs has no whole groups; of outputs it has."""
    job = Job(source, "marlin_int4_a16", "linear", {"n": 64, "k": 256}, split=split, tp=2, rank=1, sharded=True)
    if split == "n":
        check(job, rng)
        return
    refusal(
        lambda: job.plan, "g_idx` orders 128 of the 256 inputs along `k`", "no whole groups", "with the whole tensors"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a12_from_slices(rank, rng):
    """The same where a loader has cut the tensors already: the rank's 64 inputs, with the row of all 128."""
    whole = Gptq({"zero_points": True})
    plan = compile_plan(
        "gptq",
        "marlin_int4_a16",
        "linear",
        {"n": 128, "k": 128},
        tp=2,
        rank=rank,
        sharded=True,
        params={"split": "k", "zero_points": True},
    )
    file = whole.draw(rng, (128,), 64)
    tensors = {f"linear.{key}": [array] for key, array in file.items()}
    job = Job(whole, "marlin_int4_a16", "linear", {"n": 128, "k": 64})
    ((_, _, want, got),) = compare(job, plan, tensors, run(job, tensors, plan=plan))
    np.testing.assert_array_equal(got, want)
