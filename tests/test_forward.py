"""Round trips over all ranks: nothing of a checkpoint is lost, and the ranks together compute what it computes.

Cases are drawn: every format into a kernel, every module, 1 to 7 tensor-parallel ranks and 1 to 3 expert-parallel ones,
extents and groups that fit nothing, heads that ranks do not divide, key-value heads that they share, ranks that hold
nothing, experts with several places, biases, act-order. See forward.py for what is compared, and how exactly.
"""

from __future__ import annotations

import numpy as np
import pytest
from conversions import Job
from forward import check_forward, check_values, eased, spread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_round_trip import FLOATS, SOURCES

import os
EXAMPLES = int(os.environ.get("EX","3"))
"""Of each of 14 formats and 6 modules: 252 in all."""
LOSSY = ("marlin_int4_a8int8", "marlin_int8_a8int8")
BUILDS = {"gptq": ("marlin_int4_a16_n128",), "fp8": ("own_fp8_a16",), "fp8_block": ("own_fp8_a16",)}
MODULES = ("moe_gated", "moe_plain", "mlp_gated", "mlp_plain", "attention", "latent_attention")


@st.composite
def jobs(draw: st.DrawFn, name: str, module: str) -> Job:
    choose = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    make, fixed, drawn, kernels = SOURCES[name]
    kernel = choose(*(kernel for kernel in kernels if kernel not in LOSSY), *BUILDS.get(name, ()))
    params = fixed | {key: choose(*values) for key, values in drawn.items()}
    source = make(params | {"dtype": choose(*FLOATS), "bias": draw(st.booleans())})
    options = {"dtype": "bfloat16" if kernel.startswith("marlin_mx") else choose(*FLOATS), "tp": draw(st.integers(1, 7))}
    options["stored"] = choose("apart", "stacked"), "stacked"
    h = draw(st.integers(1, 150))
    if module.endswith("attention"):
        sizes, params = heads(draw, module)
        return Job(source, kernel, module, sizes | {"h": h}, params=params, **options)
    if module.endswith("gated"):
        options["stored"] = choose("apart", "stacked", "alternating"), choose("stacked", "alternating")
    sizes = {"i": draw(st.integers(1, 60) | st.integers(1, 700)), "h": h}
    params = {"module.contract": choose("tight", "tight", "vllm")}
    if module.startswith("mlp"):
        return Job(source, kernel, module, sizes, params=params, **options)
    sizes["e"] = draw(st.integers(1, 4))
    slots = (*range(sizes["e"]), *draw(st.lists(st.integers(0, sizes["e"] - 1), max_size=2)))
    options["slots"] = tuple(draw(st.permutations(slots))) if len(slots) > sizes["e"] else ()
    options["ep"] = draw(st.integers(1, min(3, len(slots))))
    return Job(source, kernel, module, sizes, params=params, **options)


def heads(draw: st.DrawFn, module: str) -> tuple[dict, dict]:
    """Sizes but for h, and parameters, of attention."""
    width = st.integers(1, 20) | st.sampled_from([32, 42, 64, 73, 80, 128])
    if module == "attention":
        kv = draw(st.integers(1, 5))
        sizes = {"q": kv * draw(st.integers(1, 5)), "kv": kv, "d": draw(width)}
        return sizes | {name: draw(width) for name in ("dq", "dv") if draw(st.booleans())}, {}
    rkv = draw(st.integers(1, 150))
    sizes = {"q": draw(st.integers(1, 9)), "dq": draw(width), "dkv": draw(width), "dv": draw(width)}
    sizes |= {"akv": rkv + draw(st.integers(0, 20)), "rkv": rkv}
    if draw(st.booleans()):
        return sizes, {"module.queries": "direct"}
    return sizes | {"rq": draw(st.integers(1, 150))}, {}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", SOURCES)
def test_ranks_together_are_the_checkpoint(name: str, module: str) -> None:
    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(jobs(name, module), st.integers(0, 2**32 - 1))
    def holds(job: Job, seed: int) -> None:
        rng = np.random.default_rng(seed)
        tensors = eased(job.draw(rng), job.source.spec)
        ranks = spread(job, tensors)
        check_values(job, tensors, ranks)
        check_forward(job, tensors, ranks, rng)

    holds()
