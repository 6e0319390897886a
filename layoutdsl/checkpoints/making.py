"""The stages of a unit in memory: read, made, and given back.

    making = Making(conversion)
    made = making.make(unit, making.read(unit))
    ...                                             # made.tensors are written somewhere
    making.give_back(made)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from layoutdsl.backends import device
from layoutdsl.checkpoints import gather
from layoutdsl.checkpoints.planning import within
from layoutdsl.checkpoints.reading import Given, bytes_of, read, read_whole, run
from layoutdsl.checkpoints.rooms import Room, Rooms
from layoutdsl.checkpoints.units import Copy, Share, Unit
from layoutdsl.errors import LayoutError
from layoutdsl.ledger import is_apart
from layoutdsl.plan import Lost, TensorInfo

if TYPE_CHECKING:
    from layoutdsl.checkpoints.run import Conversion

INTO = ("cpu",)
"""Backends that write into storage they are given without looking at everything twice."""

Tensors = Mapping[str, torch.Tensor]
Out = Callable[[Share], "Tensors | None"]


@dataclass(frozen=True)
class Read:
    """What a unit is made of, by the plan's names, or the bytes of a copy; and where it lies."""

    given: dict[str, Given]
    data: memoryview
    room: Room


@dataclass(frozen=True)
class Made:
    """What a unit became: the outputs of each share's plan, or the bytes of a copy; and which values became 0."""

    tensors: Sequence[Tensors] = ()
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    lost: tuple[Lost, ...] = ()
    room: Room | None = None


class Making:
    """Reads and makes the units of a conversion, in memory that is used again. most: bytes of it that are kept, of
    all units that are under way at once where nothing is said."""

    def __init__(self, conversion: Conversion, most: int | None = None):
        self.backend, self.device = conversion.backend, conversion.device
        self.rooms = Rooms(conversion.under_way if most is None else most)
        self.place = device(self.backend, self.device)
        self.into = self.backend in INTO and self.device == "cpu"

    def read(self, work: Unit | Copy) -> Read:
        """What a unit is made of. LayoutError where a file cannot be read. Any thread may ask for it."""
        if isinstance(work, Copy):
            room = self.rooms.room(work.made)
            return Read({}, gather.stretch(work.entry, work.begin, work.end, room.take), room)
        source = work.piece.source
        room = self.rooms.room(work.piece.buffers)
        given = (
            read_whole(work.job, room.take)
            if source is None
            else read(source, work.job, room.take, work.piece.experts)
        )
        return Read(given, memoryview(b""), room)

    def make(self, work: Unit | Copy, read: Read, out: Out | None = None) -> Made:
        """What a unit becomes on each of its ranks; what was read is given back. out: where a share is to be made.

        LayoutError names the unit, and the expert where it has some.
        """
        if isinstance(work, Copy):
            return Made(data=read.data, room=read.room)
        if not self.into:
            trim()
        room = self.rooms.room(work.made) if self.into and out is None else None
        given, lost = read.given, list[Lost]()
        if self.place != "cpu":
            given = {name: _to(tensor, self.place) for name, tensor in given.items()}
        try:
            tensors = [self._run(share, given, _outputs(share, room) if room else out and out(share), lost)
                       for share in work.piece.shares]  # fmt: skip
        except LayoutError as error:
            raise within(work.job, error) from None
        self.rooms.give_back(read.room)
        tensors = [{name: tensor.to(self.device) for name, tensor in each.items()} for each in tensors]
        return Made(tensors, lost=tuple(lost), room=room)

    def give_back(self, made: Made) -> None:
        """Nothing reads its tensors any more. Any thread may say so."""
        if made.room is not None:
            self.rooms.give_back(made.room)

    def _run(self, share: Share, given: dict[str, Given], out: Tensors | None, lost: list[Lost]) -> Tensors:
        own: list[Lost] = []
        made = run(share.plan, _taken(share, given), share.numbers, backend=self.backend, out=out, report=own)
        number = dict(zip(share.plan.source_experts, share.numbers, strict=True))
        lost += [replace(one, expert=number[one.expert]) for one in own]
        return made


def _taken(share: Share, given: dict[str, Given]) -> dict[str, Given]:
    """What the plan of a share takes of all that was read."""
    found = {info.name: given[info.name] for info in share.plan.inputs}
    for info in share.plan.inputs if share.slots else ():
        if is_apart(info) and share.experts != tuple(range(len(found[info.name]))):
            found[info.name] = [found[info.name][at] for at in share.experts]
    return found


def _outputs(share: Share, room: Room) -> Tensors:
    """Tensors for the outputs of a share."""
    return {info.name: _tensor(info, room.take(bytes_of(info))) for info in share.plan.outputs}


def _tensor(info: TensorInfo, data: memoryview) -> torch.Tensor:
    dtype = getattr(torch, info.dtypes[0])
    if not data:
        return torch.empty(info.full_shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(info.full_shape)


def _to(given: Given, device: str) -> Given:
    return [tensor.to(device) for tensor in given] if isinstance(given, list) else given.to(device)


def trim() -> None:
    """Let go of what malloc keeps of freed memory, where the C library can: else a unit comes on top of the one before
    it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
