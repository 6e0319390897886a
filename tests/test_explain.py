"""The report that `plan` prints: its lines, its counts against counts made without it, and what it says of other ways
and other ranks against plans that are compiled for them."""

import dataclasses
import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layoutdsl import Plan, cli, compile_plan, explain, price
from layoutdsl.codes import code_named
from layoutdsl.layout import Run
from layoutdsl.plan import Move
from layoutdsl.resolve import CHOICES

AWQ = ["plan", "awq", "marlin_int4_a16", "--module", "linear", "--size", "n=200", "--size", "k=208"]

REPORT = """\
awq -> marlin_int4_a16, module linear
  sizes   k=208 n=200
  rank    the only one
  source  group=128 dtype=float16 zero_points=true bias=false parts=apart
  target  group=128 dtype=float16 zero_points=true bias=false parts=stacked
  module  split=none
  plan    sha256 ...

Axes
  matrix  axis   whole  this rank  length  padded  why
  linear  k = k    208  0 to 207      208     256  48 more for whole tiles and groups of 128
  linear  n = n    200  0 to 199      200     256  56 more for whole tiles

Choice: even
  one tensor-parallel rank holds all
  matrix  stored n x k  tile      group
  linear  256 x 256     64 x 128  128
  next best for linear: none, all others pad each axis as much or more

Reads
  tensor          dtype    shape      bytes  code
  linear.qweight  int32    208 x 25  20,800  u4
  linear.qzeros   int32    2 x 25       200  u4
  linear.scales   float16  2 x 200      800  float16
  total                              21,800

Writes
  tensor               dtype    shape      bytes  code
  linear.weight        int32    16 x 512  32,768  u4
  linear.weight_scale  float16  2 x 256    1,024  float16
  linear.zero_point    int32    2 x 32       256  u4
  total                                   34,048

Steps
  linear.weight
    from    linear.qweight
    move    41,600 codes, in 2 runs along n and 1 run along k
    recode  none: the same codes
    fill    pads with the zero points of linear.qzeros
  linear.weight_scale
    from    linear.scales
    move    400 codes, in 2 runs along n and 2 runs along k
    recode  none: the same codes
  linear.zero_point
    from    linear.qzeros
    move    400 codes, in 2 runs along n and 2 runs along k
    recode  none: the same codes (u4)

Padding
  tensor                pad code   codes  bytes  why it is harmless
  linear.weight                0  14,336  7,168  it decodes to 0
  linear.weight        from data   9,600  4,800  its group's zero point again: it decodes to 0
  linear.weight_scale          0     112    224  it decodes to 0
  linear.zero_point            0     112     56  the scale beside it is 0
  12,248 bytes added: 36.0 % of what is stored

Memory
  34,048 bytes stay: all that is written
  175,656 bytes at most while it runs: all that is read and written, and 119,808 of intermediate
    results on the torch backend

Losses
  none: every value is exact, or refused

Duties of the caller
  linear: pad its input along k with 0 zeros before and 48 after
  linear: keep the first 200 of its outputs along n
"""


def test_the_report_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(AWQ)
    done = capsys.readouterr()
    assert (status, done.err) == (0, "")
    assert re.sub("sha256 [0-9a-f]{64}", "sha256 ...", done.out) == REPORT


# --- the report against counts made by hand ---------------------------------------------------------------------------

PLANS: dict[str, dict[str, Any]] = {
    "zero points": {"source": "gptq", "target": "marlin_int4_a16", "module": "linear", "sizes": {"n": 100, "k": 200},
                    "params": {"group": 32, "zero_points": True, "bias": True}},
    "parts and experts": {"source": "ct_int", "target": "marlin_int4_a16", "module": "moe_gated",
                          "sizes": {"e": 4, "i": 192, "h": 200}, "params": {"group": 32}, "tp": 2, "rank": 1, "ep": 2},
    "widths": {"source": "ct_int", "target": "marlin_int4_a8fp8", "module": "linear_fused",
               "sizes": {"n": (72, 24, 24), "k": 136}, "params": {"group": 128, "zero_points": True}},
    "int8 scales": {"source": "gptq", "target": "marlin_int8_a8int8", "module": "linear", "sizes": {"n": 72, "k": 72},
                    "params": {"bits": 8, "group": 32}},
    "global scales": {"source": "nvfp4", "target": "marlin_nvfp4_a16", "module": "moe_gated",
                      "sizes": {"e": 2, "i": 80, "h": 144}},
    "blocks": {"source": "fp8_block", "target": "marlin_fp8_a16", "module": "linear", "sizes": {"n": 200, "k": 328}},
    "mx": {"source": "mxfp4", "target": "marlin_mxfp4_a16", "module": "moe_gated",
           "sizes": {"e": 2, "i": 96, "h": 160}, "params": {"dtype": "bfloat16"}},
    "act-order": {"source": "gptq", "target": "marlin_int4_a16", "module": "linear", "sizes": {"n": 64, "k": 136},
                  "params": {"group": 64, "act_order": True}},
    "to a checkpoint": {"source": "marlin_int4_a16", "target": "gptq", "module": "linear",
                        "sizes": {"n": 100, "k": 132}, "params": {"group": 64}},
    "replicas": {"source": "fp8", "target": "marlin_fp8_a16", "module": "linear", "sizes": {"n": 64, "k": 128},
                 "tp": 4, "rank": 2},
}


def plan_of(**asked: Any) -> Plan:
    return compile_plan(asked.pop("source"), asked.pop("target"), asked.pop("module"), asked.pop("sizes"), **asked)


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_of(**PLANS[request.param])


def addresses(move: Move) -> set[int]:
    """Every target element that a move touches, one loop step after the other."""

    def walk(run: Run) -> Iterator[int]:
        for steps in product(*(range(loop[0]) for loop in run.loops)):
            yield run.dst + sum(step * loop[2] for step, loop in zip(steps, run.loops, strict=True))

    return {n + k for along_n in move.n for along_k in move.k for n in walk(along_n) for k in walk(along_k)}


def test_padding_is_all_that_no_data_fills(plan: Plan) -> None:
    found = explain.padding(plan)
    for program in plan.programs:
        info = plan.output[program.output]
        copies = info.experts if info.experts and not info.shared else 1
        data = set[int]().union(*(addresses(move) for move in program.moves if move.kind != "pad"))
        pads = sum(count for name, _, _, count, _ in found if name == info.name)
        assert pads == ((info.codes - len(data)) * copies if program.moves else 0)
        size = sum((size for name, *_, size in found if name == info.name), Fraction(0))
        assert size == Fraction(pads * code_named(info.code).bits, 8)


def test_bytes_are_those_of_the_tensors(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    for info in (*plan.inputs, *plan.outputs):
        stored = torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device="meta")
        assert price.bytes_of(info) == stored.numel() * stored.itemsize


def test_reports_are_legible(plan: Plan) -> None:
    lines = plan.explain().split("\n")
    assert all(line == line.rstrip() and line.isascii() for line in lines)
    assert max(map(len, lines)) <= 104
    named = [name for program in plan.programs for name in (program.output, *program.sources)]
    assert all(name in " ".join(lines) for name in named)
    titles = [line for line in lines if line[:1].strip()]
    for title in ("Axes", "Memory", "Reads", "Writes", "Steps", "Losses", "Duties of the caller"):
        assert title in titles
    assert "\n\n\n" not in "\n".join(lines)


def test_a_plan_from_a_file_is_explained_alike(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()).explain() == plan.explain()


def test_every_recode_and_every_reason_has_words() -> None:
    from layoutdsl import recodes

    names = re.findall(r"^    (\w+)  +\S", recodes.__doc__ or "", re.MULTILINE)
    assert len(names) == 15
    for name in names:
        assert explain.recoded(recodes.Recode(name, "float16", "bfloat16", 3))
    reasons = re.findall(r"^    (\w+)  +\S", Move.__doc__ or "", re.MULTILINE)
    assert {"fill", *reasons} == set(explain.REASONS)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("replicas", ["Ranks", "  linear: 4 tensor-parallel ranks hold each weight"]),
        ("int8 scales", ["  linear.largest: the largest scale, over the scales that `linear.weight_scale` reads"]),
        ("parts and experts", ["  rank    1 of 2 tensor-parallel, 0 of 2 expert-parallel", "  experts 0 to 1 of 4",
                               "  w2: add up the outputs of all tensor-parallel ranks"]),
        ("act-order", ["    gather  k in the order that sorts linear.g_idx",
                       "    from    linear.g_idx, the order that sorts it"]),
        ("widths", ["  sizes   k=136 n=72,24,24"]),
    ],
)
def test_single_lines_of_reports(name: str, lines: list[str]) -> None:
    assert set(lines) <= set(plan_of(**PLANS[name]).explain().split("\n"))


# --- other ranks, against their plans ---------------------------------------------------------------------------------

KERNELS = [("gptq", "marlin_int4_a16", {"group": 128}), ("gptq", "marlin_int4_a16", {"group": 32}),
           ("fp8_block", "marlin_fp8_a16", {}), ("nvfp4", "marlin_nvfp4_a16", {}),
           ("fp8", "marlin_fp8_a16", {"bias": True}), ("awq", "marlin_int4_a8fp8", {"group": 64})]  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """What is asked of compile_plan, but for the rank."""
    source, target, params = draw(st.sampled_from(KERNELS))
    module = draw(st.sampled_from(["moe_gated", "moe_plain", "mlp_gated", "attention"]))
    asked = {"source": source, "target": target, "module": module, "params": params, "tp": draw(st.integers(1, 6))}
    if module == "attention":
        kv = draw(st.integers(1, 3))
        asked["sizes"] = {"q": kv * draw(st.integers(1, 3)), "kv": kv, "d": draw(st.sampled_from([24, 64, 80, 128])),
                          "h": draw(st.integers(1, 300))}
        return asked
    asked["sizes"] = {"i": draw(st.integers(1, 900)), "h": draw(st.integers(1, 300))}
    if module.startswith("moe"):
        asked["sizes"]["e"] = draw(st.integers(1, 5))
        asked["ep"] = draw(st.integers(1, asked["sizes"]["e"]))
    return asked


def every_plan(asked: dict[str, Any]) -> list[Plan]:
    tp, ep = asked["tp"], asked.get("ep", 1)
    return [plan_of(**asked, rank=rank, ep_rank=ep_rank) for ep_rank in range(ep) for rank in range(tp)]


def share_of(plans: list[Plan]) -> Fraction:
    added = sum((row[-1] for plan in plans for row in explain.padding(plan)), Fraction())
    return added / sum(price.bytes_of(info) for plan in plans for info in plan.outputs)


quickly = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@quickly
@given(requests(), st.data())
def test_all_ranks_are_priced_as_their_plans_are(asked: dict[str, Any], data: st.DataObject) -> None:
    plans = every_plan(asked)
    for plan in (plans[0], data.draw(st.sampled_from(plans))):
        request = price.recalled(plan)
        assert request is not None
        found = price.everywhere(request)
        assert found.stored == sum(price.bytes_of(info) for plan in plans for info in plan.outputs)
        assert found.share == share_of(plans)


@quickly
@given(requests(), st.data())
def test_the_next_best_stores_as_much_or_more(asked: dict[str, Any], data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(every_plan(asked)))
    request = price.recalled(plan)
    assert request is not None and price.left_to_choose(request) is not None
    found = price.rivals(request)
    assert [name for rival in found for name in rival.matrices] == list(dict(plan.groups))
    for rival in found:
        own = sum(price.bytes_of(info) for info in plan.outputs if info.name.split(".")[0] in rival.matrices)
        assert rival.bytes == own
        assert rival.more >= 0
    assert "left to choose" not in plan.explain()


@quickly
@given(requests())
def test_the_ranks_that_are_named_pad_a_tenth_or_less(asked: dict[str, Any]) -> None:
    plan = plan_of(**asked)
    named = re.search(r"with --tp (\d+)(?: --ep (\d+))?, (as many|fewer) ranks: (.*) %", plan.explain())
    share = share_of(every_plan(asked))
    if named is None:
        assert share <= Fraction(1, 10) or asked["tp"] == 1 or "no fewer tensor-parallel ranks" in plan.explain()
        return
    assert share > Fraction(1, 10)
    tp, ep = int(named[1]), int(named[2] or 1)
    better = share_of(every_plan({**asked, "tp": tp, "ep": ep} if "e" in asked["sizes"] else {**asked, "tp": tp}))
    assert better <= Fraction(1, 10) and named[4] == f"{float(100 * better):.1f}"
    assert tp < asked["tp"] and (named[3] == "as many") == (tp * ep == asked["tp"] * asked.get("ep", 1))


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        # 10 groups of 128 for 8 ranks: two of them hold 2, and all are padded to it; 4 ranks pad 5 halves to 3.
        ({"source": "fp8_block", "target": "marlin_fp8_a16", "sizes": {"e": 64, "i": 1280, "h": 4096}, "tp": 8},
         ["Choice: uneven", "  i is cut at multiples of 128",
          "  0 bytes added on this rank: 0.0 % of what is stored",
          "  613,416,960 bytes added on all ranks: 37.5 % of what is stored",
          "  with --tp 2 --ep 4, as many ranks: 0.0 %"]),
        ({"source": "gptq", "target": "marlin_int4_a16", "sizes": {"e": 2, "i": 1408, "h": 2048}, "tp": 2,
          "params": {"group": 128}},
         ["Choice: finer groups", "  w2      2,048 x 704    128 x 64  64, 2 for each of the checkpoint's 128",
          "  next best for w13, w2: uneven, i cut at multiples of 128, 1,536 x 2,048 in groups of 128 and 2,048",
          "    x 768 in groups of 128; it stores 360,448 bytes more, 8.0 %"]),
        ({"source": "gptq", "target": "marlin_int4_a16", "sizes": {"e": 2, "i": 1408, "h": 2048}, "tp": 2,
          "params": {"group": 128}, "grains": {"i": 128}},
         ["  left to choose for w13, w2: finer groups, 1,408 x 2,048 in groups of 128 and 2,048 x 704 in groups",
          "    of 64; it stores 360,448 bytes less, 7.4 %"]),
    ],
)  # fmt: skip
def test_prices(asked: dict[str, Any], lines: list[str]) -> None:
    found = plan_of(module="moe_gated", **asked).explain().split("\n")
    assert [line for line in lines if line not in found] == []


def test_front_pads_differ_over_ranks_and_so_do_scales() -> None:
    """A rank in front of whose inputs nothing stands has a group of scales more behind them."""
    plans = [compile_plan("fp8_block", "marlin_fp8_a16", "attention", {"q": 18, "kv": 3, "d": 80, "h": 224}, tp=3,
                          rank=rank) for rank in range(3)]  # fmt: skip
    assert [sum(row[-1] for row in explain.padding(plan)) for plan in plans] == [77_568, 77_120, 77_120]
    assert all("231,808 bytes added on all ranks" in plan.explain() for plan in plans)


def test_fewer_ranks_are_tried_one_by_one() -> None:
    plan = compile_plan("fp8_block", "marlin_fp8_a16", "mlp_gated", {"i": 2304, "h": 1024}, tp=7)
    assert "with --tp 6" in plan.explain()


def test_a_front_pad_and_ranks_that_hold_nothing() -> None:
    """The second rank's heads begin at 216. The next group of 128 begins at 256, 40 later, and groups of 64 must too:
    24 are padded in front."""
    heads = {"source": "gptq", "target": "marlin_int4_a16", "module": "attention", "params": {"group": 128}}
    lines = plan_of(**heads, sizes={"q": 6, "d": 72, "h": 256}, tp=2, rank=1).explain().split("\n")
    assert next(line for line in lines if line.startswith("  matrix  axis")).split()[-3:] == ["front", "padded", "why"]
    assert next(line for line in lines if line.startswith("  o       k = q")).split()[4:11] == [
        "432", "216", "to", "431", "216", "24", "256"]
    empty = plan_of(**heads, sizes={"q": 4, "d": 64, "h": 256}, tp=6).explain()
    assert "  tensor-parallel ranks 4 to 5 hold nothing of q and kv: all padding\n" in f"{empty}\n"


def test_what_the_specs_alone_know_is_left_out_without_them() -> None:
    plan = plan_of(source="gptq", target="marlin_int4_a16", module="moe_gated", sizes={"e": 2, "i": 1408, "h": 256},
                   tp=16, rank=15)
    other = dataclasses.replace(plan, module=dataclasses.replace(plan.module, digest="0" * 64))
    lines = {"with": plan.explain().split("\n"), "without": other.explain().split("\n")}
    only = {key: [line for line in found if line not in lines["without" if key == "with" else "with"]]
            for key, found in lines.items()}  # fmt: skip
    assert [line for line in only["without"] if "sha256" not in line] == [
        "  left out, for want of the specs: the next best way, what all ranks store; spec `moe_gated` is not",
        "    the one that the plan was made from"]
    assert [line[:12] for line in only["with"] if "sha256" not in line] == [
        "  next best ", "    256 x 12", "  251,904 by", "  with --tp "]


def test_memory_is_what_the_backend_says(plan: Plan) -> None:
    backends = pytest.importorskip("layoutdsl.backends.torch.backend")
    read, written = (sum(map(price.bytes_of, found)) for found in (plan.inputs, plan.outputs))
    text = " ".join(plan.explain().split())
    assert f"Memory {written:,} bytes stay: all that is written" in text
    assert f" {read + written + backends.scratch(plan):,} bytes at most while it runs" in text


def test_every_choice_has_words() -> None:
    assert set(explain.CHOSEN) == set(CHOICES)
