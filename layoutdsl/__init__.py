"""layoutdsl: describe where a weight format keeps every element, and get every conversion between formats, proven.

    from layoutdsl import compile_plan

    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 128, "i": 768, "h": 2048},
                        params={"group": 128}, tp=2, rank=0)
    kernel_tensors = plan.run(checkpoint_tensors)

Everything public stands here; the submodules are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layoutdsl.backends.update import Updates
    from layoutdsl.checkpoints.convert import convert
    from layoutdsl.checkpoints.load import load
    from layoutdsl.checkpoints.verify import verify
    from layoutdsl.compile import compile_plan
    from layoutdsl.errors import Diagnostic, LayoutError
    from layoutdsl.gemm.experts import MarlinMoE
    from layoutdsl.gemm.linear import MarlinLinear
    from layoutdsl.library import load_spec
    from layoutdsl.plan import Lost, Plan
    from layoutdsl.recodes import Habits
    from layoutdsl.reloading.reload import Reload, reload

__version__ = "0.1.0"

_HOMES = {
    "Diagnostic": "layoutdsl.errors",
    "Habits": "layoutdsl.recodes",
    "LayoutError": "layoutdsl.errors",
    "Lost": "layoutdsl.plan",
    "MarlinLinear": "layoutdsl.gemm.linear",
    "MarlinMoE": "layoutdsl.gemm.experts",
    "Plan": "layoutdsl.plan",
    "Reload": "layoutdsl.reloading.reload",
    "Updates": "layoutdsl.backends.update",
    "compile_plan": "layoutdsl.compile",
    "convert": "layoutdsl.checkpoints.convert",
    "load": "layoutdsl.checkpoints.load",
    "load_spec": "layoutdsl.library",
    "reload": "layoutdsl.reloading.reload",
    "verify": "layoutdsl.checkpoints.verify",
}

__all__ = [
    "Diagnostic",
    "Habits",
    "LayoutError",
    "Lost",
    "MarlinLinear",
    "MarlinMoE",
    "Plan",
    "Reload",
    "Updates",
    "compile_plan",
    "convert",
    "load",
    "load_spec",
    "reload",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'layoutdsl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
