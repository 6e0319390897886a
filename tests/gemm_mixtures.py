"""A mixture of experts of one rank on the CPU: a case's weights, tokens, and the kernels that a GPU would run for them.

    case = draw("u4b8", "float16", "moe_gated", {"e": 8, "i": 72, "h": 128}, group=64)
    mixture = mixed(case, tokens=33, top_k=2, activation="silu")
    mixture.wanted().check(mixture.run(m=16))
    mixture.counters["w13"]          what each launch did: align, w13, activate, w2, combine
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from gemm_cases import Case, Product, experts
from host_kernels import aligned

from layoutdsl.backends.host.counters import Counters
from layoutdsl.backends.host.launch import FORWARD, Launcher, Schedule
from layoutdsl.gemm.activate import Activate, Combine
from layoutdsl.gemm.align import Align
from layoutdsl.gemm.instance import Instance

TENSORS = ("weight", "weight_scale", "zero_point", "global_scale", "bias")
PARTS = {"stacked": "split", "alternating": "alternating"}


def instance(case: Case, name: str, **facts) -> Instance:
    """The kernel for one matrix, of whatever size its padding allows."""
    (n, k), scale = case.padded(name), case.made[f"{name}.weight_scale"]
    groups = scale.shape[-2]
    several = {torch.float8_e8m0fnu: "e8m0", torch.float8_e4m3fn: "s0e5m3"}.get(scale.dtype, "group")
    one = groups == 1 and several == "group"
    tile = {"n": 64, "k": 128} if n % 64 == 0 and k % 128 == 0 else {"n": 128, "k": 64}
    return Instance(**{
        "code": case.job.source.code, "kind": {"float16": "f16", "bfloat16": "bf16"}[case.job.dtype],
        "scale": "channel" if one else several, "group": 0 if one else k // groups, "rows": "experts", **tile, **facts,
    })  # fmt: skip


def blank(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """NaNs, at a multiple of 256 bytes."""
    return torch.from_numpy(aligned(shape, "i2")).view(getattr(torch, dtype)).fill_(math.nan)


def address(of) -> int:
    return 0 if of is None else of.data_ptr() if isinstance(of, torch.Tensor) else of.ctypes.data


@dataclass
class Aligned:
    """Tokens sorted by expert, in tiles of so many rows."""

    pairs: int
    m: int
    tokens: np.ndarray
    tile_experts: np.ndarray
    count: np.ndarray
    local: np.ndarray


@dataclass
class Mixture:
    """Tokens for a rank's experts. `map`: which of them an expert of the router is, or -1; None: the same one."""

    case: Case
    x: torch.Tensor
    ids: np.ndarray
    router: np.ndarray
    activation: str
    map: np.ndarray | None = None
    schedule: Schedule = FORWARD
    counters: dict[str, Counters] = field(default_factory=dict)

    def wanted(self) -> Product:
        places = None if self.map is None else {e: int(at) for e, at in enumerate(self.map) if at >= 0}
        return experts(self.case, self.x, self.ids, self.router, self.activation, places=places)

    def run(self, schedule: Schedule = FORWARD, m: int = 16, splits: Sequence[int] = (1, 1), **facts) -> torch.Tensor:
        """[tokens, h]. Tiles have m rows; splits of w13 and w2; facts are those of Instance."""
        self.schedule, case = schedule, self.case
        rows = self.align(m)
        n, outputs = case.padded("w13")[0], case.columns("w13")
        columns = np.full(n, -1, dtype="i4")
        columns[outputs] = outputs
        both = self.product("w13", rows, self.x, columns, n, splits[0], per_row=self.ids.shape[1], **facts)
        inner = self.activate(rows, both)
        h = len(case.columns("w2"))
        columns = np.full(case.padded("w2")[0], -1, dtype="i4")
        columns[case.columns("w2")] = np.arange(h)
        each = self.product("w2", rows, inner, columns, -(-h // 8) * 8, splits[1], router=self.router, **facts)
        return self.combine(rows, each, h)

    # a launch each ----------------------------------------------------------------------------------------------------

    def align(self, m: int) -> Aligned:
        kernel, pairs = Align(len(self.case.job.held)), self.ids.size
        rows = kernel.rows(pairs, m)
        sizes = {"tokens": rows, "tile_experts": rows // m, "count": 1, "local": pairs}
        # Where the kernel writes nothing, expert 0 and token 0 stand.
        made = {name: np.zeros(size, dtype="i4") for name, size in sizes.items()}
        self.launch(
            "align", kernel(
                ids=address(self.ids), id_bytes=self.ids.itemsize, pairs=pairs, map=address(self.map), tile=m,
                ids_end=kernel.experts if self.map is None else len(self.map),
                **{name: address(array) for name, array in made.items()},
            ), reads=[self.ids, self.map], writes=made.values(),
        )  # fmt: skip
        return Aligned(pairs, m, **made)

    def product(self, name, rows, a, columns, width, splits, *, per_row=1, router=None, **facts) -> torch.Tensor:
        of, (n, k) = instance(self.case, name, m=rows.m, **facts), self.case.padded(name)
        weights = [self.case.made.get(f"{name}.{one}") for one in TENSORS]
        c, tiles = blank((rows.pairs, width), self.case.job.dtype), (len(rows.tile_experts), n // of.n)
        partials = np.full((*tiles, splits, of.m, of.n), np.nan, dtype="f4") if splits > 1 else None
        arrivals = np.zeros(tiles, dtype="i4") if splits > 1 else None
        sorted_by = [rows.tokens, rows.tile_experts, rows.count, router]
        numbers = [rows.pairs, n, k, a.shape[1], 0, a.shape[1], width, splits]
        arguments = [*map(address, (a, None, *weights, columns, c, partials, arrivals)), *numbers]
        arguments += [*map(address, sorted_by), per_row]
        self.launch(
            name, (of, tiles[0] * tiles[1] * splits, arguments),
            reads=[a, *weights, columns, *sorted_by], writes=[c, partials, arrivals],
        )  # fmt: skip
        assert arrivals is None or not arrivals.any()
        return c

    def activate(self, rows: Aligned, both: torch.Tensor) -> torch.Tensor:
        case, extent = self.case, self.case.extent("w2", "k")
        parts = "plain" if case.job.module == "moe_plain" else PARTS[case.job.stored[1]]
        made = blank((rows.pairs, case.padded("w2")[1]), case.job.dtype)
        self.launch(
            "activate", Activate(self.activation, parts, case.job.dtype)(
                of=address(both), stride=both.shape[1], rows=rows.pairs, to=address(made), width=made.shape[1],
                valid=extent.length, front=extent.front, local=address(rows.local),
                up=both.shape[1] // 2 if parts == "split" else 0,
            ), reads=[both, rows.local], writes=[made],
        )  # fmt: skip
        return made

    def combine(self, rows: Aligned, each: torch.Tensor, h: int) -> torch.Tensor:
        made = blank((len(self.ids), h), self.case.job.dtype)
        self.launch(
            "combine", Combine(self.case.job.dtype)(
                of=address(each), stride=each.shape[1], local=address(rows.local), top_k=self.ids.shape[1],
                to=address(made), columns=h, tokens=len(self.ids),
            ), reads=[each, rows.local], writes=[made],
        )  # fmt: skip
        return made

    def launch(self, name: str, launch, reads, writes) -> None:
        launcher = Launcher(self.schedule)
        for at, one in enumerate(reads):
            if one is not None:
                launcher.reads(f"{name} reads {at}", one)
        for at, one in enumerate(writes):
            if one is not None:
                launcher.writes(f"{name} writes {at}", one)
        launcher.launch(*launch)
        (self.counters[name],) = launcher.counters.values()


def mixed(
    case: Case, tokens: int, top_k: int, activation: str, *, map: np.ndarray | None = None,
    choice: Sequence[int] | None = None, seed: int = 0,
) -> Mixture:  # fmt: skip
    """Random tokens, each with top_k different experts out of `choice`: all, where nothing is said."""
    dice = np.random.default_rng(seed)
    choice = np.arange(len(case.job.held) if map is None else len(map)) if choice is None else np.asarray(choice)
    ids = np.stack([dice.permutation(choice)[:top_k] for _ in range(tokens)]).astype("i4" if seed % 2 else "i8")
    router = dice.uniform(0, 1, ids.shape).astype("f4")
    return Mixture(case, case.x(tokens, "w13", seed) / 4, ids, router, activation, map)
