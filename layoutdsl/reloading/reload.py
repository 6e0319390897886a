"""New weights into live kernel tensors, step after step.

    reload = layoutdsl.Reload(model, "checkpoint", tp=2, rank=0)
    for step in range(steps):
        reload.begin()
        for bucket in trainer:              # lists of (name in the checkpoint, tensor), in any order
            report = reload.update(bucket)
        reload.finish()                     # says what is missing, if anything is
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from layoutdsl.backends import buffers
from layoutdsl.checkpoints.folder import Entry
from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.mesh import told
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.plan import TensorInfo
from layoutdsl.reloading.folding import fold
from layoutdsl.reloading.live import Model, handles, live
from layoutdsl.reloading.report import Report, Status
from layoutdsl.reloading.targets import Copy, Given, Target, Unit

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from layoutdsl.model import ParamValue

Tensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
Apply = Literal["arrival", "unit", "layer"]

APPLY: tuple[Apply, ...] = ("arrival", "unit", "layer")


class Reload:
    """The live tensors of one rank, and what of a new checkpoint has been given to them.

    model: a module, whose parameters and buffers have the names that `load` yields, or a mapping from these names to
    tensors. Their storage stays. Others are left alone. checkpoint: the folder whose config.json and safetensors
    headers say what the names mean; no weight is read. The further arguments are those of the `load` that made the
    tensors.

    apply: when a tensor is written. "arrival": as soon as it can be, which holds the least. "unit" (attention's q, k
    and v, all experts) or "layer" (all whose names begin alike up to their first number): when all of it is there, at
    once; until then what it becomes is made beside it, and a value that is refused leaves it as it was.

    Raises LayoutError where the folder or an argument is wrong, and for a live tensor that is missing, or of another
    dtype or shape, or not contiguous.
    """

    def __init__(
        self,
        model: Model,
        checkpoint: str | Path,
        *,
        apply: Apply = "arrival",
        target: str | Sequence[str] = (),
        tp: int | None = None,
        rank: int | None = None,
        ep: int | None = None,
        mesh: DeviceMesh | ProcessGroup | None = None,
        dtype: str | None = None,
        params: Mapping[str, ParamValue] | None = None,
        experts: Sequence[int] = (),
        specs: Sequence[str | Path] = (),
        backend: str = "torch",
    ):
        if apply not in APPLY:
            raise LayoutError(
                f"`apply` is {apply!r}, expected {', '.join(APPLY[:-1])} or {APPLY[-1]}",
                code="LP384",
                name="apply",
                help=did_you_mean(str(apply), APPLY),
            )
        own = told(mesh, tp=tp, rank=rank, ep=ep)
        conversion = planned(
            checkpoint,
            target=target,
            tp=own.tp,
            rank=own.number,
            ep=own.ep,
            dtype=dtype,
            params=params,
            experts=experts,
            specs=specs,
            backend=backend,
        )
        self.model, self.apply, staged = model, apply, apply != "arrival"
        self._targets: tuple[Target, ...] = (
            *(Unit(job, plan, backend, staged) for job, (plan,) in conversion.jobs()),
            *(Copy(entry, staged) for entry in conversion.work.copies),
        )
        self._owner = {name: target for target in self._targets for name in target.entries}
        groups: dict[str, list[Target]] = {}
        for one in self._targets:
            groups.setdefault(_group(one, apply), []).append(one)
        self._groups = {one: group for group in groups.values() for one in group} if staged else {}
        self._given: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Begin a new round: every tensor of the checkpoint is due again. What is held is let go, and the live tensors
        are looked up anew, so that a model may have moved; between two rounds, not within one."""
        wanted = {name: described for target in self._targets for name, described in target.wanted.items()}
        found = live(handles(self.model), wanted)
        for target in self._targets:
            target.begin(found)
        self._given.clear()

    def update(self, tensors: Tensors) -> Report:
        """Take tensors by their names in the checkpoint, whole ones, whatever the rank; tell how far the round is.

        Of a list, tuple or dict all are looked at before the first is written, and those of a unit are applied
        together, which is faster; of any other iterable one is taken after the other, and let go. What waits is copied:
        the storage of a tensor is the caller's again when this returns, or when an iterable is asked for the next one.

        Raises LayoutError for a name that the checkpoint does not have, one that was given before, a tensor of another
        dtype or shape, and a live tensor that is no longer the one with which the round began: nothing is written of
        this list, or nothing of this tensor. A value that a kernel cannot hold is refused with all that was given of
        its unit in the same list; other units of the list may have been written. The round goes on with what was not
        refused.
        """
        written: list[str] = []
        for pairs in _lists(tensors):
            with torch.no_grad():
                written += self._take(self._looked_at(pairs))
        return Report(self._status, tuple(dict.fromkeys(written)))

    @property
    def report(self) -> Report:
        """How far the round is."""
        return Report(self._status)

    def _status(self) -> tuple[Status, ...]:
        return tuple(target.status for target in self._targets)

    def finish(self) -> Report:
        """The report of a round that is complete, after which nothing of the model is held until the next one begins;
        LayoutError that names what is missing where it is not."""
        report = self.report
        if report.complete:
            for target in self._targets:
                target.check(self.model)
            for target in self._targets:
                target.release()
            return report
        lines = fold(report.missing)
        more = f" and {len(lines) - MOST_SHOWN} more" if len(lines) > MOST_SHOWN else ""
        raise LayoutError(
            f"the round is not complete: {len(report.missing)} tensors were not given: "
            f"{', '.join(f'`{line}`' for line in lines[:MOST_SHOWN])}{more}",
            code="LP383",
            name="round-incomplete",
            help=f"give them; of the live tensors {len(report.old)} are old and {len(report.mixed)} half new",
        )

    def _looked_at(self, pairs: Sequence[Any]) -> dict[Target, dict[str, torch.Tensor]]:
        """The tensors by what they belong to; LayoutError for what cannot be one, and where live tensors that are due
        to be written have been replaced."""
        found: dict[Target, dict[str, torch.Tensor]] = {}
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise _unknown(f"{_shown(pair)} is given, a pair (name, tensor) is needed", None)
            name, tensor = pair
            target = self._owner.get(name)
            if target is None:
                help = did_you_mean(name, self._owner) or "leave out what its files do not have, such as a tied lm_head"
                raise _unknown(f"the checkpoint has no tensor `{name}`", help)
            own = found.setdefault(target, {})
            if name in self._given or name in own:
                raise LayoutError(
                    f"`{name}` is given twice in one round",
                    code="LP382",
                    name="given-twice",
                    help="begin() starts the next round",
                )
            _check(target.entries[name], tensor)
            own[name] = tensor
        for one in {one: None for target in found for one in self._groups.get(target, (target,))}:
            one.check(self.model)
        return found

    def _take(self, found: Mapping[Target, Given]) -> Iterator[str]:
        for target, given in found.items():
            yield from target.give(given)
            self._given.update(given)
            group = self._groups.get(target, ())
            if not target.new and all(one.complete for one in group):
                for one in group:
                    yield from one.commit()


MOST_SHOWN = 6
"""Folded names that an error lists."""


def reload(model: Model, tensors: Tensors, checkpoint: str | Path, **options: Any) -> Report:
    """One whole round: `Reload(model, checkpoint, **options)`, with these tensors as a new checkpoint has them.

    Raises LayoutError as `Reload.update` does, and where the tensors are not all; what was given by then is written.
    """
    one = Reload(model, checkpoint, **options)
    written = one.update(tensors).written
    return replace(one.finish(), written=written)


def _lists(tensors: Tensors) -> Iterator[Sequence[Any]]:
    """What is looked at together."""
    if isinstance(tensors, Mapping):
        yield list(tensors.items())
    elif isinstance(tensors, list | tuple):
        yield tensors
    elif isinstance(tensors, Iterable):
        yield from ([pair] for pair in tensors)
    else:
        raise _unknown(f"{_shown(tensors)} is given, pairs (name, tensor) are needed", None)


def _group(target: Target, apply: Apply) -> str:
    """What is written at once: a name up to its first number is that of a layer."""
    steps = target.name.split(".")
    number = next((at for at, step in enumerate(steps) if step.isdecimal()), len(steps))
    return ".".join(steps[: number + 1]) if apply == "layer" else target.name


def _check(entry: Entry, tensor: Any) -> None:
    info = TensorInfo(entry.name, "", (entry.dtype,), "", 0, entry.shape, 0, False)
    remedy = "each rank is given whole tensors, as the checkpoint has them: gather a sharded one, cast another dtype"
    buffers.matches(info, tensor, entry.shape, "", remedy)
    if tensor.shape != entry.shape:  # a plan takes no offence at dimensions of 1, a copy would
        raise LayoutError(
            f"`{entry.name}` has the shape {list(tensor.shape)}, expected {list(entry.shape)}",
            code="LP162",
            name="wrong-shape",
            help=remedy,
        )


def _shown(given: object) -> str:
    return f"`{given[:40]}`" if isinstance(given, str) else f"something of type {type(given).__name__}"


def _unknown(message: str, help: str | None) -> LayoutError:
    return LayoutError(message, code="LP381", name="no-such-tensor", help=help)
