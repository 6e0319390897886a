"""A sample of the changes that scripts/mutation_score makes to the shipped specs; and that the right specs pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutdsl import load_spec
from layoutdsl.library import read_spec
from mutation import killers, same
from mutation.mutators import Mutant
from mutation.score import UNCOUNTED, all_mutants, verdicts
from mutation.workplace import SPECS, Workplace

STEP = 101
"""Of so many changes the sample has one."""

FILES = sorted(path for kind in ("checkpoint", "kernel", "module") for path in (SPECS / kind).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_tells_the_right_spec(path: Path) -> None:
    for killer in (killers.lint, killers.decoder, killers.proof, killers.converted):
        assert killer(path) is None, killer.__name__
    assert same.difference(read_spec(path), read_spec(path)) is None


def test_configurations_mean_what_they_say() -> None:
    assert killers.configured(SPECS / "checkpoint" / "awq.yaml") is None


def test_a_sample_of_changes_is_told() -> None:
    every = list(all_mutants())
    assert len(every) > 6000 and len({one.text for one in every}) == len(every)
    found = [one for one in verdicts(every[::STEP]) if one.by != UNCOUNTED]
    assert len(found) > 60
    assert [f"{one.mutant} ({one.said})" for one in found if not one.by] == []


TELLS = [
    ("kernel/marlin_int4_a16.yaml", "{k0 b k3}", "{b k0 k3}", "decoder"),
    ("kernel/marlin_int4_a16.yaml", "code: u4\n", "code: u4b8\n", "lint"),
    ("kernel/marlin_int4_a16.yaml", "tiles: [{n: 64, k: 128}", "tiles: [{n: 64, k: 64}", "lint"),
    ("checkpoint/gptq.yaml", "values: [1, 0]", "values: [0, 1]", "decoder"),
    ("checkpoint/awq.yaml", "(qweight - qzeros) * scales", "scales * (qweight - qzeros)", "same"),
    ("checkpoint/fp8.yaml", "naive-quantized", "dense", "config"),
    ("module/attention.yaml", "serves: {kv: q}", "serves: {q: kv}", "conversion"),
]


@pytest.mark.parametrize(("spec", "old", "new", "by"), TELLS, ids=[f"{new}, {by}" for _, _, new, by in TELLS])
def test_what_tells(spec: str, old: str, new: str, by: str) -> None:
    text = (SPECS / spec).read_text(encoding="utf-8")
    assert old in text
    [found] = verdicts([Mutant(spec, 0, "detect" if by == "config" else "tensors", text.replace(old, new, 1))])
    assert found.by == by, found.said


def test_a_changed_spec_is_what_is_loaded(tmp_path: Path) -> None:
    text = (SPECS / "checkpoint" / "awq.yaml").read_text(encoding="utf-8")
    with Workplace(tmp_path).entered() as place:
        with place.changed("checkpoint/awq.yaml", text.replace("default: 128", "default: 64")):
            assert load_spec("awq").params["group"].default == 64
        assert load_spec("awq").params["group"].default == 128
    assert load_spec("awq").params["group"].default == 128
