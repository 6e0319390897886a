"""Round trips over all ranks: nothing of a checkpoint is lost, and the ranks together compute what it computes.

Cases are drawn: every format into a kernel, every module, 1 to 7 tensor-parallel ranks and 1 to 3 expert-parallel ones,
extents and groups that fit nothing, heads that ranks do not divide, key-value heads that they share, ranks that hold
nothing, experts with several places, biases, act-order. See forward.py for what is compared, and how exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checkpoints import Gptq
from conversions import Job
from forward import Rank, check_forward, check_values, eased, spread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_round_trip import FLOATS, SOURCES

EXAMPLES = 3
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
    options = {"dtype": "bfloat16" if kernel.startswith("marlin_mx") else choose(*FLOATS)}
    options |= {"tp": draw(st.integers(1, 7)), "stored": (choose("apart", "stacked"), "stacked")}
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


# --- what is wrong is seen --------------------------------------------------------------------------------------------

GPTQ = {"group": 32, "dtype": "float16", "bias": True}
ATTENTION = Job(Gptq(GPTQ), "marlin_int4_a16", "attention", {"q": 5, "d": 40, "h": 70}, tp=3)
"""Two ranks with two heads and one with one; the second begins inside a group, 16 elements before a border."""
SORTED = replace(ATTENTION, source=Gptq(GPTQ | {"act_order": True}))
EXPERTS = Job(Gptq(GPTQ), "marlin_int4_a16", "moe_gated", {"e": 2, "i": 170, "h": 70}, tp=2)
"""The activation writes zeros where down's inputs are padded more than gate's and up's outputs."""


def duties(change):
    """Ranks whose plans have other duties: `change` gives those instead of one."""
    return lambda ranks: [
        replace(rank, plan=replace(rank.plan, duties=tuple(new for duty in rank.plan.duties for new in change(duty))))
        for rank in ranks
    ]


def without(kind: str):
    return duties(lambda duty: [] if duty.kind == kind else [duty])


def changed(kind: str, change):
    return duties(lambda duty: [replace(duty, **change(duty))] if duty.kind == kind else [duty])


def extents(change):
    return lambda ranks: [
        replace(rank, plan=replace(rank.plan, extents=tuple(change(extent) for extent in rank.plan.extents)))
        for rank in ranks
    ]


def tensors(at: int, name: str, change):
    """One rank's tensor changed, and all read anew."""

    def mutate(ranks):
        rank = ranks[at]
        made = rank.made | {name: change(rank.made[name].copy(), ranks)}
        return [*ranks[:at], Rank.read(rank.job, rank.plan, made), *ranks[at + 1 :]]

    return mutate


def pad_flipped(ranks):
    """A pad code of the rank with one head, beside the other's place, no longer says zero."""
    rank = ranks[2]
    k, weight = next(e for e in rank.plan.extents if (e.matrix, e.role) == ("o", "k")), rank.made["o.weight"]
    for word in range(weight.size):
        flipped = weight.copy()
        flipped.flat[word] ^= 1
        new = Rank.read(rank.job, rank.plan, rank.made | {"o.weight": flipped})
        row, column = (new.held["o"].weight[0] != rank.held["o"].weight[0]).nonzero()
        if len(row) and row[0] < 70 and k.front + k.length <= column[0] < k.front + 80:
            return [*ranks[:2], new]
    raise LookupError("no such pad")


def swapped(order, _):
    order[[0, -1]] = order[[-1, 0]]
    return order


FRONT = changed("pad_input", lambda duty: {"front": 0, "rest": duty.rest + duty.front})
MUTATIONS = {
    "no front pad": (ATTENTION, check_forward, FRONT),
    "front pad too long": (
        ATTENTION, check_forward, changed("pad_input", lambda d: {"front": d.front + 1, "rest": max(d.rest - 1, 0)})
    ),
    "input padded too little": (ATTENTION, check_forward, changed("pad_input", lambda d: {"rest": d.rest - 1})),
    "input not padded": (ATTENTION, check_forward, without("pad_input")),
    "output not sliced": (ATTENTION, check_forward, without("slice_output")),
    "output sliced short": (ATTENTION, check_forward, changed("slice_output", lambda d: {"length": d.length - 1})),
    "ranks not added up": (ATTENTION, check_forward, without("sum_over_ranks")),
    "pad that is not neutral": (ATTENTION, check_forward, pad_flipped),
    "pad that is no zero": (ATTENTION, check_values, pad_flipped),
    "bias twice": (ATTENTION, check_forward, tensors(1, "o.bias", lambda _, ranks: ranks[0].made["o.bias"])),
    "stretch shifted": (
        ATTENTION, check_values, extents(lambda e: replace(e, start=e.start - (e.role == "k" and e.start > 0)))
    ),
    "held less often than stated": (ATTENTION, check_values, extents(lambda e: replace(e, held=e.held + 1))),
    "input not gathered": (SORTED, check_forward, without("gather_input")),
    "input in another order": (SORTED, check_forward, tensors(0, "o.k_perm", swapped)),
    "zeros not written": (EXPERTS, check_forward, without("write_zeros")),
    "zero too few": (EXPERTS, check_forward, changed("write_zeros", lambda duty: {"rest": duty.rest - 1})),
    "one bit of a weight": (
        EXPERTS, check_forward, tensors(1, "w13.weight", lambda w, _: w ^ (np.arange(w.size) == 5).reshape(w.shape))
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_fault_is_seen(what: str) -> None:
    job, check, mutate = MUTATIONS[what]
    rng = np.random.default_rng(1)
    tensors = eased(job.draw(rng), job.source.spec)
    ranks = spread(job, tensors)
    further = (rng,) if check is check_forward else ()
    check(job, tensors, ranks, *further)
    with pytest.raises(AssertionError):
        check(job, tensors, mutate(ranks), *further)
