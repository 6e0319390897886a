"""A checkpoint of many files converted for one rank, over `cp` of the same bytes on the same disk; and the memory that
it takes.

The shape is that of a mixture of experts: Qwen3-30B-A3B's, in 4 bits by compressed-tensors, with fewer layers and
words, a file for each layer. Both ways end with all bytes on the disk; they take turns, each conversion in a process
of its own, on the cpu backend. Its seconds are those of the call: checks, plans and reading are among them, the import
of torch is not. Memory is what the process peaks at above what the interpreter with torch takes.

`python -m benchmarks.convert --gib 8 --rounds 1` takes another size; `--folder` another disk than that of the system's
temporary files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import Figure, Scale
from benchmarks.report import line

GIB: dict[Scale, float] = {"full": 2.0, "quick": 0.0}
ROUNDS: dict[Scale, int] = {"full": 3, "quick": 1}

LEAST_RATE, MOST_MEMORY = 0.7, 600.0
"""Of the rate of `cp`, and MiB."""

SIZES: dict[Scale, Mapping[str, int]] = {
    "full": {"hidden": 2048, "inner": 768, "experts": 128, "words": 32768, "heads": 32, "kv": 4},
    "quick": {"hidden": 256, "inner": 128, "experts": 4, "words": 64, "heads": 4, "kv": 2},
}
GROUP, HEAD = 128, 128


def measure(scale: Scale) -> Iterator[Figure]:
    yield from _measured(scale, GIB[scale], ROUNDS[scale], None, "cpu")


def _measured(scale: Scale, gib: float, rounds: int, folder: str | None, backend: str) -> Iterator[Figure]:
    from benchmarks.convert import converted  # by its module's name, not __main__
    from benchmarks.timing import in_child

    with tempfile.TemporaryDirectory(dir=folder) as place:
        source, copied, made = (Path(place) / name for name in ("source", "copied", "made"))
        checkpoint(source, SIZES[scale], gib)
        size = sum(path.stat().st_size for path in source.iterdir())
        copies: list[float] = []
        runs: list[tuple[float, float, float]] = []
        compiled = {"PYTHONPYCACHEPREFIX": str(Path(place) / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
        for at in range(rounds + 1):
            copies.append(_copy(source, copied))
            shutil.rmtree(copied)
            os.sync()
            runs.append(tuple(in_child(converted, str(source), str(made), backend, environment=compiled)))
            shutil.rmtree(made)
            os.sync()
            if not at:  # files come into the cache, modules and kernels are compiled
                copies.clear()
                runs.clear()
        seconds = [run[0] for run in runs]
        pairs = ", ".join(f"{own:.2f} s against {copy:.2f}" for own, copy in zip(seconds, copies))
        note = f"{size / 2**30:.2f} GiB, {len(list(source.glob('*.safetensors')))} files: {pairs}"
        ratios = sorted(copy / own for own, copy in zip(seconds, copies))
        yield Figure("convert, rate over that of cp", ratios[len(ratios) // 2], "times", None, note, LEAST_RATE)
        peaks = [run[1] for run in runs]
        yield Figure("convert, peak memory", max(peaks), "MiB", MOST_MEMORY, f"stated: {runs[0][2]:.0f} MiB")


def converted(source: str, made: str, backend: str) -> tuple[float, float, float]:
    """Seconds of one conversion, and the MiB that it peaked at and that it stated."""
    import torch

    from benchmarks.memory import _kibibytes
    from benchmarks.timing import THREADS
    from layoutdsl import convert

    torch.set_num_threads(THREADS)
    torch.ones(64, 64) @ torch.ones(64, 64)
    before = _kibibytes("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    start = time.perf_counter()
    report = convert(source, made, backend=backend)
    seconds = time.perf_counter() - start
    return seconds, (_kibibytes("VmHWM") - before) / 1024, report.peak / 2**20


def _copy(source: Path, copied: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(copied)], check=True)
    for path in (*copied.iterdir(), copied):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return time.perf_counter() - start


def checkpoint(folder: Path, sizes: Mapping[str, int], gib: float) -> None:
    """A checkpoint of so many GiB, at least one layer: a file for each, and one for the rest."""
    folder.mkdir()
    hidden, inner, words = sizes["hidden"], sizes["inner"], sizes["words"]
    rest = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), ("bfloat16", (words, hidden)))
    rest["model.norm.weight"] = "bfloat16", (hidden,)
    files = {"rest": rest}
    index: dict[str, str] = {}
    left, layer = gib * 2**30 - 2 * words * hidden * 2, 0
    while left > 0 or not layer:
        files[f"layer-{layer:03}"] = tensors = dict(_layer(layer, sizes))
        left -= sum(_bytes(*described) for described in tensors.values())
        layer += 1
    for name, tensors in files.items():
        _written(folder / f"{name}.safetensors", tensors)
        index |= dict.fromkeys(tensors, f"{name}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": 3 * inner, "moe_intermediate_size": inner,
        "num_hidden_layers": layer, "num_experts": sizes["experts"], "num_experts_per_tok": 2,
        "num_attention_heads": sizes["heads"], "num_key_value_heads": sizes["kv"], "head_dim": HEAD,
        "vocab_size": words, "tie_word_embeddings": False, "mlp_only_layers": [], "decoder_sparse_step": 1,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", *(f"model.layers.{at}.mlp.gate" for at in range(layer))],
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


Described = tuple[str, tuple[int, ...]]


def _layer(layer: int, sizes: Mapping[str, int]) -> Iterator[tuple[str, Described]]:
    prefix, hidden, inner = f"model.layers.{layer}", sizes["hidden"], sizes["inner"]
    queries, keys = sizes["heads"] * HEAD, sizes["kv"] * HEAD
    rows = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
    matrices = {f"self_attn.{part}_proj": shape for part, shape in rows.items()}
    for expert in range(sizes["experts"]):
        matrices |= {f"mlp.experts.{expert}.{part}_proj": (inner, hidden) for part in ("gate", "up")}
        matrices[f"mlp.experts.{expert}.down_proj"] = hidden, inner
    for name, (n, k) in matrices.items():
        yield f"{prefix}.{name}.weight_packed", ("int32", (n, k // 8))
        yield f"{prefix}.{name}.weight_scale", ("bfloat16", (n, k // GROUP))
        yield f"{prefix}.{name}.weight_shape", ("int64", (n, k))
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{name}.weight", ("bfloat16", (hidden,))
    for name in ("self_attn.q_norm", "self_attn.k_norm"):
        yield f"{prefix}.{name}.weight", ("bfloat16", (HEAD,))
    yield f"{prefix}.mlp.gate.weight", ("bfloat16", (sizes["experts"], hidden))


def _written(path: Path, tensors: Mapping[str, Described]) -> None:
    """A file of random codes and of scales that are numbers; `weight_shape` holds the shape that it is described by."""
    import torch
    from safetensors.torch import save_file

    made = torch.Generator().manual_seed(len(tensors))
    found: dict[str, torch.Tensor] = {}
    for name, (dtype, shape) in tensors.items():
        if name.endswith("weight_shape"):
            found[name] = torch.tensor(shape)
        elif dtype == "int32":
            found[name] = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, generator=made)
        else:
            found[name] = torch.rand(shape, generator=made).to(torch.bfloat16)
    save_file(found, path)


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    width = {"int32": 4, "bfloat16": 2, "int64": 8}[dtype]
    return width * shape[0] * (shape[1] if dtype != "int64" and len(shape) > 1 else 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert", description=__doc__)
    parser.add_argument("--gib", type=float, default=GIB["full"], help="size of the checkpoint (default: 2)")
    parser.add_argument("--rounds", type=int, default=ROUNDS["full"])
    parser.add_argument("--folder", help="where it is made, copied and converted")
    parser.add_argument("--backend", default="cpu")
    args = parser.parse_args()
    for figure in _measured("full", args.gib, args.rounds, args.folder, args.backend):
        print(line(figure), flush=True)


if __name__ == "__main__":
    main()
