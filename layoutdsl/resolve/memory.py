"""What is resolved again is remembered: the compiler asks, the prover asks again, and layer after layer is alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")

MOST = 4096
"""Entries of one memory; a full one begins anew."""

_KEPT: dict[str, dict[tuple, tuple[object, object]]] = {}


def once(what: str, of: object, key: tuple, make: Callable[[], Made]) -> Made:
    """What was made of a spec, or of a part of one, with this key. It is kept beside the result, so that its id cannot
    come to mean another one."""
    memory = _KEPT.setdefault(what, {})
    known = memory.get((id(of), key))
    if known is None:
        if len(memory) >= MOST:
            memory.clear()
        known = memory[id(of), key] = of, make()
    return known[1]  # pyright: ignore[reportReturnType]


def forget() -> None:
    """Empty the memory of what is resolved."""
    _KEPT.clear()
