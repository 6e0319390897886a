"""What padding costs for the shapes of public models, beside what the rules of data/peer.yaml store. Writes a table to
results/padding.md.

Each family of tests/fixtures/models.yaml, in nine formats, on 1 to 16 tensor-parallel ranks: its experts, its MLP and
its attention. Padding is what ranks store beyond the weights and scales that they hold, over those; a scale that finer
groups repeat is none. Bytes are compared per set of matrices that share an inner axis, wherever the peer accepts all of
them and its extents fit a tile of the kernel.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from pathlib import Path
from typing import Any

from benchmarks import Figure, Scale
from layoutdsl import peer, source
from layoutdsl.codes import code_named
from layoutdsl.coverage.families import Family
from layoutdsl.coverage.needs import Need
from layoutdsl.coverage.packed import left_over
from layoutdsl.library import load_spec
from layoutdsl.model import Kernel
from layoutdsl.pairs import Request, cut_matrices
from layoutdsl.planner import Choice, choices
from layoutdsl.recodes import Habits
from layoutdsl.resolve import CHOICES, Matrix, Ranks, Side, bind, stored_bytes, tensors, tile_of, widened, with_defaults

ROOT = Path(__file__).resolve().parent
MODELS = ROOT.parent / "tests" / "fixtures" / "models.yaml"
RESULTS = ROOT / "results" / "padding.md"
RANKS = (1, 2, 4, 8, 16)
FORMATS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "int4 g32": ("gptq", "marlin_int4_a16", {"group": 32}),
    "int4 g64": ("gptq", "marlin_int4_a16", {"group": 64}),
    "int4 g128": ("gptq", "marlin_int4_a16", {"group": 128}),
    "int4 channel": ("gptq", "marlin_int4_a16", {"group": -1}),
    "FP8 channel": ("fp8", "marlin_fp8_a16", {}),
    "FP8 block": ("fp8_block", "marlin_fp8_a16", {}),
    "MXFP8": ("mxfp8", "marlin_mxfp8_a16", {"dtype": "bfloat16"}),
    "NVFP4": ("nvfp4", "marlin_nvfp4_a16", {}),
    "MXFP4": ("mxfp4", "marlin_mxfp4_a16", {"dtype": "bfloat16"}),
}
KINDS = {"moe": "experts", "mlp": "MLP", "attention": "attention"}
WORST = 10
EVERY: dict[Scale, int] = {"full": 1, "quick": 50}


@dataclass(frozen=True)
class Case:
    """One module of some families in one format on so many ranks; `families` are those that have it."""

    fmt: str
    module: str
    sizes: tuple[tuple[str, int], ...]
    tp: int
    families: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.shape} ({self.who}), TP {self.tp}"

    @property
    def kind(self) -> str:
        return KINDS[self.module.partition("_")[0]]

    @property
    def shape(self) -> str:
        return " ".join((self.module, *(f"{axis}={size}" for axis, size in self.sizes if axis != "e")))

    @property
    def who(self) -> str:
        more = len(self.families) - 1
        return self.families[0] + (f" and {more} more" if more else "")


@dataclass(frozen=True)
class Result:
    """pairs: bytes of ours and of the peer's on one rank, for each set of matrices that the peer accepts."""

    case: Case
    choice: str
    padding: float
    pairs: tuple[tuple[int, int], ...]

    @property
    def above(self) -> bool:
        return any(ours > theirs for ours, theirs in self.pairs)


# --- what is asked ----------------------------------------------------------------------------------------------------


def cases() -> list[Case]:
    """Each shape once. What no file of a format can hold is left out."""
    found: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = {}
    for name, data in source.read_file(MODELS).data.items():
        for module, sizes in _modules(Family(**data)):
            found.setdefault((module, tuple(sizes.items())), []).append(name)
    return [
        Case(fmt, module, sizes, tp, tuple(names))
        for fmt, (checkpoint, kernel, params) in FORMATS.items()
        for (module, sizes), names in found.items()
        if left_over(Need(checkpoint, kernel, module, sizes, tuple(params.items())), ()) is None
        for tp in RANKS
    ]


def _modules(family: Family) -> Iterator[tuple[str, dict[str, int]]]:
    gate = "gated" if family.has_gate else "plain"
    if family.moe is not None:
        yield f"moe_{gate}", {"e": 1, "i": family.moe.intermediate, "h": family.hidden}
    if family.intermediate is not None:
        yield f"mlp_{gate}", {"i": family.intermediate, "h": family.hidden}
    if family.heads is not None:
        head = family.head_dim or family.hidden // family.heads
        yield "attention", {"q": family.heads, "kv": family.kv_heads or family.heads, "d": head, "h": family.hidden}


def request(case: Case) -> Request:
    checkpoint, kernel, params = FORMATS[case.fmt]
    src, dst, module = load_spec(checkpoint), load_spec(kernel), load_spec(case.module, kind="module")
    bound = bind(src, params)  # pyright: ignore[reportArgumentType]
    return Request(
        source=src, target=dst, module=module, source_params=bound, target_params=bind(dst, {}, bound),  # pyright: ignore[reportArgumentType]
        module_params=bind(module, {}), sizes=with_defaults(module, dict(case.sizes)), ranks=Ranks(case.tp),  # pyright: ignore[reportArgumentType]
        sharded=False, habits=Habits(), padded={}, group_given=False, grains={},
    )  # fmt: skip


# --- ours -------------------------------------------------------------------------------------------------------------


def result(case: Case) -> Result:
    asked = request(case)
    sets = [found[0] for found in choices(asked, first=True)]
    stored, held = sum(choice.bytes for choice in sets) * case.tp, sum(_held(asked, choice) for choice in sets)
    pairs = [(choice.bytes, theirs) for choice in sets if (theirs := _peer(case, asked, choice)) is not None]
    name = max((choice.name for choice in sets), key=CHOICES.index)
    return Result(case, name, stored / held - 1, tuple(pairs))


def _held(asked: Request, choice: Choice) -> float:
    """Bytes of the weights, and of the scales in the kernel's groups, that all ranks hold."""
    total = 0.0
    for fit in choice.fits:
        m = fit.matrix
        roles = {t.role: t for t in tensors(Side(asked.target, asked.target_params, "padded"), m, fit.group)}  # pyright: ignore[reportArgumentType]
        code, scale = (code_named(roles[role].code.name).bits / 8 for role in ("codes", "scale"))
        extra = sum(t.codes * t.code.bits / 8 for role, t in roles.items() if role == "global_scale")
        for rank in range(asked.ranks.tp):
            start, length = m.k.shared.share(rank) if m.k.shared else (0, m.k.length)
            n = sum(s.shared.share(rank)[1] if s.shared else s.length for s in m.n)
            rows = (start % fit.group + length + fit.group - 1) // fit.group if fit.group and length else bool(length)
            total += n * length * code + n * rows * scale + extra
    return total


# --- the peer ---------------------------------------------------------------------------------------------------------


def _peer(case: Case, asked: Request, choice: Choice) -> int | None:
    """Bytes of the same matrices by its rules; None where it refuses, or what it makes fits no tile."""
    kernel, tp, sizes = asked.target, case.tp, dict(case.sizes)
    assert isinstance(kernel, Kernel)
    group = int(asked.source_params.get("group", -1))
    if case.module == "attention":
        q, kv = sizes["q"], sizes["kv"]
        if q % tp or (kv % tp and tp % kv):
            return None
    elif sizes["i"] % tp:
        return None
    total = 0
    for m in cut_matrices(asked):
        if m.name not in {fit.matrix.name for fit in choice.fits}:
            continue
        extents = _moe(m, group, case) if case.module.startswith("moe") else _dense(m, group)
        if extents is None or tile_of(kernel, *extents) is None:
            return None
        n, k = extents
        wide = widened(m, [n // len(m.n)] * len(m.n) if m.pad == "part" else [s.length for s in m.n], n, k)
        total += stored_bytes(kernel, asked.target_params, wide, group if 0 < group < m.k.size else 0)
    return total


@cache
def _policy(table: str, **row: int) -> dict[str, int]:
    return peer.policy(table, row)


def _dense(m: Matrix, group: int) -> tuple[int, int] | None:
    row = {"n_local": m.n_length, "k_local": m.k.length, "k_full": m.k.size, "group": group}
    if not _policy("dense_supports", **row)["supports_layer_with_padding"]:
        return None
    made = _policy("padded_nk", n=m.n_length, k=m.k.length, group=group if group < m.k.size else -1)
    return made["padded_n"], made["padded_k"]


def _moe(m: Matrix, group: int, case: Case) -> tuple[int, int] | None:
    """A group that its table does not list, NVFP4's, is held to the same rule."""
    sizes = dict(case.sizes)
    inner, hidden = sizes["i"] // case.tp, sizes["h"]
    if case.fmt == "MXFP4":
        made = _policy("mxfp4_moe_round_up", hidden=hidden, intermediate=inner)
        wide, high = made["padded_intermediate"], made["padded_hidden"]
        accepts = inner % group == 0
    else:
        listed = group in (-1, 32, 64, 128)
        row = {"hidden": hidden, "intermediate": inner, "group": group if listed else -1}
        accepts = bool(_policy("moe_supports", **row)["with_padding"]) and (listed or inner % group == 0)
        wide, high = _policy("moe_padded_intermediate", intermediate=inner, group=group)["padded"], hidden
    if not accepts:
        return None
    return (high, wide) if m.k.axis == "i" else (wide * len(m.n), high)


# --- figures ----------------------------------------------------------------------------------------------------------


def measure(scale: Scale) -> Iterator[Figure]:
    results = [result(case) for case in cases()[:: EVERY[scale]]]
    if scale == "full":
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(table(results), encoding="utf-8")
    above = [one for one in results if one.above]
    what = "; ".join(str(one.case) for one in above[:3]) or "of all that the peer accepts"
    yield Figure("padding_above_peer", len(above), "shapes", 0, what)
    for (fmt, kind), found in _by_kind(results):
        median, most, worst = found[len(found) // 2], found[_p95(found)], found[-1]
        yield Figure(f"padding_median, {fmt} {kind}", median.padding * 100, "%", None, f"{len(found)} shapes")
        yield Figure(f"padding_p95, {fmt} {kind}", most.padding * 100, "%", None)
        yield Figure(f"padding_most, {fmt} {kind}", worst.padding * 100, "%", None, str(worst.case))


def _by_kind(results: Sequence[Result]) -> Iterator[tuple[tuple[str, str], list[Result]]]:
    """Per format and kind of module, the least padding first."""
    for fmt, kind in product(FORMATS, KINDS.values()):
        found = [one for one in results if (one.case.fmt, one.case.kind) == (fmt, kind)]
        yield (fmt, kind), sorted(found, key=lambda one: (one.padding, str(one.case)))


def _p95(found: Sequence[object]) -> int:
    return min(len(found) * 95 // 100, len(found) - 1)


def table(results: Sequence[Result]) -> str:
    """The text of results/padding.md."""
    lines = ["<!-- written by `python -m benchmarks padding` -->", "# Padding", "", *_intro(results), ""]
    lines += _head("format", "of", "shapes", *SHARES, "over 10 %", "peer accepts", "we store less", "we store more")
    for (fmt, kind), found in _by_kind(results):
        pairs = [pair for one in found for pair in one.pairs]
        less, more = (sum(sign * (a - b) > 0 for a, b in pairs) for sign in (-1, 1))
        much = sum(one.padding > 0.1 for one in found)
        lines.append(_row(fmt, kind, len(found), *_shares(found), much, len(pairs), less, more))
    lines += ["", *_head("TP", "shapes", *SHARES)]
    for tp in RANKS:
        found = sorted((one for one in results if one.case.tp == tp), key=lambda one: one.padding)
        lines.append(_row(tp, len(found), *_shares(found)))
    for fmt, kinds in groupby(_by_kind(results), key=lambda one: one[0][0]):
        lines += ["", f"## {fmt}: the {WORST} worst of each", ""]
        lines += _head("shape", "families", "TP", "padding", "how it is served")
        for _, found in kinds:
            lines += [
                _row(one.case.shape, one.case.who, one.case.tp, f"{one.padding:.0%}", one.choice)
                for one in found[: -WORST - 1 : -1]
            ]
    return "\n".join(lines) + "\n"


SHARES = ("median", "95 %", "most")


def _shares(found: Sequence[Result]) -> list[str]:
    return [f"{found[at].padding:.1%}" for at in (len(found) // 2, _p95(found), -1)]


def _intro(results: Sequence[Result]) -> list[str]:
    pairs = [pair for one in results for pair in one.pairs]
    less, more = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    text = (
        f"{len(results):,} shapes: the experts, MLPs and attention of the families in tests/fixtures/models.yaml, each "
        "once, in nine formats, on 1 to 16 tensor-parallel ranks. Padding is what all ranks store beyond the weights "
        "and scales that they hold, over those. What no file of a format can hold is left out. The peer is the engine "
        f"whose rules stand in layoutdsl/data/peer.yaml: it accepts {len(pairs):,} sets of matrices with a common "
        f"inner axis; we store {less:,} of them in fewer bytes and {more:,} in more."
    )
    return textwrap.wrap(text, 120)


def _head(*columns: str) -> list[str]:
    return [_row(*columns), "|" + "---|" * len(columns)]


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
