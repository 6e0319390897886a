"""What has to be known of the data before a kernel runs: whether a plan's checks hold, and the orders of act-order.

Only whether: where something does not hold, another backend says where and why. All experts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from layoutdsl.backends.cpu.axes import moving, points
from layoutdsl.backends.cpu.inputs import Source
from layoutdsl.backends.places import ANY
from layoutdsl.codes import code_named
from layoutdsl.plan import Check, Plan

CHUNK = 1 << 18
"""Bytes that are compared at once."""


def hold(plan: Plan, sources: Mapping[str, Source]) -> bool:
    """Whether all checks hold. A tensor of one code is looked at whole, which may be more than the plan reads: what is
    found there is no refusal yet."""
    return all(_holds(plan, check, sources) for check in plan.checks)


def _holds(plan: Plan, check: Check, sources: Mapping[str, Source]) -> bool:
    source = sources[check.tensor]
    if check.kind == "equal":
        bits = code_named(source.info.code).bits
        if bits not in (4, 8) or not 0 <= check.expect[0] < 1 << bits:
            return False
        return all(_are(array, check.expect[0] * (17 if bits == 4 else 1)) for array in source.codes(8))
    if check.kind == "shape":
        bits = source.kept[0].element_size() * 8
        return all(bool((array == np.array(check.expect, dtype=array.dtype)).all()) for array in source.codes(bits))
    bits = code_named(source.info.code).bits
    found = _places(check, bits)
    if check.kind == "same":
        pairs = zip(source.codes(bits), sources[check.other].codes(bits))
        return all(np.array_equal(one[:, at], other[:, at]) for one, other in pairs for at, _ in found)
    assert check.kind == "order", check.kind
    return all(bool((array[:, at] == expected).all()) for array in source.codes(bits) for at, expected in found)


def _are(array: np.ndarray, value: int) -> bool:
    flat = array.reshape(-1)
    return all(bool((flat[at : at + CHUNK] == value).all()) for at in range(0, len(flat), CHUNK))


@lru_cache(maxsize=64)
def _places(check: Check, bits: int) -> list[tuple[np.ndarray | slice, np.ndarray]]:
    """Which codes of so many bits are looked at, and the groups that the coordinates of an order are in."""
    group, start = check.expect if check.kind == "order" else (0, 0)
    found = []
    for move in check.moves:
        n, k = (points(map(moving, runs)) for runs in (move.n, move.k))
        at = _together(np.add.outer(n.src, k.src).reshape(-1))
        expected = (start + k.x) // group if group else np.zeros_like(k.x)
        if expected.max(initial=0) < 1 << bits:  # numbers of one type are compared in a fraction of the time
            expected = expected.astype(f"uint{bits}")
        found.append((at, np.tile(expected, len(n.src))))
    return found


def _together(at: np.ndarray) -> np.ndarray | slice:
    """Places as a slice where they follow each other: nothing is copied to look at them."""
    follow = len(at) > 0 and bool((np.diff(at) == 1).all())
    return slice(int(at[0]), int(at[-1]) + 1) if follow else at


def orders(
    plan: Plan, sources: Mapping[str, Source], wanted: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], np.ndarray] | None:
    """For tensors and groups, the coordinates of k sorted by group, stably: [experts, k]. None where some group does
    not have its number of elements, which does not count for ANY."""
    found: dict[tuple[str, int], np.ndarray] = {}
    for tensor, group in wanted:
        groups = np.concatenate(sources[tensor].codes(code_named(plan.input[tensor].code).bits))
        small = groups.astype(np.uint16) if groups.size and groups.max() < 1 << 16 else groups  # sorted in one pass
        order = np.argsort(small, axis=1, kind="stable")
        position = np.arange(groups.shape[1])
        expected = position // group if group > 0 else np.zeros_like(position)
        if group != ANY and not (np.take_along_axis(groups, order, 1) == expected).all():
            return None
        found[tensor, group] = order
    return found
