"""Every backend gives the same bytes, or the same refusal, as the reference: for recorded cases, and for every pair of
shipped formats that hold the same kind of code.

Drawn: modules, odd sizes, ranks, how parts are stored, the parameters of both sides; codes of all values, scales that are
subnormal, largest, zero or negative, and now and then a code that one side must refuse.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError, compile_plan, conform
from layoutdsl import recodes as definition
from layoutdsl.backends.torch_recodes import STORED, decode, encode, signed, twin, unsigned, vanished
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.library import load_spec
from layoutdsl.model import Kernel
from layoutdsl.plan import Lost, Plan, TensorInfo
from layoutdsl.recodes import Habits, Recode

GOLDEN = Path(__file__).parent / "golden"
RECORDED = json.loads((GOLDEN / "index.json").read_text())["cases"]
REFERENCE_EVERY = 3
"""The reference is slow: it runs one recorded case in so many; `layoutdsl conform --backend reference` runs them all."""

EXAMPLES = 2
SETTINGS = settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck))


# --- recorded cases ---------------------------------------------------------------------------------------------------


def recorded(case: dict, backend: str, folder: Path) -> list[str | None]:
    shutil.copy(GOLDEN / case["file"], folder)
    (folder / "index.json").write_text(json.dumps({"cases": [case]}))
    return [outcome.wrong for outcome in conform.cases(folder, backend=backend)]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["id"])
def test_torch_gives_the_recorded_bytes(case, tmp_path):
    assert recorded(case, "torch", tmp_path) == [None]


@pytest.mark.parametrize("case", RECORDED[::REFERENCE_EVERY], ids=lambda case: case["id"])
def test_reference_gives_the_recorded_bytes(case, tmp_path):
    assert recorded(case, "reference", tmp_path) == [None]


# --- every pair -------------------------------------------------------------------------------------------------------

INT4 = ("gptq", "awq", "ct_int", "marlin_int4_a16", "marlin_int4_a8int8", "marlin_int4_a8fp8")
INT8 = ("gptq", "ct_int", "marlin_int8_a16", "marlin_int8_a8int8")
E4M3 = ("fp8", "fp8_block", "mxfp8", "marlin_fp8_a16", "marlin_mxfp8_a16")
MXFP4 = ("mxfp4", "marlin_mxfp4_a16", "marlin_mxfp4_a8fp8")
NVFP4 = ("nvfp4", "marlin_nvfp4_a16")
FAMILIES = {"int4": (INT4, {"bits": 4}), "int8": (INT8, {"bits": 8}), "e4m3": (E4M3, {}), "mxfp4": (MXFP4, {}),
            "nvfp4": (NVFP4, {})}
NEVER = {("mxfp8", "marlin_fp8_a16"), ("marlin_mxfp8_a16", "marlin_fp8_a16"), ("marlin_fp8_a16", "marlin_mxfp8_a16")}
"""The same code, but no group that both take."""
PAIRS = [(family, a, b) for family, (names, _) in FAMILIES.items() for a in names for b in names if (a, b) not in NEVER]
MODULES = ("linear", "linear_fused", "moe_gated", "moe_plain")
FREE = ("dtype", "scale_dtype", "writer", "global_scale", "scale", "zero_offset", "qzeros", "g_idx", "shape_tensor",
        "scale_name", "zero_points", "group", "block_n")
"""Parameters that a target may set otherwise than its source."""
PEER = Habits(pads="zero", nvfp4_factor="tensor", int16="stepwise")


@dataclass
class Case:
    """A plan, how its tensors are drawn, and in words what it is for."""

    plan: Plan = field(repr=False)
    seed: int
    mood: str
    poison: bool
    what: str


@st.composite
def cases(draw, family, source, target, module):
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    fixed = FAMILIES[family][1]
    params: dict[str, bool | int | str] = {}
    for side, name in (("source", source), ("target", target)):
        spec = load_spec(name)
        for key, param in spec.params.items():
            if key in fixed:
                params[f"{side}.{key}"] = fixed[key]
            elif side == "source" or (key in FREE and pick(True, False, False)):
                params[f"{side}.{key}"] = drawn(pick, key, param)
        params[f"{side}.parts"] = pick(*spec.parts.stored)
    if "source.group" in params and "target.group" in params and pick(True, True, False):
        params["target.group"] = params["source.group"]
    tp, ep = pick(1, 1, 2, 3), 1
    sizes: dict[str, int | tuple[int, ...]]
    if module.startswith("moe"):
        ep = pick(1, 2)
        sizes = {"e": ep * pick(1, 2), "i": tp * pick(8, 16, 21, 32, 64), "h": pick(16, 40, 66, 100)}
    else:
        params["module.split"] = pick("n", "k", "none")
        n, k = tp * pick(1, 4, 8, 24, 33), tp * pick(1, 16, 32, 44, 64, 128)
        sizes = {"n": n, "k": k}
    if module == "linear_fused":
        names = pick("q,k,v", "gate,up")
        params["module.names"] = names
        sizes["n"] = (n,) * 2 if names == "gate,up" else (n, tp * pick(8, 12), tp * pick(8, 12))
    # A slice of k that was cut before it was sorted has no order of its own.
    sharded = tp > 1 and not params.get("source.act_order") and pick(True, False)
    rank, ep_rank = draw(st.integers(0, tp - 1)), draw(st.integers(0, ep - 1))
    try:
        plan = compile_plan(source, target, module, sizes, params=params, tp=tp, rank=rank, ep=ep, ep_rank=ep_rank,
                            sharded=sharded, habits=pick(Habits(), PEER))
        if pick(True, False, False):
            plan = plan.inverse()
    except LayoutError:
        reject()
    what = f"{source} -> {target}, {module} {sizes}, {params}, {plan.ranks}, sharded {plan.sharded}, {plan.habits}"
    return Case(plan, draw(st.integers(0, 2**32)), pick("mild", "flat", "wild"), pick(True, False, False, False), what)


def drawn(pick, key, param):
    if param.values:
        return pick(*param.values)
    if param.type == "bool":
        return pick(True, False)
    return pick(-1, 32, 64, 128) if param.type == "group" else pick(128, 64, 32, 1)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids=str)
def test_torch_is_the_reference(family, source, target, module):
    @SETTINGS
    @given(cases(family, source, target, module))
    def holds(case):
        tensors = inputs_of(case.plan, case.seed, case.mood)
        if case.poison:
            poison(case.plan, tensors, case.seed)
        wanted = outcome(case.plan, tensors, "reference")
        assert outcome(case.plan, tensors, "torch") == wanted
        apart = {name: list(tensor) if case.plan.input[name].full_shape[:1] == (case.plan.input[name].experts,) else tensor
                 for name, tensor in tensors.items()}
        out = outputs_of(case.plan)
        before = {name: raw(tensor) for name, tensor in out.items()}
        assert outcome(case.plan, apart, "torch", out=out) == wanted
        if not isinstance(wanted[0], dict):
            assert {name: raw(tensor) for name, tensor in out.items()} == before, "a refusal wrote into `out`"

    holds()


# --- inputs and outcomes ----------------------------------------------------------------------------------------------


def inputs_of(plan: Plan, seed: int, mood: str) -> dict[str, torch.Tensor]:
    """Random tensors. mood: mild (scales that every side holds), flat (all scales of a tensor equal, so that shared ones
    agree) or wild (every finite code)."""
    random = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for info in plan.inputs:
        copies = 1 if info.shared or not info.experts else info.experts
        made[info.name] = packed(info, codes_of(info, plan, mood, copies, random))
    return made


def codes_of(info: TensorInfo, plan: Plan, mood: str, copies: int, random: torch.Generator) -> torch.Tensor:
    """Codes as plain numbers, [copies, codes]."""
    code, shape = code_named(info.code), (copies, info.codes)
    draw = lambda low, high: torch.randint(low, high, shape, generator=random)  # noqa: E731
    check = next((check for check in plan.checks if check.tensor == info.name and check.kind != "same"), None)
    if info.role == "weight_shape":
        return torch.tensor(check.expect if check else (0, 0)).expand(shape)
    if info.role == "act_order":
        return act_order(info, plan, copies)
    if check is not None:
        return torch.full(shape, check.expect[0])
    if info.role == "zero_point":
        return draw(0, (1 << code.bits) - (mood != "wild"))
    if info.role == "codes":
        found = draw(0, 1 << code.bits)
        return torch.where(found & 0x7F == 0x7F, 0x30, found) if code.name == "e4m3" else found
    if info.role == "global_scale":
        exponents = draw(-3, 4) if mood == "wild" else torch.zeros(shape, dtype=torch.int64)
        return torch.ldexp(torch.full(shape, 0.0149), exponents).view(torch.int32).to(torch.int64)
    found = scales(code, mood, draw)
    return found[:, :1].expand(shape) if mood == "flat" else found


def scales(code, mood: str, draw) -> torch.Tensor:
    if code.kind == "signed":
        return (draw(-(1 << 15), 1 << 15) if mood == "wild" else draw(-4096, 4097)) % (1 << 16)
    if code.kind == "power":
        return draw(0, 255) if mood == "wild" else draw(100, 150)
    low, high = (0, (1 << code.exponent) - 1) if mood == "wild" else (code.bias - 6, code.bias - 1)
    if code.name == "s0e5m3b" and mood != "wild":
        low, high = 16, 30
    sign = draw(0, 2) if code.sign and (mood == "wild" or code.name == "e4m3") else 0
    return draw(low, high) << code.mantissa | draw(0, 1 << code.mantissa) | sign << (code.bits - 1)


def outputs_of(plan: Plan) -> dict[str, torch.Tensor]:
    """Storage for the outputs, with something in it."""
    found = {info.name: torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    for tensor in found.values():
        tensor.reshape(-1).view(torch.uint8).fill_(0x5A)
    return found


def act_order(info: TensorInfo, plan: Plan, copies: int) -> torch.Tensor:
    """The group of each k; shuffled in act-order, and for all parts alike. A rank's slice begins inside a group."""
    params = dict(plan.source.params)
    matrix = info.name.split(".")[0]
    phases = [check.expect for check in plan.checks if check.tensor == info.name and check.kind == "order"]
    group, start = phases[0] if phases else (max(int(params.get("group", -1)), 0), 0)
    k = torch.arange(info.codes) + start
    found = (k // group if group else torch.zeros_like(k)).repeat(copies, 1)
    if not params.get("act_order"):
        return found
    random = torch.Generator().manual_seed(len(matrix))
    return torch.stack([row[torch.randperm(info.codes, generator=random)] for row in found])


def packed(info: TensorInfo, codes: torch.Tensor) -> torch.Tensor:
    bits = 64 if info.role == "weight_shape" else code_named(info.code).bits
    if bits == 4:
        carried = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    else:
        carried = codes.to(STORED[bits])
    return carried.contiguous().view(getattr(torch, info.dtypes[0])).reshape(info.full_shape)


def poison(plan: Plan, tensors: dict[str, torch.Tensor], seed: int) -> None:
    """Some bytes of one tensor become something else: NaN, infinite, negative, of another group, of another order."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda high: int(torch.randint(high, (1,), generator=random))  # noqa: E731
    info = plan.inputs[draw(len(plan.inputs))]
    width = torch.finfo(tensors[info.name].dtype).bits // 8 if tensors[info.name].is_floating_point() else 1
    raw = tensors[info.name].reshape(-1).view(torch.uint8)
    for _ in range(1 + draw(3)):
        at = draw(len(raw) // width) * width
        raw[at : at + width] = torch.tensor([0xFF] * (width - 1) + [(0x7F, 0xFF, 0x7C, 0x80, draw(256))[draw(5)]])


def outcome(plan: Plan, tensors: dict, backend: str, **options) -> tuple:
    """What a backend gives back: a digest, dtype and shape of each tensor and what was lost, or the refusal."""
    report: list[Lost] = []
    try:
        made = plan.run(tensors, backend=backend, report=report, **options)
    except LayoutError as error:
        return error.diagnostics[0].code, error.message, error.help
    return {name: (str(tensor.dtype), tuple(tensor.shape), digest(tensor)) for name, tensor in made.items()}, report


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(raw(tensor)).hexdigest()[:16]
