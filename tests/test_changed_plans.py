"""Plans from a stranger on every backend: each change is refused, or the plan runs and stays inside its tensors."""

import functools
import math

import pytest
import torch
from fuzzing import KINDS, changed
from plans import inputs_of

from layoutdsl import LayoutError, Plan
from layoutdsl.plan import TensorInfo

TRIED = 1500
RUN = {"reference": 12, "torch": 12, "cpu": 12, "host": 1}
"""How many of those that prove are run: a backend may have to compile each."""

GUARD = 4096
"""Bytes before and behind each output that nothing may write."""


@functools.cache
def proven() -> tuple[Plan, ...]:
    """The changed plans that are not refused, each once."""
    found: dict[str, Plan] = {}
    for number in range(TRIED):
        try:
            plan = Plan.from_json(changed(KINDS["plan"], number))
        except LayoutError:
            continue
        found.setdefault(plan.digest, plan)
    return tuple(found.values())


def guarded(info: TensorInfo) -> tuple[torch.Tensor, torch.Tensor]:
    """An output, and the memory around it."""
    dtype = getattr(torch, info.dtypes[0])
    size = math.prod(info.full_shape) * dtype.itemsize
    memory = torch.full((size + 2 * GUARD,), 0xA5, dtype=torch.uint8)
    return memory[GUARD : GUARD + size].view(dtype).view(info.full_shape), memory


@pytest.mark.parametrize("backend", RUN)
def test_what_proves_stays_inside(backend: str) -> None:
    plans = proven()
    assert len(plans) >= RUN[backend]
    for plan in plans[: RUN[backend]]:
        outputs = {info.name: guarded(info) for info in plan.outputs}
        given = {name: tensor.contiguous() for name, tensor in inputs_of(plan).items()}
        try:
            plan.run(given, backend=backend, out={name: tensor for name, (tensor, _) in outputs.items()})
        except LayoutError as error:
            if error.diagnostics[0].code in ("LP151", "LP300"):
                pytest.skip(error.message)  # what the backend needs is not installed
            continue
        wanted = plan.run(given, backend="reference")
        for name, (made, memory) in outputs.items():
            assert (memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all(), name
            assert torch.equal(made.reshape(-1).view(torch.uint8), wanted[name].reshape(-1).view(torch.uint8)), name


def test_most_changes_are_refused() -> None:
    """So that the ones above are not all of them."""
    assert len(proven()) < 0.3 * TRIED
