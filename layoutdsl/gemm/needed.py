"""Kernels that MarlinLinear or MarlinMoE may launch for a plan, whatever is x and whatever the GPU: to compile ahead.

    >>> {kernel.name for kernel in kernels(plan)}
    {'gemm_u4b8_f16_group128_m16n128k128d4s4', 'gemm_u4b8_f16_group128_m32n128k128d4s3', ...}
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

from layoutdsl.gemm import checks, table
from layoutdsl.gemm.activate import FUNCTIONS, Activate, Combine, Function
from layoutdsl.gemm.align import Align
from layoutdsl.gemm.checks import MAKES
from layoutdsl.gemm.launch import instance
from layoutdsl.gemm.matrix import Matrix, matrices
from layoutdsl.gemm.quantize import Quantizer, quantizers
from layoutdsl.plan import Plan


def kernels(plan: Plan, specs: tuple[str, ...] = ()) -> Iterator[Any]:
    """As launchers take them. They say nothing of sizes nor of the order of parts: they are those of all plans of the
    same codes, groups and dtypes. An activation with numbers of its own (alpha, limit) is not among them. LayoutError
    where no GEMM reads what the plan makes."""
    of = [Matrix.of(plan, name, specs=specs) for name in matrices(plan, specs)]
    for matrix in of:
        facts = matrix.facts
        checks.facts_fit(facts)
        for tile in table.tiles(facts.code, facts.kind):
            yield instance(facts, tile, "experts" if matrix.experts else "dense")
        if facts.kind in MAKES:
            yield from quantizers(facts.dtype, MAKES[facts.kind])
    if plan.experts[0]:
        yield from _between(of[0])


def _between(first: Matrix) -> Iterator[Any]:
    yield Align(first.experts)
    yield Combine(first.facts.dtype)
    if first.parts == "plain":
        yield from (Activate(one, "plain", first.facts.dtype) for one in FUNCTIONS)  # pyright: ignore[reportArgumentType]
    else:
        for function, parts in product(get_args(Function), ("split", "alternating")):
            yield Activate(function, parts, first.facts.dtype)  # pyright: ignore[reportArgumentType]


def check_arch(kernel: Any, arch: str) -> None:
    """LayoutError where GPUs of an arch, such as sm_90a, have not the tensor cores that a kernel is for."""
    kinds = {made: kind for kind, made in MAKES.items()}
    kind = kinds[kernel.code] if isinstance(kernel, Quantizer) else getattr(kernel, "kind", "f16")
    checks.gpu_fits(int("".join(filter(str.isdecimal, arch))), kind)
