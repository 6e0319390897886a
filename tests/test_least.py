"""The planner stores the fewest bytes that any way to serve a small shape stores: all ways are tried.

The rules are stated here once more, and nothing of the planner's is asked. Inside a module ranks are dealt equal
grains, of any size that divides the checkpoint's groups; outside they hold what others impose. A stretch stands in one
piece, and no group of the kernel holds elements of two groups of the checkpoint. Extents are the first that fit a tile,
found by counting. Tiles are small, so that small shapes meet every border.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, count, product
from math import inf
from pathlib import Path

import pytest

from layoutdsl import LayoutError
from layoutdsl.library import load_spec
from layoutdsl.pairs import Request
from layoutdsl.planner import choices
from layoutdsl.recodes import Habits
from layoutdsl.resolve import Ranks, bind, with_defaults

CASES = 3000
PARTS = 12
"""In so many parts, each with its own seed."""

SOURCE = """
version: "1"
checkpoint: small
doc: FP8 with a scale per group
source: this test
params: {group: {type: group, default: 4}}
parts: {stored: [apart], orders: [[gate, up], [q, k, v]]}
tensors:
  weight: {role: codes, dtype: float8_e4m3fn, order: "n, k"}
  weight_scale: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "n, g (gi)"}
value: weight * weight_scale
try: [{n: 8, k: 8}]
"""
KERNEL = """
version: "1"
kernel: NAME
doc: FP8 with a scale per group, in small tiles
source: this test
params: {group: {type: group, default: 4}}
accepts: {tiles: [TILES], groups: GROUPS, capability: 80}
parts: {stored: [stacked], orders: [[gate, up], [q, k, v]]}
tensors:
  weight: {role: codes, dtype: float8_e4m3fn, order: "k, n"}
  weight_scale: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "g, n (gi)"}
value: weight * weight_scale
try: [{n: 16, k: 16}]
"""
TILES = (((4, 8), (8, 4)), ((8, 4),), ((4, 4), (8, 8)), ((4, 12), (8, 4)))
GROUPS = ([-1, 2, 4, 8, 16], [-1, 4, 8], [-1, 8], [4], [8])
BYTES = 1, 2
"""Of a code, of a scale."""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """(tiles, groups) -> the kernel that takes them; None: the checkpoint."""
    folder = tmp_path_factory.mktemp("specs")
    return {None: load_spec(_written(folder, "small", SOURCE))} | {
        (tiles, at): load_spec(
            _written(folder, name := f"small_{TILES.index(tiles)}_{at}", _kernel(name, tiles, groups))
        )
        for tiles in TILES
        for at, groups in enumerate(GROUPS)
    }


def _written(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.yaml").write_text(text.lstrip())
    return str(folder / f"{name}.yaml")


def _kernel(name: str, tiles: tuple, groups: list) -> str:
    shown = ", ".join(f"{{n: {n}, k: {k}}}" for n, k in tiles)
    return KERNEL.replace("NAME", name).replace("TILES", shown).replace("GROUPS", str(groups))


# --- every way --------------------------------------------------------------------------------------------------------


def span(start: int, end: int, stored: int, group: int, front: int = 0) -> float:
    """Places of a stretch that begins at `front`, up to its last element. Each group of the kernel holds elements of
    one group of the checkpoint (0: there is one). Group 0: the kernel has one for all of it."""
    borders = range((start // stored + 1) * stored, end, stored) if stored else ()
    if any(not group or (front + border - start) % group for border in borders):
        return inf
    return front + end - start if start < end else 0


@lru_cache(maxsize=4096)
def widest(size: int, ranks: int, stored: int, group: int) -> float:
    """The least, over all grains, of the span of the rank that has the most. Whole grains are dealt evenly, the first
    ranks one more; the last grain may be short, and if it alone is left over, the last rank has it. Where there are
    groups, grains divide them."""
    found = []
    for grain in (grain for grain in range(1, max(stored, size) + 1) if stored % grain == 0):
        dealt = [len(range(rank, -(-size // grain), ranks)) * grain for rank in range(ranks)]
        is_alone = len(set(dealt)) > 1 and dealt.count(max(dealt)) == 1 < dealt[0] // grain and size % grain
        order = dealt[::-1] if is_alone else dealt
        borders = [min(border, size) for border in (0, *accumulate(order))]
        found.append(max(span(start, end, stored, group) for start, end in zip(borders, borders[1:])))
    return min(found)


def kernel_groups(accepted: list[int], stored: int, is_inside: bool) -> Iterator[int]:
    """Those that divide the checkpoint's; any, or one for all, where no rank has more than one of the checkpoint's."""
    for group in accepted:
        if is_inside or (group > 0 and stored % group == 0):
            yield max(group, 0)


def stored_bytes(n: int, k: int, group: int) -> int:
    code, scale = BYTES
    return n * k * code + n * (k // group if group else 1) * scale


def first(start: float, *multiples: int) -> int:
    """The first number from there on that is a multiple of all."""
    return next(at for at in count(int(start)) if all(at % multiple == 0 for multiple in multiples))


@dataclass(frozen=True)
class Case:
    """What is asked of the planner."""

    module: str
    sizes: dict[str, int]
    params: dict[str, object]
    only: tuple[str, ...]
    tp: int
    group: int
    tiles: tuple[tuple[int, int], ...]
    groups: int

    def stored(self, size: int) -> int:
        return self.group if 0 < self.group < size else 0


Way = tuple[int, tuple[int, ...]]
"""Bytes, and n and k of each matrix."""


def mlps(case: Case) -> Iterator[Way]:
    """Up to an inner axis, and back from it."""
    i, h, accepted = case.sizes["i"], case.sizes["h"], GROUPS[case.groups]
    parts = 2 if case.module == "mlp_gated" else 1
    reads = {}
    for is_inside in (True, False):
        for group in kernel_groups(accepted, case.stored(i), is_inside):
            wide = widest(i, case.tp, case.stored(i), 0 if is_inside else group)
            if wide < inf:
                reads[group] = min(wide, reads.get(group, inf))
    writes = list(kernel_groups(accepted, case.stored(h), not case.stored(h)))
    for (down, wide), up, (n1, k1), (n2, k2) in product(reads.items(), writes, case.tiles, case.tiles):
        k, n = first(h, k1, up or 1), first(h, n2)
        alike = next(at for at in count(int(wide)) if at * parts % n1 == at % k2 == at % (down or 1) == 0)
        shapes = [(alike, alike)]
        if case.params["contract"] == "tight":
            written = next(at for at in count(int(wide)) if at * parts % n1 == 0)
            shapes.append((written, first(max(wide, written), k2, down or 1)))  # all that is written is read
        for written, read in shapes:
            size = stored_bytes(written * parts, k, up) + stored_bytes(n, read, down)
            yield size, (written * parts, k, n, read)


def heads(case: Case) -> Iterator[Way]:
    """Back from heads: ranks hold whole ones, dealt one at a time."""
    each = case.sizes["dv"]
    shares = [len(range(rank, case.sizes["q"], case.tp)) * each for rank in range(case.tp)]
    yield from given(case, shares, case.sizes["h"])


def equal(case: Case) -> Iterator[Way]:
    """Equal shares of inputs."""
    yield from given(case, [case.sizes["k"] // case.tp] * case.tp, case.sizes["n"])


def given(case: Case, shares: list[int], outputs: int) -> Iterator[Way]:
    """Stretches that others impose. Each may begin anywhere in its first group of the kernel; each rank is fed as many
    inputs as the widest, whatever it holds."""
    size, full, stretches = sum(shares), max(shares), list(zip([0, *accumulate(shares)], accumulate(shares)))
    stored = case.stored(size)
    inside = all(span(*stretch, stored, 0) < inf for stretch in stretches)
    for group, (n, k) in product(kernel_groups(GROUPS[case.groups], stored, inside), case.tiles):
        wide = 0
        for start, end in stretches:
            fronts = [front for front in range(group or 1) if inside or span(start, end, stored, group, front) < inf]
            wide = max(wide, min(fronts) + full if start < end else 0)
        shape = first(outputs, n), first(wide, k, group or 1)
        yield stored_bytes(*shape, group), shape


def fused(case: Case) -> Iterator[Way]:
    """To heads: parts of unlike widths, padded once behind all of them. Ranks share key-value heads, or each has whole
    ones with all their queries."""
    q, kv, d, h = (case.sizes[axis] for axis in ("q", "kv", "d", "h"))
    each, sharing = q // kv, max(case.tp // kv, 1)
    groups = -(-kv // case.tp)
    queries = groups * each if case.tp <= kv else -(-each // min(sharing, each))
    width = (queries + 2 * groups) * d
    for group, (n, k) in product(kernel_groups(GROUPS[case.groups], case.stored(h), not case.stored(h)), case.tiles):
        shape = first(width, n), first(h, k, group or 1)
        yield stored_bytes(*shape, group), shape


WAYS = {"mlp_gated": mlps, "mlp_plain": mlps, "latent_attention": heads, "linear": equal, "attention": fused}


# --- the planner ------------------------------------------------------------------------------------------------------


def drawn(draw: random.Random) -> Case:
    module = draw.choice(["mlp_gated", "mlp_gated", "mlp_plain", "latent_attention", "linear", "attention"])
    tp = draw.randint(1, 6)
    rest = tp, draw.choice([-1, 4, 8, 8, 12, 16, 24]), draw.choice(TILES), draw.randrange(len(GROUPS))
    h = draw.randint(1, 40)
    if module.startswith("mlp"):
        sizes = {"i": draw.randint(1, 60), "h": h}
        return Case(module, sizes, {"contract": draw.choice(["tight", "tight", "vllm"])}, (), *rest)
    if module == "latent_attention":
        sizes = {"q": draw.randint(1, 9), "dv": draw.randint(1, 20), "h": h, "dq": 1, "dkv": 1, "akv": 1, "rkv": 1}
        return Case(module, sizes, {}, ("o",), *rest)
    if module == "linear":
        return Case(module, {"n": h, "k": tp * draw.randint(1, 40)}, {"split": "k"}, (), *rest)
    kv = draw.randint(1, 4)
    sizes = {"q": kv * draw.randint(1, 4), "kv": kv, "d": draw.randint(1, 9), "h": h}
    return Case(module, sizes, {}, ("qkv",), *rest)


def chosen(case: Case, specs: dict) -> Way:
    source, target, module = specs[None], specs[case.tiles, case.groups], load_spec(case.module, kind="module")
    params = bind(source, {"group": case.group})
    request = Request(
        source=source, target=target, module=module, source_params=params, target_params=bind(target, {}, params),
        module_params=bind(module, case.params), sizes=with_defaults(module, case.sizes), ranks=Ranks(case.tp),
        sharded=False, habits=Habits(), padded={}, group_given=False, grains={}, only=case.only,
    )  # fmt: skip
    ((best, *_),) = choices(request)
    ((early, *_),) = choices(request, first=True)
    assert early.bytes == best.bytes, case
    return best.bytes, tuple(size for fit in best.fits for size in (fit.matrix.n_padded, fit.matrix.k.padded))


@pytest.mark.parametrize("part", range(PARTS))
def test_no_way_stores_less(part: int, specs: dict) -> None:
    draw = random.Random(part)
    for _ in range(CASES // PARTS):
        case = drawn(draw)
        ways = list(WAYS[case.module](case))
        if not ways:
            with pytest.raises(LayoutError):
                chosen(case, specs)
            continue
        made = chosen(case, specs)
        assert made[0] == min(ways)[0] and made in ways, (case, made, min(ways))
