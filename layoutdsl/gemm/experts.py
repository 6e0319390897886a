"""A mixture of experts on quantized weights, built from a plan.

    plan = compile_plan("mxfp4", "marlin_mxfp4_a16", "moe_gated", {"e": 32, "i": 2880, "h": 2880}, ep=2, ep_rank=1)
    experts = MarlinMoE(plan, activation="swiglu_oai").load_checkpoint(tensors).cuda()
    y = experts(x, ids, router)
"""

from __future__ import annotations

from typing import get_args

import torch

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.gemm import checks, ops
from layoutdsl.gemm.activate import Activate, Function
from layoutdsl.gemm.align import Align
from layoutdsl.gemm.holder import ROLES, Collective, Holder, refuse_gradient, refuse_input
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
        _known(activation)
        Activate(activation, first.parts, first.facts.dtype, alpha, limit)
        Align(first.experts)
        super().__init__(plan, "", device)
        self.first, self.second, self.activation = first, second, activation
        self.inputs, self.outputs = first.inputs, second.facts.outputs
        self._alpha, self._limit = alpha, limit
        self._facts, self._dtype = (str(first.facts), str(second.facts)), getattr(torch, first.facts.dtype)
        self._stored = [
            [self._paths[info.name] if info else "" for info in map(matrix.tensor.get, ROLES)]
            for matrix in (first, second)
        ]
        self._order = next((self._paths[d.tensor] for d in first.duties if d.kind == "gather_input"), "")
        self._reduce = all_reduce if second.has("sum_over_ranks") or plan.ranks.ep > 1 else None
        self.register_buffer("expert_map", _map(plan, device), persistent=False)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
        refuse_gradient(x)
        refuse_input(x, self._dtype, self.inputs)
        first, second = ([self.get_buffer(path) if path else None for path in paths] for paths in self._stored)
        order = self.get_buffer(self._order) if self._order else None
        rows = x.reshape(-1, self.inputs)
        y = ops.moe(
            rows, ids, router, self.expert_map, order, first, second, *self._facts, self.first.experts,
            self.activation, self.first.parts, self._alpha, self._limit,
        ).reshape(*x.shape[:-1], self.outputs)  # fmt: skip
        return y if self._reduce is None else self._reduce(y)

    def extra_repr(self) -> str:
        """What is stored, and what the caller has left to do."""
        total, start, _ = self.plan.experts
        last = start + self.first.experts - 1
        lines = [f"experts {start} to {last} of {self.plan.places or total}, {self.activation}"]
        lines += [matrix.summary(self.plan) for matrix in (self.first, self.second)]
        if self._reduce is None and (self.second.has("sum_over_ranks") or self.plan.ranks.ep > 1):
            lines.append("add up the outputs of all ranks")
        return "\n".join(lines)


def _known(activation: str) -> None:
    names = get_args(Function)
    if activation not in names:
        raise LayoutError(
            f"there is no activation `{activation}`",
            code="LP363",
            name="no-such-activation",
            help=did_you_mean(activation, names) or f"activations: {', '.join(names)}",
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
