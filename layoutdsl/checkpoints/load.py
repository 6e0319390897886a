"""A rank's kernel tensors one unit after another, for a loader that has nothing to do with files.

for name, tensor in layoutdsl.load("model", tp=4, rank=1, device="cuda"):
    parameters[name].data = tensor
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdsl.checkpoints.mesh import told
from layoutdsl.collector import uncollected
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from layoutdsl.checkpoints.folder import Folder
    from layoutdsl.checkpoints.run import Conversion
    from layoutdsl.model import ParamValue


def load(
    model_dir: str | Path,
    *,
    target: str | Sequence[str] = (),
    tp: int | None = None,
    rank: int | None = None,
    ep: int | None = None,
    mesh: DeviceMesh | ProcessGroup | None = None,
    device: str | torch.device = "cpu",
    dtype: str | None = None,
    params: Mapping[str, ParamValue] | None = None,
    experts: Sequence[int] = (),
    specs: Sequence[str | Path] = (),
    backend: str = "torch",
    into: Mapping[str, torch.Tensor] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of one rank once it is whole, by the name that `convert` gives it; copied ones come last.

    target: a kernel spec, or several, of which the first that takes a layer's codes counts; without, of the shipped
    ones. rank: which of tp times ep ranks (default: the only one), tensor-parallel neighbours first. mesh: instead of
    these, a torch.distributed DeviceMesh with dims named `tp`, `ep` or both, other dims being replicas; or a
    ProcessGroup, all of it tensor-parallel. dtype: that of the activations, float16 or bfloat16 (default: the model's
    in config.json). params: parameters of the kernels, such as {"group": 32}. experts: the expert of each place that
    ranks have for one, such as (0, 1, 2, 3, 0, 3), where some have several. specs: folders of the user's own specs and
    names. into: storage of all of the rank's tensors by name, which is filled in place and stays where it is, `device`
    or not; without, new tensors on `device`. Only the bytes that the rank needs are read, ahead of what is made of
    them; experts are made a few at a time; and no other rank is waited for.

    Everything is checked before the first tensor, but for values that cannot be converted: storage holds by then what
    came before. Raises LayoutError that names file and tensor, what was expected and what was found.
    """
    own = told(mesh, tp=tp, rank=rank, ep=ep)
    conversion = planned(
        model_dir,
        target=target,
        tp=own.tp,
        rank=own.number,
        ep=own.ep,
        dtype=dtype,
        params=params,
        experts=experts,
        specs=specs,
        backend=backend,
        device=device,
    )
    from layoutdsl.checkpoints.filling import check, fill

    if into is not None:
        check(conversion, into)
    return fill(conversion, into)


def planned(
    model_dir: str | Path | Folder,
    *,
    target: str | Sequence[str] = (),
    tp: int = 1,
    rank: int | None = None,
    ep: int = 1,
    dtype: str | None = None,
    params: Mapping[str, ParamValue] | None = None,
    experts: Sequence[int] = (),
    specs: Sequence[str | Path] = (),
    backend: str = "torch",
    device: str | torch.device = "cpu",
) -> Conversion:
    """All that is known before a weight is read, for one rank or (None) for all. Its `plans`, `peak` and `reads` say
    what each unit becomes, what that takes, and which bytes of which file."""
    from layoutdsl import backends

    backends.load(backend)  # says what is missing, where torch is
    backends.device(backend, str(device))
    _check_device(device)
    from layoutdsl.checkpoints.folder import Folder, fail_changed
    from layoutdsl.checkpoints.journal import state
    from layoutdsl.checkpoints.opening import opened
    from layoutdsl.checkpoints.planning import Planner, every_rank, kernels_asked, one_rank
    from layoutdsl.checkpoints.run import Conversion

    files = {} if isinstance(model_dir, Folder) else state(Path(model_dir))
    folders = (specs,) if isinstance(specs, str) else tuple(map(str, specs))
    kernels = kernels_asked(target, folders)
    ranks = every_rank(tp, ep) if rank is None else (one_rank(tp, ep, rank),)
    with uncollected():
        source = opened(model_dir, folders)
        for entry in source.folder.entries.values():
            if entry.state != files.get(entry.file.name, entry.state):
                fail_changed(entry.file)
        planner = Planner(ranks, kernels, folders, dtype or source.dtype, dict(params or {}), tuple(experts))
        planner.check_experts(source.work.jobs)
        plans = tuple(planner.plans(job) for job in source.work.jobs)
        conversion = Conversion(source, planner, plans, backend, str(device), files)
        _ = conversion.units  # kept: whoever asks later has the collector again
    return conversion


def _check_device(device: str | torch.device) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise LayoutError(
            f"the device `{device}` cannot be used: {' '.join(str(error).split())[:120]}",
            code="LP152",
            name="no-device",
            help="cpu is always there; cuda needs a GPU and a build of torch for it",
        ) from None
