"""A short run of what scripts/fuzz does by the million: no exception but LayoutError, nothing that takes long."""

import sys
from pathlib import Path

import pytest
from fuzzing import KINDS, changed, mutated, tried
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "fuzz"))

FEW = {"spec": 25, "plan": 200, "config": 60, "header": 200}
"""Inputs of each kind at a time: some seconds in all."""


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=3, deadline=None)
@given(first=st.integers(10**7, 10**9))
def test_changed_input_is_read_or_refused(name: str, first: int) -> None:
    """Other inputs in every run; a failure names the number, with which `fuzzing.changed` makes the input again."""
    _past(name, first)


@pytest.mark.parametrize("name", KINDS)
def test_a_third_gets_past_the_schema(name: str) -> None:
    assert _past(name, 0) >= 0.3 * FEW[name]


def _past(name: str, first: int) -> int:
    """How many inputs get past the schema; none may be at fault."""
    kind, past = KINDS[name], 0
    for number in range(first, first + FEW[name]):
        outcome = tried(kind, changed(kind, number))
        slow = outcome.fault.startswith("it takes")  # a busy machine is no fault
        assert not outcome.fault or slow, f"input {number} of {name}: {outcome.fault}"
        past += outcome.past
    return past


@pytest.mark.parametrize("name", KINDS)
def test_seeds_are_valid(name: str) -> None:
    kind = KINDS[name]
    for seed in kind.seeds():
        outcome = tried(kind, seed)
        assert outcome.past and (not outcome.fault or outcome.fault.startswith("it takes")), outcome.fault


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(list(KINDS)), dice=st.randoms(use_true_random=False), text=st.text(max_size=200))
def test_any_text_is_read_or_refused(name: str, dice, text: str) -> None:
    outcome = tried(KINDS[name], mutated(KINDS[name], dice, text or " "))
    assert not outcome.fault, outcome.fault


def test_a_fault_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import layoutdsl.plan

    def broken(_: str) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(layoutdsl.plan.Plan, "from_json", staticmethod(lambda text, prove: broken(text)))
    assert "IndexError" in tried(KINDS["plan"], "{}").fault


def test_an_input_that_does_not_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import fuzzing

    def forever(_: str):
        while True:
            pass
        yield

    monkeypatch.setattr(fuzzing, "HANG", 0.2)
    kind = fuzzing.Kind(lambda: ("",), forever, ("",))
    assert tried(kind, "").fault.startswith("it does not end")
