"""A format, names and a kernel of the user's own, in a folder outside the package: linted, converted and loaded."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from converted import ROOT, Tensors, config_of, copied, same, written
from safetensors.torch import load_file

from layoutdsl import LayoutError, convert, load
from layoutdsl.cli import main

CHECKPOINT = """
version: "1"
checkpoint: nibbles
doc: two inputs in a byte, inputs first; a step for each block of inputs
source: this test
detect: {quant_method: nibbles}
params:
  group: {type: group, default: 32, config: block}
  dtype: [float16, bfloat16]
parts: {stored: [apart], orders: [[gate, up], [q, k, v]]}
tensors:
  codes: {role: codes, dtype: uint8, code: u4b7, split: "k = kb k0:2", order: "kb, n {k0}"}
  steps: {role: scale, dtype: "{dtype}", split: "k = g gi:(group)", order: "g, n (gi)"}
value: "codes * steps"
try: [{n: 64, k: 64}, {n: 20, k: 72, dtype: bfloat16}]
"""

KERNEL = """
version: "1"
kernel: sixteens
doc: sixteen outputs side by side, for each of them eight inputs in a word
source: this test
params:
  group: {type: group, default: 32}
  dtype: [float16, bfloat16]
accepts: {tiles: [{n: 16, k: 32}], groups: [32]}
parts: {stored: [stacked], orders: [[gate, up], [q, k, v]]}
tensors:
  words: {role: codes, dtype: int32, code: u4b7, split: "k = kt kp:8 · n = nt n0:16", order: "nt, kt n0 {kp}"}
  steps: {role: scale, dtype: "{dtype}", split: "k = g gi:(group)", order: "n, g (gi)"}
value: "words * steps"
try: [{n: 64, k: 64}, {n: 32, k: 96, dtype: bfloat16}]
"""

NAMES = """
version: "1"
names: mine
doc: blocks of attention and experts
source: this test
architectures: [MineForCausalLM]
config: {width: d_model, inner: d_ff, blocks: n_blocks, experts: n_experts, heads: n_heads, head: d_model / n_heads}
count: {block: blocks, expert: experts}
units:
  qkv:
    module: attention
    only: qkv
    sizes: {q: heads, d: head, h: width}
    parts: {q: wq, k: wk, v: wv}
    source: "blocks.{block}.attention.{part}.{tensor}"
    output: "blocks.{block}.attention.qkv.{tensor}"
  out:
    module: attention
    only: [o]
    sizes: {q: heads, d: head, h: width}
    source: "blocks.{block}.attention.wo.{tensor}"
    output: "blocks.{block}.attention.out.{tensor}"
  experts:
    module: moe_gated
    sizes: {e: experts, i: inner, h: width}
    parts: {gate: w1, up: w3}
    source: {w13: "blocks.{block}.experts.{expert}.{part}.{tensor}", w2: "blocks.{block}.experts.{expert}.w2.{tensor}"}
    output: "blocks.{block}.{matrix}.{tensor}"
copied: {embedding.weight: always, "blocks.{block}.norm.weight": always}
"""

WIDTH, INNER, EXPERTS, HEADS = 96, 192, 4, 3


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pyproject.toml, own specs and a checkpoint, which is the current one."""
    for place, text in (("checkpoint/nibbles", CHECKPOINT), ("kernel/sixteens", KERNEL), ("names/mine", NAMES)):
        path = tmp_path / "formats" / f"{place}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text('[tool.layoutdsl]\nspecs = ["formats"]\n')
    (tmp_path / "model").mkdir()
    written(tmp_path / "model", source())
    config = {"architectures": ["MineForCausalLM"], "d_model": WIDTH, "d_ff": INNER, "n_blocks": 1, "n_heads": HEADS,
              "n_experts": EXPERTS, "quantization_config": {"quant_method": "nibbles", "block": 32}}  # fmt: skip
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def layers() -> Iterator[tuple[str, int, int]]:
    """(name, outputs, inputs)"""
    yield from ((f"attention.{name}", WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo"))
    for expert in range(EXPERTS):
        for name, n, k in (("w1", INNER, WIDTH), ("w3", INNER, WIDTH), ("w2", WIDTH, INNER)):
            yield f"experts.{expert}.{name}", n, k


def source() -> Tensors:
    made = torch.Generator().manual_seed(3)
    tensors = {"embedding.weight": torch.randn(8, WIDTH, generator=made), "blocks.0.norm.weight": torch.ones(WIDTH)}
    for name, n, k in layers():
        tensors[f"blocks.0.{name}.codes"] = torch.randint(256, (k // 2, n), generator=made, dtype=torch.uint8)
        tensors[f"blocks.0.{name}.steps"] = torch.rand(k // 32, n, generator=made).to(torch.float16)
    return tensors


def meant(name: str) -> np.ndarray:
    """[n, k] of a layer in the checkpoint."""
    codes, steps = (source()[f"blocks.0.{name}.{tensor}"].numpy() for tensor in ("codes", "steps"))
    number = np.stack([codes & 15, codes >> 4], axis=1).reshape(-1, codes.shape[1]).T.astype(np.float64) - 7
    return number * steps.T.astype(np.float64).repeat(32, axis=1)


def read(words: torch.Tensor, steps: torch.Tensor) -> np.ndarray:
    """[n, k] of a matrix as the kernel has it."""
    n, groups = steps.shape
    stored = words.numpy().view(np.uint32).reshape(n // 16, -1, 16, 1) >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    number = stored.transpose(0, 2, 1, 3).reshape(n, groups * 32).astype(np.float64) - 7
    return number * steps.numpy().astype(np.float64).repeat(32, axis=1)


@pytest.mark.parametrize("tp", [1, 3])
def test_a_format_of_the_users_own(project: Path, tp: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "formats"]) == 0
    assert "2 files, no findings" in capsys.readouterr().out
    command = ["convert", "model", "out", "--tp", str(tp), "--ep", "2", "--to", "sixteens"]
    assert main(command) == 0
    assert "MineForCausalLM, nibbles with group=32" in capsys.readouterr().out

    ranks = [load_file(project / "out" / f"rank-{rank}" / "model.safetensors") for rank in range(2 * tp)]
    options = {"tp": tp, "ep": 2, "target": "sixteens", "specs": ["formats"]}
    for rank, stored in enumerate(ranks):
        same(dict(load("model", rank=rank, **options)), stored)
        ep_rank, at = divmod(rank, tp)
        wide, inner = slice(at * WIDTH // tp, (at + 1) * WIDTH // tp), slice(at * INNER // tp, (at + 1) * INNER // tp)

        def matrix(name: str, *expert: int, stored: Tensors = stored) -> np.ndarray:
            words, steps = (stored[f"blocks.0.{name}.{tensor}"] for tensor in ("words", "steps"))
            return read(words[expert], steps[expert])

        qkv = np.concatenate([meant(f"attention.{part}")[wide] for part in ("wq", "wk", "wv")])
        assert np.array_equal(matrix("attention.qkv"), qkv)
        assert np.array_equal(matrix("attention.out"), meant("attention.wo")[:, wide])
        for own in range(2):
            expert = f"experts.{2 * ep_rank + own}"
            w13 = np.concatenate([meant(f"{expert}.{part}")[inner] for part in ("w1", "w3")])
            assert np.array_equal(matrix("w13", own), w13)
            assert np.array_equal(matrix("w2", own), meant(f"{expert}.w2")[:, inner])
        assert stored["embedding.weight"].equal(source()["embedding.weight"])


def test_without_the_folder_nothing_knows_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").unlink()
    command = ["convert", "model", "out", "--to", "sixteens"]
    assert main(command) == 1
    assert main([*command, "--specs", "formats"]) == 0
    with pytest.raises(LayoutError):
        load("model", target="sixteens")
    with pytest.raises(LayoutError, match="quantization_config says quant_method: nibbles"):
        load("model")
    # no shipped kernel holds codes of its own
    with pytest.raises(LayoutError, match=r"no shipped kernel takes the codes of `nibbles`\n.*--to"):
        load("model", specs=["formats"])


@pytest.mark.parametrize(("tp", "heads"), [(2, ((0, 2), (2, 3))), (4, ((0, 1), (1, 2), (2, 3), (3, 3)))])
def test_heads_of_the_users_own(project: Path, tp: int, heads: tuple[tuple[int, int], ...]) -> None:
    """Two ranks could cut 96 outputs evenly, and a head in two. A rank without a head holds zeros."""
    most = WIDTH // HEADS * max(end - begin for begin, end in heads)
    for rank, (begin, end) in enumerate(heads):
        stored = dict(load("model", tp=tp, rank=rank, target="sixteens", specs=["formats"]))
        qkv, out = (read(*(stored[f"blocks.0.attention.{name}.{kind}"] for kind in ("words", "steps")))
                    for name in ("qkv", "out"))  # fmt: skip
        wide = slice(begin * WIDTH // HEADS, end * WIDTH // HEADS)
        assert qkv.shape == (3 * most, WIDTH) and out.shape == (WIDTH, most)
        for part, found in zip(("wq", "wk", "wv"), np.split(qkv, 3)):
            own = meant(f"attention.{part}")[wide]
            assert np.array_equal(found[: len(own)], own) and not found[len(own) :].any()
        own = meant("attention.wo")[:, wide]
        assert np.array_equal(out[:, : own.shape[1]], own) and not out[:, own.shape[1] :].any()


def test_a_spec_that_is_wrong_is_refused_where_it_is_wrong(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "formats" / "kernel" / "sixteens.yaml"
    path.write_text(KERNEL.replace("nt, kt n0 {kp}", "nt, kt {kp}"))
    assert main(["lint", "formats"]) == 1
    assert re.search(r"digit-missing.*`n0`.*\n *--> formats.kernel.sixteens.yaml:\d+", capsys.readouterr().out)
    assert main(["convert", "model", "out", "--to", "sixteens"]) == 1
    assert not (project / "out").exists()


# ---------------------------------------------------------------- names alone


def test_names_of_the_users_own(tmp_path: Path) -> None:
    src = copied("llama_w4a16_asym", tmp_path / "src", lambda config: config.update(architectures=["MyModel"]))
    with pytest.raises(LayoutError, match="no names are known for the architecture `MyModel`"):
        load(src)
    own = tmp_path / "own" / "names" / "mine.yaml"
    own.parent.mkdir(parents=True)
    text = (ROOT / "specs" / "names" / "llama.yaml").read_text()
    text = text.replace("[LlamaForCausalLM,", "[MyModel,").replace(".qkv_proj.", ".Wqkv.")
    own.write_text(text)
    convert(src, tmp_path / "out", specs=[tmp_path / "own"])
    names = load_file(tmp_path / "out" / "rank-0" / "model.safetensors")
    assert "model.layers.0.self_attn.Wqkv.weight" in names
    assert config_of(tmp_path / "out" / "rank-0") == config_of(src)
    shutil.rmtree(tmp_path / "out")

    for old, new, match in (
        ("count: {layer: layers}", "count: {layer: layer}", r"LD104[^\n]*`layer`\n *--> .*mine.yaml:\d+:"),
        ("d: head,", "d: hed,", "unknown name `hed`"),
        ("d: head,", "x: head,", "module `attention` has no axis `x`"),
        ("only: qkv", "only: qvk", "module `attention` has no matrix `qvk`"),
        ("    only: qkv\n", "", "one name, the matrices of module `attention` are qkv, o"),
        ("      down: ", "      up: ", "names for gate_up, up, the matrices of module `mlp_gated` are gate_up, down"),
        ("{matrix}_proj", "mlp_proj", "the name lacks `{matrix}`"),
        ("{matrix}_proj.", "{matrix}_{matrx}.", "unknown name `matrx`"),
        ("{part}_proj.{tensor}", "{port}_proj.{tensor}", "unknown name `port`"),
        ("{matrix}_proj.{tensor}", "{matrix}_proj", "the name lacks `{tensor}`"),
        ("hidden: hidden_size", "hidden: hidden_size +", "expected a number, a name"),
        ("model.norm.weight: always", "model.norm.weight: sometimes", "LD02"),
        ("{part}_proj.{tensor}", "qkv_proj.{tensor}", "q_proj.weight_shape` of `model.safetensors` is none that names"),
        (
            'down: "model.layers.{layer}.mlp.down_proj.',
            'down: "model.layers.{layer}.self_attn.o_proj.',
            "two of the names are `model.layers.{layer}.self_attn.o_proj.",
        ),
        (".Wqkv.", ".o_proj.", "two units of the output have the name"),
        ("units:", "unit:", "did you mean `units`"),
    ):
        assert old in text
        own.write_text(text.replace(old, new))
        with pytest.raises(LayoutError) as caught:
            convert(src, tmp_path / "out", specs=[tmp_path / "own"])
        assert re.search(match, str(caught.value)), str(caught.value)
        assert not (tmp_path / "out").exists()
