"""A torch module whose buffers are a plan's outputs: filled from a checkpoint, changed in place, kept as they are.

Its state also says of what plan it is, as an extra state in torch's sense, and is refused by a module of a plan that
stores something else. A state without that word, such as the plain outputs of `Plan.run`, is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Self

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.gemm import checks
from layoutdsl.gemm.matrix import Matrix, stored_as
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

    def __init__(self, plan: Plan, matrices: tuple[Matrix, ...], prefix: str, device: torch.device | str | None):
        super().__init__()
        self.plan = plan
        self.inputs = matrices[0].inputs
        self._says = stored_as(plan, matrices)
        self._paths = {info.name: info.name.removeprefix(prefix) for info in plan.outputs}
        for info in plan.outputs:
            tensor = torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device=device)
            _place(self, self._paths[info.name], tensor)
        self._order = next((self._paths[d.tensor] for d in matrices[0].duties if d.kind == "gather_input"), "")
        self.register_load_state_dict_pre_hook(_takes)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The buffers by the names that the plan has for them."""
        return {name: self.get_buffer(path) for name, path in self._paths.items()}

    def load_checkpoint(self, tensors: Mapping[str, Given], *, backend: str = "torch") -> Self:
        """Convert a checkpoint's tensors, named as in `plan.input`, into the buffers, whose storage stays. Those on
        other devices are copied to the module's first. Raises LayoutError as Plan.run does."""
        self._refuse_meta()
        self.plan.run(self._all_here(tensors), backend=backend, out=self.tensors)
        return self

    def update(self, name: str, tensor: Given, *, expert: int | None = None, backend: str = "torch") -> Applied:
        """Write what follows from one tensor of the checkpoint, or from that of one expert, into the buffers, whose
        storage stays; see Plan.update. One that needs others beside it is refused: give these to `updates()`."""
        return self.update_all({name: tensor}, expert=expert, backend=backend)

    def update_all(
        self, tensors: Mapping[str, Given], *, expert: int | None = None, backend: str = "torch"
    ) -> Applied:
        """The same for several tensors, or those of one expert, at once: what each needs may be among them; see
        Plan.update_all."""
        self._refuse_meta()
        return self.plan.update_all(self.tensors, self._all_here(tensors), expert=expert, backend=backend)

    def updates(self, *, backend: str = "torch") -> Updates:
        """The buffers as what takes tensors of a checkpoint one by one, in any order; see Plan.updates."""
        self._refuse_meta()
        return self.plan.updates(self.tensors, backend=backend)

    def get_extra_state(self) -> torch.Tensor:
        """What is stored, as the bytes of a text: a tensor, so that files of tensors can hold it."""
        return torch.tensor(list(self._says.encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Nothing is left to do: what the state says is compared before anything of it is loaded."""

    @property
    def _device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def _refuse_meta(self) -> None:
        if self._device.type == "meta":
            raise LayoutError(
                "the module stands on meta, where it has no data: nothing can be loaded into it",
                code="LP343",
                name="no-such-device",
                help="call .to_empty(device=) on it first, or make it on a device",
            )

    def _all_here(self, tensors: Any) -> Any:
        return {name: self._here(one) for name, one in tensors.items()} if isinstance(tensors, Mapping) else tensors

    def _here(self, given: Any) -> Any:
        device = self._device
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


def _takes(
    module: Holder,
    state: MutableMapping[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """What is loaded is of a plan that stores the same, is not converted, and has an order that stays within x."""
    said = _text(state.setdefault(f"{prefix}_extra_state", module.get_extra_state()))
    if said != module._says:
        errors.append(
            f"the state of {f'`{prefix[:-1]}`' if prefix else 'the module'} was made by another plan: found `{said}`, "
            f"expected `{module._says}`; give the checkpoint to load_checkpoint, or build the module from the plan "
            "of the state"
        )
    for name, buffer in module.named_buffers():
        given = state.get(prefix + name)
        if isinstance(given, torch.Tensor) and given.dtype != buffer.dtype:
            # A scale of another dtype is stored times another power of two.
            errors.append(f"`{prefix}{name}` is {given.dtype}, expected {buffer.dtype}: it was made by another plan")
    order = state.get(prefix + module._order) if module._order else None
    if isinstance(order, torch.Tensor) and order.numel() and not order.is_meta:
        least, most = (int(bound) for bound in order.aminmax())
        if least < 0 or most >= module.inputs:
            errors.append(
                f"`{prefix}{module._order}` takes inputs {least} to {most}, expected 0 to {module.inputs - 1}: "
                "it was made by another plan"
            )


def _text(given: Any) -> str:
    """What an extra state says; nothing where it is none of ours."""
    if not isinstance(given, torch.Tensor) or given.dtype != torch.uint8 or given.is_meta:
        return ""
    return bytes(given.flatten().tolist()).decode(errors="replace")


def refuse_input(x: Any, dtype: torch.dtype, inputs: int) -> None:
    """LayoutError where x is not [..., inputs] of that dtype."""
    wrong = None
    if not checks.is_dense(x):
        wrong = f"a {type(x).__name__} that is no dense tensor"
    elif x.dtype != dtype or not x.ndim or x.shape[-1] != inputs:
        wrong = f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"
    if wrong is not None:
        raise LayoutError(
            f"x is {wrong}, expected {str(dtype).removeprefix('torch.')} of shape [..., {inputs}]",
            code="LP342",
            name="wrong-input",
            help="the dtype is the plan's parameter `dtype`; the inputs are those of this rank, as its extents say",
        )
