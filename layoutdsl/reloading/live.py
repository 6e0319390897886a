"""The tensors that kernels read, by the names that `load` gives them, and whether they are what a plan writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch

from layoutdsl.backends import buffers
from layoutdsl.errors import LayoutError, did_you_mean

Model = torch.nn.Module | Mapping[str, torch.Tensor]

Described = tuple[str, tuple[int, ...]]
"""A dtype, as torch names it, and a shape."""


def handles(model: Model) -> Mapping[str, torch.Tensor]:
    """A module's parameters and buffers by qualified name; a mapping as it is."""
    if isinstance(model, torch.nn.Module):
        return {**dict(model.named_parameters(remove_duplicate=False)),
                **dict(model.named_buffers(remove_duplicate=False))}  # fmt: skip
    if isinstance(model, Mapping):
        return model
    raise LayoutError(
        f"the model is of type {type(model).__name__}, a torch.nn.Module or a mapping of names to tensors is needed",
        code="LP380",
        name="live-tensor",
        help="dict(layoutdsl.load(...)) is such a mapping",
    )


def live(found: Mapping[str, torch.Tensor], wanted: Mapping[str, Described]) -> dict[str, torch.Tensor]:
    """The tensors of these names, without gradients, on their storage. LayoutError for one that is missing, or of
    another dtype or shape, or not contiguous, or on meta, and for two that share memory. Others are left alone."""
    tensors = {name: _checked(found, name, described) for name, described in wanted.items()}
    buffers.apart(tensors, "the model")
    return tensors


def unmoved(model: Model, addresses: Mapping[str, int]) -> None:
    """LayoutError where the model has another tensor by now than the one at this address."""
    for name, address in addresses.items():
        if buffers.address(_handle(model, name)) != address:
            raise _wrong(
                f"`{name}` of the model is no longer the tensor that this round writes to",
                "begin() a new round and give all tensors anew, or put it back and go on: a model may be moved between "
                "two rounds, not within one",
            )


def _handle(model: Model, name: str) -> object:
    """The tensor of that name; None where there is none any more."""
    if not isinstance(model, torch.nn.Module):
        return model.get(name)
    try:
        return reduce(getattr, name.split("."), model)
    except AttributeError:
        return None


def _checked(found: Mapping[str, torch.Tensor], name: str, described: Described) -> torch.Tensor:
    expected = f"{described[0]} {list(described[1])}"
    if name not in found:
        raise _wrong(
            f"the model has no tensor `{name}`, expected {expected}",
            did_you_mean(name, found) or "the names are those of layoutdsl.load with the same arguments",
        )
    tensor = buffers.dense(name, found[name], " of the model", f"expected {expected}")
    stated = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if stated != expected:
        raise _wrong(
            f"`{name}` of the model is {stated}, expected {expected}",
            "it was made with other arguments (target, tp, rank, dtype, params), or for another checkpoint",
        )
    if not tensor.is_contiguous():
        raise _wrong(f"`{name}` of the model is not contiguous", "kernels read contiguous tensors")
    return buffers.writable(tensor)


def _wrong(message: str, help: str) -> LayoutError:
    return LayoutError(message, code="LP380", name="live-tensor", help=help)
