"""Which rank this process is: out of a torch.distributed mesh or process group, or as torchrun says it.

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("ep", "tp"))
    told(mesh)               # Rank(tp=4, ep=2, number=ep coordinate * 4 + tp coordinate)

Of a mesh the dims named `tp` and `ep` count, wherever they stand among its dims. Processes that differ in other dims
alone, data-parallel ones say, are replicas, and have the same rank. In a process group all are tensor-parallel. Ranks
have their numbers with tensor-parallel neighbours first. Nothing is sent and nothing waited for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

NAMED = ("tp", "ep")
"""The dims of a mesh that count."""


@dataclass(frozen=True)
class Rank:
    """One of `tp` times `ep` ranks, and how many processes have each of them."""

    tp: int = 1
    ep: int = 1
    number: int = 0
    replicas: int = 1


def told(
    mesh: DeviceMesh | ProcessGroup | None, *, tp: int | None = None, rank: int | None = None, ep: int | None = None
) -> Rank:
    """The rank that a mesh or a group makes of this process; without one, rank `rank` of tp times ep (default: 1
    each, and then rank 0).

    Raises LayoutError where both were given, and where neither says it.
    """
    given = [name for name, value in (("tp", tp), ("rank", rank), ("ep", ep)) if value is not None]
    if mesh is None:
        own = Rank(1 if tp is None else tp, 1 if ep is None else ep, 0 if rank is None else rank)
        if rank is None and (own.tp, own.ep) != (1, 1):
            raise LayoutError(
                f"`rank` does not say which of {own.tp} tensor- times {own.ep} expert-parallel ranks this process is",
                code="LP110",
                name="ranks",
                help="give rank=0 or another; a mesh says it by itself",
            )
        return own
    if given:
        raise _refused(
            f"`mesh` says which rank this process is, and so does `{given[0]}`",
            "give the mesh alone, or tp, ep and rank without it",
        )
    return _of(mesh)


def only(rank: Rank) -> Rank:
    """The rank itself; LayoutError where other processes have the same, as they would write the same files."""
    if rank.replicas > 1:
        raise _refused(
            f"{rank.replicas} processes of the mesh have each rank, and would write the same folder",
            'convert in one replica alone, with its part of the mesh: mesh["ep", "tp"]',
        )
    return rank


def of_environment(tp: int, ep: int, environment: Mapping[str, str] | None = None) -> int:
    """The number of this process's rank, of tp times ep, as RANK and WORLD_SIZE in the environment say it.

    Raises LayoutError where they do not, and for another number of processes.
    """
    found = os.environ if environment is None else environment
    words = [found.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise _refused(
            f"the environment does not say which rank this process is: RANK is `{words[0]}`, WORLD_SIZE `{words[1]}`",
            "start it by torchrun, or give the number of the rank",
        )
    number, count = map(int, words)
    if count != tp * ep:
        raise _refused(
            f"there are {count} processes (WORLD_SIZE) for {tp * ep} ranks, {tp} tensor- times {ep} expert-parallel",
            f"start {tp * ep} processes, or give --tp and --ep whose product is {count}",
        )
    return number


def _of(mesh: object) -> Rank:
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        raise _refused(
            "torch.distributed is not initialized, so `mesh` does not say which rank this process is",
            "call torch.distributed.init_process_group first, under torchrun; or give tp, ep and rank",
        )
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(mesh, DeviceMesh):
        return _of_mesh(mesh)
    if isinstance(mesh, distributed.ProcessGroup):
        number = distributed.get_rank(mesh)
        if number < 0:
            raise _outside("group")
        return Rank(tp=distributed.get_world_size(mesh), number=number)
    if mesh is distributed.GroupMember.NON_GROUP_MEMBER:
        raise _outside("group")
    raise _refused(
        f"`mesh` is a {type(mesh).__name__}, expected a DeviceMesh or a ProcessGroup",
        "torch.distributed.device_mesh.init_device_mesh makes one",
    )


def _of_mesh(mesh: DeviceMesh) -> Rank:
    names = mesh.mesh_dim_names or ()
    if not set(NAMED) & set(names):
        found = f"its dims are {', '.join(f'`{name}`' for name in names)}" if names else "its dims have no names"
        raise _refused(
            f"the mesh has no dim named `tp` or `ep`: {found}",
            'name them: init_device_mesh("cuda", (2, 4), mesh_dim_names=("ep", "tp"))',
        )
    at = mesh.get_coordinate()
    if at is None:
        raise _outside("mesh")
    sizes, places = dict(zip(names, mesh.shape, strict=True)), dict(zip(names, at, strict=True))
    tp, ep = (sizes.get(name, 1) for name in NAMED)
    number = places.get("ep", 0) * tp + places.get("tp", 0)
    return Rank(tp, ep, number, math.prod(mesh.shape) // (tp * ep))


def _outside(what: str) -> LayoutError:
    return _refused(
        f"this process is not in the {what}, so it has no rank there",
        f"load in the processes of the {what} alone",
    )


def _refused(message: str, help: str) -> LayoutError:
    return LayoutError(message, code="LP228", name="mesh", help=help)
