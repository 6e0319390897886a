"""Every shape that can be served is served: uneven cuts, finer groups, one group per rank.

Values are read by decoders written apart (see conversions.py); the shapes of public models stand in
fixtures/models.yaml.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from conversions import Job, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_round_trip import BLOCK, FLOATS, SOURCES

from benchmarks import padding
from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.planner import decided
from layoutdsl.price import everywhere
from layoutdsl.prove import prove_ranks
from layoutdsl.resolve import dealt

MODELS = yaml.safe_load((Path(__file__).parent / "fixtures" / "models.yaml").read_text())
FAMILIES = {name: shape for name, shape in MODELS.items() if "moe" in shape}
RANKS = (1, 2, 4, 8, 16)
FORMATS = {
    "int4-32": ("gptq", "marlin_int4_a16", {"group": 32}),
    "int4-64": ("gptq", "marlin_int4_a16", {"group": 64}),
    "int4-128": ("gptq", "marlin_int4_a16", {"group": 128}),
    "int4-channel": ("gptq", "marlin_int4_a16", {"group": -1}),
    "fp8-channel": ("fp8", "marlin_fp8_a16", {}),
    "fp8-block": ("fp8_block", "marlin_fp8_a16", {}),
    "mxfp8": ("mxfp8", "marlin_mxfp8_a16", {}),
    "nvfp4": ("nvfp4", "marlin_nvfp4_a16", {}),
    "mxfp4": ("mxfp4", "marlin_mxfp4_a16", {}),
}


def all_ranks(source: str, kernel: str, module: str, sizes: dict, tp: int, params: dict, ep: int = 1) -> list[Plan]:
    return [
        compile_plan(source, kernel, module, sizes, params=params, tp=tp, rank=rank, ep=ep, ep_rank=ep_rank)
        for ep_rank in range(ep)
        for rank in range(tp)
    ]


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_public_mixture_of_experts_is_served(fmt: str) -> None:
    source, kernel, params = FORMATS[fmt]
    for name, shape in FAMILIES.items():
        sizes = {"e": shape["moe"]["experts"], "i": shape["moe"]["intermediate"], "h": shape["hidden"]}
        for tp in RANKS:
            for rank in {0, tp - 1}:
                plan = compile_plan(source, kernel, "moe_gated", sizes, params=params, tp=tp, rank=rank)
                assert plan.extents, name


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("inner", "tp"), [(1408, 4), (1536, 16), (768, 16), (2880, 7)])
def test_together_the_ranks_read_all_of_it_once(fmt: str, inner: int, tp: int) -> None:
    source, kernel, params = FORMATS[fmt]
    plans = all_ranks(source, kernel, "moe_gated", {"e": 5, "i": inner, "h": 2048}, tp, params, ep=2)
    prove_ranks(plans)
    assert len({(plan.grains, plan.groups, tuple(e.padded for e in plan.extents)) for plan in plans}) == 1


@st.composite
def jobs(draw: st.DrawFn, name: str, kernel: str) -> Job:
    make, fixed, drawn, _ = SOURCES[name]
    params = fixed | {key: draw(st.sampled_from(values)) for key, values in drawn.items()}
    source = make(params | {"dtype": draw(st.sampled_from(FLOATS)), "bias": draw(st.booleans())})
    dtype = "bfloat16" if kernel.startswith("marlin_mx") else draw(st.sampled_from(FLOATS))
    tp, ep = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    group = params.get("group", BLOCK.get(source.spec)) or 1
    inner = draw(st.integers(tp * (group if group > 0 and source.act_order else 1), 420 + tp * max(group, 1)))
    if source.act_order and group > 0:
        inner = -(-inner // group) * group
    module = draw(st.sampled_from(["moe_gated", "moe_plain"]))
    ranks = {"tp": tp, "rank": draw(st.integers(0, tp - 1))}
    sizes = {"e": draw(st.integers(ep, 4)), "i": inner, "h": draw(st.integers(1, 150))}
    if source.act_order and group > 0:
        sizes["h"] = group * draw(st.integers(1, 2))
    stored = (
        draw(st.sampled_from(["apart", "stacked", "alternating"])),
        draw(st.sampled_from(["stacked", "alternating"])),
    )
    ranks |= {"ep": ep, "ep_rank": draw(st.integers(0, ep - 1))}
    return Job(source, kernel, module, sizes, stored=stored, dtype=dtype, **ranks)


@pytest.mark.parametrize(("name", "kernel"), [(name, kernels[0]) for name, (*_, kernels) in SOURCES.items()])
def test_whatever_the_cut_values_are_kept(name: str, kernel: str) -> None:
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(jobs(name, kernel), st.integers(0, 2**32 - 1))
    def holds(job: Job, seed: int) -> None:
        check(job, np.random.default_rng(seed))

    holds()


# ---------------------------------------------------------------- choices


def shapes(plan: Plan, axis: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(extent.padded for extent in plan.extents if extent.axis == axis))


@pytest.mark.parametrize(
    ("inner", "group", "tp", "grains", "groups", "padded"),
    [
        (1536, 128, 4, {}, (128, 128), (384,)),  # even: 3 groups each
        (1408, 128, 2, {}, (128, 64), (704,)),  # 704 are 5.5 groups: finer ones
        (1408, 128, 8, {"i": 64}, (128, 64), (192,)),  # 22 half groups: 3 for six ranks, 2 for two
        (1408, 128, 16, {"i": 32}, (128, 32), (96, 128)),  # the activation writes 32 zeros
        (768, 128, 16, {"i": 64}, (128, 0), (64,)),  # each rank inside one group
        (2880, -1, 16, {}, (0, 0), (192,)),
    ],
)
def test_the_fewest_bytes_win(inner: int, group: int, tp: int, grains: dict, groups: tuple, padded: tuple) -> None:
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": inner, "h": 2048},
                        params={"group": group}, tp=tp)  # fmt: skip
    assert dict(plan.grains) == grains
    assert tuple(group for _, group in plan.groups) == groups
    assert shapes(plan, "i") == padded


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 70))
def test_shares_are_dealt_evenly_and_leave_nothing_out(size: int, count: int, grain: int) -> None:
    shares = [dealt(size, count, rank, grain) for rank in range(count)]
    assert [start for start, length in shares if length] == [
        sum(length for _, length in shares[:rank]) for rank in range(count) if shares[rank][1]
    ]
    assert sum(length for _, length in shares) == size
    grains = [-(-length // grain) for _, length in shares]
    assert max(grains) - min(grains) <= 1
    assert all(start % grain == 0 for start, length in shares if length)
    late = sum(grains) % count == 1 and sum(grains) > 1 and count > 1 and size % grain > 0 and min(grains) > 0
    assert grains == sorted(grains, reverse=not late)
    last = [*[len(range(rank, sum(grains), count)) for rank in range(count)]]
    assert max(length for _, length in shares) <= max(last) * grain


def test_a_rank_that_lacks_heads_is_told_so() -> None:
    """Ranks 1 and 3 have three of the four query heads that ranks 0 and 2 have."""
    sizes = {"q": 14, "kv": 2, "d": 72, "h": 1024}
    plans = all_ranks("gptq", "marlin_int4_a16", "attention", sizes, 4, {})
    lacks = [[(duty.matrix, duty.axis, duty.length, duty.rest) for duty in plan.duties if duty.kind == "lacks"]
             for plan in plans]  # fmt: skip
    assert lacks == [[], [("qkv", "q", 288, 72), ("o", "q", 288, 72)]] * 2


def test_a_huge_group_is_decided_at_once() -> None:
    start = time.process_time()
    compile_plan("gptq", "marlin_int4_a16", "mlp_gated", {"i": 2**40, "h": 128}, params={"group": 2**30}, tp=7)
    assert time.process_time() - start < 5


def test_what_is_asked_for_is_done() -> None:
    sizes, params = {"e": 2, "i": 1408, "h": 2048}, {"group": 128}
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, params=params, tp=8, grains={"i": 128})
    assert shapes(plan, "i") == (256,)
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, params=params | {"target.group": 32}, tp=8)
    assert dict(plan.groups) == {"w13": 32, "w2": 32}


def test_a_cut_that_is_seen_outside_stays_even() -> None:
    """The layer before an o_proj or a down_proj of its own cuts its outputs in equal shares."""
    sizes, params = {"n": 64, "k": 1408}, {"group": 128, "split": "k"}
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", sizes, params=params, tp=4, rank=3)
    assert not plan.grains and dict(plan.groups) == {"linear": 64}
    assert [(e.start, e.length, e.front) for e in plan.extents if e.role == "k"] == [(1056, 352, 32)]


@pytest.mark.parametrize("grains", [{"x": 64}, {"i": 0}, {"i": -1}, {"i": "64"}])
def test_grains_that_are_none_are_refused(grains: dict) -> None:
    with pytest.raises(LayoutError, match="cannot be cut along"):
        compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 512, "h": 256}, tp=2, grains=grains)


def test_what_no_kernel_group_can_hold_is_refused() -> None:
    with pytest.raises(LayoutError, match="which kernel `marlin_int4_a16` does not take"):
        compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 320}, params={"group": 20})


# ---------------------------------------------------------------- what it costs


def test_nothing_is_stored_in_more_bytes_than_by_the_peer() -> None:
    """All public shapes in nine formats on 1 to 16 ranks, where the peer accepts them; and the table that says so is
    that of today."""
    results = [padding.result(case) for case in padding.cases()]
    assert sum(len(one.pairs) for one in results) > 9000
    assert not [str(one.case) for one in results if one.above]
    assert padding.RESULTS.read_text() == padding.table(results), "stale: python -m benchmarks padding"


@pytest.mark.parametrize("at", range(0, 7000, 200))
def test_padding_is_what_the_plans_say(at: int) -> None:
    """Counted by axes there, and over the pads of all plans here."""
    case = padding.cases()[at]
    asked = decided(padding.request(case))
    whole = everywhere(asked)
    assert padding.result(case).padding == pytest.approx(float(whole.added / (whole.stored - whole.added)), abs=1e-9)
