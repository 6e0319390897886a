"""A3 to A6, A9, A11, A13: what becomes of the values of scales, and of codes that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import Fp8, Fp8Block, Gptq, Mxfp4, Mxfp4Small, Mxfp8, Nvfp4, bits, nearest
from conversions import Job, check, compare, given, run
from decoders.numbers import e4m3fn

from layoutdsl.plan import Lost
from peer_faults import refusal

NVFP4 = ("marlin_nvfp4_a16", "moe_gated", {"e": 2, "i": 64, "h": 128})


def nvfp4(dtype, rng, *, draw, sizes=NVFP4[2], writer="modelopt"):
    """A job and its tensors, with block scales that `draw(expert, shape)` makes; expert 0's global scale is 0.5."""
    job = Job(Nvfp4({"dtype": dtype, "writer": writer}), NVFP4[0], NVFP4[1], sizes)
    tensors = job.draw(rng)
    for name, arrays in tensors.items():
        for expert in range(sizes["e"]):
            if name.endswith("weight_scale"):
                arrays[expert] = draw(expert, arrays[expert].shape).astype(np.uint8)
            if arrays[expert].dtype == np.float32:
                arrays[expert] = np.float32([0.5, 3e-3][expert])
    return job, tensors


# --- A3: block scales below the kernel's range ------------------------------------------------------------------------


@pytest.mark.parametrize("top", [47, 126])
def test_a3_fp16_keeps_every_scale(top, rng):
    """Codes 0 to 47 are at most 0.47; 0 to 126 all that E4M3 has. The fp16 kernel reads all eight bits of the byte."""
    job, tensors = nvfp4("float16", rng, draw=lambda _, shape: rng.integers(0, top + 1, shape))
    report: list[Lost] = []
    check(job, tensors=tensors)
    run(job, tensors, report=report)
    assert not job.plan.losses and not report


def test_a3_bf16_counts_what_is_lost(rng):
    """E4M3 spans 2^-9 to 448, a bf16 kernel 2^1 to 2^16 whatever the factor. Beside 448 what is below 2^-6, its
    subnormal codes, is lost; that is declared and counted, and all else exact."""
    job, tensors = nvfp4("bfloat16", rng, draw=lambda _, shape: rng.integers(0, 127, shape))
    for arrays in (arrays for name, arrays in tensors.items() if name.endswith("weight_scale")):
        for array in arrays:
            array.flat[0] = 126
    plan, report = job.plan, []
    made = run(job, tensors, plan=plan, report=report)
    assert "under 2^-13 of the largest become 0" in dict(plan.losses)["w13.weight_scale"]

    counted = {}
    for matrix, expert, want, got in compare(job, plan, tensors, made):
        names = [f"{prefix}.weight_scale" for prefix, _ in job.holders(matrix)]
        scales = np.concatenate([tensors[name][expert] for name in names])
        gone = (scales > 0) & (e4m3fn(scales) < 2.0**-6)
        blocks = np.repeat(gone, 16, axis=1)
        np.testing.assert_array_equal(got, np.where(blocks, 0, want))
        counted[f"{matrix.name}.weight_scale", expert] = int(gone.sum()), gone.size
    assert {(lost.tensor, lost.expert): (lost.count, lost.of) for lost in report} == counted
    assert all(count for count, _ in counted.values())


def test_a3_bf16_has_a_factor_per_expert(rng):
    """Expert 0 has large block scales, expert 1 subnormal ones: both exact, for each has its own global scale."""
    job, tensors = nvfp4("bfloat16", rng, draw=lambda expert, shape: rng.integers(*[(64, 127), (1, 8)][expert], shape))
    report: list[Lost] = []
    made = check(job, tensors=tensors)
    run(job, tensors, report=report)
    assert not report
    assert made["w13.global_scale"][0] / made["w13.global_scale"][1] > 2.0**8 * 0.5 / 3e-3


def test_a3_reports_on_both_backends(rng):
    job, tensors = nvfp4(
        "bfloat16", rng, draw=lambda _, shape: rng.integers(0, 127, shape), sizes={"e": 2, "i": 16, "h": 32}
    )
    found = {}
    for backend in ("reference", "torch"):
        found[backend] = []
        job.plan.run(given(job.plan, tensors), backend=backend, report=found[backend])
    assert found["reference"] == found["torch"] != []


# --- A4, A5, A6 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("writer", ["modelopt", "compressed_tensors"])
def test_a4_negative_block_scales(dtype, writer, rng):
    """A quarter of the blocks is negative: the byte has no sign, so their sixteen codes change theirs."""

    def draw(_, shape):
        return rng.integers(40, 100, shape) | (rng.integers(0, 4, shape) == 0) << 7

    check(*nvfp4(dtype, rng, draw=draw, writer=writer)[:1], tensors=nvfp4(dtype, rng, draw=draw, writer=writer)[1])


MX = (
    (Mxfp8({}), "marlin_mxfp8_a16"),
    (Mxfp4({}), "marlin_mxfp4_a16"),
    (Mxfp4({"writer": "gpt_oss"}), "marlin_mxfp4_a16"),
)


@pytest.mark.parametrize(("source", "kernel"), MX)
@pytest.mark.parametrize("default", [torch.float32, torch.float16])
def test_a5_every_scale_byte_passes(source, kernel, default, rng):
    job = Job(source, kernel, "linear", {"n": 64, "k": 128})
    tensors = job.draw(rng)
    name = next(name for name in tensors if "scale" in name)
    tensors[name] = [np.arange(256, dtype=np.uint8).reshape(64, 4)]
    tensors[name][0][63, 3] = 0
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        made = check(job, tensors=tensors)
    finally:
        torch.set_default_dtype(before)
    assert sorted(made["linear.weight_scale"].reshape(-1)) == [0, *range(255)]


@pytest.mark.parametrize(("source", "kernel"), [*MX, (Mxfp4({}), "marlin_mxfp4_a8fp8")])
def test_a5_fp16_is_refused(source, kernel):
    job = Job(source, kernel, "linear", {"n": 64, "k": 128}, dtype="float16")
    refusal(lambda: job.plan, f"`dtype` of `{kernel}` cannot be float16", "expected bfloat16")


@pytest.mark.parametrize("source", [Fp8({"scale": "channel"}), Fp8({"scale": "tensor"}), Fp8Block({})])
@pytest.mark.parametrize(("scale", "error"), [(1.3e-6, 1e-4), (1e-7, 1.3e-3), (2e-8, 1.3e-3)])
def test_a6_scales_are_rounded_once(source, scale, error, rng):
    """In fp16 the scale is multiplied by 2^8 first; the peer rounds before: 0.9% off, 19% off, 0."""
    job = Job(source, "marlin_fp8_a16", "linear", {"n": 128, "k": 256}, dtype="float16")
    tensors = job.draw(rng)
    name = f"linear.{source.scale}"
    tensors[name] = [np.full_like(tensors[name][0], scale)]
    made = check(job, tensors=tensors)
    assert made["linear.weight_scale"].any()
    ((_, _, want, got),) = compare(job, job.plan, tensors, made)
    assert (np.abs(got - want) <= error * np.abs(want)).all()


@pytest.mark.parametrize(
    ("dtype", "scale", "most"),
    [("float16", 256.0, "65504.0"), ("bfloat16", 256.0, "3.38"), ("float16", 1e30, "65504.0")],
)
def test_a6_overflow_is_refused(dtype, scale, most, rng):
    job = Job(Fp8({"scale": "channel"}), "marlin_fp8_a16", "moe_gated", {"e": 2, "i": 64, "h": 128}, dtype=dtype)
    tensors = job.draw(rng)
    tensors["w13.up.weight_scale"][1][5] = scale
    power = {"float16": 8, "bfloat16": 120}[dtype]
    refusal(
        lambda: run(job, tensors),
        "`w13.up.weight_scale` at expert 1, part up, n 5,",
        f"stored times 2^{power}",
        f"beyond {most}",
        f"the largest {dtype}",
        "another kernel or dtype",
    )


def test_a6_the_largest_that_fits(rng):
    for dtype, scale in (("float16", 255.75), ("bfloat16", 254.0)):
        job = Job(Fp8({"scale": "tensor"}), "marlin_fp8_a16", "linear", {"n": 64, "k": 128}, dtype=dtype)
        tensors = job.draw(rng)
        tensors["linear.weight_scale"] = [np.float32(scale)]
        check(job, tensors=tensors)


# --- A9: global scales of parts ---------------------------------------------------------------------------------------


def fused(dtype, stored, globals_, rng, writer="modelopt"):
    source = Nvfp4({"dtype": dtype, "writer": writer, "global_scale": "part"})
    job = Job(source, "marlin_nvfp4_a16", "linear_fused", {"n": (32, 16, 16), "k": 128}, stored=(stored, "stacked"))
    tensors = job.draw(rng)
    for name in tensors:
        if "scale" in name and tensors[name][0].dtype == np.float32:
            parts = globals_ if stored == "stacked" else [globals_["qkv".index(name.split(".")[1])]]
            tensors[name] = [np.float32(parts)]
    return job, tensors


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("stored", ["apart", "stacked"])
@pytest.mark.parametrize("writer", ["modelopt", "compressed_tensors"])
def test_a9_powers_of_two_are_folded(dtype, stored, writer, rng):
    job, tensors = fused(dtype, stored, [0.75, 1.5, 0.1875], rng, writer)
    check(job, tensors=tensors)


@pytest.mark.parametrize("stored", ["apart", "stacked"])
def test_a9_others_are_refused(stored, rng):
    job, tensors = fused("bfloat16", stored, [0.75, 0.75, 0.7], rng)
    name = "linear.v.weight_scale_2" if stored == "apart" else "linear.weight_scale_2"
    refusal(
        lambda: run(job, tensors),
        f"`{name}` at part v",
        "no power of two times the first part's 0.75",
        "convert each part as a matrix",
    )


def test_a9_experts_are_named(rng):
    job = Job(Nvfp4({}), *NVFP4)
    tensors = job.draw(rng)
    tensors["w13.up.weight_scale_2"][1] *= np.float32(1.25)
    refusal(lambda: run(job, tensors), "`w13.up.weight_scale_2` at expert 1, part up")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a9_out_of_range(dtype, rng):
    """A ratio of 2^-30 takes a part's block scales below what the byte holds: refused, or with bf16 counted."""
    job, tensors = fused(dtype, "apart", [1.0, 2.0**-30, 1.0], rng)
    tensors["linear.k.weight_scale"] = [np.full_like(tensors["linear.k.weight_scale"][0], 0x39)]
    if dtype == "float16":
        refusal(
            lambda: run(job, tensors),
            "`linear.k.weight_scale` at part k, n 0, k 0",
            "as the parts' global scales ask",
        )
        return
    report: list[Lost] = []
    run(job, tensors, report=report)
    assert report == [Lost("linear.weight_scale", 0, 16 * 8, 64 * 8)]


# --- A11: INT8 activations --------------------------------------------------------------------------------------------


def int8(scales, rng, experts=0):
    """Groups of 32 whose scales are `scales` in turn, for each expert its own."""
    module, sizes = ("moe_plain", {"e": experts, "i": 64, "h": 128}) if experts else ("linear", {"n": 64, "k": 128})
    job = Job(Gptq({"group": 32}), "marlin_int4_a8int8", module, sizes)
    tensors = job.draw(rng)
    for name, arrays in tensors.items():
        if name.endswith("scales"):
            for expert, array in enumerate(arrays):
                of = scales[expert] if experts else scales
                arrays[expert] = bits(np.resize(nearest(np.array(of), "float16"), array.shape), "float16")
    return job, tensors


@pytest.mark.parametrize("scales", [[-0.5, -1.0], [0.25, -1.0], [-0.001, 0.5, -0.125], [1.0, 0.5]])
def test_a11_the_largest_is_absolute(scales, rng):
    """All scales negative: the peer's overflow. The largest magnitude negative: the peer makes it 0."""
    job, tensors = int8(scales, rng)
    made = check(job, tensors=tensors)
    assert made["linear.input_global_scale"].item() == max(map(abs, scales)) / 4096
    assert made["linear.weight_scale"].all()


def test_a11_no_scale_but_0(rng):
    job, tensors = int8([0.0], rng)
    made = check(job, tensors=tensors)
    assert not made["linear.weight_scale"].any() and made["linear.input_global_scale"].item() == 0


def test_a11_one_factor_for_all_experts_loses_and_says_so(rng):
    """1.0 in expert 0 turns expert 1's 1e-4 into 0 and its 2e-4 into 1/4096: declared with its bound, and counted."""
    job, tensors = int8([[1.0], [1e-4, 2e-4]], rng, experts=2)
    report: list[Lost] = []
    plan = job.plan
    check(job, tensors=tensors)
    made = run(job, tensors, plan=plan, report=report)
    for matrix in ("w13", "w2"):
        assert "1/8192" in dict(plan.losses)[f"{matrix}.weight_scale"]
        assert made[f"{matrix}.input_global_scale"].item() == 1 / 4096
    assert sorted(np.unique(made["w13.weight_scale"][1])) == [0, 1]
    assert Lost("w13.weight_scale", 1, 4 * 64 // 2, 4 * 64) in report


# --- A13: codes that are no numbers -----------------------------------------------------------------------------------

MOE = ("moe_gated", {"e": 2, "i": 64, "h": 128})
MARKED = [
    (Nvfp4({}), "marlin_nvfp4_a16", "weight_scale", 0x7F, "e4m3"),
    (Nvfp4({}), "marlin_nvfp4_a16", "weight_scale", 0xFF, "e4m3"),
    (Mxfp8({}), "marlin_mxfp8_a16", "weight_scale", 0xFF, "e8m0"),
    (Mxfp8({}), "marlin_mxfp8_a16", "weight", 0x7F, "e4m3"),
    (Mxfp4({}), "marlin_mxfp4_a16", "weight_scale", 0xFF, "e8m0"),
    (Mxfp4Small({}), "marlin_mxfp4_a8fp8", "weight_scale", 0xFF, "e8m0"),
    (Fp8({}), "marlin_fp8_a16", "weight", 0x7F, "e4m3"),
    (Fp8({}), "marlin_fp8_a16", "weight", 0xFF, "e4m3"),
    (Fp8Block({}), "marlin_fp8_a16", "weight", 0xFF, "e4m3"),
    (Fp8({}), "marlin_fp8_a16", "weight_scale", np.nan, "float32"),
    (Fp8({}), "marlin_fp8_a16", "weight_scale", np.inf, "float32"),
    (Gptq({"group": 32}), "marlin_int4_a16", "scales", 0x7E00, "float16"),
    (Gptq({"group": 32}), "marlin_int4_a16", "scales", 0x7C00, "float16"),
    (Gptq({"group": 32}), "marlin_int4_a8int8", "scales", 0x7E00, "float16"),
    (Gptq({"group": 32}), "marlin_int4_a8fp8", "scales", 0xFC00, "float16"),
]


@pytest.mark.parametrize(("source", "kernel", "tensor", "marker", "code"), MARKED)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a13_markers_are_refused(source, kernel, tensor, marker, code, backend, rng):
    job = Job(source, kernel, *MOE)
    tensors = job.draw(rng)
    at = (1, 5) if tensor == "scales" else (5, 0) if tensor == "weight_scale" else (5, 33)
    tensors[f"w13.up.{tensor}"][1][at] = marker
    k = 32 if tensor == "scales" else at[1]
    refusal(
        lambda: job.plan.run(given(job.plan, tensors), backend=backend),
        f"`w13.up.{tensor}` at expert 1, part up, n 5, k {k}:",
        f"of {code} is",
        "check the checkpoint",
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_a13_global_scales(value, rng):
    job = Job(Nvfp4({}), *NVFP4)
    tensors = job.draw(rng)
    tensors["w13.gate.weight_scale_2"][1] = np.float32(value)
    refusal(lambda: run(job, tensors), "`w13.gate.weight_scale_2` at expert 1, part gate", "is not a positive number")


def test_a13_a_scale_byte_of_0_is_declared(rng):
    """The kernel reads 2^-127 as 0."""
    job = Job(Mxfp8({}), "marlin_mxfp8_a16", "linear", {"n": 64, "k": 128})
    tensors = job.draw(rng)
    tensors["linear.weight_scale"] = [np.where(np.arange(256).reshape(64, 4) < 3, 0, 120).astype(np.uint8)]
    plan, report = job.plan, []
    run(job, tensors, plan=plan, report=report)
    assert "2^-127" in dict(plan.losses)["linear.weight_scale"]
    assert report == [Lost("linear.weight_scale", 0, 3, 256)]
