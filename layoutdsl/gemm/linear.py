"""A linear layer on quantized weights, built from a plan.

    plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 4096, "k": 11008}, params={"split": "k"}, tp=2)
    layer = MarlinLinear(plan, all_reduce=all_reduce).load_checkpoint(tensors).cuda()
    y = layer(x)
"""

from __future__ import annotations

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.gemm import checks, ops
from layoutdsl.gemm.holder import ROLES, Collective, Holder, refuse_input
from layoutdsl.gemm.matrix import Matrix, matrices
from layoutdsl.plan import Plan


class MarlinLinear(Holder):
    """y = x @ weight.T + bias for one matrix of a plan, on one rank.

    The module does what the plan calls the caller's duties: it gathers x in act-order, reads it where it lies as if it
    were padded, and never computes into padded outputs. What is left are the sums over ranks and, with act-order on
    split inputs, x of all ranks: done where `all_reduce` and `all_gather` are given, else by the caller.

    plan         to a kernel spec that our GEMMs read, of one matrix without experts (compile_plan(..., only=))
    device       where the buffers are made; zeros until they are loaded
    all_reduce   this rank's output -> the sum over all tensor-parallel ranks; called where the plan wants it
    all_gather   this rank's input -> that of all tensor-parallel ranks, along its last dimension; likewise

    x is [..., inputs] of the plan's dtype; y is [..., outputs] of it, parts one after the other as they are stored.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        device: torch.device | str | None = None,
        all_reduce: Collective | None = None,
        all_gather: Collective | None = None,
        specs: tuple[str, ...] = (),
    ):
        """Raises LayoutError where no kernel is for the plan's matrix."""
        matrix = _only(plan, specs)
        checks.facts_fit(matrix.facts)
        super().__init__(plan, (matrix,), f"{matrix.name}.", device)
        self.matrix, self.outputs = matrix, matrix.facts.outputs
        self._facts, self._dtype = str(matrix.facts), getattr(torch, matrix.facts.dtype)
        self._valid = matrix.facts.valid
        self._tensors = [self._paths[info.name] if info else "" for info in map(matrix.tensor.get, ROLES)]
        self._gather = all_gather if self._order and matrix.facts.valid < matrix.inputs else None
        self._reduce = all_reduce if matrix.has("sum_over_ranks") else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._gather is not None:
            x = self._gather(x)
        refuse_input(x, self._dtype, self.inputs)
        tensors = [getattr(self, path) if path else None for path in self._tensors]
        order = getattr(self, self._order) if self._order else None
        checks.no_gradient(x)
        checks.one_device(x, *tensors, order)
        rows = x.reshape(-1, self.inputs)
        rows = rows[:, : self._valid] if order is None else rows.index_select(1, order)
        y = ops.gemm(rows, *tensors, self._facts).reshape(*x.shape[:-1], self.outputs)
        return y if self._reduce is None else self._reduce(y)

    def extra_repr(self) -> str:
        """What is stored, and what the caller has left to do."""
        left = [str(duty) for duty in self.matrix.duties if duty.kind == "sum_over_ranks" and self._reduce is None]
        return "\n".join((self.matrix.summary(self.plan), *left))


def _only(plan: Plan, specs: tuple[str, ...]) -> Matrix:
    names = matrices(plan, specs)
    if len(names) != 1 or plan.experts[0]:
        what = f"{plan.experts[0]} experts" if plan.experts[0] else f"the matrices {', '.join(names)}"
        raise LayoutError(
            f"a linear layer has one matrix, the plan has {what}",
            code="LP341",
            name="no-such-matrix",
            help="take MarlinMoE" if plan.experts[0] else f"compile one plan for each: only={names[:1]!r}",
        )
    return Matrix.of(plan, names[0], specs=specs)
