"""Single edits of a plan's JSON, and whether the prover sees each of them.

An edit changes one number, name, flag, null, key or list element. Read back, the text must be refused with a
LayoutError, unless the plan is still the same: equal, or without any effect (it proves, and on valid and on spoiled
data it gives the same tensors, refusals, duties and losses).

`python -m tests.edits [PLAN ...]` tries all edits of all plans of plans.py, some minutes, and counts them.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plans import NAMES, inputs_of, plan_named

from layoutdsl import LayoutError, Plan

HUGE = 10**30

WORDS = {
    "pads": ["neutral", "zero"],
    "nvfp4_factor": ["expert", "tensor"],
    "int16": ["nearest", "stepwise"],
    "scope": ["expert", "tensor"],
    "kind": ["data", "value", "pad", "equal", "order", "same", "shape", "nvfp4", "largest", "slice_output"],
    "reason": ["code", "scale", "input", "unread", ""],
    "name": ["copy", "rescale", "reciprocal", "offset", "constant", "fold_sign", "nvfp4_scale", "int16_scale", "ramp"],
    "role": ["codes", "scale", "zero_point", "global_scale", "bias", "n", "k"],
    "source": ["u4", "u4b8", "e2m1", "float16", "bfloat16", "e8m0"],
    "target": ["u4", "u4b8", "e2m1", "float16", "bfloat16", "e8m0z"],
    "code": ["u4", "u4b8", "e2m1", "float16", "bfloat16", "e8m0z"],
    "dtypes": ["float16", "bfloat16", "int32", "uint8"],
    "axis": ["n", "k", "i", "h"],
}
"""What else could stand under a key, besides the words that the plan itself has there."""


class Edit(NamedTuple):
    path: tuple[str | int, ...]
    what: str
    value: Any = None

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))} {self.what} {self.value!r}"[:200]


def edits(tree: Any) -> Iterator[Edit]:
    """Every edit of a plan's JSON tree."""
    pools: dict[str, dict[str, None]] = {key: dict.fromkeys(words) for key, words in WORDS.items()}
    for path, node in _nodes(tree, ()):
        if isinstance(node, str):
            pools.setdefault(_kind(path), {})[node] = None
    before: dict[str, tuple[tuple, Any]] = {}
    for path, node in _nodes(tree, ()):
        kind = f"{_kind(path)} {type(node).__name__}"
        yield from _edits(path, node, tree, [*pools.get(_kind(path), ())])
        if kind in before and before[kind][1] != node and before[kind][0] != path[:-1]:
            yield Edit(path, "exchange", before[kind][0])
        before[kind] = path, node


def _nodes(node: Any, path: tuple) -> Iterator[tuple[tuple, Any]]:
    yield path, node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from _nodes(child, (*path, key))


def _kind(path: tuple) -> str:
    """What kind of text stands at a path: its key, wherever in the plan."""
    return next((step for step in reversed(path) if isinstance(step, str)), "")


def _edits(path: tuple, node: Any, tree: Any, pool: list[str]) -> Iterator[Edit]:
    if isinstance(node, bool):
        yield Edit(path, "set", not node)
    elif isinstance(node, int):
        for value in (node + 1, node - 1, -node, node * 2 + 3, HUGE):
            if value != node:
                yield Edit(path, "set", value)
    elif isinstance(node, str):
        others = [text for text in pool if text != node]
        at = pool.index(node)
        near = others[at % len(others) :][:2] if others else []
        for value in dict.fromkeys([*near, *WORDS.get(_kind(path), ()), f"{node}x", ""]):
            if value != node:
                yield Edit(path, "set", value)
    elif node is None:
        yield Edit(path, "set", _filling(path, tree))
    elif isinstance(node, dict):
        if path and isinstance(path[-1], str):
            yield Edit(path, "set", None)
        for key in node:
            yield Edit((*path, key), "remove")
        yield Edit((*path, "extra"), "set", 0)
    elif isinstance(node, list):
        for at in range(len(node)):
            yield Edit((*path, at), "remove")
            yield Edit((*path, at), "double")
            if at + 1 < len(node):
                yield Edit((*path, at), "swap")


def _filling(path: tuple, tree: Any) -> Any:
    """Something that could stand where nothing does."""
    program = tree["programs"][path[1]] if path[0] == "programs" else tree["programs"][0]
    if path[-1] == "fill":
        moves = [move for move in program["moves"] if move["kind"] == "data"]
        return {"role": "zero_point", "sources": program["sources"], "code": "u4", "plus": 0, "moves": moves}
    return {"tensor": tree["inputs"][-1]["name"], "group": 0, "digits": [[1, 0, 1]], "views": [[0, 1, 0]]}


def edited(tree: Any, edit: Edit) -> Any:
    """The tree with one edit; what it does not touch is shared."""
    if edit.what == "exchange":
        there, here = (_node(tree, path) for path in (edit.value, edit.path))
        return _at(_at(tree, edit.path, Edit(edit.path, "set", there)), edit.value, Edit(edit.value, "set", here))
    return _at(tree, edit.path, edit)


def _node(node: Any, path: tuple) -> Any:
    for key in path:
        node = node[key]
    return node


def _at(node: Any, path: tuple, edit: Edit) -> Any:
    if not path:
        return edit.value
    key, *rest = path
    copy = node.copy()
    if rest:
        copy[key] = _at(node[key], tuple(rest), edit)
    elif edit.what == "set":
        copy[key] = edit.value
    elif edit.what == "remove":
        del copy[key]
    elif edit.what == "double":
        copy.insert(key, copy[key])
    else:
        copy[key], copy[key + 1] = copy[key + 1], copy[key]
    return copy


# --- what an edit may not change --------------------------------------------------------------------------------------


class Effect:
    """What a plan does to some data: some that it accepts, and the same with single bits turned over."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.data = [inputs_of(plan, seed) for seed in (1, 2)]
        self.data += [_spoiled(self.data[0], name, at) for name in self.data[0] for at in (0, 1, 2)]
        self.made = [_outcome(plan, data) for data in self.data]

    def is_that_of(self, other: Plan) -> bool:
        mine, theirs = ((p.inputs, p.outputs, p.duties, p.losses) for p in (self.plan, other))
        if mine != theirs:
            return False
        return all(_outcome(other, data) == made for data, made in zip(self.data, self.made))


def _spoiled(data: dict[str, torch.Tensor], name: str, at: int) -> dict[str, torch.Tensor]:
    flat = data[name].contiguous().reshape(-1).view(torch.uint8).clone()
    flat[flat.numel() * at // 3] ^= 0x41
    return {**data, name: flat.view(data[name].dtype).reshape(data[name].shape)}


def _outcome(plan: Plan, data: dict[str, torch.Tensor]) -> Any:
    try:
        made = plan.run(data)
    except LayoutError as error:
        return error.message
    return {
        name: (t.dtype, tuple(t.shape), t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, t in made.items()
    }


def verdict(text: str, plan: Plan, effect: Effect) -> str:
    """refused, same, without effect; or what is wrong."""
    try:
        other = Plan.from_json(text)
    except LayoutError:
        return "refused"
    except Exception as error:
        return f"HOLE: {type(error).__name__}: {error}"
    if other == plan:
        return "same"
    try:
        return "without effect" if effect.is_that_of(other) else "HOLE: it proves, and does something else"
    except Exception as error:
        return f"HOLE: it proves, and running it ends in {type(error).__name__}: {error}"


def main(names: list[str]) -> int:
    total: Counter[str] = Counter()
    for name in names or NAMES:
        plan = plan_named(name)
        tree, effect = json.loads(plan.to_json()), Effect(plan)
        counts: Counter[str] = Counter()
        slowest = 0.0
        for edit in edits(tree):
            start = time.perf_counter()
            found = verdict(json.dumps(edited(tree, edit)), plan, effect)
            slowest = max(slowest, time.perf_counter() - start)
            counts[found.split(":")[0]] += 1
            if found not in ("refused", "same"):
                print(f"  {name}: {edit}: {found}", flush=True)
        total += counts
        print(f"{name}: {dict(counts)}, slowest {slowest:.2f} s", flush=True)
    print(f"{sum(total.values())} edits: {dict(total)}")
    return 1 if total["HOLE"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
