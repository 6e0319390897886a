"""A rank's tensors in memory, filled unit by unit: new ones, or storage that is live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from layoutdsl.backends import buffers
from layoutdsl.checkpoints.making import Making, Read
from layoutdsl.checkpoints.pipeline import Pipeline
from layoutdsl.checkpoints.run import Conversion
from layoutdsl.checkpoints.storing import output_name
from layoutdsl.checkpoints.units import Copy, Unit
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.ledger import is_apart

Tensors = Mapping[str, torch.Tensor]


def outputs(conversion: Conversion) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of every tensor of the conversion's one rank."""
    found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for job, (plan,) in conversion.jobs():
        for info in plan.outputs:
            found[output_name(job, info.name)] = getattr(torch, info.dtypes[0]), info.full_shape
    copied = {entry.name: (getattr(torch, entry.dtype), entry.shape) for entry in conversion.work.copies}
    return found | copied


def check(conversion: Conversion, into: Tensors) -> None:
    """LayoutError where the storage is not that of the rank's tensors: all of them, and no others."""
    made = outputs(conversion)
    buffers.mapping(into, "`into` is", "dict(layoutdsl.load(...)) is one")
    for name in into:
        if name not in made:
            raise LayoutError(
                f"`into` has `{name}`, which is no tensor of this rank",
                code="LP160",
                name="unknown-tensor",
                help=did_you_mean(name, made) or "give the storage of the rank's tensors alone",
            )
    for name, (dtype, shape) in made.items():
        wanted = f"{str(dtype).removeprefix('torch.')} {list(shape)}"
        if name not in into:
            raise LayoutError(
                f"`into` lacks `{name}`", code="LP161", name="missing-tensor", help=f"allocate {wanted} for it"
            )
        tensor = buffers.dense(name, into[name], " of `into`", f"allocate {wanted}")
        if tensor.dtype != dtype or tensor.shape != shape:
            found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            raise LayoutError(
                f"`{name}` of `into` is {found}, expected {wanted}",
                code="LP162",
                name="wrong-shape",
                help=f"allocate {wanted}",
            )
        if not tensor.is_contiguous():
            raise LayoutError(
                f"`{name}` of `into` is not contiguous",
                code="LP164",
                name="not-contiguous",
                help="kernels read contiguous tensors; allocate it with torch.empty",
            )
    buffers.apart(into, "`into`")


def fill(conversion: Conversion, into: Tensors | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the conversion's one rank once it is whole, in the order of the modules; copied ones last.

    into: the storage of each, checked; without, new tensors on the conversion's device.
    """
    shapes, open_ = outputs(conversion), dict[str, torch.Tensor]()

    def place(name: str) -> torch.Tensor:
        if name not in open_:
            dtype, shape = shapes[name]
            if into is None:
                open_[name] = torch.empty(shape, dtype=dtype, device=conversion.device)
            else:
                open_[name] = buffers.writable(into[name])
        return open_[name]

    def make(work: Unit | Copy, read: Read) -> None:
        if isinstance(work, Copy):
            if read.data:
                flat = place(work.entry.name).reshape(-1).view(torch.uint8)
                flat[work.begin : work.end].copy_(torch.frombuffer(read.data, dtype=torch.uint8))
            place(work.entry.name)
            making.give_back(making.make(work, read))
            return
        (share,) = work.piece.shares
        alone = into is None and not share.slots
        made = making.make(work, read, (lambda share: None) if alone else None)
        for info in share.plan.outputs:
            name, tensor = output_name(work.job, info.name), made.tensors[0][info.name]
            if share.slots and is_apart(info):
                for first, at, count in share.rows(info):
                    place(name)[at : at + count].copy_(tensor[first : first + count])
            elif alone:
                open_[name] = tensor
            else:
                place(name).copy_(tensor)
        making.give_back(made)

    making = Making(conversion)
    for work, _ in Pipeline(making.read, make, lambda work, made: None).run(conversion.units):
        for name in _names(work) if work.last else ():
            tensor = open_.pop(name)
            yield name, tensor if into is None else into[name]


def _names(work: Unit | Copy) -> list[str]:
    """The tensors that are whole with the last unit of a module or stretch of a copy; others may have been begun."""
    if isinstance(work, Copy):
        return [work.entry.name]
    return [output_name(work.job, info.name) for info in work.piece.shares[0].origin.outputs]
