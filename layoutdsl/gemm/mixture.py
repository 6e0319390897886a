"""A mixture of experts as launches: pairs of a token and an expert aligned, gate-up, activation, down, summed by token.

    y = mixture(x, ids, router, Experts(8, w13, w2), w13_facts, w2_facts, Activation("silu", "split"))

Nothing is read back, each product is one launch, and experts that no token chose cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.gemm import checks, table
from layoutdsl.gemm.activate import Activate, Combine, Function, Parts
from layoutdsl.gemm.align import Align
from layoutdsl.gemm.checks import Stored
from layoutdsl.gemm.facts import Facts, up
from layoutdsl.gemm.launch import (
    CHUNK,
    Inputs,
    Launcher,
    address,
    instance,
    launcher_of,
    multiply,
    multiprocessors_of,
    reach,
)


@dataclass(frozen=True)
class Activation:
    """What stands between the two products: `function` of gate and up, or of up alone, whose outputs stand one after
    the other (split), by turns (alternating) or alone (plain); see gemm.activate. alpha, limit: of swiglu_oai.
    """

    function: Function
    parts: Parts
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True)
class Experts:
    """What a rank has of its experts, stacked. `map` int32 [ids]: the expert of this rank that an id stands for, or -1;
    None: ids count this rank's. `order` int32 [experts, inputs]: in which order each takes x; None: as it is."""

    count: int
    first: Stored
    second: Stored
    map: torch.Tensor | None = None
    order: torch.Tensor | None = None


def mixture(
    x: torch.Tensor,
    ids: torch.Tensor,
    router: torch.Tensor,
    experts: Experts,
    first: Facts,
    second: Facts,
    activation: Activation,
    *,
    launcher: Launcher | None = None,
    multiprocessors: int = 0,
) -> torch.Tensor:
    """This rank's part of sum_j router[t, j] * second(activation(first(x[t]))) of expert ids[t, j]: [tokens, outputs].

    x [tokens, inputs] 16-bit floats; ids [tokens, top_k] int32 or int64, and what is none of the experts' counts as
    another rank's; router [tokens, top_k] float32. A token without an expert here is zeros.
    """
    function = Activate(activation.function, activation.parts, first.dtype, activation.alpha, activation.limit)
    _all_fit(x, ids, router, experts, first, second, activation.parts)
    tokens, top_k = ids.shape
    y = torch.empty((tokens, second.outputs), dtype=x.dtype, device=x.device)
    if not y.numel() or not top_k:
        return y.zero_()
    launcher = launcher or launcher_of(x.device)
    processors = multiprocessors or multiprocessors_of(x.device)
    pairs = _Pairs.aligned(launcher, ids, experts, _choice(first, ids.numel(), experts.count, processors).tile.m)

    def product(a: Inputs, stored: Stored, facts: Facts, per_row: int, by: torch.Tensor | None) -> torch.Tensor:
        choice = _choice(facts, ids.numel(), experts.count, processors)
        out = x.new_empty((ids.numel(), up(facts.outputs, CHUNK)))
        router = {"router": by} if by is not None else {}
        multiply(
            launcher, instance(facts, choice.tile, "experts"), a, stored, facts, out,
            tiles=pairs.tiles, splits=choice.splits, beside=pairs.beside | router,
            numbers=(per_row,) if router else (0, per_row),
        )  # fmt: skip
        return out

    rows, per_row = (x, top_k) if experts.order is None else (pairs.ordered(x, experts.order), 1)
    inner = replace(first, align=CHUNK)  # the activation reads its second part from a multiple of 8 on
    made = product(Inputs.of(launcher, rows, first), experts.first, inner, per_row, None)
    hidden = x.new_empty((ids.numel(), second.k))
    _launched(
        launcher, {"made": made, "local": pairs.local}, {"hidden": hidden},
        function(
            of=made.data_ptr(), stride=made.shape[1], rows=len(made), to=hidden.data_ptr(), width=second.k,
            valid=second.valid, front=second.front, up=up(second.valid, CHUNK) if activation.parts == "split" else 0,
            local=pairs.local.data_ptr(),
        ),
    )  # fmt: skip
    whole = replace(second, front=0, valid=second.k)
    weighted = product(Inputs.of(launcher, hidden, whole), experts.second, whole, 1, router.contiguous())
    _launched(
        launcher, {"weighted": weighted, "local": pairs.local}, {"y": y},
        Combine(second.dtype)(
            of=weighted.data_ptr(), stride=weighted.shape[1], local=pairs.local.data_ptr(), top_k=top_k,
            to=y.data_ptr(), columns=second.outputs, tokens=tokens,
        ),
    )  # fmt: skip
    return y


# --- pairs of a token and an expert -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pairs:
    """Pairs sorted by expert, each expert's in whole tiles; `local` is each pair's expert, or -1."""

    tiles: int
    top_k: int
    tokens: torch.Tensor
    experts: torch.Tensor
    count: torch.Tensor
    local: torch.Tensor

    @staticmethod
    def aligned(launcher: Launcher, ids: torch.Tensor, experts: Experts, tile: int) -> _Pairs:
        ids, kernel = ids.contiguous(), Align(experts.count)
        rows = kernel.rows(ids.numel(), tile)
        tokens, of_tiles, count, local = (
            torch.empty(size, dtype=torch.int32, device=ids.device) for size in (rows, rows // tile, 1, ids.numel())
        )
        reads = {"ids": ids} | ({} if experts.map is None else {"expert map": experts.map})
        made = {"tokens": tokens, "experts": of_tiles, "count": count, "local": local}
        _launched(
            launcher, reads, made,
            kernel(
                ids=ids.data_ptr(), id_bytes=ids.element_size(), pairs=ids.numel(), map=address(experts.map),
                ids_end=experts.count if experts.map is None else len(experts.map), tile=tile,
                tokens=tokens.data_ptr(), tile_experts=of_tiles.data_ptr(), count=count.data_ptr(),
                local=local.data_ptr(),
            ),
        )  # fmt: skip
        return _Pairs(rows // tile, ids.shape[1], tokens, of_tiles, count, local)

    @property
    def beside(self) -> dict[str, torch.Tensor]:
        """What a product by experts reads of them, in the order of its arguments."""
        return {"tokens": self.tokens, "experts": self.experts, "count": self.count}

    def ordered(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """A row for each pair: its token's, in the order of its expert."""
        own = order.index_select(0, self.local.clamp(min=0))
        return x.repeat_interleave(self.top_k, 0).gather(1, own.long())


def _launched(
    launcher: Launcher,
    reads: Mapping[str, torch.Tensor],
    writes: Mapping[str, torch.Tensor | None],
    launch: tuple[Any, int, tuple[int, ...]],
) -> None:
    reach(launcher, reads, writes)
    kernel, grid, arguments = launch
    launcher.launch(kernel, grid, list(arguments))


def _choice(facts: Facts, pairs: int, experts: int, multiprocessors: int) -> table.Choice:
    """As if pairs were shared out evenly."""
    busy = min(experts, pairs)
    return table.choose(
        facts.code, facts.kind, rows=-(-pairs // busy), n=facts.n, k=facts.k, multiprocessors=multiprocessors,
        copies=busy,
    )  # fmt: skip


# --- limits -----------------------------------------------------------------------------------------------------------


def _all_fit(
    x: torch.Tensor,
    ids: torch.Tensor,
    router: torch.Tensor,
    experts: Experts,
    first: Facts,
    second: Facts,
    parts: Parts,
) -> None:
    checks.device_fits(x.device, first.kind)
    for facts in (first, second):
        checks.facts_fit(facts)
    checks.x_fits(x, first)
    for facts, stored in ((first, experts.first), (second, experts.second)):
        checks.stored_fits(stored, facts, x.device, experts.count)
    for wrong in (*_routing(x, ids, router, experts, first), *_matrices(first, second, parts)):
        raise LayoutError(
            wrong,
            code="LP356",
            name="wrong-routing",
            help="ids and router weights are [tokens, top_k] for x [tokens, inputs]",
        )


def _routing(
    x: torch.Tensor, ids: torch.Tensor, router: torch.Tensor, experts: Experts, first: Facts
) -> Iterator[str]:
    if ids.dtype not in (torch.int32, torch.int64):
        yield f"ids of experts are {ids.dtype}, expected int32 or int64"
    if router.dtype != torch.float32:
        yield f"router weights are {router.dtype}, expected float32"
    if ids.ndim != 2 or len(ids) != len(x) or router.shape != ids.shape:
        yield f"ids have the shape {list(ids.shape)}, router weights {list(router.shape)}, x has {len(x)} rows"
    for name, tensor in {"ids": ids, "router weights": router, "map": experts.map, "order": experts.order}.items():
        if tensor is not None and tensor.device != x.device:
            yield f"{name} stand on {tensor.device}, x on {x.device}"
    for name, tensor in {"map": experts.map, "order": experts.order}.items():
        if tensor is not None and (tensor.dtype != torch.int32 or not tensor.is_contiguous()):
            yield f"{name} is {tensor.dtype}, expected a contiguous int32 tensor"
    if experts.order is not None and experts.order.shape != (experts.count, first.valid):
        yield f"order has the shape {list(experts.order.shape)}, expected [{experts.count}, {first.valid}]"


def _matrices(first: Facts, second: Facts, parts: Parts) -> Iterator[str]:
    if (first.dtype, first.kind) != (second.dtype, second.kind):
        yield f"one matrix takes {first.kind}, the other {second.kind}"
    lengths = [one.length for one in first.columns]
    each = {"plain": 1, "split": 1, "alternating": 2}[parts] * second.valid
    if lengths != [each] * (2 if parts == "split" else 1):
        yield f"the first matrix has outputs of {lengths}, {parts}, the second takes {second.valid} inputs"
