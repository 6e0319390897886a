"""Tensors in and out of a plan: names, dtypes and shapes checked, bytes seen as they lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.plan import Plan, TensorInfo

Given = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]


def inputs(plan: Plan, tensors: Given) -> dict[str, list[torch.Tensor]]:
    """Flat uint8 views of the inputs, one per expert that the plan reads (one in all where experts share it)."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, given in checked(plan, tensors).items():
        info = plan.input[name]
        if isinstance(given, torch.Tensor) and info.experts and not info.shared:
            given = list(given.reshape(info.experts, -1))
        one = isinstance(given, torch.Tensor)
        found[name] = [flat(given)] if one else [flat(given[expert]) for expert in plan.source_experts]
    return found


def checked(plan: Plan, tensors: Given) -> dict[str, torch.Tensor | Sequence[torch.Tensor]]:
    """The inputs as they are given: names, dtypes and shapes are those that the plan reads."""
    if not isinstance(tensors, Mapping):
        raise LayoutError(
            f"tensors are given as a {type(tensors).__name__}, a mapping from name to tensor is needed",
            code="LP166",
            name="no-tensor",
            help=f"it reads: {', '.join(plan.input)}",
        )
    for name in tensors:
        if name not in plan.input:
            raise LayoutError(
                f"the plan reads no tensor `{name}`",
                code="LP160",
                name="unknown-tensor",
                help=did_you_mean(name, plan.input) or f"it reads: {', '.join(plan.input)}",
            )
    device_of(tensors)
    for info in plan.inputs:
        if info.name not in tensors:
            raise LayoutError(
                f"tensor `{info.name}` is missing",
                code="LP161",
                name="missing-tensor",
                help=f"expected {' or '.join(info.dtypes)} of shape {list(info.full_shape)}",
            )
        _fits(plan, info, tensors[info.name])
    return {info.name: tensors[info.name] for info in plan.inputs}


def _fits(plan: Plan, info: TensorInfo, given: torch.Tensor | Sequence[torch.Tensor]) -> None:
    stacked = isinstance(given, torch.Tensor) or not isinstance(given, Sequence)
    if not info.experts or info.shared or stacked:
        _matches(info, given, info.full_shape, "")
        return
    if len(given) != info.experts:
        raise LayoutError(
            f"`{info.name}` has {len(given)} tensors, one for each of {info.experts} experts is needed",
            code="LP162",
            name="wrong-shape",
            help="give all experts of the checkpoint; the plan reads those of its rank",
        )
    for expert in plan.source_experts:
        _matches(info, given[expert], info.shape, f", expert {expert}")


def _matches(info: TensorInfo, given: object, shape: tuple[int, ...], place: str) -> None:
    if not isinstance(given, torch.Tensor):
        raise LayoutError(
            f"`{info.name}`{place} is a {type(given).__name__}, a torch tensor is needed",
            code="LP166",
            name="no-tensor",
            help="torch.from_numpy makes a tensor of an array",
        )
    if given.layout != torch.strided or given.is_meta:
        raise LayoutError(
            f"`{info.name}`{place} is {'a meta tensor' if given.is_meta else given.layout}, "
            "a dense one in memory is needed",
            code="LP166",
            name="no-tensor",
            help="load it, or call to_dense() on it",
        )
    dtype = str(given.dtype).removeprefix("torch.")
    if dtype not in info.dtypes:
        raise LayoutError(
            f"`{info.name}`{place} is {dtype}, expected {' or '.join(info.dtypes)}",
            code="LP163",
            name="wrong-dtype",
            help="state the dtype that the file has with a parameter such as dtype or scale_dtype",
        )
    if [d for d in given.shape if d != 1] != [d for d in shape if d != 1]:
        raise LayoutError(
            f"`{info.name}`{place} has the shape {list(given.shape)}, expected {list(shape)}",
            code="LP162",
            name="wrong-shape",
            help="check the sizes and parameters of the plan against the file",
        )


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as a flat uint8 tensor; a view where it is contiguous."""
    tensor = tensor.contiguous().reshape(-1)
    return tensor.view(torch.uint8) if tensor.dtype != torch.uint8 else tensor


def allocate(plan: Plan, given: Given, out: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """Output tensors by name: those of `out`, checked, or new ones on the inputs' device."""
    device = device_of(given)
    for name in out or {}:
        if name not in plan.output:
            raise LayoutError(
                f"the plan writes no tensor `{name}`",
                code="LP160",
                name="unknown-tensor",
                help=did_you_mean(name, plan.output) or f"it writes: {', '.join(plan.output)}",
            )
    found: dict[str, torch.Tensor] = {}
    for info in plan.outputs:
        if out is None:
            found[info.name] = torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device=device)
            continue
        if info.name not in out:
            raise LayoutError(
                f"`out` lacks the tensor `{info.name}`",
                code="LP161",
                name="missing-tensor",
                help=f"expected {info.dtypes[0]} of shape {list(info.full_shape)}",
            )
        given_out = out[info.name]
        _matches(info, given_out, info.full_shape, " of `out`")
        if not given_out.is_contiguous():
            raise LayoutError(
                f"`{info.name}` of `out` is not contiguous",
                code="LP164",
                name="not-contiguous",
                help="kernels read contiguous tensors; allocate it with torch.empty",
            )
        found[info.name] = given_out
    return found


def device_of(given: Given) -> torch.device:
    devices = {
        tensor.device
        for value in given.values()
        for tensor in (value if isinstance(value, list | tuple) else [value])
        if isinstance(tensor, torch.Tensor)
    }
    if len(devices) > 1:
        raise LayoutError(
            f"the tensors stand on different devices: {', '.join(sorted(map(str, devices)))}",
            code="LP165",
            name="mixed-devices",
            help="move them to one device first",
        )
    return devices.pop() if devices else torch.device("cpu")


def experts_of(info: TensorInfo, tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Flat uint8 views of an output, one per expert (one in all where experts share it or there are none)."""
    if not info.experts or info.shared:
        return [flat(tensor)]
    return [flat(row) for row in tensor.reshape(count, -1)]


def element_bits(info: TensorInfo) -> int:
    return DTYPE_BITS[info.dtypes[0]]
