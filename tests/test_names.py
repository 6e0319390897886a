"""specs/names against the parameters of transformers' own classes (tests/fixtures/names, by scripts/record_names.py).

No file is written: a checkpoint here is its config.json and a table of names and shapes.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from layoutdsl import LayoutError
from layoutdsl.checkpoints.binding import Work, bound
from layoutdsl.checkpoints.folder import Entry, Folder
from layoutdsl.checkpoints.names import for_architecture
from layoutdsl.checkpoints.planning import Planner, every_rank
from layoutdsl.checkpoints.quantization import Declared, declared

ROOT = Path(__file__).resolve().parent.parent
RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "tests/fixtures/names").glob("*.json"))}

LAYOUTS = ("hub", "memory", "mtp")
"""As released checkpoints hold it, as transformers does in memory, and the former with the layers that predict further
tokens."""

UNSERVED = {("NemotronHForCausalLM", "memory"), ("NemotronHForCausalLM_latent", "memory")}
"""Every name differs by its first word from those that save_pretrained writes."""

MAY_BE_MISSING = re.compile(
    r".*\.(dense|fc1|fc2|router|conv1d|\w+_proj)(_bias|\.bias)"
    r"|.*self_attn\.[qk]_(layer)?norm\.(weight|bias)"  # of the classes below
    r"|.*\.layers\.\d+\.(embed_tokens|shared_head\.head)\.weight"  # the model's own once more
    r"|lm_head\.weight"  # of the classes below
)
NORMS_BY_CONFIG = ("PhiForCausalLM", "Glm4MoeForCausalLM")


def recorded(*layouts: str) -> list[object]:
    found = [(file, layout) for file, tables in RECORDED.items() for layout in layouts if layout in tables]
    return [pytest.param(*one, id="-".join(one)) for one in found if one not in UNSERVED]


def table(file: str, layout: str, kind: str) -> dict[str, list[int]]:
    """kind: linear or other."""
    of = ("hub", "mtp") if layout == "mtp" else (layout,)
    return {name: shape for each in of for name, shape in RECORDED[file][each][kind].items()}


def every(file: str, layout: str) -> dict[str, list[int]]:
    return table(file, layout, "linear") | table(file, layout, "other")


def dtype_of(name: str) -> str:
    return "uint8" if name.endswith(("_blocks", "_scales")) else "bfloat16"


def bind(file: str, shapes: dict[str, list[int]], dtypes: dict[str, str] | None = None, **config: object) -> Work:
    config = RECORDED[file]["config"] | config
    dtypes = dtypes or {}
    entries = {
        name: Entry(name, Path("model.safetensors"), dtypes.get(name, dtype_of(name)), tuple(shape), 0, 0)
        for name, shape in shapes.items()
    }
    said = declared(config) if "quantization_config" in config else Declared((), (), ())
    architecture = config["architectures"][0]
    return bound(Folder(Path("model"), config, entries), said, for_architecture(architecture), architecture)


def in_units(work: Work) -> list[str]:
    return [entry.name for job in work.jobs for entry in job.entries]


def test_every_architecture_is_recorded() -> None:
    named = {
        architecture
        for path in (ROOT / "specs/names").glob("*.yaml")
        for architecture in yaml.safe_load(path.read_text())["architectures"]
    }
    assert named == {file.partition("_")[0] for file in RECORDED}


@pytest.mark.parametrize("file, layout", recorded(*LAYOUTS))
def test_every_tensor_has_one_place(file: str, layout: str) -> None:
    """Linear layers are in units with all that is theirs, anything else is copied. Shapes are those of the sizes."""
    work = bind(file, every(file, layout))
    units, copies = in_units(work), [entry.name for entry in work.copies]
    assert sorted(units + copies) == sorted(every(file, layout))

    linear = set(table(file, layout, "linear"))
    assert linear - set(units) <= {"lm_head.weight"}
    further = set(units) - linear
    assert all(name.endswith((".bias", "_bias", "_scales")) for name in further), further


@pytest.mark.parametrize("file, layout", recorded(*LAYOUTS))
def test_no_tensor_may_be_missing(file: str, layout: str) -> None:
    shapes = every(file, layout)
    bind(file, shapes)
    for name in shapes:
        try:
            bind(file, {other: shape for other, shape in shapes.items() if other != name})
        except LayoutError:
            continue
        assert MAY_BE_MISSING.fullmatch(name), name
        assert name != "lm_head.weight" or RECORDED[file]["config"]["tie_word_embeddings"]
        assert not re.search(r"_(layer)?norm\.", name) or file.startswith(NORMS_BY_CONFIG)


@pytest.mark.parametrize("file, layout", recorded("hub", "memory"))
def test_shapes_are_checked(file: str, layout: str) -> None:
    """Of every linear layer, one extent too many."""
    shapes = every(file, layout)
    bind(file, shapes)
    for name in set(table(file, layout, "linear")) - {"lm_head.weight"}:
        for axis in range(len(shapes[name])):
            wrong = [extent + (at == axis) for at, extent in enumerate(shapes[name])]
            with pytest.raises(LayoutError):
                bind(file, shapes | {name: wrong})


@pytest.mark.parametrize("file", [file for file in RECORDED if "memory" in RECORDED[file] and "Moe" in file])
def test_alternatives_exclude_each_other(file: str) -> None:
    """Experts one by one beside stacked ones; a dense layer beside experts; both left out."""
    hub, memory = every(file, "hub"), every(file, "memory")
    stacked = {name: shape for name, shape in memory.items() if name not in hub}
    apart = [name for name in hub if name not in memory]
    with pytest.raises(LayoutError, match="exclude each other"):
        bind(file, hub | stacked)
    with pytest.raises(LayoutError, match="is in a file"):
        bind(file, {name: shape for name, shape in hub.items() if name not in apart})

    dense = {name: shape for name, shape in hub.items() if re.search(r"\.\d+\.mlp\.(gate|up|down)_proj\.", name)}
    layer = re.match(r"model\.layers\.\d+\.", apart[0])[0]
    moved = {re.sub(r"model\.layers\.\d+\.", layer, name): shape for name, shape in dense.items()}
    with pytest.raises(LayoutError, match="exclude each other"):
        bind(file, hub | moved)


FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
    },
    "ignore": ["lm_head"],
}
LEFT = re.compile(r".*\.(gate|router|shared_expert_gate|eh_proj)\.weight|mtp\.fc\.weight|lm_head\.weight")
"""What quantizers leave as it is and need not list."""


@pytest.mark.parametrize("file, layout", recorded("hub", "mtp"))
def test_quantized(file: str, layout: str) -> None:
    """The same names with FP8 weights and a scale for every linear layer but those that are usually left."""
    if file.startswith("GptOss"):
        pytest.skip("its experts' names are those of MXFP4")
    shapes = every(file, layout)
    quantized = {name for name in table(file, layout, "linear") if not LEFT.fullmatch(name)}
    scales = {f"{name}_scale": [shapes[name][0], 1] for name in quantized}
    dtypes = dict.fromkeys(quantized, "float8_e4m3fn")
    work = bind(file, shapes | scales, dtypes, quantization_config=FP8)
    for job in work.jobs:
        assert job.group.spec.name == ("plain" if all(LEFT.fullmatch(one.name) for one in job.entries) else "fp8")


@pytest.mark.parametrize("tp", [3, 12])
@pytest.mark.parametrize("file, layout", recorded("hub", "mtp"))
def test_ranks_need_not_divide_anything(file: str, layout: str, tp: int) -> None:
    """In FP8 blocks, which heads and inner features cut: a plan for every rank of every unit, proven together."""
    if file.startswith("GptOss"):
        pytest.skip("its experts' names are those of MXFP4")
    shapes = every(file, layout)
    quantized = {name for name in table(file, layout, "linear") if not LEFT.fullmatch(name)}
    scales = {f"{name}_scale_inv": [-(-extent // 128) for extent in shapes[name]] for name in quantized}
    dtypes = dict.fromkeys(quantized, "float8_e4m3fn") | dict.fromkeys(scales, "float32")
    stated = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    planner = Planner(every_rank(tp, 1), (), (), "bfloat16")
    for job in bind(file, shapes | scales, dtypes, quantization_config=stated).jobs:
        assert len(planner.plans(job)) == tp


def test_gpt_oss_as_released() -> None:
    """Its experts are MXFP4, what config.json excludes is as it was."""
    work = bind("GptOssForCausalLM_mxfp4", every("GptOssForCausalLM_mxfp4", "hub"))
    formats = {job.unit.key: job.group.spec.name for job in work.jobs}
    assert formats == {"qkv": "plain", "o": "plain", "router": "plain", "experts": "mxfp4"}
