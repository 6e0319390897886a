"""Plans that write only some places of their outputs: the rest stays, and parts add up to the whole."""

import random
from dataclasses import replace

import pytest
import torch
from plans import NAMES, inputs_of, plan_named

from layoutdsl import LayoutError, Plan, compile_plan
from layoutdsl.backends import BACKENDS, amend
from layoutdsl.plan import Move, Operand

EVERY = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "cuda"])  # it has tensors on a GPU


def halves(plan: Plan, seed: int) -> tuple[Plan, Plan]:
    """Two plans that together do what the plan does: each run is in one of them, its followers with it. Both have
    what a reduction reads."""
    dice = random.Random(seed)

    def split(moves: tuple[Move, ...]) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
        if any(run.join for move in moves for run in (*move.n, *move.k)):
            return (moves, ()) if dice.random() < 0.5 else ((), moves)
        first, second = [], []
        for move in moves:
            chosen = [dice.random() < 0.5 for _ in move.n]
            first.append(replace(move, n=tuple(n for n, mine in zip(move.n, chosen) if mine)))
            second.append(replace(move, n=tuple(n for n, mine in zip(move.n, chosen) if not mine)))
        return tuple(first), tuple(second)

    both = []
    for program in plan.programs:
        if program.reduction:
            both += [program, program]
            continue
        fills = split(program.fill.moves) if program.fill else ((), ())
        for moves, fill in zip(split(program.moves), fills):
            kept: Operand | None = replace(program.fill, moves=fill) if program.fill else None
            both.append(replace(program, moves=moves, fill=kept))
    return replace(plan, programs=tuple(both[::2])), replace(plan, programs=tuple(both[1::2]))


def outputs_of(plan: Plan) -> dict[str, torch.Tensor]:
    """Storage with anything in it."""
    made = {info.name: torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    for at, tensor in enumerate(made.values()):
        flat, random_bytes = tensor.reshape(-1).view(torch.uint8), torch.Generator().manual_seed(at)
        flat.copy_(torch.randint(256, flat.shape, generator=random_bytes, dtype=torch.uint8))
    return made


def raw(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


@EVERY
@pytest.mark.parametrize("name", NAMES)
def test_the_rest_stays_and_parts_add_up(name, backend):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    whole = raw(plan.run(tensors))
    for seed in range(2):
        out, wanted = outputs_of(plan), outputs_of(plan)
        for half in halves(plan, seed):
            amend("reference", half, tensors, wanted)
            amend(backend, half, tensors, out)
            assert raw(out) == raw(wanted)
        assert raw(out) == whole


@EVERY
def test_what_is_refused_is_refused_before_anything_is_written(backend):
    plan = plan_named("fp8_per_tensor")
    tensors = inputs_of(plan)
    last = list(plan.programs)[-1].sources[-1]
    tensors[last].reshape(-1)[-1] = float("nan")
    out = outputs_of(plan)
    before = raw(out)
    with pytest.raises(LayoutError, match="NaN"):
        amend(backend, plan, tensors, out)
    assert raw(out) == before


@EVERY
def test_out_may_lie_on_the_inputs(backend):
    params = {"group": 32, "zero_points": True, "zero_offset": 0, "target.g_idx": False}
    plan = compile_plan("awq", "gptq", "linear", {"n": 64, "k": 64}, params=params)
    tensors, (half, _) = inputs_of(plan), halves(plan, 1)
    names = ("linear.qweight", "linear.qzeros", "linear.scales")
    wanted = {name: tensors[name].clone().view(plan.output[name].full_shape) for name in names}
    amend("reference", half, tensors, wanted)
    out = {name: tensors[name].view(plan.output[name].full_shape) for name in names}
    amend(backend, half, tensors, out)
    assert raw(out) == raw(wanted)
