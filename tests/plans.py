"""Plans of every kind, small enough to run in a moment, and random inputs that each of them accepts."""

import random
from collections.abc import Mapping

import torch

from layoutdsl import Plan, compile_plan
from layoutdsl.codes import code_named
from layoutdsl.plan import TensorInfo
from layoutdsl.recodes import Habits

PEER = Habits(pads="zero", nvfp4_factor="tensor", int16="stepwise")

# name -> source, target, module, sizes, params, ranks and other options
CASES = {
    "gptq_moe_padded": (
        "gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 192, "h": 96}, {"group": 32, "contract": "vllm"},
        {"tp": 2, "rank": 1},
    ),
    "gptq_moe_tight": ("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 64, "h": 96}, {"group": 32}, {"tp": 2}),
    "awq_heads_front": (
        "awq", "marlin_int4_a16", "attention", {"q": 6, "kv": 3, "d": 40, "h": 64},
        {"source.group": 64, "target.group": 64, "target.zero_points": True}, {"tp": 4, "rank": 1},
    ),
    "gptq_heads_none": (
        "gptq", "marlin_int4_a16", "attention", {"q": 6, "kv": 3, "d": 40, "h": 64}, {"group": 64, "bias": True},
        {"tp": 4, "rank": 3},
    ),
    "ct_int_heads_shared": (
        "ct_int", "marlin_int4_a16", "attention", {"q": 6, "kv": 2, "d": 32, "h": 64}, {"group": 64},
        {"tp": 4, "rank": 1},
    ),
    "fp8_block_one_expert_twice": (
        "fp8_block", "marlin_fp8_a16", "moe_plain", {"e": 2, "i": 100, "h": 64}, {}, {"ep": 2, "experts": (0, 1, 0)},
    ),
    "awq_fill": (
        "awq", "marlin_int4_a16", "linear", {"n": 72, "k": 160}, {"group": 128, "target.group": 128}, {},
    ),
    "ct_int_zero_points_a8fp8": (
        "ct_int", "marlin_int4_a8fp8", "linear", {"n": 72, "k": 96}, {"group": 32, "zero_points": True}, {},
    ),
    "fp8_block_fused": (
        "fp8_block", "marlin_fp8_a16", "linear_fused", {"n": (128, 64, 64), "k": 192}, {"block_n": 64}, {},
    ),
    "fp8_per_tensor": (
        "fp8", "marlin_fp8_a16", "linear_fused", {"n": (64, 32, 40), "k": 96},
        {"scale": "tensor", "input_scale": True, "bias": True, "dtype": "bfloat16"}, {},
    ),
    "nvfp4_moe": ("nvfp4", "marlin_nvfp4_a16", "moe_gated", {"e": 2, "i": 48, "h": 80}, {"dtype": "bfloat16"}, {}),
    "mxfp4_a8fp8": ("mxfp4", "marlin_mxfp4_a8fp8", "linear", {"n": 40, "k": 96}, {"bias": True}, {}),
    "gpt_oss_moe": (
        "mxfp4", "marlin_mxfp4_a16", "moe_gated", {"e": 2, "i": 64, "h": 96},
        {"writer": "gpt_oss", "source.parts": "alternating"}, {"ep": 2, "ep_rank": 1},
    ),
    "gptq_act_order_split_k": (
        "gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 256}, {"group": 64, "act_order": True, "split": "k"},
        {"tp": 2, "rank": 1},
    ),
    "gptq_act_order_moe": (
        "gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 64, "h": 128}, {"group": 32, "act_order": True}, {},
    ),
    "gptq_int8_a8int8": ("gptq", "marlin_int8_a8int8", "linear", {"n": 64, "k": 256}, {"bits": 8, "group": 64}, {}),
    "gptq_to_ct_int": (
        "gptq", "ct_int", "moe_gated", {"e": 2, "i": 24, "h": 36}, {"group": 12, "bits": 4}, {"tp": 2},
    ),
    "ct_int_narrowed": (
        "ct_int", "marlin_int4_a16", "linear", {"n": 64, "k": 128},
        {"group": 64, "source.zero_points": True, "target.zero_points": False}, {},
    ),
    "kernel_to_kernel": (
        "marlin_int4_a16", "marlin_int4_a8fp8", "moe_gated", {"e": 2, "i": 64, "h": 96}, {"group": 32}, {},
    ),
    "sharded_inside_a_group": (
        "gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 256}, {"group": 256, "split": "k", "bias": True},
        {"tp": 2, "rank": 1, "sharded": True},
    ),
    "awq_habits": ("awq", "marlin_int4_a16", "linear", {"n": 72, "k": 160}, {"group": 128}, {"habits": PEER}),
    "int8_habits": (
        "gptq", "marlin_int8_a8int8", "moe_plain", {"e": 2, "i": 72, "h": 128}, {"bits": 8, "group": 64},
        {"habits": PEER},
    ),
    "mxfp4_habits": ("mxfp4", "marlin_mxfp4_a8fp8", "linear", {"n": 40, "k": 96}, {}, {"habits": PEER}),
}  # fmt: skip
INVERSES = {"gptq_moe_padded", "awq_fill", "nvfp4_moe"}
NAMES = (*CASES, *(f"{name}_inverse" for name in CASES if name in INVERSES))


def plan_named(name: str) -> Plan:
    source, target, module, sizes, params, ranks = CASES[name.removesuffix("_inverse")]
    plan = compile_plan(source, target, module, sizes, params=params, **ranks)
    return plan.inverse() if name.endswith("_inverse") else plan


def inputs_of(plan: Plan, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors that the plan accepts: what its checks ask for, no NaN, zero points and scales in range."""
    dice = random.Random(seed)
    wanted = {check.tensor: check for check in plan.checks}
    return {info.name: _tensor(info, plan, wanted, dice) for info in plan.inputs}


def _tensor(info: TensorInfo, plan: Plan, wanted: Mapping, dice: random.Random) -> torch.Tensor:
    check = wanted.get(info.name)
    if info.role == "weight_shape":
        values = torch.tensor(check.expect if check else (0, 0))
        return values.expand(info.full_shape).to(getattr(torch, info.dtypes[0])).contiguous()
    copies = 1 if info.shared or not info.experts else info.experts
    codes = [_codes(info, plan, check, dice) for _ in range(copies)]
    flat = bytearray().join(_packed(found, code_named(info.code).bits) for found in codes)
    return torch.frombuffer(flat, dtype=getattr(torch, info.dtypes[0])).reshape(info.full_shape)


def _packed(codes: list[int], bits: int) -> bytes:
    if bits == 4:
        return bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2]))
    return b"".join((code & (1 << bits) - 1).to_bytes(bits // 8, "little") for code in codes)


def _codes(info: TensorInfo, plan: Plan, check, dice: random.Random) -> list[int]:
    code, count = code_named(info.code), info.codes
    if info.role == "act_order":
        group = dict(plan.source.params).get("group", -1)
        group = count if group < 1 else group
        order = [k // group for k in range(count)]
        if dict(plan.source.params).get("act_order"):
            random.Random(len(order)).shuffle(order)  # the same for all parts of one matrix
        return order
    if check is not None and check.kind == "equal":
        return [check.expect[0]] * count
    if info.role == "zero_point":
        return [dice.randrange((1 << code.bits) - 1) for _ in range(count)]
    if info.role == "global_scale":
        return [code.encode(2.0**-6)] * count
    if info.role in ("scale", "bias", "input_scale"):
        return [_scale(code, dice) for _ in range(count)]
    found = [dice.randrange(1 << code.bits) for _ in range(count)]
    return [0x30 if code.name == "e4m3" and one & 0x7F == 0x7F else one for one in found]


def _scale(code, dice: random.Random) -> int:
    if code.kind == "signed":
        return dice.randrange(1, 4096)
    if code.kind == "power":
        return dice.randrange(100, 140)
    if code.name.startswith("s0"):
        return dice.randrange(0x80, 0xF0)
    return code.encode(dice.uniform(0.01, 2.0) * dice.choice([1, -1] if code.name == "e4m3" else [1]))
