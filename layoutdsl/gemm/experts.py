"""A mixture of experts on quantized weights, built from a plan.

    plan = compile_plan("mxfp4", "marlin_mxfp4_a16", "moe_gated", {"e": 32, "i": 2880, "h": 2880}, ep=2, ep_rank=1)
    experts = MarlinMoE(plan, activation="swiglu_oai").load_checkpoint(tensors).cuda()
    y = experts(x, ids, router)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.gemm import checks, ops
from layoutdsl.gemm.activate import Activate, Function
from layoutdsl.gemm.align import Align
from layoutdsl.gemm.holder import ROLES, Collective, Holder, refuse_input
from layoutdsl.gemm.matrix import Matrix, matrices
from layoutdsl.plan import Plan


class MarlinMoE(Holder):
    """y[t] = sum_j router[t, j] * w2(activation(w13(x[t]))) over the experts ids[t, j] that this rank holds.

    The module does what the plan calls the caller's duties: x is read as if it were padded, the activation writes zeros
    up to w2's inputs, padded outputs are never written. What is left is the sum over ranks, tensor- and
    expert-parallel ones: done where `all_reduce` is given, else by the caller.

    plan         to a kernel spec that our GEMMs read, of a module with experts and two matrices (moe_gated, moe_plain)
    activation   silu, gelu (by erf), gelu_tanh, relu2, swiglu_oai (gpt-oss': alpha and limit are its own)
    device       where the buffers are made; zeros until they are loaded
    all_reduce   this rank's output -> the sum over all ranks; called where the plan has others

    x is [..., h] of the plan's dtype, y likewise; ids [tokens, top_k] int32 or int64 counts experts as the plan does
    (places, where some experts have several), and router [tokens, top_k] is float32. Ids of other ranks' experts, and
    negative ones, add nothing.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        activation: Function,
        alpha: float = 1.702,
        limit: float = 7.0,
        device: torch.device | str | None = None,
        all_reduce: Collective | None = None,
        specs: tuple[str, ...] = (),
    ):
        """Raises LayoutError where no kernel is for the plan's matrices, or the activation is not for its parts."""
        first, second = _both(plan, specs)
        Activate(activation, first.parts, first.facts.dtype, alpha, limit)
        Align(first.experts)
        super().__init__(plan, (first, second), "", device)
        self.first, self.second, self.activation = first, second, activation
        self.outputs = second.facts.outputs
        self._alpha, self._limit = float(alpha), float(limit)
        self._facts, self._dtype = (str(first.facts), str(second.facts)), getattr(torch, first.facts.dtype)
        self._stored = [
            [self._paths[info.name] if info else "" for info in map(matrix.tensor.get, ROLES)]
            for matrix in (first, second)
        ]
        self._reduce = all_reduce if second.has("sum_over_ranks") or plan.ranks.ep > 1 else None
        self.register_buffer("expert_map", _map(plan, device), persistent=False)
        self.register_load_state_dict_post_hook(_has_its_map)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
        refuse_input(x, self._dtype, self.inputs)
        _refuse_routing(ids, router)
        first, second = ([self.get_buffer(path) if path else None for path in paths] for paths in self._stored)
        order = self.get_buffer(self._order) if self._order else None
        checks.no_gradient(x, router)
        checks.one_device(x, *first, *second, order, self.expert_map)
        rows = x.reshape(-1, self.inputs)
        y = ops.moe(
            rows, ids, router, self.expert_map, order, first, second, *self._facts, self.first.experts,
            self.activation, self.first.parts, self._alpha, self._limit,
        ).reshape(*x.shape[:-1], self.outputs)  # fmt: skip
        return y if self._reduce is None else self._reduce(y)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        before = self.expert_map
        super()._apply(fn, recurse)
        if self.expert_map is not before:  # it may be one without values: to_empty
            self.expert_map = _map(self.plan, self.expert_map.device)
        return self

    def extra_repr(self) -> str:
        """What is stored, and what the caller has left to do."""
        total, start, _ = self.plan.experts
        last = start + self.first.experts - 1
        lines = [f"experts {start} to {last} of {self.plan.places or total}, {self.activation}"]
        lines += [matrix.summary(self.plan) for matrix in (self.first, self.second)]
        if self._reduce is None and (self.second.has("sum_over_ranks") or self.plan.ranks.ep > 1):
            lines.append("add up the outputs of all ranks")
        return "\n".join(lines)


def _has_its_map(module: MarlinMoE, _: Any) -> None:
    """No state has the map: where loaded tensors took the place of buffers without data, it follows them."""
    if module.expert_map is not None and module.expert_map.device != module._device:
        module.expert_map = _map(module.plan, module._device)


def _refuse_routing(ids: Any, router: Any) -> None:
    for name, given in {"ids": ids, "router weights": router}.items():
        if not checks.is_dense(given):
            raise LayoutError(
                f"{name} are a {type(given).__name__} that is no dense tensor",
                code="LP356",
                name="wrong-routing",
                help="ids and router weights are tensors [tokens, top_k] for x [tokens, inputs]",
            )


def _both(plan: Plan, specs: tuple[str, ...]) -> tuple[Matrix, Matrix]:
    names = matrices(plan, specs)
    if len(names) != 2 or not plan.experts[0]:
        what = f"the matrices {', '.join(names)}" if plan.experts[0] else "no experts"
        raise LayoutError(
            f"a mixture of experts has two matrices for each, the plan has {what}",
            code="LP341",
            name="no-such-matrix",
            help="compile both in one plan" if plan.experts[0] else "take MarlinLinear",
        )
    first, second = (Matrix.of(plan, name, specs=specs) for name in names)
    for matrix in (first, second):
        checks.facts_fit(matrix.facts)
    return first, second


def _map(plan: Plan, device: torch.device | str | None) -> torch.Tensor | None:
    """Which of this rank's experts each expert, or place of one, is, or -1; None where all are this rank's."""
    total, start, count = plan.experts
    ids = plan.places or total
    if count == ids:
        return None
    local = [at - start if 0 <= at - start < count else -1 for at in range(ids)]
    return torch.tensor(local, dtype=torch.int32, device=device)
