"""Ours beside other engines' kernels, where they are installed. Known by their releases alone: whatever goes wrong with
one is said, and the rest goes on. All run on one matrix again and again, which the GPU's cache may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import torch
from gemm_times import Measure, Timed, bytes_of, copy_speed, filled, rows_of, time_of
from rows import ABSENT, Row

from layoutdsl import MarlinLinear

Product = Callable[[torch.Tensor], torch.Tensor]

MARLIN = "vllm.model_executor.layers.quantization.utils.marlin_utils"


def vllm(layer: MarlinLinear, weight: torch.Tensor, group: int) -> Product:
    """Their Marlin reads the tensors that our plan has made."""
    marlin, types = import_module(MARLIN), import_module("vllm.scalar_type").scalar_types
    (n, k), device = weight.shape, weight.device
    workspace, none = marlin.marlin_make_workspace_new(device), marlin.marlin_make_empty_g_idx(device)
    return lambda x: marlin.apply_gptq_marlin_linear(
        input=x, weight=layer.weight, weight_scale=layer.weight_scale, weight_zp=none, g_idx=none,
        g_idx_sort_indices=none, workspace=workspace, wtype=types.uint4b8, output_size_per_partition=n,
        input_size_per_partition=k, is_k_full=True,
    )  # fmt: skip


def humming(layer: MarlinLinear, weight: torch.Tensor, group: int) -> Product:
    """Its own layout, from weights that it quantizes itself."""
    (n, k), config = weight.shape, {"dtype": "uint4", "group_size": group}
    made = import_module("humming.layer").HummingLayer(
        shape_n=n, shape_k=k, weight_config=config, torch_dtype=weight.dtype
    )
    made = made.to(weight.device)
    made.load_from_unquantized(weight)
    made.transform()
    return made


PEERS = {"vLLM": (MARLIN, vllm), "humming": ("humming.layer", humming)}
"""What has to be imported for each, and what makes its product."""

SHAPES = ("int4, 4096 x 4096", "int4, 28672 x 4096", "int4, 4096 x 14336")
"""Of gemm_times.TIMED."""


def check(backend: str) -> Iterator[Row]:
    for who, (module, make) in PEERS.items():
        if backend == "host":
            yield Row("gemm_peers", who, ABSENT, "needs a GPU")
            continue
        try:
            import_module(module)
            speed = copy_speed()
            for name in SHAPES:
                yield from rows_of("gemm_peers", name, partial(compared, who, make), speed)
        except Exception as error:  # a library that does not fit this torch fails in any way
            yield Row("gemm_peers", who, ABSENT, f"{type(error).__name__}: {error}".splitlines()[0])


def compared(who: str, make: Callable[[MarlinLinear, torch.Tensor, int], Product], timed: Timed) -> Measure:
    """What measures so many rows, ours and theirs, on one matrix."""
    sizes, dtype = dict(timed.sizes), getattr(torch, timed.dtype)
    layer = filled(MarlinLinear(timed.plan, device="cuda"))
    theirs = make(layer, torch.randn(sizes["n"], sizes["k"], dtype=dtype, device="cuda"), timed.group)

    def measure(rows: int) -> tuple[dict[str, float], int]:
        x = torch.randn(rows, sizes["k"], dtype=dtype, device="cuda")
        return {"ours": time_of([lambda: layer(x)]), who: time_of([lambda: theirs(x)])}, bytes_of(layer)

    return measure
