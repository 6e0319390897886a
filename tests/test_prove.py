"""The prover: it takes every shipped spec and all ranks' plans, and sees broken specs, missing ranks, edited plans."""

import dataclasses
import json
import time
from typing import Any

import pytest
from edits import Edit, Effect, edited, edits, verdict
from plans import CASES, NAMES, plan_named

from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.compile import forget
from layoutdsl.library import files, load_spec, read_spec, shipped, spec_of
from layoutdsl.logical import prove_spec
from layoutdsl.model import Format
from layoutdsl.prove import prove, prove_ranks
from layoutdsl.prove import ranks as ranks_law

TRIES = [(path.stem, at) for path in files() for at in range(len(read_spec(path).try_))]

EDITS_OF_A_PLAN = 120
"""How many edits of each plan are tried here, spread evenly over all; `python -m tests.edits` tries every one."""


# --- specs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "at"), TRIES)
def test_every_shipped_spec_proves_at_its_sizes_to_try(name: str, at: int) -> None:
    spec = load_spec(name)
    prove_spec(spec, spec.try_[at])


GPTQ, AWQ, FP8, MXFP4 = (f"checkpoint/{name}" for name in ("gptq", "awq", "fp8", "mxfp4"))
INT4, INT4_FP8, MARLIN_FP8, NVFP4, INT8 = (
    f"kernel/marlin_{name}" for name in ("int4_a16", "int4_a8fp8", "fp8_a16", "nvfp4_a16", "int8_a8int8")
)
MOE = "module/moe_gated"

# spec, what stands in it, what stands there instead, and how the finding begins
BROKEN = [
    (GPTQ, '"kw, n {kp}"', '"kw, n"', "LD101 the order of `qweight` leaves out `kp` of axis k"),
    (GPTQ, '"kw, n {kp}"', '"kw, n {kp kp}"', "LD024 tensor `qweight`: digit `kp` stands twice"),
    (GPTQ, '"kw, n {kp}"', '"kw, n kw {kp}"', "LD024 tensor `qweight`: digit `kw` stands twice"),
    (GPTQ, '"kw, n {kp}"', '"kw {kp} n"', "LD024 tensor `qweight`: expected no stored digit after the packed word"),
    (GPTQ, '"kw, n {kp}"', '"kw, n (kp)"', "LD302 tensor `qweight` packs 1 codes of 4 bits in a int32 of 32 bits"),
    (GPTQ, "kw kp:(32/bits)", "kw kp:(16/bits)", "LD302 tensor `qweight` packs 4 codes of 4 bits in a int32"),
    (GPTQ, "kw kp:(32/bits)", "kw:8 kp:(32/bits)", "LD024 tensor `qweight`: the first digit `kw` takes what is left"),
    (GPTQ, "nw np:(32/bits)", "nw np:(64/bits)", "LD302 tensor `qzeros` packs 16 codes of 4 bits in a int32"),
    (GPTQ, "dtype: int32\n    code", "dtype: int16\n    code", "LD302 tensor `qweight` packs 8 codes of"),
    (GPTQ, "b{2^(bits-1)}", "b{2^bits}", "LD310 `u8b256` is no element code"),
    (GPTQ, "(qweight - qzeros) * scales", "qweight * scales", "LD107 `qzeros` is a zero_point tensor, but `value`"),
    (GPTQ, "plus: zero_offset", "plus: zero_offse", "LD104 unknown name `zero_offse`"),
    (GPTQ, "role: scale", "role: codes", "LD106 `scales` and `qweight` both have the role codes"),
    (GPTQ, '"g, n (gi)"', '"g, n"', "LD101 the order of `scales` leaves out `gi` of axis k"),
    (GPTQ, "g gi:(group)", "g gi:(groups)", "LP200 the plan breaks the law `once`: `linear.qzeros`: code 0 is written"),
    (GPTQ, "g gi:(group)", "g gi:(group/3)", "LD104 tensor `qzeros`: 128 / 3 leaves a rest"),
    (GPTQ, 'order: "k (n)"', 'order: "n (k)"', "LP200 the plan breaks the law `complete`: `linear.g_idx`: neighb"),
    (GPTQ, "[gate, up]", "[gate, upper]", "LD404 `gptq` does not say in which order the parts gate, up stand"),
    (AWQ, "n = nw n2:4 n0:2", "n = nw n2:4 n0:4", "LD302 tensor `qweight` packs 16 codes of 4 bits in a int32"),
    (FP8, '"n, k"', '"n (k)"', "LP200 the plan breaks the law `complete`: `linear.weight`: neighbours along k share"),
    (MXFP4, "k = kb k0:2", "k = kb k0:4", "LD302 tensor `weight_packed` packs 4 codes of 4 bits in a uint8 of 8 bits"),
    (MXFP4, "code: e2m1", "code: e3m2", "LD310 `e3m2` is no element code"),
    (INT4, "k0:2 · n", "k0:4 · n", "LD302 tensor `weight` packs 16 codes of 4 bits in a int32 of 32 bits"),
    (INT4, "{k0 b k3}", "{k0 b} k3", "LD024 tensor `weight`: expected no stored digit after the packed word"),
    (INT4, "{j0 j2 j1}", "{j0 j2}", "LD101 the order of `zero_point` leaves out `j1` of axis n"),
    (INT4, "groups: [-1, 32, 64, 128]", "groups: [32, 64]", "LP123 `linear` has groups of 128 along `k`, which"),
    (INT4_FP8, "[k / 16, n * 2]", "[k / 16, n]", "LD303 tensor `weight` reports the shape [16, 128] for 4096"),
    (MARLIN_FP8, "112 * (dtype == bfloat16)", "2000", "LP200 the plan breaks the law `value`: `linear.weight_scale`:"),
    (MARLIN_FP8, "(dtype == bfloat16)", "dtype", "LD104 tensor `weight_scale`: `float16` is a word, a number is"),
    (NVFP4, "scaled: 7\n", "scaled: 70\n", "LP200 the plan breaks the law `value`: `linear.weight_scale`: no sample"),
    (INT8, "    derive: largest_scale\n", "", "LP200 the plan breaks the law `value`: `w2.input_global_scale`: it is"),
    (MOE, "n: i, k: h", "n: j, k: h", "LD103 unknown axis `j`"),
    (MOE, "visible: [h]", "visible: [x]", "LD103 unknown axis `x`"),
    (MOE, "[gate, up]", "[gate, gate]", "LP200 the plan breaks the law `header`: `w13.gate.qweight`: two tensors have"),
    (MOE, "[gate, up]", "[gate, down]", "LD404 `marlin_int4_a16` does not say in which order the parts gate, down"),
]


@pytest.mark.parametrize(("name", "old", "new", "finding"), BROKEN)
def test_a_broken_spec_is_found(name: str, old: str, new: str, finding: str) -> None:
    text = (shipped() / f"{name}.yaml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(LayoutError) as caught:
        spec = spec_of(text.replace(old, new), f"{name}.yaml")
        for entry in spec.try_:
            prove_spec(spec, entry)
    first = caught.value.diagnostics[0]
    assert f"{first.code} {first.message}".startswith(finding)


def test_two_digits_exchanged_make_another_format_not_a_broken_one() -> None:
    """What no proof can see: it stores every element once, only not as the files do. Recorded cases see it."""
    text = (shipped() / f"{INT4}.yaml").read_text(encoding="utf-8").replace("kt, nt c kq j", "kt, nt kq c j")
    spec = spec_of(text, f"{INT4}.yaml")
    assert isinstance(spec, Format)
    prove_spec(spec, spec.try_[0])


# --- all ranks --------------------------------------------------------------------------------------------------------

RANKED: dict[str, tuple[Any, ...]] = {
    "gptq": ("gptq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 1536, "h": 256}, {}),
    "gptq_act_order": ("gptq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 768, "h": 128},
                       {"group": 64, "act_order": True}),
    "awq": ("awq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 768, "h": 100}, {"group": 64}),
    "ct_int_a8fp8": ("ct_int", "marlin_int4_a8fp8", "moe_gated", {"e": 4, "i": 768, "h": 96},
                     {"group": 32, "zero_points": True}),
    "fp8_block": ("fp8_block", "marlin_fp8_a16", "moe_gated", {"e": 4, "i": 1536, "h": 200}, {}),
    "nvfp4": ("nvfp4", "marlin_nvfp4_a16", "moe_gated", {"e": 4, "i": 192, "h": 64}, {}),
    "gpt_oss": ("mxfp4", "marlin_mxfp4_a16", "moe_gated", {"e": 4, "i": 384, "h": 96},
                {"writer": "gpt_oss", "source.parts": "alternating", "bias": True}),
    "int8": ("gptq", "marlin_int8_a8int8", "moe_plain", {"e": 4, "i": 1536, "h": 64}, {"bits": 8}),
    "to_checkpoint": ("gptq", "ct_int", "moe_gated", {"e": 4, "i": 768, "h": 64}, {"group": 64}),
    "qkv": ("awq", "marlin_int4_a16", "linear_fused", {"n": (96, 48, 48), "k": 64}, {"group": 64, "bias": True}),
    "split_k": ("fp8", "marlin_fp8_a16", "linear", {"n": 64, "k": 384},
                {"split": "k", "bias": True, "dtype": "bfloat16"}),
    "replicated": ("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 128}, {}),
}  # fmt: skip


def plans_of(name: str, tp: int, ep: int) -> list[Plan]:
    source, target, module, sizes, params = RANKED[name]
    return [
        compile_plan(source, target, module, sizes, params=params, tp=tp, rank=rank, ep=ep, ep_rank=ep_rank)
        for rank in range(tp) for ep_rank in range(ep)
    ]  # fmt: skip


@pytest.mark.parametrize("ep", [1, 2])
@pytest.mark.parametrize("tp", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RANKED)
def test_the_ranks_together_read_everything(name: str, tp: int, ep: int) -> None:
    if ep > 1 and "e" not in RANKED[name][3]:
        return
    plans = plans_of(name, tp, ep)
    prove_ranks(plans)
    prove_ranks(plans[::-1])


def broken_by(plans: list[Plan]) -> str:
    with pytest.raises(LayoutError) as caught:
        prove_ranks(plans)
    assert caught.value.diagnostics[0].name == "law-complete"
    return caught.value.message.removeprefix("the plan breaks the law `complete`: ")


def test_a_missing_or_doubled_or_foreign_rank_is_found() -> None:
    a, b, c, d = plans_of("gptq", 2, 2)
    needed = "plans of 2 x 2 ranks are needed, each once; given are those of "
    assert broken_by([a, b, c]) == needed + "(0, 0), (0, 1), (1, 0)"
    assert broken_by([a, b, c, c]) == needed + "(0, 0), (0, 1), (1, 0), (1, 0)"
    assert broken_by([a, b, c, d, d]) == needed + "(0, 0), (0, 1), (1, 0), (1, 1), (1, 1)"
    assert broken_by([]) == "no plan is given"
    of_four = plans_of("gptq", 4, 1)
    assert broken_by([a, b, c, of_four[1]]) == "a plan of 4 x 1 ranks stands among those of others"
    other = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 768, "h": 256}, tp=2, rank=1, ep=2)
    assert broken_by([a, b, other, d]) == "the plans of rank 0 and 1 differ in their sizes"


def test_maps_of_experts_that_contradict_each_other_are_found() -> None:
    """Place 0 on two tensor-parallel ranks must be one expert: their sums are of the same experts."""
    sizes = {"e": 2, "i": 256, "h": 256}
    plans = [compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, tp=2, rank=rank, experts=experts)
             for rank, experts in enumerate([(0, 1), (1, 0)])]
    assert broken_by(plans) == "the ranks with expert-parallel rank 0 hold different experts"
    text = compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, experts=(0, 1, 0)).to_json()
    with pytest.raises(LayoutError, match="no place is left for one of the experts"):
        Plan.from_json(text.replace('"slots":[0,1,0]', '"slots":[0,0,0]'))


@pytest.mark.parametrize("name", ["gptq", "awq", "fp8_block", "gpt_oss", "qkv", "split_k"])
def test_the_identity_itself_misses_a_rank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were nobody to count ranks, what they read would still tell."""
    monkeypatch.setattr(ranks_law, "_are_all_ranks", lambda plans: None)
    plans = plans_of(name, 3, 1)
    prove_ranks(plans)
    for wrong in (plans[:2], [plans[0], plans[1], plans[1]], [*plans, plans[2]]):
        assert broken_by(wrong).startswith("the ranks together do not read `")


def test_a_plan_among_the_ranks_that_proves_not_is_found() -> None:
    a, b = plans_of("split_k", 2, 1)
    shifted = dataclasses.replace(b, ranks=dataclasses.replace(b.ranks, rank=0))
    with pytest.raises(LayoutError, match="law `header`: rank 0 holds 0 to 191 of axis `k`, 384 in all"):
        prove_ranks([a, shifted])


# --- edits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_edit_is_refused_or_changes_nothing(name: str) -> None:
    plan = plan_named(name)
    tree, effect = json.loads(plan.to_json()), Effect(plan)
    every = [edit for edit in edits(tree) if edit.path[0] != "slots"]  # whose expert that is, is the caller's to say
    found: dict[str, list[Edit]] = {}
    for edit in every[:: len(every) // EDITS_OF_A_PLAN]:
        found.setdefault(verdict(json.dumps(edited(tree, edit)), plan, effect), []).append(edit)
    holes = {found: list(map(str, tried)) for found, tried in found.items() if found.startswith("HOLE")}
    assert not holes, holes
    assert len(found["refused"]) >= 0.9 * EDITS_OF_A_PLAN
    # Only parameters and habits that nothing in this plan depends on can be changed without effect.
    assert {edit.path[1] if edit.path[0] in ("source", "target") else edit.path[0]
            for edit in found.get("without effect", [])} <= {"params", "habits"}  # fmt: skip


def with_edit(name: str, path: str, what: str = "set", value: Any = None) -> str:
    """The message on a plan with one edit, without its first words."""
    tree = json.loads(plan_named(name).to_json())
    steps = tuple(int(step) if step.isdigit() else step for step in path.split("."))
    with pytest.raises(LayoutError) as caught:
        Plan.from_json(json.dumps(edited(tree, Edit(steps, what, value))))
    return caught.value.message.removeprefix("the plan breaks the ")


# plan, edit, and the message: a law, a tensor, an element, and what is true
MESSAGES: list[tuple[tuple[Any, ...], str]] = [
    (("gptq_moe_padded", "programs.0.moves.0.n.0.dst", "set", 1),
     "law `meaning`: `w13.weight`: element n 0 does not stand where the target spec puts it (0)"),
    (("gptq_moe_padded", "programs.0.moves.0.k.0.loops.0.3", "set", 2),
     "law `meaning`: `w13.weight`: element k 1 does not stand where the source spec puts it (1)"),
    (("gptq_moe_padded", "programs.0.moves.0.n.1", "remove"),
     "law `complete`: `w13.weight`: n 64 of part gate is not moved exactly once"),
    (("gptq_moe_padded", "programs.0.moves.0.n.1", "swap"),
     "law `meaning`: `w13.weight`: the runs along n do not stand in the order of their parts"),
    (("gptq_moe_padded", "programs.0.moves.0.n.0.part", "set", 7),
     "law `complete`: `w13.weight`: part 7 does not belong here"),
    (("gptq_moe_padded", "programs.0.moves.0.n.0.join", "set", True),
     "law `once`: `w13.weight`: the run at 0 joins an element that none before it writes"),
    (("gptq_moe_padded", "programs.0.moves.3", "remove"),
     "law `once`: `w13.weight`: k 96 is not padded exactly once"),
    (("gptq_moe_padded", "programs.0.moves.1.pad", "set", 0),
     "law `neutral`: `w13.weight`: the pad at n beyond the outputs must be 8, harmless because of its code; "
     "it is 0 (code)"),
    (("gptq_moe_padded", "programs.1.recode.power", "set", 1),
     "law `value`: `w13.weight_scale`: what stays the same code and value is copied, all else is not"),
    (("gptq_moe_padded", "programs.1.recode", "set",
      {"name": "rescale", "source": "float16", "target": "float16", "power": 1}),
     "law `value`: `w13.weight_scale`: a scale of 0.015625 becomes 0.03125, it is worth 0.015625"),
    (("gptq_moe_padded", "checks.0.expect.0", "set", 8),
     "law `value`: `w13.gate.qzeros`: its data must be checked: the target is symmetric: every zero point must be 8, "
     "which this source stores as 7"),
    (("gptq_moe_padded", "losses", "set", [["w13.weight", "much"]]),
     "law `value`: `w13.weight`: what it may lose is nothing"),
    (("gptq_moe_padded", "duties.2", "remove"),
     "law `duties`: they are w13: pad its input along h with 0 zeros before and 32 after; w2: keep the first 96 of its "
     "outputs along h; w2: add up the outputs of all tensor-parallel ranks"),
    (("gptq_moe_padded", "extents.1.padded", "set", 160),
     "law `agree`: `w13` writes 160 elements of axis `i`, `w2` reads 128"),
    (("gptq_moe_padded", "extents.1.start", "set", 95),
     "law `header`: rank 1 holds 96 to 191 of axis `i`, 192 in all; the plan says otherwise for n of `w13`"),
    (("gptq_moe_padded", "groups.0.1", "set", 64),
     "law `header`: `w13.weight_scale`: the outputs are not the tensors of the target spec"),
    (("awq_fill", "programs.0.fill", "set", None),
     "law `neutral`: `linear.weight`: k 160 to 255 lies in a group with a zero point, which its pads must repeat"),
    (("awq_fill", "programs.0.fill.moves.0.k.0.src", "set", 0),
     "law `meaning`: `linear.weight`: element k 160 does not stand where the source spec puts it (72)"),
    (("awq_fill", "programs.0.sources.0", "set", "linear.qzeros"),
     "law `meaning`: `linear.weight`: its sources are linear.qweight"),
    (("awq_fill", "outputs.0.shape.0", "set", 8),
     "law `header`: `linear.weight`: the outputs are not the tensors of the target spec"),
    (("nvfp4_moe", "reductions.1", "remove"),
     "law `value`: `w2.weight_scale`: its recode needs the reduction nvfp4 over expert"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "message"), MESSAGES, ids=[f"{edit[0]} {edit[1]}" for edit, _ in MESSAGES])
def test_a_message_names_the_law_the_tensor_and_the_element(edit: tuple[Any, ...], message: str) -> None:
    assert with_edit(*edit) == message


def test_an_edit_that_fits_itself_is_found_too() -> None:
    """Gate and up exchanged throughout: every run stands somewhere, and each element is moved once."""
    tree = json.loads(plan_named("nvfp4_moe").to_json())
    for run in tree["programs"][0]["moves"][0]["n"]:
        run["part"] = 1 - run["part"]
    tree["programs"][0]["moves"][0]["n"].reverse()
    with pytest.raises(LayoutError) as caught:
        Plan.from_json(json.dumps(tree))
    assert caught.value.message.endswith("element n 0 does not stand where the target spec puts it (0)")


# --- plans as text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_survives_its_text(name: str) -> None:
    plan = plan_named(name)
    for text in (plan.to_json(), plan.to_json(indent=2)):
        again = Plan.from_json(text)
        assert again == plan and hash(again) == hash(plan) and again.digest == plan.digest
        assert again.to_json() == plan.to_json()
    forget()
    same = plan_named(name)
    assert same is not plan and same == plan and same.digest == plan.digest
    assert len({plan, same}) == 1


def test_different_plans_have_different_digests() -> None:
    plans = [plan_named(name) for name in NAMES]
    assert len(set(plans)) == len({plan.digest for plan in plans}) == len(NAMES)


@pytest.mark.parametrize("name", CASES)
def test_a_proof_can_be_repeated(name: str) -> None:
    plan = plan_named(name)
    prove(plan)
    prove(plan)


def hostile() -> dict[str, str]:
    text = plan_named("gptq_moe_padded").to_json()
    tree = json.loads(text)
    move = tree["programs"][0]["moves"][0]

    def put(path: str, value: Any) -> str:
        steps = tuple(int(step) if step.isdigit() else step for step in path.split("."))
        return json.dumps(edited(tree, Edit(steps, "set", value)))

    def raw(path: str, value: str) -> str:
        return put(path, "@@").replace('"@@"', value)

    run, loops = "programs.0.moves.0.n.0", "programs.0.moves.0.n.0.loops"
    prime = 2**127 - 2
    return {
        "nothing": "",
        "no object": "[]",
        "deep lists": "[" * 100_000,
        "deep objects": '{"a":' * 100_000,
        "deep inside": raw("sizes", "[" * 10_000 + "]" * 10_000),
        "ten megabytes of no JSON": "x" * 10_000_000,
        "ten megabytes of text": json.dumps("x" * 10_000_000),
        "ten megabytes of wrong programs": raw("programs", f"[{'1,' * 5_000_000}1]"),
        "ten megabytes of empty runs": raw("programs.0.moves.0.n", f"[{'{},' * 3_000_000}{{}}]"),
        "ten megabytes of wrong loops": raw(loops, f"[{'0,' * 5_000_000}0]"),
        "megabytes of runs": put("programs.0.moves.0.n", [move["n"][0]] * 40_000),
        "megabytes of moves": put("programs.0.moves", [move] * 5_000),
        "megabytes of loops": put(loops, [[2, at + 1, 1, 1] for at in range(200_000)]),
        "megabytes of parameters": put("module.params", [["a", 1]] * 300_000),
        "NaN": raw("ranks.tp", "NaN"),
        "infinity": raw("ranks.tp", "Infinity"),
        "a float": put("ranks.tp", 1.0),
        "true for 1": put("ranks.tp", True),
        "text for 1": put("ranks.tp", "1"),
        "a number of 4000 digits": raw(f"{run}.x", "9" * 4000),
        "a number of a million digits": raw(f"{run}.x", "9" * 1_000_000),
        "a count of 10^18": put(f"{loops}.0.0", 10**18),
        "a coordinate where powers repeat": put(f"{run}.x", prime),
        "an address where powers repeat": put(f"{run}.dst", prime),
        "10^18 ranks": put("ranks.tp", 10**18),
        "10^18 expert ranks": put("ranks.ep", 10**18),
        "no ranks": put("ranks.tp", 0),
        "a rank below 0": put("ranks.rank", -1),
        "a size of 10^18": put("sizes.1.1", 10**18),
        "a size near 2^40 that has no divisor": put("sizes.2.1", 2**40 - 87),
        "a size twice": put("sizes", [["e", 2], ["e", [2]], ["h", 96], ["i", 192]]),
        "a size of a million widths": put("sizes.1.1", [1] * 1_000_000),
        "padded to 10^3000": raw("extents.0.padded", "1" + "0" * 3000),
        "a power of 10^30": put("programs.1.recode.power", 10**30),
        "a power of -2000": put("programs.1.recode.power", -2000),
        "a spec that is a device": put("source.spec", "/dev/zero"),
        "a path": put("source", {"spec": "../x", "digest": "0", "params": []}),
        "a long name": put("source", {"spec": "x" * 100_000, "digest": "0", "params": []}),
        "a name with NUL": put("source", {"spec": "x\0y", "digest": "0", "params": []}),
        "half a character": text.replace("gptq", "\ud800", 1),
        "half an escape": text.replace('"gptq"', '"\\ud800"', 1),
        "text after the end": text + "\0",
        "a key more": put("ranks.extra", 1),
        "another form": put("form", 1),
    }


@pytest.mark.parametrize(("name", "text"), hostile().items(), ids=hostile())
def test_hostile_text_is_refused_at_once(name: str, text: str) -> None:
    start = time.process_time()
    with pytest.raises(LayoutError) as caught:
        Plan.from_json(text)
    assert time.process_time() - start < 5
    assert len(caught.value.message) < 200_000


def test_text_that_is_no_plan_says_where() -> None:
    with pytest.raises(LayoutError) as caught:
        Plan.from_json(plan_named("awq_fill").to_json().replace('"places":0', '"places":"0"'))
    assert str(caught.value) == (
        "LP140 not-a-plan: this is no plan: places: input should be a valid integer\n"
        "  = help: a plan is written by Plan.to_json or `layoutdsl plan --json`"
    )


def test_a_plan_of_another_text_of_its_spec_is_refused() -> None:
    message = with_edit("awq_fill", "source.digest", value="0" * 64)
    assert message == "spec `awq` is not the one that the plan was made from"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cop", "a codes tensor is not made by `cop`: did you mean `copy`?"),
        ("xyz", "a codes tensor is not made by `xyz`: its recodes are copy, fp8_nibbles, plain_nibbles, fold_sign"),
    ],
)
def test_an_unknown_recode_is_named(name: str, said: str) -> None:
    tree = json.loads(compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 128, "k": 128}).to_json())
    tree["programs"][0]["recode"]["name"] = name
    with pytest.raises(LayoutError) as caught:
        Plan.from_json(json.dumps(tree))
    assert said in caught.value.message
