"""Recorded cases as plain numpy arrays, cut into single matrices.

A case (see golden/README.md) holds tensors before (`in.`) and after (`out.`) preparation.
`matrices(case)` yields each weight matrix of it, one expert at a time, with the names that
the formats use in public.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import awq, ct_int, fp8, fp8_block, gptq, mxfp4, mxfp8, nvfp4

FOLDER = Path(__file__).parent.parent / "golden"
CASES = json.loads((FOLDER / "index.json").read_text())["cases"]
RAW = {"I32": "<i4", "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "F16": "<u2", "BF16": "<u2", "F32": "<f4"}

# format, without `_nongated` -> decoder, public names that differ, code on the kernel side
FORMATS = {
    "gptq_int4": (gptq, {}, "u4b8"),
    "gptq_int8": (gptq, {}, "u8b128"),
    "awq_int4": (awq, {}, "u4"),
    "ct_int4": (ct_int, {}, "u4b8"),
    "ct_int4_zp": (ct_int, {}, "u4"),
    "fp8_tensor": (fp8, {}, "e4m3"),
    "fp8_tensor_fused": (fp8, {}, "e4m3"),
    "fp8_shard": (fp8, {}, "e4m3"),
    "fp8_channel": (fp8, {}, "e4m3"),
    "fp8_block": (fp8_block, {}, "e4m3"),
    "mxfp8": (mxfp8, {}, "e4m3"),
    "mxfp4": (mxfp4, {"weight": "weight_packed"}, "e2m1"),
    "nvfp4": (nvfp4, {"weight_global_scale": "weight_scale_2"}, "e2m1"),
}


class Matrix(NamedTuple):
    before: dict  # checkpoint tensors, and bias
    after: dict  # kernel tensors, and bias
    n: int
    k: int
    padded_n: int
    padded_k: int
    rows: np.ndarray  # padded row that holds logical row 0, 1, ... n - 1
    source: object  # module whose decode reads `before`
    options: dict  # its keyword arguments besides n and k
    kernel: dict  # marlin.decode's keyword arguments besides n and k


def load(case):
    """name -> array; floats under 32 bits as unsigned integers of their size."""
    data = (FOLDER / case["file"]).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[start + begin : start + end], RAW[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def matrices(case):
    tensors = load(case)
    if case["kind"] == "dense":
        padded = case["padded"]
        yield _matrix(case, tensors, "", case["N"], case["K"], padded["N"], padded["K"], np.arange(case["N"]))
        return
    parts, inner, hidden = case["shards"], case["I"], case["H"]
    padded_inner, padded_hidden = case["padded"]["I"], case["padded"]["H"]
    rows = np.arange(parts * inner)
    if case.get("w13_order") != "interleaved":
        rows += rows // inner * (padded_inner - inner)
    for expert in range(case["E"]):
        one = {name: array if array.ndim == 0 else array[expert] for name, array in tensors.items()}
        yield _matrix(case, one, "w13_", parts * inner, hidden, parts * padded_inner, padded_hidden, rows)
        yield _matrix(case, one, "w2_", hidden, inner, padded_hidden, padded_inner, np.arange(hidden))


def _matrix(case, tensors, prefix, n, k, padded_n, padded_k, rows):
    source, names, code = FORMATS[case["format"].removesuffix("_nongated")]
    before = {name.removeprefix("in." + prefix): a for name, a in tensors.items() if name.startswith("in." + prefix)}
    before = {names.get(name, name): array for name, array in before.items()}
    after = {name.removeprefix("out." + prefix): a for name, a in tensors.items() if name.startswith("out." + prefix)}
    kernel = {"code": code, "activation": case["activation_dtype"], "dtype": case["param_dtype"]}
    options = _options(case, source, before["weight_scale"].size if source is fp8 else 0, n)
    return Matrix(before, after, n, k, padded_n, padded_k, rows, source, options, kernel)


def _options(case, source, scales, n):
    if source in (gptq, ct_int):
        return {"group": case["group"], "bits": case["bits"], "dtype": case["param_dtype"]}
    if source is awq:
        return {"group": case["group"], "dtype": case["param_dtype"]}
    if source is fp8_block:
        return {"block": case["block"]}
    if source is fp8 and scales not in (1, n):
        widths = case["shards"] if case["kind"] == "dense" else [case["I"]] * case["shards"]
        return {"widths": widths}
    return {}
