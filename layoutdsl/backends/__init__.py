"""Ways to carry out a plan. All give the same bytes; a backend chooses how, never what.

Each has a module with `run(plan, tensors, out, report) -> tensors`, `amend(plan, tensors, out)` and
`scratch(plan) -> bytes`, imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from layoutdsl.errors import LayoutError, did_you_mean

if TYPE_CHECKING:
    from layoutdsl.plan import Plan

BACKENDS = {"reference": "torch", "torch": "torch", "cpu": "torch,cpu", "host": "torch", "cuda": "torch,cuda"}
"""What pip has to install for each, as in `layoutdsl[torch,cpu]`."""

_OPTIONAL = {"torch": "torch", "numpy": "numpy", "numba": "numba", "llvmlite": "llvmlite", "cuda": "cuda-python"}
"""Modules that may be missing, and what pip calls them."""


def load(name: str) -> Callable[..., Any]:
    """The `run` function of a backend; LayoutError where it does not exist or what it needs is not installed."""
    return _module(name).run


def amend(name: str, plan: Plan, tensors: Any, out: Any) -> None:
    """Carry out a plan that writes only some places of its outputs into `out`: all others stay as they are. Whatever is
    refused is refused before anything is written. Whether `tensors` and `out` are the plan's, with their dtypes and
    shapes, has been looked at before."""
    _module(name).amend(plan, tensors, out)


def scratch(name: str, plan: Plan) -> int:
    """Bytes that a backend has in memory at most while it runs a plan, beside inputs and outputs."""
    return _module(name).scratch(plan)


def device(name: str, wanted: str = "cpu") -> str:
    """The torch device on which a backend runs what is wanted on one: `cuda` runs on a GPU alone.

    LayoutError where that needs a GPU and this machine has none that can be used, or a C++ compiler (`host`).
    """
    return _module(name).device(wanted) if name in ("cuda", "host") else wanted


def _module(name: str) -> Any:
    if not isinstance(name, str) or name not in BACKENDS:
        raise LayoutError(
            f"there is no backend `{name}`",
            code="LP150",
            name="no-such-backend",
            help=did_you_mean(name, BACKENDS) or f"backends: {', '.join(BACKENDS)}",
        )
    try:
        return import_module(f"layoutdsl.backends.{name}.backend")
    except ModuleNotFoundError as error:
        missing = _OPTIONAL.get((error.name or "").split(".")[0])
        if missing is None:
            raise
        raise LayoutError(
            f"backend `{name}` needs {missing}, which is not installed",
            code="LP151",
            name="not-installed",
            help=f"pip install 'layoutdsl[{BACKENDS[name]}]'",
        ) from None
