"""Real processes under torchrun, with gloo: each loads what one process alone loads of the same rank, and reads its
bytes alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import Awq, Format, Fp8Block, Gptq, Mxfp4Small, Nvfp4
from converted import source_of, written
from many_ranks import IO, counted, digests, forget

from layoutdsl import convert, load
from layoutdsl.checkpoints.load import planned

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 240
"""Seconds after which processes are said to wait for each other."""

linux = pytest.mark.skipif(not IO.exists(), reason="only Linux counts what a process reads")

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
Found = list[dict[str, Any]]
"""What each process told of one case."""

Job = tuple[dict[str, dict[str, Any]], dict[str, Found]]
"""The cases that were asked for, and what was found."""

SPECIAL = ("convert", "replicas", "cold", "spoilt")
"""Cases with a test of their own."""

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
class OneScale(Nvfp4):
    """All matrices have one global scale, as those that are fused must."""

    def _draw(self, rng, widths, n, k):
        return super()._draw(rng, widths, n, k) | {self.names[1]: np.float32(512)}


COMPRESSED = {
    "nvfp4": {"num_bits": 4, "group_size": 16, "strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn"},
    "mxfp4": {"num_bits": 4, "group_size": 32, "strategy": "group", "scale_dtype": "torch.uint8"},
}
"""What compressed-tensors says of weights in floats."""

WORDS = {"group": 128, "dtype": "bfloat16"}
FORMATS: dict[str, tuple[Format | None, dict[str, Any]]] = {
    "plain": (None, {}),
    "gptq": (Gptq(WORDS), {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}),
    "awq": (Awq(WORDS), {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
    "fp8_block": (Fp8Block({}), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "nvfp4": (OneScale({"writer": "compressed_tensors"}), {}),
    "mxfp4": (Mxfp4Small({}), {}),
}
"""Each format as tests/checkpoints.py draws it, and what config.json says of it."""

FP8 = {("fp8_block", "weight"): torch.float8_e4m3fn, ("nvfp4", "weight_scale"): torch.float8_e4m3fn}
"""Tensors of bytes that are numbers."""

SHAPES = {"dense": {"hidden": 1024, "inner": 3072}, "moe": {"hidden": 512, "inner": 768, "experts": 4}}
HEADS, KEYS = 16, 4


def cases(processes: int, sources: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """A case for each format: of dense models tensor-parallel ones, of experts all meshes in turn."""
    meshes = MESHES[processes]
    turns = {
        "dense": [mesh for mesh in meshes if "ep" not in mesh],
        "moe": [mesh for mesh in meshes if mesh != "group"],
    }
    found = {}
    for at, name in enumerate(sources):
        turn = turns[name.split()[0]]
        mesh = turn[at % len(turn)]
        found[f"{name} {mesh}"] = {"src": str(sources[name]), "dims": meshes[mesh]}
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense model and one with experts in each format, with rows as wide as those of a small real one."""
    folder = tmp_path_factory.mktemp("sources")
    return {
        f"{shape} {name}": model(folder / f"{shape}-{name}", name, **SHAPES[shape])
        for shape in SHAPES
        for name in FORMATS
        if (shape, name) != ("moe", "gptq")  # a kernel that takes it has the same words as AWQ's
    }


def model(folder: Path, name: str, *, hidden: int, inner: int, experts: int = 0) -> Path:
    """A layer in random words of a format."""
    dice, head, (drawn, stated) = np.random.default_rng(7), hidden // HEADS, FORMATS[name]
    layer, mlps = "model.layers.0", [f"mlp.experts.{expert}" for expert in range(experts)] or ["mlp"]
    rows = {f"self_attn.{part}_proj": (KEYS * head, hidden) for part in "kv"}
    rows |= {f"self_attn.{part}_proj": (hidden, hidden) for part in "qo"}
    rows |= {f"{mlp}.{part}_proj": (inner, hidden) for mlp in mlps for part in ("gate", "up")}
    rows |= {f"{mlp}.down_proj": (hidden, inner) for mlp in mlps}
    whole = {"model.embed_tokens": (32, hidden), "lm_head": (32, hidden), "model.norm": (hidden,)}
    whole |= {f"{layer}.{norm}_layernorm": (hidden,) for norm in ("input", "post_attention")}
    if experts:
        whole |= {f"{layer}.self_attn.{part}_norm": (head,) for part in "qk"}
        whole[f"{layer}.mlp.gate"] = experts, hidden
    if drawn is None:
        whole |= {f"{layer}.{matrix}": shape for matrix, shape in rows.items()}
    tensors = {
        f"{key}.weight": torch.from_numpy(dice.standard_normal(shape).astype(np.float16)).to(torch.bfloat16)
        for key, shape in whole.items()
    }
    for matrix, (n, k) in rows.items() if drawn else ():
        for tensor, value in drawn.draw(dice, [n], k).items():
            tensors[f"{layer}.{matrix}.{tensor}"] = typed(np.asarray(value), FP8.get((name, tensor)))
    if name in COMPRESSED:
        weights = COMPRESSED[name] | {"symmetric": True, "type": "float"}
        form = f"{name}-pack-quantized"
        groups = {"group_0": {"targets": ["Linear"], "weights": weights, "format": form}}
        stated = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}
        stated["ignore"] = ["lm_head", *([f"{layer}.mlp.gate"] if experts else [])]
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM"], "dtype": "bfloat16",
        "head_dim": head, "hidden_size": hidden, "intermediate_size": inner, "moe_intermediate_size": inner,
        "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "num_hidden_layers": 1,
        "num_experts": experts, "num_local_experts": experts, "tie_word_embeddings": False,
    }  # fmt: skip
    folder.mkdir()
    written(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": stated} if stated else {})))
    return folder


def typed(value: np.ndarray, dtype: torch.dtype | None) -> torch.Tensor:
    """An array of tests/checkpoints.py as the dtype that its file has: 16 bits are bfloat16."""
    found = torch.from_numpy(value if value.ndim else value.reshape(1))
    return found.view(torch.bfloat16 if value.dtype == np.uint16 else dtype or found.dtype)


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


def replicated(src: str, found: Found) -> dict[str, int]:
    """Bytes of each tensor that more processes than one need, as their plans say: all that they need, but each once."""
    needed: dict[str, list[tuple[int, int]]] = {}
    for one in found:
        for _, tensor, begin, end in planned(src, tp=one["tp"], ep=one["ep"], rank=one["rank"]).reads():
            needed.setdefault(tensor, []).append((begin, end))
    twice: dict[str, int] = {}
    for tensor, stretches in needed.items():
        at = 0
        for begin, end in sorted(stretches):
            again = min(max(at - begin, 0), end - begin)
            twice[tensor] = twice.get(tensor, 0) + again
            at = max(at, end)
    return {tensor: size for tensor, size in twice.items() if size}


@pytest.fixture(scope="module")
def two(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Job:
    asked = cases(2, sources)
    return asked, told(asked, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder, mixed = tmp_path_factory.mktemp("four"), {"ep": 2, "tp": 2}
    moe, dense = str(sources["moe mxfp4"]), str(sources["dense awq"])
    asked = cases(4, sources) | {
        "convert": {"src": moe, "dims": mixed, "convert": str(folder / "new" / "out")},
        "replicas": {"src": moe, "dims": {"dp": 2, "tp": 2}, "convert": str(folder / "other")},
        "cold": {"src": dense, "dims": {"tp": 4}, "cold": True},
        "spoilt": {"src": str(spoilt(sources["dense fp8_block"], folder / "spoilt")), "dims": {"tp": 4}},
    }
    return asked, told(asked, 4, folder)


def spoilt(src: Path, folder: Path) -> Path:
    """A copy in which a code of the second of four ranks is no number."""
    tensors = source_of(src)
    codes = tensors["model.layers.0.mlp.gate_proj.weight"].view(torch.uint8)
    codes[3 * len(codes) // 8, 0] = 0x7F
    shutil.copytree(src, folder)
    written(folder, tensors)
    return folder


@pytest.fixture(params=["two", "four"])
def job(request: pytest.FixtureRequest) -> Job:
    """The cases of so many processes that only load, and what each process told of them."""
    asked, found = request.getfixturevalue(request.param)
    return asked, {name: processes for name, processes in found.items() if name not in SPECIAL}


@linux
def test_each_process_has_what_one_alone_loads(job: Job) -> None:
    asked, found = job
    torch.set_num_threads(1)
    for name, processes in found.items():
        known: dict[int, dict[str, str]] = {}
        for one in processes:
            if one["rank"] not in known:
                known[one["rank"]] = alone(asked[name], one)
            assert one["digests"] == known[one["rank"]] and not one["refused"], name


@linux
def test_ranks_come_of_the_coordinates(job: Job) -> None:
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
def test_processes_share_out_what_is_read(job: Job) -> None:
    """By calls, and of mapped pages each once, since all processes of a machine have the same ones."""
    asked, found = job
    for name, processes in found.items():
        src = asked[name]["src"]
        size, twice = size_of(Path(src)), replicated(src, processes)
        dims = asked[name]["dims"]
        if not dims.keys() - {"tp", "ep"}:  # else every byte is some other process's too
            whole = ["norm", "embed_tokens", "lm_head", r"mlp\.gate\.", "g_idx", "global_scale"]
            whole += [r"[kv]_proj\.weight_scale_inv"]  # heads of 64 share a block of 128, and its scale
            whole += ["self_attn"] * ("ep" in dims)  # each group of expert-parallel ranks has all heads
            assert all(re.search("|".join(whole), tensor) for tensor in twice), (name, twice)
        pages = {tuple(page) for one in processes for page in one["pages"]}
        read = sum(one["called"] for one in processes) + len(pages) * PAGE
        assert read <= 1.05 * size + sum(twice.values()), f"{name}: {read:,} of {size:,} bytes, {twice} replicated"


@linux
def test_a_disk_gives_each_byte_once(four: Job, sources: dict[str, Path]) -> None:
    """Files that no page is kept of: what the disk gives to all processes together is the checkpoint."""
    (_, found), src = four, sources["dense awq"]
    before = counted()["read_bytes"]
    forget(src)
    size = len((src / "model.safetensors").read_bytes())
    if counted()["read_bytes"] - before < size:
        pytest.skip("the folder for tests is in memory")
    read = sum(one["disk"] for one in found["cold"])
    assert 0.98 * size <= read <= 1.05 * size, f"{read:,} of {size:,} bytes"


@linux
def test_one_that_fails_keeps_no_other_waiting(four: Job) -> None:
    _, found = four
    every = sorted(found["spoilt"], key=lambda one: one["rank"])
    assert [bool(one["refused"]) for one in every] == [False, True, False, False]
    assert "at part gate, n 1152, k 0: code 0x7f of e4m3 is NaN" in every[1]["refused"]
    assert len(every[0]["digests"]) == len(every[2]["digests"]) > len(every[1]["digests"])


# ---------------------------------------------------------------- converting


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@linux
def test_processes_convert_together(four: Job, tmp_path: Path) -> None:
    asked, found = four
    convert(asked["convert"]["src"], tmp_path / "out", tp=2, ep=2)
    assert files(Path(asked["convert"]["convert"])) == files(tmp_path / "out")
    assert not any("refused" in one for one in found["convert"])


@linux
def test_replicas_do_not_write_the_same_folder(four: Job) -> None:
    asked, found = four
    for one in found["replicas"]:
        assert "2 processes of the mesh have each rank" in one["refused"]
    assert not Path(asked["replicas"]["convert"]).exists()


def test_torchrun_and_the_command(sources: dict[str, Path], tmp_path: Path) -> None:
    src = sources["moe mxfp4"]
    words = ["-m", "layoutdsl", "convert", str(src), "out", "--ep", "2", "--rank", "env"]
    done = ran(words, 2, tmp_path)
    assert done.returncode == 0, done.stderr
    convert(src, tmp_path / "expected", ep=2)
    assert files(tmp_path / "out") == files(tmp_path / "expected")


def test_the_script_of_the_page(tmp_path: Path) -> None:
    """docs/torchrun.md shows a script and what it prints."""
    page = (ROOT / "docs" / "torchrun.md").read_text(encoding="utf-8")
    script, said = (re.search(rf"```{kind}=load.py\n(.*?)```", page, re.DOTALL) for kind in ("py file", "text of"))
    assert script and said
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "load.py").write_text(script[1])
    done = ran(["load.py"], 4, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(said[1].splitlines())
