"""A model's state dict, converted in memory.

    from layoutdsl.adapters.state_dict import convert_state_dict

    kernel_tensors = convert_state_dict(model.state_dict(), model.config.to_dict(), tp=2, rank=0)

Names, dtypes, shapes and bytes are those that `layoutdsl.load` gives for a folder of the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.memory import described, made
from layoutdsl.checkpoints.mesh import told
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from layoutdsl.model import ParamValue

SOURCES = ("kept", "released")


def convert_state_dict(
    state_dict: MutableMapping[str, torch.Tensor],
    config: Mapping[str, Any],
    *,
    sources: Literal["kept", "released"] = "kept",
    target: str | Sequence[str] = (),
    tp: int | None = None,
    rank: int | None = None,
    ep: int | None = None,
    mesh: DeviceMesh | ProcessGroup | None = None,
    device: str | torch.device | None = None,
    dtype: str | None = None,
    params: Mapping[str, ParamValue] | None = None,
    experts: Sequence[int] = (),
    specs: Sequence[str | Path] = (),
    backend: str = "torch",
) -> dict[str, torch.Tensor]:
    """Every tensor of one rank, by the name that `convert` gives it, tensors that are copied last.

    state_dict: the checkpoint's tensors, whole ones, on any device, those of a unit on one. config: the content of
    config.json. sources: "released" takes each unit's tensors out of the state dict when it is converted, so that
    memory holds one unit twice at most where nothing else holds them; it is empty at the end. device: where the results
    stand; by default, where the unit's tensors stand. Tensors that are copied are the given ones, where they need not
    move. The other arguments are those of `layoutdsl.load`.

    Everything is checked before the first unit is converted. Raises LayoutError that names the tensor, what was
    expected and what was found; a value that a kernel cannot hold may be found after others were released.
    """
    if sources not in SOURCES:
        raise LayoutError(
            f"`sources` is {sources!r}, expected {' or '.join(SOURCES)}",
            code="LP385",
            name="sources",
            help="released ones are taken out of the state dict",
        )
    own = told(mesh, tp=tp, rank=rank, ep=ep)
    conversion = planned(
        described(state_dict, config),
        target=target,
        tp=own.tp,
        rank=own.number,
        ep=own.ep,
        dtype=dtype,
        params=params,
        experts=experts,
        specs=specs,
        backend=backend,
        device=device or "cpu",
    )
    take = state_dict.__getitem__ if sources == "kept" else state_dict.pop
    found: dict[str, torch.Tensor] = {}
    for job, (plan,) in conversion.jobs():
        found.update(made(job, plan, take, backend, device))
    for entry in conversion.work.copies:
        tensor = take(entry.name).detach()
        found[entry.name] = tensor if device is None else tensor.to(device)
    return found
