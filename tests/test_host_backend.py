"""The host backend: the cuda backend's kernels on the CPU give the reference's bytes and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from plans import inputs_of, plan_named
from test_backends import (
    PAIRS,
    RECORDED,
    TWINS,
    applied,
    examples,
    outcome,
    outputs_of,
    poison,
    raw,
    recorded,
    same_as_the_reference,
    shown,
    some_codes,
)
from test_backends import inputs_of as drawn_inputs_of

from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.backends import amend
from layoutdsl.backends.host.launch import Launcher, schedules
from layoutdsl.backends.repack import run as repack_run
from layoutdsl.backends.torch.recodes import STORED, signed
from layoutdsl.codes import code_named
from layoutdsl.layout import Run

MODULES = ("linear", "moe_gated", "linear_fused", "attention", "moe_plain")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


RECORDED_EVERY = 4
"""The rest is for `layoutdsl conform --backend host`: many have kernels of their own, which take a while to compile."""


@pytest.mark.parametrize("case", RECORDED[::RECORDED_EVERY], ids=lambda case: case["id"])
def test_host_gives_the_recorded_bytes(case, tmp_path):
    assert recorded(case, "host", tmp_path) == [None]


@pytest.mark.parametrize(("pair", "module"), [(pair, MODULES[at % 5]) for at, pair in enumerate(PAIRS)], ids=str)
def test_host_is_the_reference(pair, module):
    """Drawn sizes, ranks, parameters, values and refusals, with and without `out`, stacked and as lists."""
    same_as_the_reference("host", 1, *pair, module)


NUMBERS = (
    ("nvfp4", "nvfp4", "marlin_nvfp4_a16"),
    ("int8", "gptq", "marlin_int8_a8int8"),
    ("int8", "marlin_int8_a8int8", "ct_int"),
    ("mxfp4", "mxfp4", "marlin_mxfp4_a8fp8"),
)


@pytest.mark.parametrize("module", ["linear_fused", "moe_gated"])
@pytest.mark.parametrize("pair", NUMBERS, ids=str)
def test_numbers_found_in_the_data(pair, module):
    """Largest scales, ratios of global scales, what is lost: of these, more is drawn."""
    same_as_the_reference("host", 12, *pair, module)


@pytest.mark.parametrize("value", [0.02, 0.0298, 0.0, -0.0149, float("nan"), float("inf"), 2.0**-130])
@pytest.mark.parametrize("part", ["q", "k"])
def test_global_scales_that_do_not_fit_each_other(part, value):
    plan = compile_plan(
        "nvfp4", "marlin_nvfp4_a16", "linear_fused", {"n": (64, 32, 32), "k": 64}, params={"module.names": "q,k,v"}
    )
    tensors = drawn_inputs_of(plan, 0, "mild")
    tensors[f"linear.{part}.weight_scale_2"].fill_(value)
    assert outcome(plan, tensors, "host") == outcome(plan, tensors, "torch")


# --- sizes at which tiles are moved -----------------------------------------------------------------------------------

LARGE = (
    ("gptq", "marlin_int4_a16", {"group": 32}),
    ("gptq", "marlin_int4_a16", {"group": 32, "act_order": True}),
    ("gptq", "marlin_int4_a8fp8", {"group": 64}),
    ("awq", "marlin_int4_a16", {"group": 32}),
    ("awq", "marlin_int4_a8fp8", {"group": 32, "target.zero_points": True}),
    ("ct_int", "marlin_int4_a16", {"group": 32}),
    ("ct_int", "marlin_int4_a8fp8", {"group": 32, "zero_points": True}),
    ("gptq", "marlin_int8_a16", {"bits": 8, "group": 32}),
    ("gptq", "marlin_int8_a8int8", {"bits": 8, "group": 32}),
    ("fp8", "marlin_fp8_a16", {}),
    ("fp8_block", "marlin_fp8_a16", {"block_n": 64}),
    ("mxfp4", "marlin_mxfp4_a16", {}),
    ("mxfp4", "marlin_mxfp4_a8fp8", {}),
    ("nvfp4", "marlin_nvfp4_a16", {}),
    ("gptq", "ct_int", {"bits": 4, "group": 32}),
    ("awq", "gptq", {"bits": 4, "group": 32}),
    ("plain", "plain", {}),
)


@st.composite
def large(draw, source: str, target: str, params: dict) -> tuple[Plan, int]:
    """A plan whose weights fill tiles, mostly with something left over at the ends."""
    some = st.sampled_from
    module = draw(some(["linear", "linear_fused", "moe_gated"]))
    tp = draw(some([1, 1, 2]))
    sizes = {"n": tp * draw(some([64, 96, 192, 320])), "k": tp * draw(some([128, 160, 256, 384]))}
    params = dict(params)
    if module == "linear_fused":
        params["module.names"], sizes["n"] = "q,k,v", (sizes["n"], tp * 64, tp * 32)
    if module == "moe_gated":
        sizes = {"e": 3, "i": tp * draw(some([64, 96, 160])), "h": draw(some([128, 192]))}
    try:
        plan = compile_plan(source, target, module, sizes, params=params, tp=tp, rank=draw(st.integers(0, tp - 1)))
        return (plan.inverse() if draw(some([False, False, True])) else plan), draw(st.integers(0, 2**32))
    except LayoutError:
        reject()


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_weights_are_those_of_torch(case):
    """Experts at odd distances from each other, tensors that begin anywhere, sometimes a value that is refused."""

    @examples(3)
    @given(large(*case), st.sampled_from([1, 2, 4, 8, 16]), st.booleans())
    def holds(made, alignment, poisons):
        plan, seed = made
        tensors = drawn_inputs_of(plan, seed, "flat")
        if poisons:
            poison(plan, tensors, seed)
        apart = {
            name: [moved(one, alignment, at) for at, one in enumerate(tensor)]
            if plan.input[name].full_shape[:1] == (plan.input[name].experts,)
            else moved(tensor, alignment, 0)
            for name, tensor in tensors.items()
        }
        wanted = outcome(plan, tensors, "torch")
        assert outcome(plan, apart, "host") == wanted
        out = {name: moved(one, max(alignment, one.element_size()), 0) for name, one in outputs_of(plan).items()}
        before = {name: raw(tensor) for name, tensor in out.items()}
        assert outcome(plan, tensors, "host", out=out) == wanted
        assert isinstance(wanted[0], dict) or {name: raw(tensor) for name, tensor in out.items()} == before

    holds()


def moved(tensor: torch.Tensor, alignment: int, turn: int) -> torch.Tensor:
    """The same tensor at a multiple of `alignment` bytes which is none of twice that."""
    room = bytearray(tensor.nbytes + 512)
    start = torch.frombuffer(room, dtype=torch.uint8).data_ptr()
    first = -start % 64 + alignment + 64 * (turn % 3)
    room[first : first + tensor.nbytes] = raw(tensor)
    return torch.frombuffer(room, dtype=tensor.dtype, count=tensor.numel(), offset=first).view(tensor.shape)


# --- recodes ----------------------------------------------------------------------------------------------------------

ALONE = [twin for twin in TWINS if not twin[1]]
"""Recodes that need no number found in the data."""


@pytest.mark.parametrize(("recode", "options"), ALONE, ids=map(shown, ALONE))
def test_a_recode_on_the_device_is_its_definition(recode, options):
    a, b = code_named(recode.source), code_named(recode.target)
    made = {code: applied(recode, code, options) for code in some_codes(a)}
    good = [code for code, found in made.items() if found is not None]
    assert run_codes(recode, a, b, good) == [made[code] for code in good]
    for code in [code for code, found in made.items() if found is None][:: max(len(made) // 20, 1)]:
        with pytest.raises(LayoutError):
            run_codes(recode, a, b, [*good[:5], code])


def run_codes(recode, a, b, codes: list[int]) -> list[int]:
    """Codes sent through one program of a plan."""
    whole = codes + codes[: len(codes) % 2]
    plan = compile_plan("plain", "plain", "linear", {"n": 1, "k": len(whole)})
    given_as, given_back = (
        replace(info, dtypes=(str(STORED[code.bits]).removeprefix("torch."),), code=code.name,
                shape=(len(whole) * code.bits // STORED_BITS[code.bits],))
        for info, code in ((plan.inputs[0], a), (plan.outputs[0], b))
    )  # fmt: skip
    program = replace(plan.programs[0], recode=recode)
    plan = replace(plan, inputs=(given_as,), outputs=(given_back,), programs=(program,), losses=())
    carried = torch.tensor([signed(code, a.bits) for code in whole], dtype=STORED[a.bits])
    if a.bits == 4:
        carried = carried[0::2] | carried[1::2] << 4
    found = plan.run({given_as.name: carried}, backend="host")[given_back.name].reshape(-1)
    made = raw(found)
    if b.bits == 4:
        return [code for byte in made for code in (byte & 15, byte >> 4)][: len(codes)]
    step = b.bits // 8
    return [int.from_bytes(made[at : at + step], "little") for at in range(0, len(codes) * step, step)]


STORED_BITS = {4: 8, 8: 8, 16: 16, 32: 32}
"""Bits of a code -> of the element that it is stored in."""


# --- how it is carried out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gptq_moe_tight", "nvfp4_moe", "fp8_per_tensor"])
def test_any_order_of_threads_gives_the_same_bytes(name):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    wanted = made_bytes(plan, tensors, "torch")
    for schedule in schedules():
        made = repack_run.run(Launcher(schedule), plan, tensors)
        assert {key: raw(tensor) for key, tensor in made.items()} == wanted, schedule


def made_bytes(plan: Plan, tensors: dict, backend: str) -> dict[str, bytes]:
    return {name: raw(tensor) for name, tensor in plan.run(tensors, backend=backend).items()}


def test_experts_that_begin_between_words():
    """A piece of two codes fits the first expert's row, but not the second's, which begins at an odd place."""
    plan = compile_plan("plain", "plain", "moe_plain", {"e": 2, "i": 3, "h": 5})
    n = replace(plan.programs[0].moves[0].n[0], loops=())
    amended(plan, n, Run(-1, 0, 0, 0, ((4, 1, 1, 1),)))


def test_pieces_that_begin_between_words():
    plan = compile_plan("plain", "plain", "linear", {"n": 3, "k": 6})
    amended(plan, plan.programs[0].moves[0].n[0], Run(-1, 1, 1, 1, ((4, 1, 1, 1),)))


def test_tiles_that_would_begin_between_bytes():
    plan = compile_plan("ct_int", "ct_int", "linear", {"n": 64, "k": 256}, params={"group": 64})
    amended(plan, plan.programs[0].moves[0].n[0], Run(-1, 1, 1, 1, ((128, 1, 1, 1),)))


def amended(plan: Plan, n: Run, k: Run) -> None:
    """The first program's codes of these two runs alone, written among others."""
    program, *rest = plan.programs
    move = replace(program.moves[0], n=(n,), k=(k,))
    part = replace(plan, programs=(replace(program, moves=(move,)), *rest))
    tensors, out, wanted = inputs_of(plan), outputs_of(plan), outputs_of(plan)
    apart = {
        name: [one.clone() for one in tensor] if plan.input[name].experts else tensor
        for name, tensor in tensors.items()
    }
    amend("reference", part, tensors, wanted)
    amend("host", part, apart, out)
    assert {name: raw(tensor) for name, tensor in out.items()} == {name: raw(one) for name, one in wanted.items()}


def test_what_is_enqueued_marks_its_status():
    """What a graph replays: every value is written, and the status says that one was refused."""
    plan = plan_named("fp8_per_tensor")
    tensors, out = inputs_of(plan), outputs_of(plan)
    status, _ = repack_run.enqueue(Launcher(), plan, tensors, out)
    assert status.item() == repack_run.CLEAN
    assert {name: raw(tensor) for name, tensor in out.items()} == made_bytes(plan, tensors, "torch")
    tensors[plan.programs[0].sources[0]].view(torch.uint8)[3, 5] = 0x7F
    status, _ = repack_run.enqueue(Launcher(), plan, tensors, out)
    assert status.item() != repack_run.CLEAN


def test_tables_are_not_made_while_a_stream_is_captured(monkeypatch):
    plan = compile_plan("fp8", "marlin_fp8_a16", "linear", {"n": 72, "k": 48})
    tensors = inputs_of(plan)
    monkeypatch.setattr(repack_run, "_captures", lambda device: True)
    with pytest.raises(LayoutError, match="run it once before the capture"):
        plan.run(tensors, backend="host")
    monkeypatch.undo()
    wanted = made_bytes(plan, tensors, "torch")
    assert made_bytes(plan, tensors, "host") == wanted
    monkeypatch.setattr(repack_run, "_captures", lambda device: True)
    assert made_bytes(plan, tensors, "host") == wanted


def test_without_a_compiler(tmp_path):
    code = (
        "from layoutdsl import compile_plan, LayoutError; import torch\n"
        "plan = compile_plan('plain', 'plain', 'linear', {'n': 8, 'k': 8})\n"
        "try: plan.run({'linear.weight': torch.zeros(8, 8, dtype=torch.bfloat16)}, backend='host')\n"
        "except LayoutError as error: print(error)\n"
    )
    environment = {**os.environ, "CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("LP300 no-compiler: running kernels on the CPU needs a C++ compiler"), done.stderr
