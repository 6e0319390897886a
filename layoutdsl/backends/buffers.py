"""Tensors in and out of a plan: names, dtypes and shapes checked, bytes seen as they lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.plan import Plan, TensorInfo

Given = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]


def inputs(plan: Plan, tensors: Given) -> dict[str, list[torch.Tensor]]:
    """Flat uint8 views of the inputs, one per expert that the plan reads (one in all where experts share it)."""
    return {name: _flats(plan, plan.input[name], given) for name, given in checked(plan, tensors).items()}


def checked(plan: Plan, tensors: Given) -> dict[str, torch.Tensor | Sequence[torch.Tensor]]:
    """The inputs as they are given: names, dtypes and shapes are those that the plan reads."""
    mapping(tensors, "tensors are given as", f"it reads: {', '.join(plan.input)}")
    for name in tensors:
        input_named(plan, name)
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


def mapping(given: object, what: str, help: str) -> None:
    """LayoutError where that is no mapping; `what` says whose tensors it should have, `help` which."""
    if not isinstance(given, Mapping):
        raise LayoutError(
            f"{what} a {type(given).__name__}, a mapping from name to tensor is needed",
            code="LP166",
            name="no-tensor",
            help=help,
        )


def input_named(plan: Plan, name: str) -> TensorInfo:
    """The input of that name; LayoutError where the plan reads none."""
    if not isinstance(name, str) or name not in plan.input:
        raise LayoutError(
            f"the plan reads no tensor `{name}`",
            code="LP160",
            name="unknown-tensor",
            help=did_you_mean(name, plan.input) or f"it reads: {', '.join(plan.input)}",
        )
    return plan.input[name]


def experts(plan: Plan, info: TensorInfo, given: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Flat uint8 views of one input, checked: one per expert that the plan reads, or one in all."""
    _fits(plan, info, given)
    return _flats(plan, info, given)


def _flats(plan: Plan, info: TensorInfo, given: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor) and info.experts and not info.shared:
        given = list(given.reshape(info.experts, -1))
    return [flat(given)] if isinstance(given, torch.Tensor) else [flat(given[expert]) for expert in plan.source_experts]


def _fits(plan: Plan, info: TensorInfo, given: torch.Tensor | Sequence[torch.Tensor]) -> None:
    stacked = isinstance(given, torch.Tensor) or not isinstance(given, Sequence)
    if not info.experts or info.shared or stacked:
        matches(info, given, info.full_shape, "")
        return
    if len(given) != info.experts:
        raise LayoutError(
            f"`{info.name}` has {len(given)} tensors, one for each of {info.experts} experts is needed",
            code="LP162",
            name="wrong-shape",
            help="give all experts of the checkpoint; the plan reads those of its rank",
        )
    for expert in plan.source_experts:
        matches(info, given[expert], info.shape, f", expert {expert}")


def matches(info: TensorInfo, given: object, shape: tuple[int, ...], place: str, remedy: str = "") -> None:
    """LayoutError where that is no tensor of this shape and a dtype of `info`; `place` says where it is from,
    `remedy` what else than the file or the plan may be changed."""
    given = dense(info.name, given, place, f"expected {_wanted(info, shape)}")
    dtype = str(given.dtype).removeprefix("torch.")
    if dtype not in info.dtypes:
        raise LayoutError(
            f"`{info.name}`{place} is {dtype}, expected {' or '.join(info.dtypes)}",
            code="LP163",
            name="wrong-dtype",
            help=remedy or _DTYPE.get(info.role, "state the file's with a parameter such as dtype or scale_dtype"),
        )
    if [d for d in given.shape if d != 1] != [d for d in shape if d != 1]:
        raise LayoutError(
            f"`{info.name}`{place} has the shape {list(given.shape)}, expected {list(shape)}",
            code="LP162",
            name="wrong-shape",
            help=remedy or "check the sizes and parameters of the plan against the file",
        )


def dense(name: str, given: object, place: str = "", help: str | None = None) -> torch.Tensor:
    """LayoutError where that is no tensor that this process has in memory as a whole; `help` says what is expected."""
    if not isinstance(given, torch.Tensor):
        raise LayoutError(
            f"`{name}`{place} is of type {type(given).__name__}, a torch tensor is needed",
            code="LP166",
            name="no-tensor",
            help="torch.from_numpy makes a tensor of an array" if hasattr(given, "__array__") else help,
        )
    if is_sharded(given):
        raise LayoutError(
            f"`{name}`{place} is a {type(given).__name__}, of which this process has a part, a whole tensor is needed",
            code="LP166",
            name="no-tensor",
            help="call full_tensor() on it, on all of its ranks",
        )
    unfit, way = _unfit(given)
    if unfit:
        raise LayoutError(
            f"`{name}`{place} is {unfit}, a dense one in memory is needed", code="LP166", name="no-tensor", help=way
        )
    return given


def _unfit(tensor: torch.Tensor) -> tuple[str, str]:
    """What keeps a tensor from being read and written as its bytes lie in memory, and what to do about it."""
    if tensor.is_meta:
        return "a meta tensor", "load it"
    if tensor.is_nested:
        return "a nested tensor", "call unbind() on it, which gives its parts"
    if tensor.layout != torch.strided:
        return f"{tensor.layout}", "call to_dense() on it"
    if torch.nn.parameter.is_lazy(tensor) or (tensor.nbytes and not address(tensor)):
        return "without memory", "tensors that are fake, freed or not yet initialized have none"
    if tensor.is_neg():
        return "a negated view", "call resolve_neg() on it"
    return "", ""


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor without gradients, into whose parts torch also writes outside of inference mode,
    whichever it was made in."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )


def address(tensor: object) -> int:
    """Where a tensor lies in memory; 0 for an empty one, one that lies nowhere, and what is none."""
    try:
        return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else 0
    except (RuntimeError, ValueError):
        return 0


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it stands for more than this process holds of it, as a DTensor does."""
    return hasattr(tensor, "full_tensor") or hasattr(tensor, "local_shards")


_DTYPE = {"codes": "load it as the file has it; codes have no parameter for their dtype"}


def _wanted(info: TensorInfo, shape: tuple[int, ...]) -> str:
    return f"{' or '.join(info.dtypes)} of shape {list(shape)}"


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as a flat uint8 tensor; a view where it is contiguous."""
    # A tensor of one element counts as contiguous whatever its stride is.
    tensor = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return tensor.view(torch.uint8) if tensor.dtype != torch.uint8 else tensor


def allocate(plan: Plan, given: Given, out: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """Output tensors by name: those of `out`, checked, or new ones on the inputs' device."""
    device = device_of(given)
    if out is not None:
        mapping(out, "`out` is", f"it writes: {', '.join(plan.output)}")
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
        matches(info, given_out, info.full_shape, " of `out`", f"allocate {_wanted(info, info.full_shape)}")
        if not given_out.is_contiguous():
            raise LayoutError(
                f"`{info.name}` of `out` is not contiguous",
                code="LP164",
                name="not-contiguous",
                help="kernels read contiguous tensors; allocate it with torch.empty",
            )
        found[info.name] = given_out
    apart(found)
    return found


def apart(out: Mapping[str, torch.Tensor], what: str = "`out`") -> None:
    """LayoutError where two outputs share memory: one would be written over the other."""
    placed = sorted((str(one.device), one.data_ptr(), one.nbytes, name) for name, one in out.items() if one.nbytes)
    for (device, begin, size, name), (other_device, other_begin, _, other) in pairwise(placed):
        if device == other_device and begin + size > other_begin:
            raise LayoutError(
                f"`{name}` and `{other}` of {what} share memory",
                code="LP354",
                name="outputs-overlap",
                help="give each output storage of its own",
            )


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
