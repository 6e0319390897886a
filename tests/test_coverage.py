"""`layoutdsl coverage`: which models are served, on how many ranks and at what price, from numbers alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.checkpoints.inspect import inspect
from layoutdsl.checkpoints.report import size_of
from layoutdsl.cli import main
from layoutdsl.coverage.families import PLAIN, Family, families
from layoutdsl.coverage.folder import folder
from layoutdsl.coverage.ranks import check_tiles, kinds
from layoutdsl.coverage.report import json_of, markdown_of, text_of
from layoutdsl.coverage.table import Coverage, covered
from layoutdsl.explain import padding
from layoutdsl.library import load_spec
from layoutdsl.resolve import Ranks, matrices

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
SMALL, PUBLIC = FIXTURES / "models_small.yaml", FIXTURES / "models.yaml"
TP = ((1, 1), (2, 1), (4, 1), (8, 1))


def small(*, source: str = "gptq", counts: tuple[tuple[int, int], ...] = TP, **params: int | str | bool) -> Coverage:
    return covered(families(str(SMALL), source, params, (), ()), counts)


def only_config(name: str, path: Path, **changes: object) -> str:
    config = json.loads((FIXTURES / name / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return str(path)


# ---------------------------------------------------------------- what it says


def test_each_family_has_a_row_and_each_number_of_ranks_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--models", str(SMALL), "--source", "gptq", "--tp", "1,2,4,8"]) == 0
    head, formats, _, _, columns, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("4 families of models_small.yaml")
    assert formats == "gptq with its defaults, to marlin_int4_a16"
    assert columns.split() == ["family", "tp", "1", "tp", "2", "tp", "4", "tp", "8"]
    assert [row.split()[0] for row in rows[:3]] == ["dense", "experts", "no_gate"]
    assert rows[-2:] == ["no heads are stated, so no attention is counted: no_gate", "12 of 12 accepted"]


@pytest.mark.parametrize("name", ["dense", "experts"])
@pytest.mark.parametrize("tp", [2, 8])
def test_the_numbers_are_those_of_all_ranks(name: str, tp: int) -> None:
    """Only one rank of each kind is compiled; the cell tells of all."""
    found = small(counts=((tp, 1),))
    line = next(line for line in found.lines if line.row.name == name)
    for (_, need), outcome in zip(line.row.needs, line.cells[0].served):
        plans = [
            compile_plan(need.source, need.target, need.module, dict(need.sizes), tp=tp, rank=rank)
            for rank in range(tp)
        ]
        assert outcome.stored == sum(map(size_of, plans))
        assert outcome.widest == max(map(size_of, plans))
        assert outcome.padding == sum((row[-1] for plan in plans for row in padding(plan)), Fraction())
        assert {outcome.choice} == {plan.choice for plan in plans}
        assert outcome.kinds < tp or tp == 2


def test_experts_are_shared_and_all_else_is_on_every_expert_parallel_rank() -> None:
    one, two = (small(counts=((2, ep),)) for ep in (1, 3))
    for name, times in (("dense", 3), ("no_gate", 3)):
        a, b = (next(line.cells[0] for line in found.lines if line.row.name == name) for found in (one, two))
        assert (b.stored, b.widest, b.overhead) == (times * a.stored, a.widest, a.overhead)
    a, b = (next(line.cells[0] for line in found.lines if line.row.name == "experts") for found in (one, two))
    assert b.served[0].stored == a.served[0].stored and b.served[0].widest * 3 == a.served[0].widest
    assert b.served[1].stored == 3 * a.served[1].stored


def test_what_is_refused_stands_below_with_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["coverage", "--models", str(SMALL), "--source", "fp8", "--tp", "1,2", "--ep", "1,8"]
    assert main(args) == 1
    out = capsys.readouterr().out.splitlines()
    assert "refused" in next(line for line in out if line.startswith("experts"))
    refused = [at for at, line in enumerate(out) if line.startswith("refused: ")]
    few = "refused: LP120 uneven-cut: axis `e` has 6 experts, too few for 8 expert-parallel ranks; "
    assert out[refused[0] : refused[-1] + 2] == [
        f"{few}`--tp 2 --ep 4` works, as many ranks",
        "  experts (tp 1 ep 8)",
        f"{few}`--tp 4 --ep 4` works, as many ranks",
        "  experts (tp 2 ep 8)",
    ]
    assert out[-1] == "14 of 16 accepted"


def test_json_holds_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["coverage", "--models", str(SMALL), "--source", "gptq", "--tp", "1,2", "--ep", "8", "--format", "json"]
    assert main(args) == 1
    tree = json.loads(capsys.readouterr().out)
    assert (tree["form"], tree["accepted"], tree["of"], tree["kernels"]) == (1, 4, 6, ["marlin_int4_a16"])
    rows = {row["name"]: row for row in tree["rows"]}
    assert [module["module"] for module in rows["dense"]["modules"]] == ["mlp_gated", "attention"]
    assert rows["no_gate"]["modules"][0] == {
        "name": "mlp", "module": "mlp_plain", "only": [], "sizes": {"i": 1024, "h": 256}, "kernel": "marlin_int4_a16",
    }  # fmt: skip
    cell = rows["dense"]["cells"][1]
    assert (cell["tp"], cell["ep"], cell["accepted"]) == (2, 8, True)
    assert cell["stored"] == sum(module["stored"] for module in cell["modules"])
    padded = sum(module["padding"] for module in cell["modules"])
    assert cell["padding"] == pytest.approx(padded / (cell["stored"] - padded), abs=1e-4)
    refused = rows["experts"]["cells"]
    assert [one["refusals"] for one in refused] == [[0], [1]]
    assert {one["code"] for one in tree["refusals"]} == {"LP120"}
    assert [one["pairs"] for one in tree["refusals"]] == [[{"name": "experts", "tp": tp, "ep": 8}] for tp in (1, 2)]
    assert [one["name"] for one in tree["not_counted"]] == ["odd"]


def test_markdown_is_a_table_with_as_many_cells_in_each_row() -> None:
    lines = markdown_of(small()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 3 and {line.count("|") for line in table} == {6}
    assert lines[-1] == "**12 of 12 accepted**"


@pytest.mark.parametrize("name", ["a", "sixsix", "longer_than_family"])
def test_columns_begin_below_their_heads(name: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(f"{name}: {{hidden: 1024, intermediate: 4096}}\n")
    lines = text_of(covered(families(str(path), "fp8", {}, (), ()), ((1, 1), (2, 1)))).splitlines()
    width = max(len("family"), len(name)) + 2
    assert lines[2] == (
        "in each cell: the choice, padding as a share of what would be stored without it, bytes on the widest rank"
    )
    assert lines[4:6] == [
        f"{'family':<{width}}tp 1                tp 2",
        f"{name:<{width}}even 0.0 % 12.6 MB  even 0.0 % 6.3 MB",
    ]


def test_several_processes_say_the_same() -> None:
    asked = families(str(PUBLIC), "fp8", {}, (), ())
    few = replace(asked, rows=asked.rows[:30])
    assert text_of(covered(few, TP[:2], jobs=2)) == text_of(covered(few, TP[:2]))


def test_all_public_families_are_served() -> None:
    found = covered(families(str(PUBLIC), "fp8", {}, (), ()), ((1, 1), (8, 1), (16, 1)))
    assert (found.accepted, found.of) == (3 * 94, 3 * 94), text_of(found)


# ---------------------------------------------------------------- kinds of ranks


def moves(plan: Plan) -> list[object]:
    """All of a plan but where in the source it begins."""
    return [
        (program.output, move.kind, move.pad, move.reason,
         [[(run.part, run.x, run.dst, run.loops, run.join) for run in runs] for runs in (move.n, move.k)])
        for program in plan.programs
        for move in (*program.moves, *(program.fill.moves if program.fill else ()))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "kernel", "params"),
    [
        ("gptq", "marlin_int4_a16", {"group": 128}),
        ("gptq", "marlin_int4_a16", {"group": 32, "bias": True, "zero_points": True}),
        ("ct_int", "marlin_int4_a16", {"group": -1}),
        ("fp8_block", "marlin_fp8_a16", {}),
        ("nvfp4", "marlin_nvfp4_a16", {}),
    ],
)
@pytest.mark.parametrize(
    ("module", "sizes", "tp", "ep"),
    [
        ("moe_gated", {"e": 5, "i": 1408, "h": 256}, 8, 2),
        ("mlp_gated", {"i": 1408, "h": 256}, 16, 1),
        ("attention", {"q": 6, "kv": 2, "d": 80, "h": 256}, 4, 1),
        ("attention", {"q": 8, "kv": 8, "d": 72, "h": 256}, 16, 1),
    ],
)
def test_ranks_of_a_kind_get_the_same_program(
    source: str, kernel: str, params: dict, module: str, sizes: dict, tp: int, ep: int
) -> None:
    plans = {
        Ranks(tp, rank, ep, ep_rank): compile_plan(
            source, kernel, module, sizes, params=params, tp=tp, rank=rank, ep=ep, ep_rank=ep_rank
        )
        for ep_rank in range(ep)
        for rank in range(tp)
    }
    found = kinds(plans[Ranks(tp, 0, ep)], ())
    looks = [(moves(plan), padding(plan), plan.outputs) for plan in plans.values()]
    assert sum(kind.count for kind in found) == tp * ep
    for kind in found:
        own = (moves(plans[kind.ranks]), padding(plans[kind.ranks]), plans[kind.ranks].outputs)
        assert looks.count(own) >= kind.count
    assert all(
        any(look == (moves(plans[kind.ranks]), padding(plans[kind.ranks]), plans[kind.ranks].outputs) for kind in found)
        for look in looks
    )


def test_shares_that_leave_something_out_are_our_own_fault() -> None:
    module, sizes = load_spec("mlp_gated"), {"i": 512, "h": 256}
    shares = [matrices(module, {"contract": "tight"}, sizes, Ranks(4, rank)) for rank in range(4)]
    check_tiles(shares)
    for change in ({"start": 64}, {"length": 64}):
        wrong = [matrix._replace(k=matrix.k._replace(**change)) for matrix in shares[1]]
        with pytest.raises(AssertionError, match=r"ranks hold|should"):
            check_tiles([shares[0], wrong, *shares[2:]])
    with pytest.raises(AssertionError, match="ranks hold"):
        check_tiles(shares[:3])


# ---------------------------------------------------------------- sizes that no file has


@pytest.mark.parametrize(
    ("source", "params", "apart"),
    [
        ("gptq", {}, {"deepseek_v2", "deepseek_ocr2", "qwen3_omni_moe_text"}),  # 8 codes in a word, along k
        ("awq", {}, {"deepseek_v2", "deepseek_ocr2", "qwen3_omni_moe_text"}),  # along n
        ("gptq", {"bits": 8, "qzeros": False}, {"deepseek_v2", "deepseek_ocr2"}),  # 4: 28 heads of 73 fill them
        ("nvfp4", {}, {"deepseek_v2", "deepseek_ocr2"}),  # 2 in a byte
        ("fp8_block", {}, set()),
    ],
)
def test_sizes_that_fill_words_in_part_are_not_counted(source: str, params: dict, apart: set[str]) -> None:
    found = covered(families(str(PUBLIC), source, params, (), ()), ())
    assert {line.row.name for line in found.lines if line.apart} == apart
    assert all("no whole number of words" in line.apart for line in found.lines if line.apart)


# ---------------------------------------------------------------- families


@pytest.mark.parametrize(("act", "gated", "gate"), [
    ("silu", None, True), ("gelu_pytorch_tanh", None, True), (None, None, True), ("silu", False, False),
    ("relu2", True, True), *((act, None, False) for act in PLAIN),
])  # fmt: skip
def test_an_mlp_has_a_gate_unless_its_activation_has_none(act: str | None, gated: bool | None, gate: bool) -> None:
    assert Family(hidden=8, act=act, gated=gated).has_gate is gate


@pytest.mark.parametrize(
    ("text", "code", "message", "place"),
    [
        ("[1, 2]", "LD022", "expected a mapping of families", 1),
        ("{}", "LD022", "expected a mapping of families", 1),
        ("a: 3", "LD022", "a mapping", 1),
        ("a: {intermediate: 64}", "LD021", "missing key `hidden` in `a`", 1),
        ("a: {hidden: 64, intermediate: 64}\nb: {hidden: 64}", "LD021", "`b` states no layer", 2),
        ("a: {hidden: 64, kv_heads: 2, intermediate: 64}", "LD021", "missing key `heads` in `a`", 1),
        ("a: {hidden: 64, heads: 7}", "LD021", "missing key `head_dim` in `a`", 1),
        ("a: {hidden: 64, heads: 8, kv_heads: 3}", "LD023", "3 key-value heads do not divide 8 heads", 1),
        ("a: {hidden: 64, heads: 0}", "LD023", "expected more than 0 for `heads`", 1),
        ("a: {hidden: true, heads: 1}", "LD022", "expected an integer for `hidden`, found `true`", 1),
        ("a: {hiden: 64, heads: 1}", "LD020", "unknown key `hiden`", 1),
        ("a: {hidden: 64, moe: {experts: 4}}", "LD021", "missing key `intermediate` in `moe`", 1),
        ("a: {hidden: 64, heads: 1}\na: {hidden: 64}", "LD003", "`a` stands twice", 2),
    ],
)
def test_a_file_of_another_form_is_refused_at_its_place(
    text: str, code: str, message: str, place: int, tmp_path: Path
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(LayoutError) as caught:
        families(str(path), "gptq", {}, (), ())
    first = caught.value.diagnostics[0]
    assert (first.code, first.span and first.span.line) == (code, place) and message in first.message
    assert first.help or code in ("LD022", "LD021", "LD023", "LD003")


def test_what_a_family_leaves_out_is_not_asked_of_it(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("bare: {hidden: 512, heads: 4}\nx-note: of no matter\n")
    found = covered(families(str(path), "fp8", {}, (), ()), ((2, 1),))
    ((_, need),) = found.lines[0].row.needs
    assert dict(need.sizes) == {"q": 4, "kv": 4, "d": 128, "h": 512}
    assert text_of(found).splitlines()[-2:] == [
        "no `intermediate` is stated, so no MLP is counted: bare", "1 of 1 accepted",
    ]  # fmt: skip


def test_a_parameter_of_some_modules_goes_to_those() -> None:
    """Without zeros that the activation writes, both matrices are padded alike."""
    tight, alike = (small(counts=((16, 1),), **params) for params in ({}, {"contract": "vllm"}))
    for found in (tight, alike):
        assert found.accepted == found.of
    assert sum(cell.stored for cell in tight.cells) < sum(cell.stored for cell in alike.cells)


# ---------------------------------------------------------------- a folder with config.json alone


@pytest.mark.parametrize("name", ["qwen3_moe_w4a16", "llama_fp8_block", "llama_gptq", "qwen3_moe_nvfp4a16"])
def test_config_json_says_what_the_files_would(name: str, tmp_path: Path) -> None:
    found = covered(folder(only_config(name, tmp_path), None, {}, (), ()), ((1, 1), (2, 1)))
    rows = {line.row.needs[0][0]: line for line in found.lines}
    seen = inspect(FIXTURES / name, tp=2)
    for line in seen.lines:
        job = line.jobs[0]
        row = rows[job.unit.key].row
        assert (row.count, row.needs[0][1].kernel or "plain") == (len(line.jobs), line.plans[0].target.spec)
        assert dict(row.needs[0][1].sizes) == job.sizes
        cell = rows[job.unit.key].cells[1]
        assert cell.widest <= size_of(line.plans[0])  # the files may hold zero points that config.json does not state
    assert found.total(1)


def test_bytes_on_a_rank_count_one_of_all_alternatives(tmp_path: Path) -> None:
    found = covered(folder(only_config("qwen3_moe_w4a16", tmp_path), None, {}, (), ()), ((1, 1),))
    size = {line.row.needs[0][0]: line.cells[0].widest * line.row.count for line in found.lines}
    dense = {key for key, line in zip(size, found.lines) if line.row.alternative not in ("", "experts")}
    assert dense and "experts" in size
    assert found.total(0) == sum(each for key, each in size.items() if key not in dense)
    assert text_of(found).splitlines()[-3] == (
        "layoutdsl does not work out from config.json which layers have which of these; the sum takes the largest "
        "everywhere, so it is the most that a rank can need of them: "
        "model.layers.{0..1}.mlp or model.layers.{0..1}.mlp.experts"
    )


DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "torch_dtype": "bfloat16", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
    "n_routed_experts": 256, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]},
}  # fmt: skip
EH_PROJ = 7168 * 2 * 7168 * 2


@pytest.mark.parametrize("further", [1, None])
def test_what_a_model_may_lack_is_in_no_sum(further: int | None, tmp_path: Path) -> None:
    config = DEEPSEEK_V3 | {"num_nextn_predict_layers": further}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    found = covered(folder(str(tmp_path), None, {}, (), ()), ((1, 1), (8, 1)))
    layers, h = (62, 7168) if further else (61, 7168)

    def fp8(*weights: int) -> int:  # a byte each, and two for every 128 of them
        return sum(weights) * 130 // 128

    shared = [128 * 192 * h, 128 * 256 * 512, h * 128 * 128, 256 * 3 * 2048 * h, 3 * 2048 * h]  # ranks share them
    router = 256 * h * 2
    assert [found.total(0), found.total(1)] == [
        layers * (fp8(*shared) // tp + fp8(576 * h) + router) for tp in (1, 8)
    ] == ([732732721152, 92018173952] if further else [720914451456, 90534009856])  # fmt: skip

    (apart,) = (line for line in found.lines if line.row.maybe)
    where = f"model.layers.{{0..{layers - 1}}}"
    assert (apart.row.name, apart.row.count) == (f"{where}.eh_proj", 1)
    assert [cell.widest for cell in apart.cells] == [EH_PROJ, EH_PROJ] == [205520896] * 2

    lines = text_of(found).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("on a rank, at most"))
    assert lines[at + 1].split("  ")[0] == f"may be there: {where}.eh_proj"
    assert lines[at + 1].count("205.5 MB") == 2 and not lines[at + 2]
    note = "a model may lack these; their bytes are those of one, and the sum leaves them out"
    assert lines[-4:] == [
        "layoutdsl does not work out from config.json which layers have which of these; the sum takes the largest "
        f"everywhere, so it is the most that a rank can need of them: {where}.self_attn.q_proj or "
        f"{where}.self_attn.q_a_proj; {where}.mlp or {where}.mlp.experts",
        f"{note}: {where}.eh_proj",
        "embeddings, norms and what else is copied whole come on top: config.json does not state their sizes",
        "22 of 22 accepted",
    ]
    assert f"| may be there: `{where}.eh_proj` | as it is · 0.0 % · 205.5 MB |" in markdown_of(found)
    tree = json.loads(json_of(found))
    assert tree["rank_bytes"] == [found.total(0), found.total(1)]
    assert [row["name"] for row in tree["rows"] if row["maybe"]] == [f"{where}.eh_proj"]


def test_what_stands_beside_a_unit_that_may_be_missing_may_be_missing_too(tmp_path: Path) -> None:
    """But a number that only such units need says that they are there."""

    def apart(name: str) -> tuple[set[str], set[str]]:
        config = json.loads((FIXTURES / "names" / f"{name}.json").read_text())["config"]
        (tmp_path / "config.json").write_text(json.dumps(config))
        rows = folder(str(tmp_path), "gptq", {}, (), ()).rows
        keys = [{row.needs[0][0] for row in rows if row.maybe is maybe} for maybe in (True, False)]
        return keys[0], keys[1]

    further = {"mtp", "mtp_qkv", "mtp_o", "mtp_router", "mtp_experts", "mtp_shared"}
    assert apart("Qwen3NextForCausalLM")[0] == further | {"mtp_shared_weight"}
    assert apart("NemotronHForCausalLM")[0] == further
    maybe, there = apart("NemotronHForCausalLM_latent")
    assert maybe == further | {"mtp_to_latent", "mtp_from_latent"}
    assert there >= {"to_latent", "from_latent", "experts", "router", "shared"}
    assert apart("LlamaForCausalLM")[0] == apart("Qwen3MoeForCausalLM")[0] == set()


def test_heads_that_leave_a_rest_have_a_way_out(tmp_path: Path) -> None:
    heads = {"hidden_size": 2048, "num_attention_heads": 30, "num_key_value_heads": 30}
    path = only_config("qwen3_moe_w4a16", tmp_path, head_dim=None, **heads)
    with pytest.raises(LayoutError) as caught:
        folder(path, None, {}, (), ())
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("LP215", "the numbers of config.json do not fit: 2048 / 30 leaves a rest")
    assert found.help == "state `head_dim` in config.json"
    asked = folder(only_config("qwen3_moe_w4a16", tmp_path, head_dim=64, **heads), None, {}, (), ())
    assert dict(asked.rows[0].needs[0][1].sizes)["d"] == 64


def test_a_model_that_is_not_quantized_needs_a_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = only_config("qwen3_moe_w4a16", tmp_path, quantization_config=None)
    assert main(["coverage", path]) == 1
    error = capsys.readouterr().err
    assert "LP211" in error and "--source names the format" in error
    assert main(["coverage", path, "--source", "gptq", "--param", "group=64", "--tp", "2"]) == 0
    out = capsys.readouterr().out
    assert "gptq with group=64, to marlin_int4_a16" in out
    assert next(line for line in out.splitlines() if ".mlp.gate " in line).split()[1:4] == ["as", "it", "is"]
    assert re.search(r"^(\d+) of \1 accepted$", out, re.M)


def test_parameters_are_the_kernels_own_and_known(tmp_path: Path) -> None:
    path = only_config("qwen3_moe_w4a16", tmp_path)
    asked = folder(path, None, {"group": 64}, (), ())
    assert {dict(need.params).get("target.group") for row in asked.rows for _, need in row.needs} == {None, 64}
    with pytest.raises(LayoutError, match="no side has a parameter `gruop`") as caught:
        folder(path, None, {"gruop": 64}, (), ())
    assert caught.value.help == "did you mean `group`?"


def test_parts_of_a_fused_layer_must_be_quantized_alike(tmp_path: Path) -> None:
    path = only_config("qwen3_moe_w4a16", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["ignore"].append("model.layers.0.self_attn.k_proj")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LayoutError, match=r"both make up `model\.layers\.0\.self_attn\.qkv_proj`"):
        folder(path, None, {}, (), ())


def test_matrices_of_two_formats_are_rows_of_their_own(tmp_path: Path) -> None:
    path = only_config("qwen3_moe_w4a16", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["ignore"].append("re:.*layers.1.mlp.down_proj")
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = covered(folder(path, None, {}, (), ()), ((2, 1),))
    rows = {(line.row.name, need.only): need.kernel for line in found.lines for _, need in line.row.needs}
    assert rows["model.layers.0.mlp", ()] == rows["model.layers.1.mlp.gate_up_proj", ("gate_up",)] == "marlin_int4_a16"
    assert rows["model.layers.1.mlp.down_proj", ("down",)] == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["NoSuchForCausalLM"]}, "no names are known for the architecture `NoSuchForCausalLM`"),
        ({"architectures": None}, "config.json states no single architecture"),
        ({"hidden_size": None}, "config.json lacks `hidden_size` (a whole number)"),
        ({"num_attention_heads": 0}, "config.json makes `heads` 0, at least 1 is needed"),
        ({"quantization_config": {"quant_method": "nope"}}, "quantization_config says quant_method: nope"),
        ({"intermediate_size": None, "moe_intermediate_size": None}, "config.json lacks `intermediate_size`"),
        ({"num_hidden_layers": 10**9}, "config.json counts 1000000000 of `layer`, more than any model has"),
        ({"hidden_size": 10**15}, "cannot be 1000000000000000"),
    ],
)
def test_a_config_that_says_too_little_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError) as caught:
        folder(only_config("qwen3_moe_w4a16", tmp_path, **changes), None, {}, (), ())
    assert message in caught.value.message and caught.value.help


def test_no_weight_is_needed_and_none_is_read(tmp_path: Path) -> None:
    path = only_config("llama_w4a16", tmp_path)
    alone = text_of(covered(folder(path, None, {}, (), ()), TP[:1]))
    for file in (FIXTURES / "llama_w4a16").glob("*.safetensors"):
        shutil.copy(file, tmp_path)
    assert text_of(covered(folder(path, None, {}, (), ()), TP[:1])) == alone


@pytest.mark.parametrize("path", sorted((FIXTURES / "names").glob("*.json")), ids=lambda path: path.stem)
def test_every_architecture_has_an_answer(path: Path, tmp_path: Path) -> None:
    """Sizes of all that it may hold, from the config.json that transformers writes."""
    config = json.loads(path.read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = None if config.get("quantization_config") else "gptq"
    found = covered(folder(str(tmp_path), source, {}, (), ()), ((1, 1),))
    assert found.accepted == found.of >= 3 and found.total(0)
    names = [line.row.name for line in found.lines]
    assert len(names) == len(set(names)), names


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["nowhere"], 1, "`nowhere` is no folder"),
        (["--models", "nowhere.yaml", "--source", "gptq"], 1, "cannot read `nowhere.yaml`"),
        (["--models", str(SMALL)], 1, "--source names it"),
        (["--models", str(SMALL), "--source", "gtq"], 1, "did you mean `gptq`?"),
        (["--models", str(SMALL), "--source", "marlin_int4_a16"], 1, "a checkpoint spec is needed"),
        (["--models", str(SMALL), "--source", "gptq", "--to", "gptq"], 1, "a kernel spec is needed"),
        (["--models", str(SMALL), "--source", "gptq", "--param", "gruop=32"], 1, "did you mean `group`?"),
        (["--models", str(SMALL), "--source", "gptq", "--param", "group=0"], 1, "cannot be 0"),
        (["--models", str(SMALL), "--source", "plain"], 1, "no shipped kernel takes the codes of `plain`"),
        (["--models", str(SMALL), "--source", "gptq", "--tp", "0"], 1, "cannot have 0 tensor-parallel ranks"),
        (["--models", str(SMALL), "--source", "gptq", "--tp", "-3"], 1, "cannot have -3 tensor-parallel ranks"),
        (["--models", str(SMALL), "--source", "gptq", "--tp", "99999"], 1, "ask for 1 to 1024"),
        (["--models", str(SMALL), "--source", "gptq", "--tp", "64", "--ep", "64"], 1, "cannot have 4096"),
        (["--models", str(SMALL), "--source", "gptq", "--tp", "two"], 2, "expected whole numbers apart by commas"),
        (["--models", str(SMALL), "--source", "gptq", "--jobs", "0"], 2, "expected a whole number of at least 1"),
        (["--models", str(SMALL), "folder"], 2, "not allowed with"),
        ([], 2, "is required"),
    ],
)
def test_wrong_arguments_are_said_at_once(
    args: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--tp={args[at + 1]}" if arg == "--tp" else arg for at, arg in enumerate(args)
            if at == 0 or args[at - 1] != "--tp"]  # fmt: skip
    assert main(["coverage", *args]) == status
    out = capsys.readouterr()
    assert message in out.err and not out.out


def test_a_kernel_for_other_codes_serves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["coverage", "--models", str(SMALL), "--source", "gptq", "--to", "marlin_fp8_a16", "--tp", "1"]
    assert main(args) == 1
    out = capsys.readouterr().out
    assert "LP130" in out and out.endswith("0 of 3 accepted\n")


# ---------------------------------------------------------------- the picture

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_cell_for_each_family_and_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "map.svg"
    args = ["coverage", "--models", str(SMALL), "--source", "gptq", "--tp", "1,2", "--ep", "1,8", "--svg", str(path)]
    assert main(args) == 1
    root = ElementTree.parse(path).getroot()
    cells = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    said = {g.find(f"{SVG}title").text: g.get("class") for g in cells}
    assert len(cells) == len(said) == 4 * 4
    assert said["no_gate, tp 1 ep 1: even, 0.0 % of padding, 270.3 kB on a rank"] == "h0"
    assert {kind for text, kind in said.items() if text.startswith("odd")} == {"pad"}
    assert [kind for text, kind in said.items() if text.startswith("experts, tp 1 ep 8")] == ["none"]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "10 of 12 accepted" in texts and {"dense", "experts", "no_gate", "odd"} <= set(texts)
    width, height = (float(root.get(name)) for name in ("width", "height"))
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width")) <= width
        assert float(rect.get("y", 0)) + float(rect.get("height")) <= height


def test_no_picture_is_begun_that_cannot_be_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["coverage", "--models", str(SMALL), "--source", "fp8", "--tp", "1", "--svg", str(tmp_path / "no" / "m.svg")]
    assert main(args) == 1
    assert "LP115" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_text_and_json_tell_the_same() -> None:
    found = small()
    tree = json.loads(json_of(found))
    assert f"{tree['accepted']} of {tree['of']} accepted" == text_of(found).splitlines()[-1]
    assert {row["name"] for row in tree["rows"]} | {row["name"] for row in tree["not_counted"]} == set(
        yaml.safe_load(SMALL.read_text())
    )


def test_public_tables_are_fresh_and_all_is_accepted() -> None:
    """Every public family on 1 to 16 ranks in nine formats, each plan proven."""
    command = [sys.executable, ROOT / "scripts" / "coverage_tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    accepted = re.findall(r"\| (\d+) of (\d+) accepted \|", (ROOT / "docs" / "coverage-tables.md").read_text())
    assert len(accepted) == 9
    assert all(one == of for one, of in accepted)
