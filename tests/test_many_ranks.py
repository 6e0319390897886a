"""Real processes under torchrun, with gloo: each loads what one process alone loads of the same rank, and reads its
bytes alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Awq
from converted import FIXTURES, source_of, written
from many_ranks import IO, digests, forget

from layoutdsl import convert, load
from layoutdsl.checkpoints.load import planned

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 240
"""Seconds after which processes are said to wait for each other."""

linux = pytest.mark.skipif(not IO.exists(), reason="only Linux counts what a process reads")

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
Found = list[dict[str, Any]]
"""What each process told of one case."""

MESHES = {
    2: {"tp": {"tp": 2}, "group": {}, "ep": {"ep": 2}},
    4: {
        "tp": {"tp": 4},
        "group": {},
        "ep,tp": {"ep": 2, "tp": 2},
        "tp,ep": {"tp": 2, "ep": 2},
        "dp,tp": {"dp": 2, "tp": 2},
        "tp,pp": {"tp": 2, "pp": 2},
        "ep": {"ep": 4},
    },
}
DENSE = ("gptq", "awq", "llama_fp8_block", "llama_nvfp4a16", "llama_mxfp4a16", "plain")
MOE = ("qwen3_moe_w4a16", "qwen3_moe_fp8_block", "qwen3_moe_nvfp4a16", "qwen3_moe_mxfp4a16", "moe_plain")


def cases(processes: int, sources: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """A case for each format: of dense models tensor-parallel ones, of experts all meshes in turn."""
    meshes = MESHES[processes]
    dense = [mesh for mesh in meshes if "ep" not in mesh]
    mixed = [mesh for mesh in meshes if "ep" in mesh] + ["tp"]
    found = {}
    for names, turn in ((DENSE, dense), (MOE, mixed)):
        for at, name in enumerate(names):
            mesh = turn[at % len(turn)]
            found[f"{name} {mesh}"] = {"src": str(sources[name]), "dims": meshes[mesh]}
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints by their names; AWQ and ones without quantization are drawn, with rows of a real model's width."""
    folder = tmp_path_factory.mktemp("sources")
    found = {name: FIXTURES / name for name in (*DENSE, *MOE) if (FIXTURES / name).exists()}
    found["gptq"] = FIXTURES / "llama_gptq"
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": None}
    found["awq"] = model(folder / "awq", quantization=awq)
    found["plain"] = model(folder / "plain", hidden=256, inner=640)
    found["moe_plain"] = model(folder / "moe_plain", hidden=256, inner=384, experts=4)
    return found


def model(
    folder: Path,
    *,
    quantization: dict[str, Any] | None = None,
    hidden: int = 1024,
    inner: int = 2816,
    experts: int = 0,
) -> Path:
    """One layer in random words, in AWQ or without quantization: 16 heads, 4 of keys and values."""
    dice, head = np.random.default_rng(7), hidden // 16
    rows = {
        f"self_attn.{part}_proj": (16 * head if part == "q" else 4 * head, hidden) for part in "qkv"
    } | {"self_attn.o_proj": (hidden, 16 * head)}
    for mlp in [f"mlp.experts.{expert}." for expert in range(experts)] or ["mlp."]:
        rows |= {f"{mlp}{part}_proj": (inner, hidden) for part in ("gate", "up")} | {
            f"{mlp}down_proj": (hidden, inner)
        }
    half = {"model.embed_tokens.weight": (32, hidden), "lm_head.weight": (32, hidden), "model.norm.weight": (hidden,)}
    layer = "model.layers.0"
    half |= {f"{layer}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
    if experts:
        half |= {f"{layer}.self_attn.{part}_norm.weight": (head,) for part in "qk"}
        half[f"{layer}.mlp.gate.weight"] = (experts, hidden)
    if quantization is None:
        half |= {f"{layer}.{name}.weight": shape for name, shape in rows.items()}
        rows = {}
    tensors = {
        name: torch.from_numpy(dice.standard_normal(shape).astype(np.float16)) for name, shape in half.items()
    }
    for name, (n, k) in rows.items():
        for tensor, value in Awq({"group": 128}).draw(dice, [n], k).items():
            one = torch.from_numpy(value)
            tensors[f"{layer}.{name}.{tensor}"] = one.view(torch.float16) if tensor == "scales" else one
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM"], "dtype": "float16",
        "head_dim": head, "hidden_size": hidden, "intermediate_size": inner, "moe_intermediate_size": inner,
        "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 1, "tie_word_embeddings": False,
    }  # fmt: skip
    config |= {"num_experts": experts, "num_local_experts": experts, "decoder_sparse_step": 1} if experts else {}
    config |= {"quantization_config": quantization} if quantization else {}
    folder.mkdir()
    written(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def ran(arguments: list[str], processes: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """What processes under torchrun end with."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    paths = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT)


def told(asked: dict[str, dict[str, Any]], processes: int, folder: Path) -> dict[str, Found]:
    """Each case in as many processes at once."""
    (folder / "cases.json").write_text(json.dumps(asked))
    done = ran([str(ROOT / "tests" / "many_ranks.py"), "cases.json", "."], processes, folder)
    assert done.returncode == 0, done.stderr
    every = [json.loads((folder / f"{process}.json").read_text()) for process in range(processes)]
    return {name: [one[name] for one in every] for name in asked}


# ---------------------------------------------------------------- loading


def alone(case: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    return digests(load(case["src"], tp=found["tp"], ep=found["ep"], rank=found["rank"]))


def size_of(src: Path) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in source_of(src).values())


def replicated(src: str, found: Found) -> int:
    """Bytes that more processes than one need, as their plans say: all that they need, but each byte once."""
    needed: list[tuple[str, int, int]] = []
    for one in found:
        stretches = planned(src, tp=one["tp"], ep=one["ep"], rank=one["rank"]).reads()
        needed += [(file.name, begin, end) for file, _, begin, end in stretches]
    once, at = 0, ("", 0)
    for file, begin, end in sorted(needed):
        begin = max(begin, at[1]) if file == at[0] else begin
        once += max(end - begin, 0)
        at = file, max(end, begin)
    return sum(end - begin for _, begin, end in needed) - once


@pytest.fixture(scope="module", params=[2, 4], ids="{} processes".format)
def job(request: pytest.FixtureRequest, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The cases of so many processes, and what each process told of them."""
    asked = cases(request.param, sources)
    return asked, told(asked, request.param, tmp_path_factory.mktemp("job"))


@linux
def test_each_process_has_what_one_alone_loads(job: Any) -> None:
    asked, found = job
    for name, processes in found.items():
        known: dict[int, dict[str, str]] = {}
        for one in processes:
            if one["rank"] not in known:
                known[one["rank"]] = alone(asked[name], one)
            assert one["digests"] == known[one["rank"]] and not one["refused"], name


@linux
def test_ranks_come_of_the_coordinates(job: Any) -> None:
    """Processes have their coordinates with the last dim first; ranks their numbers with `tp` first."""
    asked, found = job
    for name, processes in found.items():
        dims = asked[name]["dims"] or {"tp": len(processes)}
        at = np.stack(np.unravel_index(range(len(processes)), tuple(dims.values())), axis=-1)
        for one, place in zip(processes, at, strict=True):
            named = dict(zip(dims, map(int, place), strict=True))
            expected = named.get("ep", 0) * dims.get("tp", 1) + named.get("tp", 0)
            assert (one["rank"], one["tp"], one["ep"]) == (expected, dims.get("tp", 1), dims.get("ep", 1)), name


@linux
def test_processes_share_out_what_is_read(job: Any) -> None:
    """By calls, and of mapped pages each once, since all processes of a machine have the same ones."""
    asked, found = job
    for name, processes in found.items():
        src = asked[name]["src"]
        size, twice = size_of(Path(src)), replicated(src, processes)
        pages = {tuple(page) for one in processes for page in one["pages"]}
        read = sum(one["called"] for one in processes) + len(pages) * PAGE
        print(f"{name}: {read / size:.3f} of {size:,} bytes, {twice / size:.3f} replicated")
        assert read <= 1.05 * size + twice, f"{name}: {read:,} of {size:,} bytes, {twice:,} replicated"
