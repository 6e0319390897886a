"""What a plan reads, byte by byte, against what the reference backend touches; and spans of bytes against plans.

Every checkpoint format goes into its kernels, for every module, as test_round_trip.py draws them; and into itself, a
rank's slice out of whole tensors, which a loader may copy as bytes.
"""

from __future__ import annotations

import doctest
import itertools
from dataclasses import replace

import numpy as np
import plans
import pytest
import torch
from conversions import Job, given
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from test_round_trip import CASES, MODULES, SOURCES, jobs

from layoutdsl import LayoutError, Plan, compile_plan, reads
from layoutdsl.backends.reference import backend as reference
from layoutdsl.codes import code_named
from layoutdsl.plan import TensorInfo
from layoutdsl.reads import Reads
from layoutdsl.spans import spans, split
from layoutdsl.strips import Strip, joined, tidy

GARBAGE = 0xA5
FEW = settings(max_examples=3, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
LAWS = settings(max_examples=150, derandomize=True, deadline=None, database=None)

Tensors = dict[str, torch.Tensor]

FORMATS = [pytest.param(name, module, id=f"{name}-{module}") for name in SOURCES for module in MODULES]
EVEN = {
    "linear": {"n": 128, "k": 512},
    "linear_fused": {"n": (1024, 512, 512), "k": 512},
    "moe_gated": {"e": 2, "i": 512, "h": 128},
    "moe_plain": {"e": 2, "i": 512, "h": 128},
}
"""Cut in four, every part is whole words and either whole groups or inside one."""


# --- helpers ----------------------------------------------------------------------------------------------------------


def fixed_job(name: str, kernel: str, module: str, sizes: dict, cut: str, tp: int, rank: int, *, last: bool) -> Job:
    """A format with the last, or the first, of each of its parameters, and a bias."""
    make, fixed, choices, _ = SOURCES[name]
    params = {key: values[-1 if last else 0] for key, values in choices.items()}
    params |= {"group": 32} if "group" in choices else {}
    source = make(fixed | params | {"bias": True, "dtype": "bfloat16"})
    return Job(source, kernel, module, sizes, split=cut, tp=tp, rank=rank, dtype="bfloat16")


def slice_of(job: Job) -> Plan:
    """The rank's slice of whole tensors, in the format's own tensors."""
    own = dict(job.source.params)
    if job.module in ("linear_fused", "moe_gated"):
        own["parts"] = job.stored[0]
    params = {f"{side}.{name}": value for side in ("source", "target") for name, value in own.items()}
    if job.module.startswith("linear"):
        params["module.split"] = job.split
    if job.module == "linear_fused":
        params["module.names"] = ",".join(job.names)
    spec, ranks = job.source.spec, {"tp": job.tp, "rank": job.rank, "ep": job.ep, "ep_rank": job.ep_rank}
    return compile_plan(spec, spec, job.module, job.sizes, params=params, **ranks)


def drawn_inputs(job: Job, plan: Plan, seed: int) -> Tensors:
    found = given(plan, job.draw(np.random.default_rng(seed)))
    return {name: torch.stack(one) if isinstance(one, list) else one for name, one in found.items()}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def experts(info: TensorInfo, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The bytes of a tensor, expert by expert, as a view."""
    return list(flat(tensor).view(info.experts if info.experts and not info.shared else 1, -1))


def held(plan: Plan, name: str) -> range:
    """The experts of an input that the rank needs."""
    info, (_, start, count) = plan.input[name], plan.experts
    return range(start, start + count) if info.experts and not info.shared else range(1)


def spoiled(plan: Plan, tensors: Tensors) -> Tensors:
    """Rubbish in every byte that the plan does not read."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        made = torch.full_like(flat(tensor), GARBAGE)
        made = made.view(tensor.dtype).reshape(tensor.shape)
        rows = list(zip(experts(plan.input[name], made), experts(plan.input[name], tensor.contiguous())))
        for expert in held(plan, name):
            for begin, end in plan.reads()[name].ranges():
                rows[expert][0][begin:end] = rows[expert][1][begin:end]
        found[name] = made
    return found


def assert_same(made: Tensors, wanted: Tensors) -> None:
    assert made.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert made[name].dtype == tensor.dtype
        assert torch.equal(flat(made[name]), flat(tensor)), name


def gathered(plan: Plan) -> bool:
    return any(move.gather_k or move.gather_n for program in plan.programs for move in program.moves)


# --- reads ------------------------------------------------------------------------------------------------------------


class Touched(list):
    """Codes that remember which of them were looked at."""

    def __init__(self, codes: list[int]):
        super().__init__(codes)
        self.places: set[int] = set()

    def __getitem__(self, at):
        self.places.add(at)
        return super().__getitem__(at)

    def __iter__(self):
        self.places.update(range(len(self)))
        return super().__iter__()


def touched(plan: Plan, tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """The bytes of each input that hold what the reference backend looks at."""
    watched: list[tuple[str, int, Touched]] = []
    unpack = reference._unpack

    def watch(flat, info):
        watched.append((info.name, flat.numel() * 8 // info.codes, Touched(unpack(flat, info))))
        return watched[-1][2]

    monkeypatch.setattr(reference, "_unpack", watch)
    plan.run(tensors, backend="reference")
    found: dict[str, set[int]] = {name: set() for name in plan.input}
    for name, bits, codes in watched:
        for at in codes.places:
            found[name].update(range(at * bits // 8, (at * bits + bits + 7) // 8))
    return found


def check_touched(plan: Plan, tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    found = touched(plan, tensors, monkeypatch)
    assert plan.reads().keys() == found.keys()
    for name, known in plan.reads().items():
        ranges = known.ranges()
        listed = {byte for begin, end in ranges for byte in range(begin, end)}
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(ranges))
        assert known.size == len(listed)
        # An order that cuts may lead a rank anywhere.
        assert listed >= found[name] if gathered(plan) else listed == found[name], name


@pytest.mark.parametrize("name", plans.NAMES)
def test_exactly_what_the_definition_looks_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans.plan_named(name)
    check_touched(plan, plans.inputs_of(plan), monkeypatch)


SMALL = {
    "linear": {"n": 20, "k": 64},
    "linear_fused": {"n": (8, 12, 4), "k": 64},
    "moe_gated": {"e": 1, "i": 64, "h": 20},
    "moe_plain": {"e": 1, "i": 64, "h": 20},
}


@pytest.mark.parametrize(("at", "case"), list(enumerate(CASES)), ids=[str(case.id) for case in CASES])
def test_exactly_what_the_definition_looks_at_of_every_format(at: int, case, monkeypatch: pytest.MonkeyPatch) -> None:
    name, kernel, module = case.values
    tp, cut = ((1, "n"), (2, "k"), (4, "n"), (2, "n"), (4, "k"))[at % 5]
    job = fixed_job(name, kernel, module, SMALL[module], cut, tp, tp - 1, last=tp < 4)
    check_touched(job.plan, drawn_inputs(job, job.plan, 5), monkeypatch)


@pytest.mark.parametrize(("name", "kernel", "module"), CASES)
def test_no_other_byte_matters(name: str, kernel: str, module: str) -> None:
    @FEW
    @drawn(jobs(name, kernel, module), st.integers(0, 2**32 - 1))
    def holds(job: Job, seed: int) -> None:
        plan = job.plan
        tensors = drawn_inputs(job, plan, seed)
        assert_same(plan.run(spoiled(plan, tensors)), plan.run(tensors))

    holds()


@pytest.mark.parametrize("name", [name for name in plans.NAMES if name != "gptq_act_order_split_k"])
def test_every_byte_matters(name: str) -> None:
    """Where an order cuts, that is not so: a rank counts all that it may lead to. Of the others a sample of codes."""
    plan = plans.plan_named(name)
    tensors = plans.inputs_of(plan)
    wanted = plan.run(tensors)
    dice = np.random.default_rng(3)
    for info in plan.inputs:
        ranges = plan.reads()[info.name].ranges()
        width = max(code_named(info.code).bits // 8, 1)
        codes = np.concatenate([np.arange(begin, end, width) for begin, end in ranges] or [np.arange(0)])
        for begin in dice.permutation(codes)[:5]:
            changed = tensors[info.name].clone()
            experts(info, changed)[held(plan, info.name)[-1]][begin : begin + width] ^= 0xFF
            try:
                made = plan.run(tensors | {info.name: changed})
            except LayoutError:
                continue
            same = (torch.equal(flat(made[one]), flat(wanted[one])) for one in wanted)
            assert not all(same), f"byte {begin} of {info.name}"


@pytest.mark.parametrize("cut", ["n", "k"])
@pytest.mark.parametrize(("name", "module"), FORMATS)
def test_ranks_share_a_tensor_or_all_read_it(name: str, module: str, cut: str) -> None:
    """Even cuts of whole words: together ranks read each byte once, or each reads all. So nothing is read in vain."""
    kernel = SOURCES[name][3][0]
    for tp in (2, 4):
        made = [fixed_job(name, kernel, module, EVEN[module], cut, tp, rank, last=False).plan for rank in range(tp)]
        for info in made[0].inputs:
            size = sum(plan.reads()[info.name].size for plan in made)
            listed = itertools.chain.from_iterable(plan.reads()[info.name].ranges() for plan in made)
            ranges = Reads(tuple(Strip((begin,), end - begin) for begin, end in listed)).ranges()
            ((begin, whole),) = ranges
            assert begin == 0
            assert size in (whole, tp * whole), info.name


@pytest.mark.parametrize("cut", ["n", "k"])
@pytest.mark.parametrize(("name", "module"), FORMATS)
def test_strips_do_not_grow(name: str, module: str, cut: str) -> None:
    """Eight times the extents, four times the experts: as many strips and spans, and the way back as well."""
    wide = {
        axis: tuple(8 * one for one in size) if isinstance(size, tuple) else (4 if axis == "e" else 8) * size
        for axis, size in EVEN[module].items()
    }
    counts = []
    for sizes in (EVEN[module], wide):
        job = fixed_job(name, SOURCES[name][3][0], module, sizes, cut, 4, 3, last=False)
        found = [len(known.strips) for plan in (job.plan, job.plan.inverse()) for known in plan.reads().values()]
        counts.append((found, len(split(slice_of(job))[0])))
    assert counts[0] == counts[1]
    assert max(counts[0][0], default=0) <= 4


# --- spans ------------------------------------------------------------------------------------------------------------


def loaded(plan: Plan, tensors: Tensors) -> Tensors:
    """A slice as a loader makes it: spans copied as bytes into rubbish, the rest by a plan."""
    moved, rest = split(plan)
    made = {
        info.name: torch.full(info.full_shape, 0, dtype=getattr(torch, info.dtypes[0]))
        for info in plan.outputs
        if rest is None or info.name not in rest.output
    }
    for tensor in made.values():
        tensor.reshape(-1).view(torch.uint8).fill_(GARBAGE)
    for span in moved:
        source, target = (
            experts(plan.input[span.source], tensors[span.source].contiguous()),
            experts(plan.output[span.target], made[span.target]),
        )
        for into, expert in zip(target, held(plan, span.source)):
            for begin, at, length in span.pieces():
                into[at : at + length] = source[expert][begin : begin + length]
    if rest is None:
        return made
    return made | rest.run({name: tensors[name] for name in rest.input})


@pytest.mark.parametrize(("name", "module"), FORMATS)
def test_spans_and_the_rest_are_the_slice_and_convert_alike(name: str, module: str) -> None:
    """A plan for the rank's own slices makes of what was loaded what the plan for whole tensors makes."""

    @FEW
    @drawn(jobs(name, SOURCES[name][3][0], module), st.integers(0, 2**32 - 1))
    def holds(job: Job, seed: int) -> None:
        job = replace(job, sharded=False)
        if refused(job):
            return
        plan, whole = slice_of(job), job.plan
        tensors = drawn_inputs(job, whole, seed)
        made = loaded(plan, tensors)
        assert_same(made, plan.run(tensors))
        assert_same(replace(job, sharded=True).plan.run(made), whole.run(tensors))

    holds()


@pytest.mark.parametrize(("tp", "cut"), [(1, "n"), (2, "n"), (4, "n"), (2, "k"), (4, "k")])
@pytest.mark.parametrize(("name", "module"), FORMATS)
def test_slices_convert_as_whole_tensors_do(name: str, module: str, tp: int, cut: str) -> None:
    job = fixed_job(name, SOURCES[name][3][-1], module, SMALL[module], cut, tp, tp - 1, last=tp == 2)
    tensors = drawn_inputs(job, job.plan, 11)
    wanted = job.plan.run(tensors)
    assert_same(loaded(job.plan, tensors), wanted)
    if not refused(job):
        assert_same(replace(job, sharded=True).plan.run(loaded(slice_of(job), tensors)), wanted)


def refused(job: Job) -> bool:
    """Part of an order is no order of whole groups, neither taken out nor given; nothing else is refused."""
    if not job.source.act_order or not any(matrix.cut == "k" for matrix in job.whole):
        return False
    for plan in (lambda: slice_of(job), lambda: replace(job, sharded=True).plan):
        with pytest.raises(LayoutError, match="are no whole groups"):
            plan()
    return True


# What is left to a plan of a slice in four of whole words, with the first and with the last of all parameters.
LEFT = {
    "gptq": ({"g_idx"}, set()),
    "gptq_int8": ({"g_idx"}, set()),
    "gptq_int8_zp": ({"g_idx"}, {"g_idx"}),
    "ct_int": ({"weight_shape"}, set()),
    "ct_int8": ({"weight_shape"}, {"weight_shape"}),
    "ct_int8_zp": ({"weight_shape"}, {"weight_shape"}),
}


@pytest.mark.parametrize("cut", ["n", "k"])
@pytest.mark.parametrize(("name", "module"), FORMATS)
def test_what_is_no_span(name: str, module: str, cut: str) -> None:
    """Cut in whole words, only values that no input has: an order that says nothing, the stored shape, and the bias of
    ranks that add none. Act-order is copied like any other tensor, where ranks do not cut it."""
    for last in (False, True):
        job = fixed_job(name, SOURCES[name][3][0], module, EVEN[module], cut, 4, 3, last=last)
        if refused(job):
            continue
        plan = slice_of(job)
        _, rest = split(plan)
        left = {program.output for program in rest.programs} if rest else set()
        summed = {matrix.name for matrix in job.whole if matrix.cut == "k"}
        wanted = {
            info.name
            for info in plan.outputs
            if info.name.split(".")[-1] in LEFT.get(name, (set(), set()))[last]
            or (info.role == "bias" and info.name.split(".")[0] in summed)
        }
        assert left == wanted
        assert (spans(plan) is None) == bool(left)


@pytest.mark.parametrize(
    ("source", "sizes", "split_by", "left"),
    [
        ("gptq", {"n": 24, "k": 64}, "n", {"qzeros"}),  # 12 outputs are a word and a half of zero points
        ("gptq", {"n": 16, "k": 24}, "k", {"qweight"}),  # 12 inputs likewise
        ("awq", {"n": 24, "k": 64}, "n", {"qweight", "qzeros"}),
        ("ct_int", {"n": 24, "k": 64}, "n", set()),
        ("ct_int", {"n": 16, "k": 24}, "k", {"weight_packed"}),
        ("nvfp4", {"n": 16, "k": 32}, "k", set()),
        ("fp8_block", {"n": 96, "k": 200}, "n", set()),  # the rank begins inside a block: its scale goes to both
        ("fp8_block", {"n": 96, "k": 200}, "k", set()),
    ],
)
def test_cuts_through_words_are_left(source: str, sizes: dict, split_by: str, left: set[str]) -> None:
    params = {"split": split_by} | ({"g_idx": False} if source == "gptq" else {})
    params |= {"group": -1} if source in ("gptq", "awq", "ct_int") else {}
    params |= {"shape_tensor": False} if source == "ct_int" else {}
    plan = compile_plan(source, source, "linear", sizes, params=params, tp=2, rank=1)
    _, rest = split(plan)
    assert {name.split(".")[-1] for name in (rest.output if rest else ())} == left


def test_a_plan_into_a_kernel_has_spans_too() -> None:
    """The kernel's tiles of FP8 codes are the file's bytes in another order; its scales carry another exponent."""
    params = {"scale": "channel", "scale_dtype": "bfloat16", "dtype": "bfloat16"}
    moved, rest = split(compile_plan("fp8", "marlin_fp8_a16", "linear", {"n": 128, "k": 256}, params=params))
    assert {span.target for span in moved} == {"linear.weight"}
    assert sum(length for span in moved for _, _, length in span.pieces()) == 128 * 256
    assert rest is not None
    assert (list(rest.input), list(rest.output)) == (["linear.weight_scale"], ["linear.weight_scale"])


def test_checks_stay() -> None:
    params = {"source.g_idx": True, "target.g_idx": False, "qzeros": False}
    plan = compile_plan("gptq", "gptq", "linear", {"n": 128, "k": 256}, params=params)
    moved, rest = split(plan)
    assert [span.target for span in moved] == ["linear.qweight", "linear.scales"]
    assert rest is not None
    assert (list(rest.input), list(rest.output)) == (["linear.g_idx"], [])
    assert rest.checks == plan.checks


def test_the_example() -> None:
    assert doctest.testmod(reads).failed == 0


# --- strips -----------------------------------------------------------------------------------------------------------


def elements(strip: Strip) -> set[tuple[int, ...]]:
    return {tuple(a + i for a in at) for at in strip.starts() for i in range(strip.length)}


def strips(sides: int) -> st.SearchStrategy[list[Strip]]:
    step = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])
    loop = st.tuples(st.integers(2, 4), st.tuples(*[step] * sides) | step.map(lambda one: (one,) * sides))
    made = st.builds(
        tidy,
        st.tuples(*[st.integers(0, 24)] * sides) | st.integers(0, 24).map(lambda at: (at,) * sides),
        st.sampled_from([1, 2, 4]),
        st.lists(loop, max_size=2, unique_by=lambda one: one[1]),
    )
    return st.lists(made, min_size=1, max_size=6)


@LAWS
@drawn(
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.lists(st.tuples(st.integers(1, 4), st.tuples(*[st.integers(0, 9)] * 2))),
)
def test_a_tidy_strip_has_the_same_elements(at, loops) -> None:
    loops = loops[:3]
    wanted = {at}
    for count, steps in loops:
        wanted = {(a + i * steps[0], b + i * steps[1]) for a, b in wanted for i in range(count)}
    assert elements(tidy(at, 1, loops)) == wanted


@pytest.mark.parametrize("sides", [1, 2])
def test_joined_strips_have_the_same_elements(sides: int) -> None:
    @LAWS
    @drawn(strips(sides))
    def holds(made: list[Strip]) -> None:
        fewer = joined(made)
        assert len(fewer) <= len(made)
        assert set().union(*map(elements, fewer)) == set().union(*map(elements, made))

    holds()


@LAWS
@drawn(strips(1))
def test_ranges_are_the_bytes_of_half_bytes(made: list[Strip]) -> None:
    halves = [Strip((4 * s.at[0],), 4 * s.length, tuple((c, (4 * d,)) for c, (d,) in s.loops)) for s in made]
    known = Reads(tuple(whole for strip in halves for whole in reads._bytes(strip)))
    ranges = known.ranges()
    wanted = {at // 2 for strip in made for (at,) in elements(strip)}
    assert {byte for begin, end in ranges for byte in range(begin, end)} == wanted
    assert known.size == len(wanted)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(ranges))


def test_rows_that_alternate_or_go_on_are_one_strip() -> None:
    rows = Strip((0,), 4, ((5, (8,)),)), Strip((4,), 4, ((5, (8,)),))
    assert joined(rows) == (Strip((0,), 40),)
    parts = Strip((2,), 4, ((5, (8,)),)), Strip((42,), 4), Strip((50,), 4, ((3, (8,)),))
    assert joined(parts) == (Strip((2,), 4, ((9, (8,)),)),)


def test_checks_keep_their_tensors_on_a_rank_that_holds_nothing() -> None:
    plan = compile_plan("gptq", "gptq", "attention", {"q": 2, "kv": 2, "d": 64, "h": 128}, tp=3, rank=2,
                        params={"group": 64, "source.act_order": True, "target.act_order": False})  # fmt: skip
    _, rest = split(plan)
    assert rest is not None
    assert {check.tensor for check in rest.checks} | {check.other for check in rest.checks} - {""} <= set(rest.input)
    rest.run({name: tensor for name, tensor in plans.inputs_of(plan).items() if name in rest.input})
