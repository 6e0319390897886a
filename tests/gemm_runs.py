"""GEMMs and mixtures of experts on the CPU for a case: what the package launches on a GPU, with a tile that is chosen.

    made = multiplied(case, tile, x, splits=2)       a dense kernel
    made.wanted.check(made.found)
    made.launch.counters                             what it did; made.launch.kernel: what it was

    mixture = mixed(case, tokens=33, top_k=2, activation="silu")
    mixture.check(tile)                              all of it, and w2 alone on what stood before it
    mixture.launches["w13"].counters                 of each: align, quantize, w13, activate, w2, combine
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gemm_cases import Case, Product, experts

from layoutdsl.backends.host.counters import Counters
from layoutdsl.backends.host.launch import FORWARD, Launcher, Schedule
from layoutdsl.gemm import table
from layoutdsl.gemm.checks import Stored
from layoutdsl.gemm.holder import ROLES
from layoutdsl.gemm.launch import gemm
from layoutdsl.gemm.matrix import Matrix, matrices
from layoutdsl.gemm.mixture import Activation, Experts
from layoutdsl.gemm.mixture import mixture as launched
from layoutdsl.gemm.table import FAMILIES, Choice, Tile


@contextmanager
def chosen(*tiles: Tile, splits: int = 1) -> Iterator[None]:
    """Whatever the shape, GEMMs get the first of these tiles that it is whole tiles of, and so many blocks for each."""
    choose = table.choose
    table.choose = lambda *_, n, k, **__: Choice(next(tile for tile in tiles if tile.fits(n, k)), splits)
    try:
        yield
    finally:
        table.choose = choose


def of_families(m: int) -> list[Tile]:
    """Tiles of which one fits each matrix."""
    return [Tile(m=m, n=n, k=k, depth=4, stages=4) for n, k in FAMILIES]


def stored(case: Case, matrix: Matrix) -> Stored:
    return Stored(*(info and case.made[info.name] for info in map(matrix.tensor.get, ROLES)))


@dataclass(frozen=True)
class Launch:
    """`wrote`: the tensors that it may write, by name."""

    kernel: Any
    wrote: dict[str, torch.Tensor]
    counters: Counters


class Watched(Launcher):
    """Keeps what each launch wrote and counted. Before it there are NaNs, and zeros where no float stands: who reads
    more tiles than were counted finds expert 0, and is not stopped by a bound."""

    def __init__(self, schedule: Schedule = FORWARD):
        super().__init__(schedule)
        self.launches: list[Launch] = []
        self._wrote: dict[str, torch.Tensor] = {}

    def writes(self, name: str, tensor: torch.Tensor) -> None:
        super().writes(name, tensor)
        self._wrote[name] = tensor.fill_(math.nan if tensor.is_floating_point() else 0)

    def launch(self, kernel: Any, grid: int, arguments: Sequence[int]) -> None:
        self.counters.pop(kernel.name, None)
        super().launch(kernel, grid, arguments)
        assert "arrivals" not in self._wrote or not self._wrote["arrivals"].any(), "counters that are not 0 afterwards"
        self.launches.append(Launch(kernel, self._wrote, self.counters[kernel.name]))
        self._wrote = {}


# --- dense ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    found: torch.Tensor
    wanted: Product
    launch: Launch


def multiplied(case: Case, tile: Tile, x: torch.Tensor, *, splits: int = 1, schedule: Schedule = FORWARD) -> Made:
    """A dense kernel's [m, outputs] for a case's only matrix."""
    (name,), launcher = matrices(case.plan), Watched(schedule)
    matrix = Matrix.of(case.plan, name)
    rows = torch.full((len(x), -(-x.shape[1] // 8) * 8), math.nan, dtype=x.dtype)[:, : x.shape[1]]
    rows.copy_(x)  # rubbish stands after the last column
    with chosen(tile, splits=splits):
        found = gemm(rows, stored(case, matrix), matrix.facts, launcher=launcher)
    return Made(found, case.product(x, name), launcher.launches[-1])


# --- experts ----------------------------------------------------------------------------------------------------------


@dataclass
class Mixture:
    """Tokens for a rank's experts. `map`: which of them an expert of the router is, or -1; None: the same one."""

    case: Case
    x: torch.Tensor
    ids: np.ndarray
    router: np.ndarray
    activation: str
    map: np.ndarray | None = None
    launches: dict[str, Launch] = field(default_factory=dict)

    def run(self, *tiles: Tile, splits: int = 1, schedule: Schedule = FORWARD) -> torch.Tensor:
        """[tokens, h], with the first of the tiles that fits a matrix; one of 16 rows where none is given."""
        first, second = (Matrix.of(self.case.plan, name) for name in matrices(self.case.plan))
        held, given = (stored(self.case, one) for one in (first, second)), map(_tensor, (self.ids, self.router))
        launcher, between = Watched(schedule), Activation(self.activation, first.parts)
        of = Experts(first.experts, *held, _tensor(self.map))
        with chosen(*(tiles or of_families(16)), splits=splits):
            made = launched(self.x, *given, of, first.facts, second.facts, between, launcher=launcher)
        names = ["align", "w13", "activate", "w2", "combine"]
        if self.case.activation != self.case.job.dtype:
            names[3:3] = names[1:1] = ["quantize"]
        self.launches = dict(zip(names, launcher.launches, strict=True))
        return made

    def wanted(self, hidden: torch.Tensor | None = None) -> Product:
        places = None if self.map is None else {e: int(at) for e, at in enumerate(self.map) if at >= 0}
        return experts(self.case, self.x, self.ids, self.router, self.activation, places=places, hidden=hidden)

    @property
    def hidden(self) -> torch.Tensor:
        """What stood between the products of the last run, for each pair: 16-bit rows of w2's own inputs."""
        extent = self.case.extent("w2", "k")
        return self.launches["activate"].wrote["hidden"][:, extent.front : extent.front + extent.length]

    def check(self, *tiles: Tile, splits: int = 1, schedule: Schedule = FORWARD) -> torch.Tensor:
        """A run's result. AssertionError where it is not within the bound from x on, what stands between the products
        is not, or the result is not within the bound from there on."""
        made = self.run(*tiles, splits=splits, schedule=schedule)
        self.wanted().check(made)
        self.wanted(self.hidden).check(made)
        return made


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


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
