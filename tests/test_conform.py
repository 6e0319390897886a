"""Recorded cases: all pass, and whatever is off by a digit, a byte or a number is seen."""

import json
import shutil
from pathlib import Path

import pytest

from layoutdsl import conform
from layoutdsl.cli import main
from layoutdsl.library import shipped

GOLDEN = Path(__file__).parent / "golden"
INDEX = json.loads((GOLDEN / "index.json").read_text())


def some(tmp_path: Path, *ids: str, **changes) -> Path:
    """A folder with a few of the recorded cases, each changed as told, without policy tables."""
    cases = [{**case, **changes} for case in INDEX["cases"] if case["id"] in ids]
    for case in cases:
        shutil.copy(GOLDEN / case["file"], tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"cases": cases}))
    return tmp_path


def wrong(folder: Path, **options) -> list[str]:
    return [outcome.wrong for outcome in conform.cases(folder, **options) if outcome.wrong]


def test_every_policy_row_is_reproduced():
    rows = list(conform.policy(GOLDEN))
    assert len(rows) == sum(len(table["rows"]) for table in json.loads((GOLDEN / "policy.json").read_text()).values()
                            if isinstance(table, dict) and "rows" in table)
    assert [row for row in rows if row.wrong] == []


def test_a_wrong_policy_row_is_listed_and_fails_the_run(tmp_path, capsys):
    import hashlib

    tables = json.loads((GOLDEN / "policy.json").read_text())
    tables["padded_nk"]["rows"][3][4] += 64
    (tmp_path / "policy.json").write_text(json.dumps(tables))
    digest = hashlib.sha256((tmp_path / "policy.json").read_bytes()).hexdigest()
    (tmp_path / "index.json").write_text(json.dumps({"cases": [], "policy": {"file": "policy.json", "sha256": digest}}))
    assert main(["conform", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "policy padded_nk [8, 40, -1, 64, 192]" in out
    assert out.splitlines()[-1] == "0 passed, 0 failed"


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        ("marlin_int4_a16", "{k0 b k3}", "{b k0 k3}"),
        ("marlin_int4_a16", "g, nt i j (gi)", "g, nt j i (gi)"),
        ("gptq", "kw, n {kp}", "n, kw {kp}"),
    ],
)
def test_two_digits_swapped_in_a_spec_fail(tmp_path, spec, old, new):
    folder = some(tmp_path, "dense-gptq_int4-a16-g32-n96-k160-bf16")
    assert wrong(folder) == []
    own = tmp_path / "specs"
    own.mkdir()
    text = next(shipped().rglob(f"{spec}.yaml")).read_text()
    assert text.count(old) == 1
    (own / f"{spec}.yaml").write_text(text.replace(old, new))
    [found] = wrong(folder, specs=(str(own),))
    assert "differs in" in found or "shape" in found


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize(
    ("case", "k"),
    [("dense-gptq_int4-a16-g-1-n128-k64-bf16-bias", 64), ("dense-ct_int4_zp-a16-g-1-n200-k208-bf16", 208)],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_inside_one_group_takes_that_group_s_scale(tmp_path, backend, case, k, ranks):
    """A row-parallel slice of k inside a group of 2 k: the recorded per-channel result is what that rank must hold."""
    folder = some(tmp_path, case, K_full=ranks * k, ranks=ranks, group=2 * k)
    assert wrong(folder, backend=backend) == []


def test_a_changed_file_is_refused(tmp_path):
    folder = some(tmp_path, "dense-gptq_int4-a16-g-1-n128-k64-bf16-bias")
    path = next(folder.glob("*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert wrong(folder) == [f"`{path.name}` does not have the sha256 of the index"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "gptq_int5"}, "no spec is known for the format `gptq_int5`"),
        ({"target": "marlin_a4"}, "no spec is known for the target `marlin_a4`"),
        ({"kind": 7}, "`kind` of the case: input should be a valid string"),
        ({"file": "../index.json"}, "`../index.json` is no file of this folder"),
        ({"padded": {"N": 192, "K": 64}}, "fits no tile"),
        ({"kind": "moe"}, "a moe case states E, I, H"),
        ({"N": "128"}, "`N` of the case: input should be a valid integer"),
    ],
)
def test_bad_cases_have_a_sentence(tmp_path, changes, message):
    case = "dense-gptq_int4-a16-g-1-n128-k64-bf16-bias"
    folder = some(tmp_path, case)
    index = json.loads((folder / "index.json").read_text())
    index["cases"][0].update(changes)
    (folder / "index.json").write_text(json.dumps(index))
    [found] = wrong(folder)
    assert message in found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cases": 3}', "not json"])
def test_bad_indexes_have_a_sentence(tmp_path, text, capsys):
    (tmp_path / "index.json").write_text(text)
    assert main(["conform", str(tmp_path)]) == 1
    assert "LP180" in capsys.readouterr().err
