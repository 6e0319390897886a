"""A new format is one YAML file and one fixture, no Python: AutoAWQ's gemv version, which is not among the shipped.

The spec is tests/fixtures/specs/awq_gemv.yaml, the fixture was packed by scripts/make_fixture_awq_gemv.py, and what the
kernel reads is decoded by tests/decoders. None of these knows layoutdsl.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from decoders import marlin
from safetensors.numpy import load_file

from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.lint.run import lint
from layoutdsl.prove import prove_ranks

ROOT = Path(__file__).resolve().parent.parent
SPECS = (str(ROOT / "tests" / "fixtures" / "specs"),)
FIXTURE = load_file(ROOT / "tests" / "fixtures" / "awq_gemv.safetensors")
GROUPS = (128, 64, 32)


def stored(group: int) -> dict[str, torch.Tensor]:
    return {f"linear.{name}": torch.from_numpy(FIXTURE[f"g{group}.{name}"]) for name in ("qweight", "qzeros", "scales")}


def value(group: int) -> np.ndarray:
    """[n, k] of what the fixture says its matrix holds."""
    codes, zeros, scale = (FIXTURE[f"g{group}.{name}"].astype(np.float64) for name in ("codes", "zeros", "groups"))
    return (codes - zeros.repeat(group, axis=1)) * scale.repeat(group, axis=1)


def planned(group: int, target: str, **ranks: int) -> Plan:
    n, k = FIXTURE[f"g{group}.codes"].shape
    params = {"group": group} | ({"split": "n"} if ranks else {})
    return compile_plan("awq_gemv", target, "linear", {"n": n, "k": k}, params=params, specs=SPECS, **ranks)


def decoded(made: dict[str, torch.Tensor], plan: Plan, activation: str) -> np.ndarray:
    tensors = {name.removeprefix("linear."): tensor for name, tensor in made.items()}
    arrays = {name: (t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.float16 else t.numpy())
              for name, t in tensors.items()}  # fmt: skip
    n, k = (next(e.padded for e in plan.extents if e.role == role) for role in "nk")
    return marlin.decode(arrays, n=n, k=k, code="u4", activation=activation, dtype="float16")


@pytest.mark.parametrize("activation", ["float16", "float8_e4m3fn"])
@pytest.mark.parametrize("group", GROUPS)
def test_the_kernel_reads_what_the_file_holds(group: int, activation: str) -> None:
    plan = planned(group, "marlin_int4_a16" if activation == "float16" else "marlin_int4_a8fp8")
    found = decoded(plan.run(stored(group)), plan, activation)
    expected = np.zeros_like(found)
    expected[: value(group).shape[0], : value(group).shape[1]] = value(group)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("group", GROUPS)
def test_the_way_back_gives_the_file_back(group: int) -> None:
    plan = planned(group, "marlin_int4_a16")
    back = plan.inverse(specs=SPECS).run(plan.run(stored(group)))
    for name, tensor in stored(group).items():
        assert torch.equal(back[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_ranks_hold_their_rows() -> None:
    plans = [planned(32, "marlin_int4_a16", tp=3, rank=rank) for rank in range(3)]
    prove_ranks(plans, specs=SPECS)
    rows = [decoded(plan.run(stored(32)), plan, "float16")[:24, :160] for plan in plans]
    np.testing.assert_array_equal(np.concatenate(rows), value(32))


def test_it_becomes_any_format_with_the_same_codes() -> None:
    """Into the shipped AWQ and back, by way of plans that were stored as text."""
    there = planned(64, "awq")
    awq = Plan.from_json(there.to_json(), specs=SPECS).run(stored(64))
    assert list(awq) == ["linear.qweight", "linear.qzeros", "linear.scales"]
    back = Plan.from_json(there.inverse(specs=SPECS).to_json(), specs=SPECS).run(awq)
    assert all(torch.equal(back[name], tensor) for name, tensor in stored(64).items())


def test_lint_proves_it() -> None:
    assert lint(SPECS) == ([], 1)


def test_no_python_knows_it() -> None:
    with pytest.raises(LayoutError, match="there is no spec `awq_gemv`"):
        compile_plan("awq_gemv", "marlin_int4_a16", "linear", {"n": 64, "k": 128})
    assert not [path for path in (ROOT / "layoutdsl").rglob("*.py") if "gemv" in path.read_text(encoding="utf-8")]
