"""Many names in few words.

>>> fold([f"layers.{layer}.mlp.{part}_proj.weight" for layer in range(48) for part in ("gate", "up")])
['layers.{0..47}.mlp.{gate_proj,up_proj}.weight']
>>> fold(["layers.0.norm", "layers.1.norm", "layers.1.bias", "head"])
['layers.{0..1}.norm', 'layers.1.bias', 'head']

What is said is what is there: no name is meant that was not given.
"""

from __future__ import annotations

from collections.abc import Iterable

from layoutdsl.checkpoints.report import ranges


def fold(names: Iterable[str]) -> list[str]:
    """The names, those together that differ in one step between points, in the order of the first of each."""
    found = [tuple(name.split(".")) for name in dict.fromkeys(names)]
    for numbers in (True, False):
        for at in reversed(range(max(map(len, found), default=0))):
            found = _folded(found, at, numbers)
    return [".".join(steps) for steps in found]


def _folded(names: list[tuple[str, ...]], at: int, numbers: bool) -> list[tuple[str, ...]]:
    groups: dict[tuple, list[str]] = {}
    for steps in names:
        fits = len(steps) > max(at, 1) and _is_number(steps[at]) is numbers and "{" not in steps[at]
        key = (*steps[:at], None, *steps[at + 1 :]) if fits else steps
        groups.setdefault(key, []).append(steps[at] if fits else "")
    return [tuple(_together(found, numbers) if step is None else step for step in key) for key, found in groups.items()]


def _together(found: list[str], numbers: bool) -> str:
    if len(found) == 1:
        return found[0]
    return ranges(list(map(int, found))) if numbers else "{" + ",".join(found) + "}"


def _is_number(step: str) -> bool:
    return step.isdecimal() and step.isascii() and str(int(step)) == step
