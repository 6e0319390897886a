"""Other engines' kernels for the products of gemm_times, where they are installed: known by their releases alone, so
whatever goes wrong with one is said, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

import torch
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


PEERS = {"vLLM": vllm, "humming": humming}

MODULES = {"vLLM": MARLIN, "humming": "humming.layer"}
"""What has to be imported for each."""


def missing() -> Iterator[Row]:
    """A row for each that is not here."""
    for who in PEERS:
        if why := _why(who):
            yield Row("gemm_times", f"{who}'s kernel", ABSENT, why)


def there(who: str) -> bool:
    return not _why(who)


@cache
def _why(who: str) -> str:
    try:
        import_module(MODULES[who])
    except Exception as error:  # a library that does not fit this torch fails in any way
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
