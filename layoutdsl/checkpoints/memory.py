"""A checkpoint that is in memory: tensors by name and a config.json, described as the headers of a folder's files are.

    folder = described(model.state_dict(), model.config.to_dict())
    conversion = planned(folder, tp=2, rank=0)

What is planned for it is what is planned for the same tensors in files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from layoutdsl import backends
from layoutdsl.backends import buffers
from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.folder import DTYPES, Entry, Folder, quantization_stated
from layoutdsl.checkpoints.planning import within
from layoutdsl.checkpoints.storing import output_name
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan

PLACE = Path("state_dict")
"""Stands for the folder and its files in messages."""

_KNOWN = {name for name, _ in DTYPES.values()}


def described(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Folder:
    """What `read_folder` says of files that hold these tensors. config: the content of config.json. Raises
    LayoutError for what is no tensor of a file: no dense tensor, or of a dtype that safetensors files do not have."""
    for given, what in ((tensors, "the state dict"), (config, "the config")):
        if not isinstance(given, Mapping):
            raise LayoutError(
                f"{what} is of type {type(given).__name__}, a mapping is needed",
                code="LP210",
                name="bad-checkpoint",
                help="give model.state_dict() and the content of config.json, as model.config.to_dict() has it",
            )
    return Folder(PLACE, quantization_stated(dict(config)), {name: _entry(name, one) for name, one in tensors.items()})


def _entry(name: str, tensor: Any) -> Entry:
    buffers.dense(name, tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _KNOWN:
        raise LayoutError(
            f"`{name}` is {dtype}, which no checkpoint holds",
            code="LP163",
            name="wrong-dtype",
            help=f"known: {', '.join(sorted(_KNOWN))}",
        )
    return Entry(name, PLACE, dtype, tuple(tensor.shape), 0, tensor.nbytes)


def made(
    job: Job, plan: Plan, take: Callable[[str], torch.Tensor], backend: str, device: str | torch.device | None
) -> dict[str, torch.Tensor]:
    """One unit on one rank, from tensors that `take` gives by their names in the checkpoint: its tensors by the names
    that `load` has. device: where they come to stand; None for where the unit's tensors stand."""
    own = {name: [take(entry.name).detach() for entry in job.inputs[name]] for name in plan.input}
    try:
        here = device or buffers.device_of(own)
        place = backends.device(backend, str(here))
        moved = {name: [tensor.to(place) for tensor in tensors] for name, tensors in own.items()}
        given = {name: tensors if job.apart(name) else tensors[0] for name, tensors in moved.items()}
        return {output_name(job, name): one.to(here) for name, one in plan.run(given, backend=backend).items()}
    except LayoutError as error:
        raise within(job, error) from None
