"""What is given to a plan in pieces, each one source tensor or one expert of it; and pieces as the inputs of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from layoutdsl.arguments import as_int
from layoutdsl.backends import buffers
from layoutdsl.errors import LayoutError
from layoutdsl.ledger import Piece, is_apart
from layoutdsl.plan import Plan

Given = torch.Tensor | Sequence[torch.Tensor]
Pieces = dict[Piece, torch.Tensor]


def triples(given: Any) -> Iterator[tuple[str, int | None, Given]]:
    """(name, expert, tensor) of each; LayoutError for what is none."""
    for one in given if isinstance(given, Iterable) else (given,):
        if not isinstance(one, tuple | list) or len(one) != 3:
            raise LayoutError(
                f"something of type {type(one).__name__} is given, (name, expert, tensor) is needed",
                code="LP166",
                name="no-tensor",
                help="expert is None where the tensor has those of all experts, or there are none",
            )
        yield one[0], one[1], one[2]


def pieces(plan: Plan, name: str, given: Given, expert: int | None) -> Pieces:
    """What is given, checked: a whole tensor expert by expert, or one expert. Of another rank's expert nothing is left.

    LayoutError where it is not what the plan reads, or there is no such expert.
    """
    info, here = buffers.input_named(plan, name), plan.source_experts
    if expert is None:
        flats = buffers.experts(plan, info, given)
        experts = here if is_apart(info) else (None,)
        dtypes = [given.dtype if isinstance(given, torch.Tensor) else given[at or 0].dtype for at in experts]
        shaped = [flat.view(dtype).view(info.shape) for flat, dtype in zip(flats, dtypes)]
        return {Piece(name, at): tensor for at, tensor in zip(experts, shaped)}
    number = as_int(expert)
    if not is_apart(info) or number is None or number not in range(info.experts):
        has = f"{info.experts} experts" if is_apart(info) else "no experts"
        way = f"count as in the checkpoint, from 0 to {info.experts - 1}" if is_apart(info) else "leave it out"
        raise LayoutError(
            f"`{name}` has {has}, expert {expert!r} is given", code="LP351", name="no-such-expert", help=way
        )
    buffers.matches(info, given, info.shape, f", expert {number}")
    assert isinstance(given, torch.Tensor)
    return {Piece(name, number): given} if number in here else {}


def inputs(plan: Plan, there: Mapping[Piece, torch.Tensor]) -> dict[str, Any]:
    """The inputs of a plan, as `run` takes them; of experts that it does not read, nothing."""
    found: dict[str, Any] = {}
    for info in plan.inputs:
        if is_apart(info):
            found[info.name] = [None] * info.experts
            for expert in plan.source_experts:
                found[info.name][expert] = there[Piece(info.name, expert)]
        else:
            found[info.name] = there[Piece(info.name, None)]
    return found


def inputs_of_some(plan: Plan, experts: Sequence[int], there: Mapping[Piece, torch.Tensor]) -> dict[str, Any]:
    """The same for a plan of some experts (partial.of_some), which are these."""
    return {
        info.name: [there[Piece(info.name, expert)] for expert in experts]
        if is_apart(info)
        else there[Piece(info.name, None)]
        for info in plan.inputs
    }
