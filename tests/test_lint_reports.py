"""Public reports that a spec could have stated wrongly, and what lint says of it: fixtures/reports_in_specs.yaml.

The reports of the bad specs themselves are exact in tests/test_rules.py and tests/test_source.py.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

TESTS = Path(__file__).parent
CASES = [case["id"] for case in yaml.safe_load((TESTS / "fixtures/cases.yaml").read_text(encoding="utf-8"))]
LISTED: dict[str, Any] = yaml.safe_load((TESTS / "fixtures/reports_in_specs.yaml").read_text(encoding="utf-8"))
IN_SPECS: dict[str, list[str]] = LISTED["in_specs"]
FOLDERS = (TESTS / "lint/bad", TESTS / "errors")


def text_of(name: str) -> str:
    found = [path for folder in FOLDERS if (path := folder / f"{name}.yaml").is_file()]
    assert len(found) == 1, f"{name} is the name of {len(found)} bad specs"
    return found[0].read_text(encoding="utf-8")


def reports_of(text: str) -> list[str]:
    return [name for names in re.findall(r"^# reported as (.+)$", text, re.MULTILINE) for name in names.split(", ")]


def test_every_report_stands_once() -> None:
    listed = [*IN_SPECS, *(name for names in LISTED["not_in_specs"].values() for name in names)]
    assert sorted(listed) == sorted(CASES)


@pytest.mark.parametrize("report", IN_SPECS)
def test_a_bad_spec_makes_the_mistake_of_the_report(report: str) -> None:
    for name in IN_SPECS[report]:
        text = text_of(name)
        assert report in reports_of(text)
        code = name[:5].upper() if re.match(r"l[dp][0-9]{3}_", name) else "LD"
        assert re.search(rf"^# {code}", text, re.MULTILINE), f"{name} earns no finding"


def test_bad_specs_name_only_reports_that_are_listed() -> None:
    for folder in FOLDERS:
        for path in folder.glob("*.yaml"):
            for report in reports_of(path.read_text(encoding="utf-8")):
                assert path.stem in IN_SPECS[report]


def test_scales_in_the_order_of_another_extent_are_said_to_be_read_as_others() -> None:
    (first,) = re.findall(r"^# LD406 .*$", text_of("ld406_order_of_another_extent"), re.MULTILINE)
    assert (
        "the scale of group 3, output 17 of `gate` would stand where the kernel reads group 3, output 40 of `gate`"
        in first
    )
    where = re.search(r"as (\d+) more of its (\d+) scales would", first)
    assert where is not None
    # 62 of every 64 scales move: each of 64 outputs goes from place 8 i + j to one of an order of 32, all but two.
    assert (int(where[1]) + 1) * 64 == int(where[2]) * 62
