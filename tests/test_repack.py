"""The generated repack: how warps take tiles apart, and what its accesses cost, as the host counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_backends import examples, raw
from test_backends import inputs_of as drawn_inputs_of

from layoutdsl import Plan, compile_plan
from layoutdsl.backends.host.counters import Counters, total
from layoutdsl.backends.host.launch import Launcher
from layoutdsl.backends.moves import writes
from layoutdsl.backends.repack import lower, source
from layoutdsl.backends.repack import run as repack_run
from layoutdsl.backends.repack.warps import Side, Warp, arranged
from layoutdsl.cli import main
from layoutdsl.codes import code_named

# --- warps ------------------------------------------------------------------------------------------------------------


@examples(150)
@given(st.integers(0, 3), st.integers(0, 4).flatmap(lambda extra: st.permutations(range(8 + extra))))
def test_a_warp_takes_a_tile_from_any_order_to_the_target_without_conflicts(word, order):
    """Carried out lane by lane: each code arrives in its place, once, and no two lanes meet in a bank."""
    warp = arranged(tuple(order), word)
    assume(warp is not None)
    arrived: dict[int, int] = {}
    for turn in range(1 << len(warp.turns)):
        blocks = [block_of(warp, order, lane, turn) for lane in range(32)]
        without_conflicts(warp, warp.source, warp.block, turn)
        without_conflicts(warp, warp.target, warp.after, turn)
        for lane, block in enumerate(blocks):
            for number, codes in enumerate(exchanged(warp, block)):
                at = sum(1 << digit for digit in set_digits(warp, warp.after, lane, turn, number))
                arrived |= {at + place: code for place, code in enumerate(codes)}
    assert arrived == {code: code for code in range(1 << len(order))}


def set_digits(warp: Warp, numbers: tuple[int, ...], lane: int, turn: int, number: int) -> list[int]:
    """The digits that are 1 in a lane's word of a turn."""
    pairs = ((warp.lanes, lane), (warp.turns, turn), (numbers, number))
    return [digit for digits, value in pairs for at, digit in enumerate(digits) if value >> at & 1]


def block_of(warp: Warp, order: list[int], lane: int, turn: int) -> list[list[int]]:
    """The codes of a lane's words as they come; a code is called by its place in the target."""
    words = []
    for number in range(1 << len(warp.block)):
        of_word = sum(1 << digit for digit in set_digits(warp, warp.block, lane, turn, number))
        words.append([
            of_word + sum(1 << order[at] for at in range(warp.word) if place >> at & 1)
            for place in range(1 << warp.word)
        ])  # fmt: skip
    return words


def exchanged(warp: Warp, words: list[list[int]]) -> list[list[int]]:
    for kind, a, b in warp.exchanged:
        for number, codes in enumerate(words):
            for place in range(len(codes)):
                if kind == "word" and not number >> a & 1 and not place >> b & 1:
                    other = words[number | 1 << a]
                    codes[place | 1 << b], other[place] = other[place], codes[place | 1 << b]
                if kind == "code" and place >> a & 1 and not place >> b & 1:
                    there = place ^ 1 << a ^ 1 << b
                    codes[place], codes[there] = codes[there], codes[place]
    return words


def without_conflicts(warp: Warp, side: Side, numbers: tuple[int, ...], turn: int) -> None:
    """Each access of as many lanes as 128 bytes serve meets different banks."""
    bytes_ = 4 << side.vector
    for number in range(1 << len(numbers)):
        for first in range(0, 32, 128 // bytes_):
            banks = set()
            for lane in range(first, first + 128 // bytes_):
                place = 0
                for digit in set_digits(warp, numbers, lane, turn, number):
                    place ^= side.places[digit]
                banks.add(place % 128 // bytes_)
            assert len(banks) == 128 // bytes_


# --- counters ---------------------------------------------------------------------------------------------------------

WEIGHTS = {
    "gptq": ("gptq", "marlin_int4_a16", "linear", {"n": 256, "k": 512}, {"group": 128}, {}),
    "gptq, int8": ("gptq", "marlin_int8_a16", "linear", {"n": 256, "k": 512}, {"group": 128, "bits": 8}, {}),
    "gptq, int8 activations": (
        "gptq", "marlin_int8_a8int8", "linear", {"n": 256, "k": 512}, {"group": 128, "bits": 8}, {},
    ),
    "gptq, fp8 activations": ("gptq", "marlin_int4_a8fp8", "linear", {"n": 256, "k": 512}, {"group": 128}, {}),
    "awq": ("awq", "marlin_int4_a16", "linear", {"n": 512, "k": 256}, {"group": 128}, {}),
    "rows of k": ("ct_int", "marlin_int4_a16", "linear", {"n": 256, "k": 512}, {"group": 128}, {}),
    "fp8": ("fp8", "marlin_fp8_a16", "linear", {"n": 256, "k": 512}, {}, {}),
    "mxfp4": ("mxfp4", "marlin_mxfp4_a16", "linear", {"n": 256, "k": 512}, {}, {}),
    "mxfp4, fp8 activations": ("mxfp4", "marlin_mxfp4_a8fp8", "linear", {"n": 256, "k": 512}, {}, {}),
    "bfloat16": ("plain", "plain", "linear", {"n": 256, "k": 512}, {}, {}),
    "between checkpoints": ("gptq", "ct_int", "linear", {"n": 256, "k": 512}, {"group": 128, "bits": 4}, {}),
    "fused": ("gptq", "marlin_int4_a16", "linear_fused", {"n": (512, 128, 128), "k": 256}, {"group": 128}, {}),
    "a rank's columns": (
        "gptq", "marlin_int4_a16", "linear", {"n": 512, "k": 256}, {"group": 64, "split": "n"}, {"tp": 2, "rank": 1},
    ),
    "a rank's rows": (
        "gptq", "marlin_int4_a16", "linear", {"n": 256, "k": 512}, {"group": 64, "split": "k"}, {"tp": 2, "rank": 1},
    ),
    "experts": ("gptq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 128, "h": 256}, {"group": 64}, {}),
    "padded experts of a rank": (
        "fp8", "marlin_fp8_a16", "moe_gated", {"e": 4, "i": 192, "h": 256}, {}, {"tp": 3, "rank": 1, "ep": 2},
    ),
    "back": ("gptq", "marlin_int4_a16", "linear", {"n": 256, "k": 512}, {"group": 128}, {"inverse": True}),
}  # fmt: skip


def plan_of(name: str) -> Plan:
    source, target, module, sizes, params, options = WEIGHTS[name]
    inverse = options.get("inverse", False)
    options = {key: value for key, value in options.items() if key != "inverse"}
    plan = compile_plan(source, target, module, sizes, params=params, **options)
    return plan.inverse() if inverse else plan


def weights_of(plan: Plan) -> Plan:
    """The plan with the programs alone that write weights."""
    kept = tuple(one for one in plan.programs if plan.output[one.output].role == "codes")
    names = {one.output for one in kept}
    outputs = tuple(info for info in plan.outputs if info.name in names)
    return replace(plan, programs=kept, outputs=outputs, checks=(), passed=(), reductions=(), losses=())


def counted(plan: Plan, tensors: dict) -> dict[str, Counters]:
    launcher = Launcher()
    made = repack_run.run(launcher, plan, tensors)
    wanted = plan.run(tensors, backend="torch")
    assert {name: raw(tensor) for name, tensor in made.items()} == {name: raw(one) for name, one in wanted.items()}
    return launcher.counters


def moved(plan: Plan) -> tuple[int, int]:
    """Bytes of the codes that a plan reads and of those that it writes."""
    read = wrote = 0
    for program in plan.programs:
        info = plan.output[program.output]
        bits = code_named(info.code).bits * (plan.experts[2] or 1 if info.experts else 1)
        data = replace(program, moves=tuple(move for move in program.moves if move.kind == "data"))
        read, wrote = read + writes(data) * bits // 8, wrote + writes(program) * bits // 8
    return read, wrote


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_read_once_and_written_once(name):
    """Sixteen bytes per lane, whole sectors, nothing read beside the codes and nothing twice, no bank conflicts."""
    plan = weights_of(plan_of(name))
    found = counted(plan, drawn_inputs_of(plan, 0, "mild"))
    loads, stores = (total(getattr(one, way) for one in found.values()) for way in ("global_loads", "global_stores"))
    assert (loads.bytes, stores.bytes) == moved(plan)
    assert 32 * loads.sectors == loads.bytes and 32 * stores.sectors == stores.bytes
    assert loads.wide == loads.accesses and stores.wide == stores.accesses
    assert not any(one.shared_loads.conflicts or one.shared_stores.conflicts for one in found.values())


def test_columns_that_begin_inside_of_a_tile_cost_half_sectors():
    """I = 672 is ten tiles and a half: the gate's last columns and the up projection's first ones share a tile."""
    plan = weights_of(
        compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 672, "h": 256}, params={"group": 32})
    )
    found = counted(plan, drawn_inputs_of(plan, 0, "mild"))
    loads, stores = (total(getattr(one, way) for one in found.values()) for way in ("global_loads", "global_stores"))
    read, wrote = moved(plan)
    assert (loads.bytes, stores.bytes) == (read, wrote)
    assert 32 * loads.sectors == read and 32 * stores.sectors <= 1.04 * wrote
    assert not any(one.shared_loads.conflicts or one.shared_stores.conflicts for one in found.values())


def test_experts_given_apart_are_read_once_as_well():
    """One launch for all experts, wherever they stand: their addresses are all that is read beside."""
    plan = weights_of(plan_of("experts"))
    tensors = {
        name: [one.clone() for one in tensor] if plan.input[name].experts else tensor
        for name, tensor in drawn_inputs_of(plan, 0, "mild").items()
    }
    found = counted(plan, tensors)
    loads = total(one.global_loads for name, one in found.items() if name != "numbers")
    read, _ = moved(plan)
    assert read <= loads.bytes <= 1.15 * read and 32 * loads.sectors <= 1.02 * read
    assert all(call.blocks % 4 == 0 for call in lower.lowered(plan, 0, 16).writes)


def test_a_scale_beside_a_weight_is_read_once():
    """NVFP4: the scale's sign goes into the codes, 16 of them a scale."""
    plan = compile_plan("nvfp4", "marlin_nvfp4_a16", "linear", {"n": 256, "k": 512})
    plan = weights_of(plan)
    assert [one.recode.name for one in plan.programs] == ["fold_sign"]
    found = counted(plan, drawn_inputs_of(plan, 0, "mild"))
    loads = total(one.global_loads for one in found.values())
    read, _ = moved(plan)
    assert loads.bytes == read + 256 * 512 // 16
    assert not any(one.shared_loads.conflicts or one.shared_stores.conflicts for one in found.values())


# --- text -------------------------------------------------------------------------------------------------------------


def test_ranks_experts_and_sizes_share_kernels():
    def kernels(*arguments, **options) -> set[str]:
        plan = weights_of(compile_plan("gptq", "marlin_int4_a16", *arguments, **options))
        return {kernel.name for kernel in source.kernels(plan)}

    small = kernels("linear", {"n": 256, "k": 512}, params={"group": 128})
    assert len(small) == 1
    assert kernels("linear", {"n": 8192, "k": 28672}, params={"group": 64}, tp=4, rank=3) == small
    assert kernels("moe_gated", {"e": 64, "i": 512, "h": 2048}, params={"group": 32}, tp=2) >= small


def test_emit(capsys):
    arguments = ["plan", "gptq", "marlin_int4_a16", "--module", "linear", "--size", "n=256", "--size", "k=512"]
    assert main([*arguments, "--param", "group=128", "--emit", "cuda"]) == 0
    shown = capsys.readouterr().out
    assert "// for linear.weight\n// 4096 codes of 4 bits a warp. Generated by layoutdsl" in shown
    assert "exchange(w0, w1, 4, 0xf0f0f0f);" in shown and "held[turn] = source.load<Quad>" in shown


def test_a_name_is_of_the_text():
    plan = plan_of("gptq")
    found = source.kernels(plan)
    assert len({kernel.name for kernel in found}) == len({kernel.source for kernel in found}) == len(found)
    assert all(f"LD_KERNEL({kernel.name}, {kernel.threads})" in kernel.source for kernel in found)
