"""Checks of other tests that a changed spec must not pass: conversions, plans and configurations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import test_cases
import yaml
from checkpoints import Gptq
from conversions import INNER, Job
from test_cases import Heads

from layoutdsl import compile_plan
from layoutdsl.checkpoints.quantization import declared
from layoutdsl.errors import LayoutError
from layoutdsl.recodes import Habits

Check = tuple[str, Callable[[], None]]

# --- conversions ------------------------------------------------------------------------------------------------------

ZERO = Gptq({"group": 32, "zero_points": True, "bias": True})
MODULES = {
    "linear": [
        {"sizes": {"n": 96, "k": 160}},
        {"sizes": {"n": 96, "k": 256}, "split": "n", "tp": 2, "rank": 1},
        {"sizes": {"n": 96, "k": 256}, "split": "k", "tp": 2, "rank": 1},
    ],
    "linear_fused": [
        {"sizes": {"n": (96, 32, 32), "k": 128}},
        {"sizes": {"n": (96, 32, 32), "k": 128}, "split": "n", "tp": 2, "rank": 1},
        {"sizes": {"n": (96, 32, 32), "k": 128}, "split": "k", "tp": 2, "rank": 1},
    ],
    "mlp_gated": [{"sizes": {"i": 96, "h": 64}}, {"sizes": {"i": 128, "h": 64}, "tp": 2, "rank": 1}],
    "mlp_plain": [{"sizes": {"i": 96, "h": 64}}, {"sizes": {"i": 128, "h": 64}, "tp": 2, "rank": 1}],
    "moe_gated": [
        {"sizes": {"e": 2, "i": 96, "h": 64}},
        {"sizes": {"e": 4, "i": 128, "h": 64}, "tp": 2, "rank": 1, "ep": 2, "ep_rank": 1},
    ],
    "moe_plain": [
        {"sizes": {"e": 2, "i": 96, "h": 64}},
        {"sizes": {"e": 4, "i": 128, "h": 64}, "tp": 2, "rank": 1, "ep": 2, "ep_rank": 1},
    ],
}


class Latent(Job):
    """Queries whose latent is as wide as the hidden size, which is not said."""

    @property
    def whole(self):
        return Job(self.source, self.kernel, self.module, self.sizes | {"rq": self.sizes["h"]}).matrices


def jobs(spec: str) -> Iterator[Job]:
    for options in MODULES.get(spec, ()):
        yield Job(ZERO, "marlin_int4_a16", spec, **options)
    heads = {"q": 4, "kv": 2, "d": 32, "h": 64}
    if spec == "attention":
        yield Job(ZERO, "marlin_int4_a16", spec, {**heads, "dq": 64, "dv": 16, "h": 96})
        yield Job(ZERO, "marlin_int4_a16", spec, {"q": 2, "d": 32, "dq": 64, "h": 96})
        yield Heads(ZERO, "marlin_int4_a16", spec, {**heads, "dv": 64}, tp=2, rank=1)
        yield Heads(ZERO, "marlin_int4_a16", spec, heads, tp=4, rank=3)
    if spec == "latent_attention":
        latent = {"q": 4, "dq": 48, "dkv": 64, "dv": 32, "akv": 96, "rkv": 64, "h": 160}
        for rank in (0, 1):
            yield Job(ZERO, "marlin_int4_a16", spec, latent | {"rq": 96}, tp=2, rank=rank)
        yield Job(ZERO, "marlin_int4_a16", spec, latent | {"rq": 96}, params={"module.queries": "direct"})
        yield Latent(ZERO, "marlin_int4_a16", spec, latent)


# --- plans ------------------------------------------------------------------------------------------------------------


def plans(spec: str) -> Iterator[Check]:
    if spec in UNSAID:
        yield "ranks of which nothing is said", lambda: _cut(spec)
    if spec in INNER:
        yield "an inner axis", lambda: _inner(spec)
    for name, entry in _entries(spec):
        yield name, lambda entry=entry: _asked(entry)


UNSAID = {"linear": [256, 128], "linear_fused": [256, 64, 32, 32, 128]}
"""Inputs and outputs that one of two ranks holds of 128 outputs and 256 inputs, or of 128, 64 and 64 outputs."""


def _cut(spec: str) -> None:
    n = 128 if spec == "linear" else (128, 64, 64)
    plan = compile_plan("gptq", "marlin_int4_a16", spec, {"n": n, "k": 256}, params={"group": 32}, tp=2)
    assert [extent.length for extent in plan.extents] == UNSAID[spec]


def _inner(spec: str) -> None:
    """192 outputs are whole tiles of 64, and read as 256 inputs, in groups of 128: what is between writes 64 zeros, or
    both are padded alike. It maps zero to zero, so pads may be codes that are worth something."""
    first, second, _ = INNER[spec]
    sizes = {"i": 192, "h": 128} | ({"e": 2} if spec.startswith("moe") else {})
    group = {"source.group": 128, "target.group": 128}
    for contract, wanted in (({}, 192), ({"contract": "tight"}, 192), ({"contract": "vllm"}, 256)):
        plan = compile_plan("gptq", "marlin_int4_a16", spec, sizes, params={**group, **contract})
        padded = {(extent.matrix, extent.role): extent.padded for extent in plan.extents}
        assert (padded[first, "n"], padded[second, "k"]) == (wanted, 256), contract
    compile_plan("gptq", "marlin_int4_a16", spec, sizes, params={**group}, habits=Habits(pads="zero"))


def _asked(entry: test_cases.Entry) -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_cases.test_plans(entry, Path(folder))


@lru_cache(maxsize=64)
def _entries(spec: str) -> tuple[tuple[str, test_cases.Entry], ...]:
    return tuple(
        (f"{case['id']}-{at}", entry)
        for case in test_cases.CASES
        for at, entry in enumerate(case.get("plans", ()))
        if spec in (entry["from"], entry["to"], entry["module"])
    )


# --- configurations ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _configs() -> list[dict[str, Any]]:
    return yaml.safe_load((Path(__file__).parent / "configs.yaml").read_text(encoding="utf-8"))


def configurations() -> Iterator[Check]:
    for entry in _configs():
        yield str(entry["config"]), lambda entry=entry: _meant(entry)


def _meant(entry: dict[str, Any]) -> None:
    try:
        found = str(declared({"quantization_config": entry["config"]}))
    except LayoutError as error:
        found = error.diagnostics[0].code
    wanted = entry.get("means") or entry["refused"]
    assert found == wanted, f"it is {wanted}, not {found}"
