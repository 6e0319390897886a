"""A torch module whose buffers are a plan's outputs: filled from a checkpoint, changed in place, kept as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan

if TYPE_CHECKING:
    from layoutdsl.backends.update import Applied, Updates

Given = torch.Tensor | list[torch.Tensor]
Collective = Callable[[torch.Tensor], torch.Tensor]

ROLES = ("codes", "scale", "zero_point", "global_scale", "bias")
"""Of a matrix' tensors, in the order in which custom ops take them."""


class Holder(torch.nn.Module):
    """Base of the modules that are built from a plan. A tensor of the plan is the buffer of its name, less `prefix`.

    Moving the module moves them; a change of dtype (`.half()`, `.to(torch.bfloat16)`) leaves them as the plan made
    them, since their bits would be worth something else.
    """

    plan: Plan

    def __init__(self, plan: Plan, prefix: str, device: torch.device | str | None):
        super().__init__()
        self.plan = plan
        self._paths = {info.name: info.name.removeprefix(prefix) for info in plan.outputs}
        for info in plan.outputs:
            tensor = torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device=device)
            _place(self, self._paths[info.name], tensor)
        self.register_load_state_dict_pre_hook(_keeps_dtypes)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers by the names that the plan has for them."""
        return {name: self.get_buffer(path) for name, path in self._paths.items()}

    def load_checkpoint(self, tensors: Mapping[str, Given], *, backend: str = "torch") -> Self:
        """Convert a checkpoint's tensors, named as in `plan.input`, into the buffers, whose storage stays. Those on
        other devices are copied to the module's first. Raises LayoutError as Plan.run does."""
        out = self.tensors
        moved = {name: self._here(given) for name, given in tensors.items()}
        self.plan.run(moved, backend=backend, out=out)
        return self

    def update(self, name: str, tensor: Given, *, expert: int | None = None, backend: str = "torch") -> Applied:
        """Write what follows from one tensor of the checkpoint, or from that of one expert, into the buffers, whose
        storage stays; see Plan.update. One that needs others beside it is refused: give these to `updates()`."""
        return self.plan.update(self.tensors, name, self._here(tensor), expert=expert, backend=backend)

    def updates(self, *, backend: str = "torch") -> Updates:
        """The buffers as what takes tensors of a checkpoint one by one, in any order; see Plan.updates."""
        return self.plan.updates(self.tensors, backend=backend)

    def _here(self, given: Any) -> Any:
        device = next(iter(self.tensors.values())).device
        if isinstance(given, list | tuple):
            return [one.to(device) if isinstance(one, torch.Tensor) else one for one in given]
        return given.to(device) if isinstance(given, torch.Tensor) else given

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        def moved(tensor: torch.Tensor) -> torch.Tensor:
            made = fn(tensor)
            return made if made.dtype == tensor.dtype else tensor.to(made.device)

        return super()._apply(moved, recurse)


class Tensors(torch.nn.Module):
    """Buffers whose names in a plan have a point: what stands before it."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in self.named_buffers(recurse=False))


def _place(module: torch.nn.Module, path: str, tensor: torch.Tensor) -> None:
    """A buffer at a path, through modules of that name."""
    *above, name = path.split(".")
    for one in above:
        if one not in module._modules:
            module.add_module(one, Tensors())
        module = module.get_submodule(one)
    module.register_buffer(name, tensor)


def _keeps_dtypes(
    module: torch.nn.Module,
    state: Mapping[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Values that a copy would convert are refused: a scale of another dtype is stored times another power of two."""
    for name, buffer in module.named_buffers():
        given = state.get(prefix + name)
        if isinstance(given, torch.Tensor) and given.dtype != buffer.dtype:
            errors.append(f"`{prefix}{name}` is {given.dtype}, expected {buffer.dtype}: it was made by another plan")


def refuse_gradient(x: torch.Tensor) -> None:
    """LayoutError where x wants a gradient, which quantized weights do not give."""
    if x.requires_grad and torch.is_grad_enabled():
        raise LayoutError(
            "x requires a gradient, GEMMs on quantized weights have no backward",
            code="LP355",
            name="no-backward",
            help="call the module under torch.no_grad() or torch.inference_mode()",
        )


def refuse_input(x: torch.Tensor, dtype: torch.dtype, inputs: int) -> None:
    """LayoutError where x is not [..., inputs] of that dtype."""
    if x.dtype != dtype or not x.ndim or x.shape[-1] != inputs:
        raise LayoutError(
            f"x is {str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}, expected "
            f"{str(dtype).removeprefix('torch.')} of shape [..., {inputs}]",
            code="LP342",
            name="wrong-input",
            help="the dtype is the plan's parameter `dtype`; the inputs are those of this rank, as its extents say",
        )
