"""The shipped specs as a whole, and a format of one's own: one more file, no Python. Bad specs stand in tests/errors,
each with its exact report (see test_source.py)."""

from pathlib import Path

import pytest
import torch

from layoutdsl import LayoutError, compile_plan, load_spec
from layoutdsl.library import digest, kind_of, read_spec, shipped
from layoutdsl.lint.run import lint
from layoutdsl.model import KINDS, Format, Module

SPECS = sorted(path for kind in KINDS for path in (shipped() / kind).rglob("*.yaml"))
ERRORS = Path(__file__).parent / "errors"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_is_found_by_its_name(path: Path) -> None:
    spec = load_spec(path.stem)
    assert spec.name == path.stem
    assert kind_of(spec) == path.parent.name
    assert load_spec(str(path)) is read_spec(path)
    assert digest(spec) == digest(read_spec(path))
    with pytest.raises(LayoutError, match=f"is a {kind_of(spec)} spec"):
        load_spec(path.stem, kind=next(kind for kind in KINDS if kind != kind_of(spec)))


def test_names_are_unique() -> None:
    assert len({path.stem for path in SPECS}) == len(SPECS)


def bad_specs() -> list[Path]:
    return [path for path in sorted(ERRORS.glob("*.yaml")) if path.read_text("utf-8").startswith("# model: spec\n")]


def test_every_report_on_a_bad_spec_has_its_place() -> None:
    assert len(bad_specs()) >= 40
    for path in bad_specs():
        report = path.read_text("utf-8").split("\nversion:")[0]
        findings = report.count("\n# LD") + report.count("\n# LP")
        assert findings >= 1
        assert report.count(f"--> {path.name}:") == report.count("^\n") + report.endswith("^") == findings


# --- a format of one's own --------------------------------------------------------------------------------------------

PAIRS = """\
version: "1"
checkpoint: pairs
doc: 4-bit integers, two neighbouring outputs in a byte, and a scale per group that stands beside its outputs
source: made up for this test
params: {group: {type: group, default: 32}, dtype: [float16, bfloat16]}
parts: {stored: [stacked], orders: [[up, gate]]}
tensors:
  packed:
    role: codes
    dtype: uint8
    code: u4b8
    split: "n = nb n0:2"
    order: "k, nb {n0}"
  factors:
    role: scale
    dtype: "{dtype}"
    split: "k = g gi:(group)"
    order: "n, g (gi)"
value: packed * factors
try:
  - {n: 64, k: 128}
  - {n: 34, k: 80, dtype: bfloat16}
  - {n: 32, k: 64, group: -1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    return str(tmp_path)


def test_one_file_is_a_format(folder: str) -> None:
    assert lint([folder]) == ([], 1)
    spec = load_spec("pairs", specs=(folder,))
    assert isinstance(spec, Format)


def test_one_s_own_format_converts(folder: str) -> None:
    """Two experts, up stacked on gate, to GPTQ's separate tensors and back; encoded and decoded here by hand."""
    i, h, experts, group = 64, 96, 2, 32
    generator = torch.Generator().manual_seed(7)
    q = torch.randint(0, 16, (experts, 2 * i, h), generator=generator, dtype=torch.uint8)
    scale = torch.rand(experts, 2 * i, h // group, generator=generator).to(torch.float16)
    w2 = torch.randint(0, 256, (experts, i, h // 2), generator=generator, dtype=torch.uint8)
    pairs = q.reshape(experts, i, 2, h)
    given = {
        "w13.packed": (pairs[:, :, 0] | pairs[:, :, 1] << 4).transpose(1, 2).contiguous(),
        "w13.factors": scale,
        "w2.packed": w2,
        "w2.factors": torch.ones(experts, h, i // group, dtype=torch.float16),
    }
    plan = compile_plan("pairs", "gptq", "moe_gated", {"e": experts, "i": i, "h": h}, params={"group": group},
                        specs=[folder])
    made = plan.run(given)
    for name, rows in (("up", slice(0, i)), ("gate", slice(i, 2 * i))):
        words = made[f"w13.{name}.qweight"].to(torch.int64) & 0xFFFFFFFF
        assert words.shape == (experts, h // 8, i)
        nibbles = torch.stack([words >> 4 * at & 15 for at in range(8)], dim=2).reshape(experts, h, i)
        assert torch.equal(nibbles.transpose(1, 2), q[:, rows].to(torch.int64))
        assert torch.equal(made[f"w13.{name}.scales"].transpose(1, 2), scale[:, rows])
    back = plan.inverse(specs=(folder,)).run(made)
    assert all(torch.equal(back[name], tensor) for name, tensor in given.items())


def test_one_s_own_format_reaches_every_kernel_of_its_codes(folder: str) -> None:
    for kernel in ("marlin_int4_a16", "marlin_int4_a8int8", "marlin_int4_a8fp8"):
        plan = compile_plan("pairs", kernel, "linear", {"n": 100, "k": 200}, specs=[folder])
        assert {"linear.packed", "linear.factors"} == set(plan.input)


def test_a_module_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "mlp.yaml").write_text(
        'version: "1"\nmodule: mlp\ndoc: two plain matrices\nsource: made up for this test\n'
        "axes: {i: intermediate, h: hidden}\nranks: {tp: i}\nvisible: [h]\n"
        "matrices: {a: {n: i, k: h}, b: {n: h, k: i}}\nactivation: zero\ntry: [{i: 128, h: 64}]\n", encoding="utf-8")
    assert lint([str(tmp_path)]) == ([], 1)
    assert isinstance(load_spec("mlp", specs=(str(tmp_path),)), Module)
    plan = compile_plan("gptq", "marlin_int4_a16", "mlp", {"i": 256, "h": 128}, params={"group": 64}, tp=2,
                        specs=[str(tmp_path)])
    assert [str(duty) for duty in plan.duties] == ["b: add up the outputs of all tensor-parallel ranks"]
