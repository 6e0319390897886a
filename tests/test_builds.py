"""Builds of a kernel: specs that name their base and state what differs. Bad ones stand in tests/errors, as `base_*`.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Fp8Block, Gptq
from conversions import Job, check
from jsonschema import Draft7Validator

from layoutdsl import LayoutError, Plan, compile_plan, library, load_spec, schema
from layoutdsl.choose import kernel_for
from layoutdsl.library import digest, files, read_spec, shipped, spec_of
from layoutdsl.lint.run import lint
from layoutdsl.model import INHERITED, Format, Kernel
from layoutdsl.resolve import Ranks, bind, matrices
from layoutdsl.source import read_file

BUILDS = sorted(
    spec.name for path in files() if isinstance(spec := read_spec(path), Kernel) and spec.base is not None
)
LEAN = """\
version: "1"
kernel: {name}
base: {base}
doc: a build
source: made up for this test
accepts: {{tiles: [{{n: 128, k: 64}}], groups: [-1, 128], capability: 90}}
try: [{{n: 128, k: 128}}]
"""


def write(folder: Path, name: str, base: str, more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(LEAN.format(name=name, base=base) + more, encoding="utf-8")
    return path


def copy(folder: Path, name: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text((shipped() / "kernel" / f"{name}.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def kernel(name: str | Path, *specs: Path) -> Kernel:
    spec = load_spec(str(name), specs=tuple(map(str, specs)), kind="kernel")
    assert isinstance(spec, Kernel)
    return spec


def heads(error: LayoutError) -> list[str]:
    return [f"{finding.span} {finding.code} {finding.message}" for finding in error.diagnostics]


# --- what a build is --------------------------------------------------------------------------------------------------


def test_shipped_builds() -> None:
    assert BUILDS == ["marlin_int4_a16_n128", "own_fp8_a16"]
    for name in BUILDS:
        build = kernel(name)
        base = kernel(str(build.base))
        assert (build.tensors, build.value, build.parts, build.params) == (
            base.tensors, base.value, base.parts, base.params
        )
        assert build.accepts != base.accepts
        assert build.doc != base.doc


def test_what_a_build_states_counts(tmp_path: Path) -> None:
    build, base = kernel(write(tmp_path, "lean", "marlin_int4_a16")), kernel("marlin_int4_a16")
    assert (build.name, build.base, build.doc) == ("lean", "marlin_int4_a16", "a build")
    assert (build.accepts.groups, build.accepts.capability) == ((-1, 128), 90)
    assert len(build.try_) == 1 < len(base.try_)
    assert all(getattr(build, key) == getattr(base, key) for key in INHERITED if key != "accepts")


def test_a_key_is_replaced_as_a_whole(tmp_path: Path) -> None:
    more = (
        "params: {group: {type: group, default: 64}, dtype: [bfloat16], zero_points: [false], bias: [false]}\n"
        "parts: {stored: [stacked], orders: [[up, gate]]}\n"
    )
    build = kernel(write(tmp_path, "lean", "marlin_int4_a16", more))
    assert build.params["dtype"].values == ("bfloat16",)
    assert build.params["group"].doc is None  # the base's text on it is gone with all else
    assert build.parts.orders == (("up", "gate"),)


def test_a_build_of_a_build(tmp_path: Path) -> None:
    write(tmp_path, "lean", "marlin_int4_a16")
    (tmp_path / "leaner.yaml").write_text(
        'version: "1"\nkernel: leaner\nbase: lean\ndoc: d\nsource: s\ntry: [{n: 128, k: 64}]\n', encoding="utf-8")
    build = kernel("leaner", tmp_path)
    assert build.accepts == kernel("lean", tmp_path).accepts
    assert build.tensors == kernel("marlin_int4_a16").tensors
    found, count = lint([str(tmp_path)])
    assert ([one.code for one in found], count) == (["LD901"], 2)  # it differs from its base in nothing


def test_a_base_is_next_to_its_build_or_in_a_folder_or_shipped(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    path = write(near, "lean", "marlin_int4_a16")
    seen = [kernel(path)]
    for folder in (far, near):
        change(copy(folder, "marlin_int4_a16"), "default: 128", f"default: {32 if folder is far else 64}")
        seen.append(kernel(path, far))
    assert [spec.params["group"].default for spec in seen] == [128, 32, 64]
    assert len({digest(spec) for spec in seen}) == 3


def test_a_spec_without_base_has_the_digest_of_its_text() -> None:
    text = "\n".join(read_file(shipped() / "kernel" / "marlin_int4_a16.yaml").lines)
    assert digest(kernel("marlin_int4_a16")) == hashlib.sha256(text.encode()).hexdigest()


# --- a base that changes ----------------------------------------------------------------------------------------------


def test_a_changed_base_is_another_spec(tmp_path: Path) -> None:
    base, path = copy(tmp_path, "marlin_int4_a16"), write(tmp_path, "lean", "marlin_int4_a16")
    first = kernel(path)
    assert kernel(path) is first
    change(base, "default: 128", "default: 64")
    second = kernel(path)
    assert second.params["group"].default == 64
    assert digest(second) != digest(first)
    change(base, "default: 64", "default: 128")
    assert kernel(path) is first


def test_a_changed_base_is_noticed_by_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, folder = copy(tmp_path, "marlin_int4_a16"), (str(tmp_path),)
    write(tmp_path, "lean", "marlin_int4_a16")
    text = compile_plan("gptq", "lean", "linear", {"n": 64, "k": 128}, specs=folder).to_json()
    monkeypatch.setattr(library, "_BY_DIGEST", {})  # as in another process
    assert Plan.from_json(text, specs=folder).to_json() == text
    monkeypatch.setattr(library, "_BY_DIGEST", {})
    change(base, "doc: Marlin", "doc: Our Marlin")
    with pytest.raises(LayoutError, match="`lean` is not the one that the plan was made from"):
        Plan.from_json(text, specs=folder)


# --- findings ---------------------------------------------------------------------------------------------------------


def test_a_finding_in_what_the_base_says_points_into_the_base(tmp_path: Path) -> None:
    base = copy(tmp_path, "marlin_int4_a16")
    params = "params: {dtype: [float16], bias: [false], zero_points: [false]}\n"
    path = write(tmp_path, "lean", "marlin_int4_a16", params)
    with pytest.raises(LayoutError) as caught:
        load_spec(str(path))
    lines = base.read_text(encoding="utf-8").split("\n")
    found = caught.value.diagnostics
    assert {finding.message for finding in found} == {f"unknown name `group`, in the base of `{path}`"}
    for finding in found:
        assert finding.span is not None and finding.span.file == str(base)
        assert lines[finding.span.line - 1] == finding.source[0]
        assert "group" in finding.source[0][finding.span.column - 1 : finding.span.end_column - 1]


def test_a_finding_in_what_the_build_says_points_into_the_build(tmp_path: Path) -> None:
    path = write(tmp_path, "lean", "marlin_int4_a16", "value: (weight - zero_pint) * weight_scale\n")
    with pytest.raises(LayoutError) as caught:
        load_spec(str(path))
    assert heads(caught.value) == [f"{path}:8:18 LD103 unknown tensor `zero_pint`"]


def test_lint_takes_a_build_for_one_file(tmp_path: Path) -> None:
    near = tmp_path / "near"
    near.mkdir()
    copy(tmp_path, "marlin_int4_a16").rename(tmp_path / "mine.yaml")
    change(tmp_path / "mine.yaml", "kernel: marlin_int4_a16", "kernel: mine")
    path = write(near, "lean", "mine")
    assert lint([str(path)], [str(tmp_path)]) == ([], 1)
    (finding,) = lint([str(path)])[0]
    assert (str(finding.span), finding.code) == (f"{path}:3:7", "LD033")


def test_an_unsound_base_is_one_finding_of_its_build(tmp_path: Path) -> None:
    base = copy(tmp_path, "marlin_int4_a16")
    change(base, "u4b8", "u4b9x")
    path = write(tmp_path, "lean", "marlin_int4_a16")
    found, count = lint([str(tmp_path)])
    assert count == 2
    assert [(str(finding.span).split(":")[0], finding.code) for finding in found] == [
        (str(path), "LD036"), (str(base), "LD310")
    ]
    assert "`u4b9x` is no element code" in found[0].message


def test_a_ring_of_bases_ends(tmp_path: Path) -> None:
    paths = [write(tmp_path, name, base) for name, base in (("a", "b"), ("b", "c"), ("c", "b"))]
    rings = {"a": "`a`, `b`, `c`, `b`", "b": "`b`, `c`, `b`", "c": "`c`, `b`, `c`"}
    for path in paths:
        with pytest.raises(LayoutError) as caught:
            load_spec(str(path))
        assert heads(caught.value) == [f"{path}:3:7 LD035 these bases have no end: {rings[path.stem]}"]


def test_the_near_name_of_a_neighbour_is_suggested(tmp_path: Path) -> None:
    copy(tmp_path, "marlin_int4_a16").rename(tmp_path / "our_kernel.yaml")
    with pytest.raises(LayoutError, match="did you mean `our_kernel`"):
        load_spec(str(write(tmp_path, "lean", "our_kernl")))


@pytest.mark.parametrize("key", ["doc", "source", "try", "version"])
def test_a_build_says_itself_what_it_is(key: str) -> None:
    text = LEAN.format(name="lean", base="marlin_int4_a16")
    lines = [line for line in text.splitlines() if not line.startswith(f"{key}:")]
    with pytest.raises(LayoutError, match=f"missing key `{key}`"):
        spec_of("\n".join(lines), "lean.yaml")


def test_an_editor_knows_what_a_build_may_leave_out() -> None:
    validator = Draft7Validator(schema.schema("kernel"))
    data = read_file(shipped() / "kernel" / "marlin_int4_a16.yaml").data
    assert isinstance(data, dict)
    for key in ("tensors", "value", "accepts"):
        less = {name: value for name, value in data.items() if name != key}
        assert not validator.is_valid(less)
        assert validator.is_valid({**less, "base": "marlin_int8_a16"})
    for key in ("version", "kernel", "doc", "source", "try"):
        less = {name: value for name, value in data.items() if name != key}
        assert not validator.is_valid({**less, "base": "marlin_int8_a16"})


# --- nobody gets a build unasked --------------------------------------------------------------------------------------


def chosen(name: str, params: dict[str, object], *asked: str) -> str:
    source, module = load_spec(name), load_spec("linear")
    assert isinstance(source, Format)
    found = matrices(module, bind(module, {}), {"n": 256, "k": 256}, Ranks())  # type: ignore[arg-type]
    return kernel_for(source, bind(source, params), found, asked=asked)  # type: ignore[arg-type]


def test_no_build_is_taken_unasked() -> None:
    assert chosen("gptq", {"group": 64}) == "marlin_int4_a16"
    blocks = {"block_n": 64, "group": 64}
    # The one kernel of these codes and float scales that takes such groups is a build.
    assert chosen("fp8_block", blocks) not in BUILDS
    assert chosen("fp8_block", blocks, "marlin_fp8_a16", "own_fp8_a16") == "own_fp8_a16"
    assert chosen("gptq", {"group": 64}, "marlin_int4_a16_n128") == "marlin_int4_a16_n128"


# --- what the shipped builds do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [64, 128, 192, 1856])
def test_without_small_tiles_outputs_are_padded_to_128(n: int) -> None:
    plan = compile_plan("gptq", "marlin_int4_a16_n128", "linear", {"n": n, "k": 192}, params={"group": 64})
    made = {tensor.name: tensor.shape for tensor in plan.outputs}
    padded = -(-n // 128) * 128
    assert made == {"linear.weight": (192 // 16, 2 * padded), "linear.weight_scale": (3, padded)}


def test_1856_is_1920_where_the_build_has_no_tiles_of_64() -> None:
    """vllm-project/vllm#32360, experts without a gate: 1856 = 29 * 64; w2 gets 60 groups of 32 instead of 58."""
    sizes, params = {"e": 2, "i": 1856, "h": 2688}, {"group": 32}
    for name, inner in (("marlin_int4_a16", 1856), ("marlin_int4_a16_n128", 1920)):
        plan = compile_plan("ct_int", name, "moe_plain", sizes, params=params)
        shapes = {tensor.name: tensor.shape for tensor in plan.outputs}
        assert shapes["w2.weight_scale"] == (inner // 32, 2688)
        assert shapes["w13.weight_scale"] == (2688 // 32, inner)


def test_a_plan_finds_its_build_again() -> None:
    text = compile_plan("gptq", "marlin_int4_a16_n128", "linear", {"n": 192, "k": 256}).to_json()
    plan = Plan.from_json(text)
    assert (plan.target.spec, plan.to_json()) == ("marlin_int4_a16_n128", text)
    assert plan.inverse().target.spec == "gptq"


def test_the_prover_refuses_tiles_of_64_for_the_build() -> None:
    text = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 192, "k": 256}).to_json()
    Plan.from_json(text)
    tree = json.loads(text)
    tree["target"] |= {"spec": "marlin_int4_a16_n128", "digest": digest(kernel("marlin_int4_a16_n128"))}
    with pytest.raises(LayoutError) as caught:
        Plan.from_json(json.dumps(tree))
    assert caught.value.diagnostics[0].name.startswith("law-")


@pytest.mark.parametrize("group", [32, 64, 128])
def test_our_own_kernel_reads_blocks_of_128_in_finer_groups(group: int) -> None:
    sizes, params = {"n": 128, "k": 384}, {"target.group": group}
    plan = compile_plan("fp8_block", "own_fp8_a16", "linear", sizes, params=params)
    shapes = {tensor.name: tensor.shape for tensor in plan.outputs}
    assert shapes["linear.weight_scale"] == (384 // group, 128)
    assert Plan.from_json(plan.to_json()) == plan
    if group < 128:
        with pytest.raises(LayoutError, match=f"groups of {group}.* kernel `marlin_fp8_a16` does not take"):
            compile_plan("fp8_block", "marlin_fp8_a16", "linear", sizes, params=params)


@pytest.mark.parametrize(
    ("group", "module", "sizes"),
    [
        (-1, "linear", {"n": 80, "k": 128}),
        (32, "linear", {"n": 80, "k": 384}),
        (64, "linear", {"n": 80, "k": 320}),
        (128, "linear", {"n": 80, "k": 384}),
        (32, "moe_gated", {"e": 2, "i": 96, "h": 128}),
        (64, "moe_gated", {"e": 2, "i": 256, "h": 160}),
    ],
)
def test_our_own_kernel_holds_the_values(group: int, module: str, sizes: dict[str, int]) -> None:
    job = Job(Fp8Block({}), "own_fp8_a16", module, sizes, params={"target.group": group}, dtype="float16")
    check(job, np.random.default_rng(group + 1))


@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 1)])
def test_a_build_without_small_tiles_holds_the_values(tp: int, rank: int) -> None:
    sizes = {"e": 2, "i": 192, "h": 96}
    job = Job(Gptq({"group": 32, "bits": 4}), "marlin_int4_a16_n128", "moe_gated", sizes, tp=tp, rank=rank)
    check(job, np.random.default_rng(tp))
