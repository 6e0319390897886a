"""Every checkpoint format into every kernel it can feed, for every module, at sizes that fit nothing.

The source read by its decoder equals the target read by the kernel's, on the logical region, exactly or within the loss
that the plan declares; padding is zero. Drawn: odd n and k, so that the last group, word, byte and block are partial;
ranks, from whole files or from their own slices; parts apart, stacked and alternating; biases, zero points, act-order;
the dtypes of both sides.
"""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import Awq, CtInt, Fp8, Fp8Block, Gptq, Mxfp4, Mxfp4Small, Mxfp8, Nvfp4
from conversions import Job, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 10
GROUPS = (-1, 32, 64, 128)
FLOATS = ("float16", "bfloat16")
INT4 = ("marlin_int4_a16", "marlin_int4_a8int8", "marlin_int4_a8fp8")
INT8 = ("marlin_int8_a16", "marlin_int8_a8int8")
BLOCK = {"fp8_block": 128, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16, "fp8": -1}

# name -> format, fixed parameters, drawn parameters, kernels
SOURCES = {
    "gptq": (
        Gptq,
        {"bits": 4},
        {
            "group": GROUPS,
            "zero_points": (False, True),
            "qzeros": (True, False),
            "zero_offset": (1, 0),
            "act_order": (False, True),
            "g_idx": (True, False),
        },
        INT4,
    ),
    "gptq_int8": (Gptq, {"bits": 8}, {"group": GROUPS, "qzeros": (True, False), "act_order": (False, True)}, INT8),
    "gptq_int8_zp": (Gptq, {"bits": 8, "zero_points": True}, {"group": GROUPS, "zero_offset": (1, 0)}, INT8[:1]),
    "awq": (Awq, {}, {"group": GROUPS}, INT4),
    "ct_int": (
        CtInt,
        {"bits": 4},
        {"group": GROUPS, "zero_points": (False, True), "act_order": (False, True), "shape_tensor": (True, False)},
        INT4,
    ),
    "ct_int8": (CtInt, {"bits": 8}, {"group": GROUPS, "act_order": (False, True)}, INT8),
    "ct_int8_zp": (CtInt, {"bits": 8, "zero_points": True}, {"group": GROUPS}, INT8[:1]),
    "fp8": (
        Fp8,
        {},
        {"scale": ("channel", "tensor", "part"), "scale_dtype": ("float32", *FLOATS), "input_scale": (False, True)},
        ("marlin_fp8_a16",),
    ),
    "fp8_block": (
        Fp8Block,
        {},
        {
            "scale_name": ("weight_scale_inv", "weight_scale"),
            "block_n": (128, 64, 32),
            "scale_dtype": ("float32", *FLOATS),
        },
        ("marlin_fp8_a16",),
    ),
    "mxfp8": (Mxfp8, {}, {}, ("marlin_mxfp8_a16",)),
    "nvfp4": (
        Nvfp4,
        {},
        {"writer": ("modelopt", "compressed_tensors"), "global_scale": ("matrix", "part")},
        ("marlin_nvfp4_a16",),
    ),
    "mxfp4": (Mxfp4, {}, {}, ("marlin_mxfp4_a16",)),
    "mxfp4_a8": (Mxfp4Small, {}, {"writer": ("compressed_tensors", "gpt_oss")}, ("marlin_mxfp4_a8fp8",)),
    "gpt_oss": (Mxfp4, {"writer": "gpt_oss"}, {}, ("marlin_mxfp4_a16",)),
}
MODULES = ("linear", "linear_fused", "moe_gated", "moe_plain")
CASES = [
    pytest.param(name, kernel, module, id=f"{name}-{kernel}-{module}")
    for name, (*_, kernels) in SOURCES.items()
    for kernel in kernels
    for module in MODULES
]


@st.composite
def jobs(draw, name, kernel, module):
    """A conversion that an even cut can serve."""
    make, fixed, drawn, _ = SOURCES[name]
    choose = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    only_bf16 = kernel.startswith("marlin_mx")
    params = fixed | {key: choose(*values) for key, values in drawn.items()}
    source = make(params | {"dtype": choose(*FLOATS), "bias": draw(st.booleans())})
    options = {"dtype": "bfloat16" if only_bf16 else choose(*FLOATS), "tp": draw(st.integers(1, 3))}
    options["rank"] = draw(st.integers(0, options["tp"] - 1))
    tp, group = options["tp"], params.get("group", BLOCK.get(source.spec))
    if not source.act_order and source.spec != "fp8_block":  # whose slices may begin inside a block
        options["sharded"] = draw(st.booleans())
    if module.startswith("moe"):
        options |= {"ep": draw(st.integers(1, 2))}
        options["ep_rank"] = draw(st.integers(0, options["ep"] - 1))
        sizes = {
            "e": options["ep"] * draw(st.integers(1, 2)),
            "i": inputs(draw, tp, group),
            "h": draw(st.integers(1, 150)),
        }
        options["stored"] = choose("apart", "stacked", "alternating"), choose("stacked", "alternating")
        return Job(source, kernel, module, sizes, **options)

    options["split"] = choose("n", "k", "none")
    cut = tp if options["split"] == "n" else 1
    k = inputs(draw, tp if options["split"] == "k" else 1, group)
    width = st.integers(1, 60).map(lambda width: width * cut)
    if module == "linear":
        return Job(source, kernel, module, {"n": draw(width), "k": k}, **options)
    if draw(st.booleans()):
        options |= {
            "names": ("gate", "up"),
            "stored": (choose("apart", "stacked", "alternating"), choose("stacked", "alternating")),
        }
        return Job(source, kernel, module, {"n": (draw(width),) * 2, "k": k}, **options)
    options["stored"] = choose("apart", "stacked"), "stacked"
    return Job(source, kernel, module, {"n": tuple(draw(width) for _ in range(3)), "k": k}, **options)


def inputs(draw, ranks, group):
    """Inputs that ranks cut into whole groups, or so that one group holds all of a rank's."""
    if ranks == 1 or group < 0:
        return ranks * draw(st.integers(1, 200 // ranks))
    parts = [size for size in range(1, group) if group % size == 0]
    return ranks * draw(
        st.sampled_from([group, 2 * group, *parts]) if group < 128 else st.sampled_from([group, *parts])
    )


@pytest.mark.parametrize(("name", "kernel", "module"), CASES)
def test_round_trip(name, kernel, module):
    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(jobs(name, kernel, module), st.integers(0, 2**32 - 1))
    def holds(job, seed):
        check(job, np.random.default_rng(seed))

    holds()


SMALL = {
    "linear": {"n": 37, "k": 75},
    "linear_fused": {"n": (5, 9, 3), "k": 50},
    "moe_gated": {"e": 2, "i": 21, "h": 45},
    "moe_plain": {"e": 1, "i": 33, "h": 44},
}


@pytest.mark.parametrize(("name", "kernel", "module"), CASES)
def test_reference(name, kernel, module):
    """The definition itself, once for each."""
    make, fixed, drawn, _ = SOURCES[name]
    params = fixed | {key: values[-1] for key, values in drawn.items()} | ({"group": 32} if "group" in drawn else {})
    check(
        Job(make(params | {"bias": True}), kernel, module, SMALL[module]), np.random.default_rng(7), backend="reference"
    )
