"""Every backend gives the same bytes, or the same refusal, as the reference: for recorded cases, and for every pair of
shipped formats that hold the same kind of code.

Drawn: modules, odd sizes, ranks, how parts are stored, the parameters of both sides; codes of all values, scales that are
subnormal, largest, zero or negative, and now and then a code that one side must refuse.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
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
from layoutdsl.recodes import Recode

GOLDEN = Path(__file__).parent / "golden"
RECORDED = json.loads((GOLDEN / "index.json").read_text())["cases"]
REFERENCE_EVERY = 3
"""The reference is slow: it runs one recorded case in so many; `layoutdsl conform --backend reference` runs them all."""

EXAMPLES = 2
SETTINGS = settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck))


# --- recorded cases ---------------------------------------------------------------------------------------------------


def recorded(case: dict, backend: str, tmp_path: Path) -> list[str | None]:
    (tmp_path / case["file"]).symlink_to(GOLDEN / case["file"])
    (tmp_path / "index.json").write_text(json.dumps({"cases": [case]}))
    return [outcome.wrong for outcome in conform.cases(tmp_path, backend=backend)]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["id"])
def test_torch_gives_the_recorded_bytes(case, monkeypatch, tmp_path):
    monkeypatch.setattr(conform, "_checked", lambda folder, file, sha256: GOLDEN / file)
    assert recorded(case, "torch", tmp_path) == [None]


@pytest.mark.parametrize("case", RECORDED[::REFERENCE_EVERY], ids=lambda case: case["id"])
def test_reference_gives_the_recorded_bytes(case, monkeypatch, tmp_path):
    monkeypatch.setattr(conform, "_checked", lambda folder, file, sha256: GOLDEN / file)
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


@dataclass
class Case:
    plan: Plan
    seed: int
    mood: str
    poison: bool


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
    rank, ep_rank = draw(st.integers(0, tp - 1)), draw(st.integers(0, ep - 1))
    try:
        plan = compile_plan(source, target, module, sizes, params=params, tp=tp, rank=rank, ep=ep, ep_rank=ep_rank,
                            sharded=tp > 1 and pick(True, False))
        if pick(True, False, False):
            plan = plan.inverse()
    except LayoutError:
        reject()
    return Case(plan, draw(st.integers(0, 2**32)), pick("mild", "flat", "wild"), pick(True, False, False, False))


def drawn(pick, key, param):
    if param.values:
        return pick(*param.values)
    if param.type == "bool":
        return pick(True, False)
    return pick(-1, 32, 64, 128) if param.type == "group" else pick(128, 64, 32, 1)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids="-".join)
def test_torch_is_the_reference(family, source, target, module):
    @SETTINGS
    @given(cases(family, source, target, module))
    def holds(case):
        tensors = inputs_of(case.plan, case.seed, case.mood)
        if case.poison:
            poison(case.plan, tensors, case.seed)
        assert outcome(case.plan, tensors, "torch") == outcome(case.plan, tensors, "reference")

    holds()
