"""Plans of every kind against the reference: new tensors, given ones, amended ones, another stream, and refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from rows import FAILED, PASSED, Row
from wheels import ROOT

from layoutdsl import LayoutError, Plan, backends, compile_plan

sys.path.insert(0, str(ROOT / "tests"))
from plans import NAMES, inputs_of, plan_named

Tensors = dict[str, torch.Tensor]
Outcome = dict[str, bytes] | str

HOST_EVERY = 6
"""The host compiles for a second or two what NVRTC does in a tenth: there it is one plan in so many."""


def check(backend: str) -> Iterator[Row]:
    for name in NAMES[:: HOST_EVERY if backend == "host" else 1]:
        yield row(name, *held(plan_named(name), inputs_of(plan_named(name)), backend))
    yield from refused(backend)


def row(name: str, wrong: list[str], count: int) -> Row:
    return Row("reference", name, FAILED if wrong else PASSED, "; ".join(wrong) or f"{count} tensors")


def held(plan: Plan, given: Tensors, backend: str) -> tuple[list[str], int]:
    """What differs from the reference, and how many tensors were compared."""
    wanted = outcome(plan.run, given, backend="reference")
    device = backends.device(backend)
    there = {name: tensor.to(device) for name, tensor in given.items()}
    wrong = [] if outcome(plan.run, there, backend=backend) == wanted else ["new tensors differ"]
    for what, work in (("tensors given as `out`", plan.run), ("amended tensors", partial(amended, plan))):
        out = {info.name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device=device)
               for info in plan.outputs}
        if outcome(work, there, backend=backend, out=out) != wanted:
            wrong.append(f"{what} differ")
        if isinstance(wanted, str) and any(tensor.any() for tensor in out.values()):
            wrong.append(f"{what} were written to before the refusal")
    if backend == "cuda":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if outcome(plan.run, there, backend=backend) != wanted:
                wrong.append("differs on another stream")
    return wrong, len(plan.outputs)


def amended(plan: Plan, given: Tensors, *, backend: str, out: Tensors) -> Tensors:
    backends.amend(backend, plan, given, out)
    return out


def outcome(work: Callable[..., Tensors], *given: Any, **options: Any) -> Outcome:
    """The bytes of every output, or the refusal."""
    try:
        made = work(*given, **options)
    except LayoutError as error:
        return error.message
    return {name: raw(tensor) for name, tensor in made.items()}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def refused(backend: str) -> Iterator[Row]:
    """Values that no target can hold, and an order that is none: the same words as the reference's."""
    fp8 = compile_plan("fp8", "marlin_fp8_a16", "moe_gated", {"e": 2, "i": 24, "h": 32}, params={"dtype": "bfloat16"})
    given = inputs_of(fp8)
    given["w13.up.weight"].view(torch.uint8)[1, 20, 9] = 0xFF
    yield row("a weight that is NaN", *held(fp8, given, backend))
    given = inputs_of(fp8)
    given["w13.gate.weight_scale"].view(-1)[3] = float("inf")
    yield row("a scale that is infinite", *held(fp8, given, backend))
    params = {"group": 32, "act_order": True}
    gptq = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 128}, params=params)
    given = inputs_of(gptq)
    given["linear.g_idx"][:] = 0
    yield row("an order without groups", *held(gptq, given, backend))
