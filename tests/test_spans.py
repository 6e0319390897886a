"""Moves for one-sided transfers: carried out as plain copies of bytes, they give what a run gives.

Over all pairs of shipped formats, as test_backends.py draws them. What a loader makes of them is in test_reads.py.
"""

from __future__ import annotations

import doctest
from collections import Counter
from dataclasses import replace

import plans
import pytest
import torch
from hypothesis import given
from test_backends import MODULES, PAIRS, cases, examples, inputs_of

from layoutdsl import Plan, compile_plan, spans, strips
from layoutdsl.plan import TensorInfo

GARBAGE = 0xA5


def rows(info: TensorInfo, tensor: torch.Tensor) -> list[bytearray]:
    """The bytes of a tensor, expert by expert."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return [bytearray(row.numpy()) for row in flat.view(info.experts if info.experts and not info.shared else 1, -1)]


def transferred(plan: Plan, tensors: dict[str, torch.Tensor]) -> dict[str, list[bytearray]]:
    """The outputs that moves make, in storage full of rubbish; every byte is written once."""
    moves = plan.moves()
    left = {name for name, _ in moves.others}
    made, written = {}, {}
    for info in plan.outputs:
        if info.name not in left:
            like = torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0]))
            made[info.name] = [bytearray([GARBAGE]) * len(row) for row in rows(info, like)]
            written[info.name] = Counter()
    for span in moves.spans:
        of, into = rows(plan.input[span.source], tensors[span.source]), made[span.target]
        for begin, at, length in span.pieces():
            written[span.target].update(range(at, at + length))
            for slot, row in enumerate(into):
                source = of[plan.source_experts[slot] if len(of) > 1 else 0]
                assert 0 <= begin <= begin + length <= len(source)
                row[at : at + length] = source[begin : begin + length]
    for constant in moves.constants:
        for at, length in constant.pieces():
            assert length % len(constant.pattern) == 0
            written[constant.target].update(range(at, at + length))
            for row in made[constant.target]:
                row[at : at + length] = constant.pattern * (length // len(constant.pattern))
    for name, experts in made.items():
        assert written[name] == dict.fromkeys(range(len(experts[0])), 1), name
    return made


def check(plan: Plan, tensors: dict[str, torch.Tensor]) -> None:
    left = {name for name, _ in plan.moves().others}
    made = replace(  # what is left, and what is checked, may refuse a value
        plan,
        outputs=tuple(info for info in plan.outputs if info.name not in left),
        programs=tuple(program for program in plan.programs if program.output not in left),
        passed=tuple(one for one in plan.passed if one[1] not in left),
        checks=(),
        reductions=(),
    )
    wanted = made.run(tensors)
    for name, experts in transferred(plan, tensors).items():
        assert b"".join(experts) == b"".join(rows(plan.output[name], wanted[name])), name


@pytest.mark.parametrize("name", plans.NAMES)
def test_listed_plans(name):
    plan = plans.plan_named(name)
    check(plan, plans.inputs_of(plan))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids=str)
def test_every_pair(family, source, target, module):
    @examples(2)
    @given(cases(family, source, target, module))
    def holds(case):
        check(case.plan, inputs_of(case.plan, case.seed, case.mood))

    holds()


def others(source: str, target: str, module: str, sizes: dict, **params) -> dict[str, str]:
    return dict(compile_plan(source, target, module, sizes, params=params).moves().others)


def test_what_is_converted_has_a_reason():
    shuffled = "its bytes are not those of `linear.qweight`"
    square = {"n": 128, "k": 256}
    assert others("gptq", "marlin_int4_a16", "linear", square) == {"linear.weight": shuffled}
    assert others("gptq", "marlin_int8_a16", "linear", square, bits=8) == {}
    assert others("fp8", "marlin_fp8_a16", "linear", square, scale="channel") == {
        "linear.weight_scale": "its codes change (recode `rescale`)"
    }
    assert others("gptq", "marlin_int8_a16", "linear", square, bits=8, act_order=True) == {
        "linear.weight": "its codes are sorted by `linear.g_idx`",
        "linear.k_perm": "it is the sorted order of `linear.g_idx`",
    }
    assert others("nvfp4", "marlin_nvfp4_a16", "linear", square, dtype="bfloat16") == {
        "linear.weight": "its codes change (recode `fold_sign`)",
        "linear.weight_scale": "its codes change (recode `nvfp4_scale`)",
        "linear.global_scale": "its codes change (recode `nvfp4_global`)",
    }
    assert others("gptq", "marlin_int4_a8int8", "linear", square) == {
        "linear.weight": shuffled,
        "linear.weight_scale": "its codes change (recode `int16_scale`)",
        "linear.input_global_scale": "no input has its values (recode `largest`)",
    }
    assert others("ct_int", "gptq", "linear", square, **{"target.g_idx": True, "zero_points": False}) == {
        "linear.g_idx": "no input has its values (recode `ramp`)",
    }
    odd = {"n": 72, "k": 160}
    assert others("awq", "marlin_int4_a16", "linear", odd, group=128)["linear.weight"] == "its pads repeat zero points"
    assert others("ct_int", "ct_int", "linear", {"n": 3, "k": 7}, shape_tensor=False, zero_points=False, group=-1) == {
        "linear.weight_packed": "its bytes are not those of `linear.weight_packed`"
    }


def test_codes_that_share_a_place_are_compared():
    """One scale for all parts: which of three equal ones it is cannot be left to a transfer."""
    params = {"scale": "tensor", "scale_dtype": "float32", "parts": "stacked", "source.parts": "apart"}
    plan = compile_plan("fp8", "fp8", "linear_fused", {"n": (32, 32, 64), "k": 64}, params=params)
    assert dict(plan.moves().others) == {"linear.weight_scale": "several codes have one place, and must be equal"}


def test_pads_are_constants():
    plan = compile_plan("gptq", "marlin_int8_a16", "linear", {"n": 100, "k": 256}, params={"bits": 8})
    found = {(constant.target, constant.pattern) for constant in plan.moves().constants}
    assert found == {("linear.weight", b"\x80"), ("linear.weight_scale", b"\0\0")}


@pytest.mark.parametrize("experts", [2, 64])
def test_moves_do_not_grow(experts):
    """As many spans for more experts and larger matrices: what lists them is `pieces` alone."""
    sizes = {"e": experts, "i": 64 * experts, "h": 128 * experts}
    plan = compile_plan("fp8", "marlin_fp8_a16", "moe_gated", sizes, params={"scale": "channel"})
    assert len(plan.moves().spans) == 3


@pytest.mark.parametrize("module", [spans, strips])
def test_the_examples(module):
    assert doctest.testmod(module) == (0, len(doctest.DocTestFinder().find(module)[0].examples))
