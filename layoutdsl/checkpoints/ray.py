"""A conversion by the machines of a Ray cluster: each unit is a task of any of them.

    with connected("auto"):
        run.write(conversion, folder, homes, carry_out=partial(carry_out, arguments))

Source and destination are on a file system that all machines share. The driver plans, makes the files with room for
all, hands out units, writes the journal, and gives the output its name. A worker process opens the same conversion
once; for each task it reads and makes a unit, writes it to its place, and returns what the journal records. No tensor
passes through Ray. What a machine that went has half written, another writes again: they are the same bytes.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layoutdsl import backends
from layoutdsl.checkpoints import storing
from layoutdsl.checkpoints.journal import Finished, State, state
from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.making import Making
from layoutdsl.checkpoints.progress import Progress
from layoutdsl.checkpoints.publishing import sync
from layoutdsl.checkpoints.run import Conversion, Done, files_of
from layoutdsl.checkpoints.storing import Store
from layoutdsl.checkpoints.units import Copy, Unit
from layoutdsl.checkpoints.writing import Writer
from layoutdsl.errors import LayoutError
from layoutdsl.library import is_path

AHEAD = 3
"""Tasks that are handed out for each of the cluster's processors: one runs, the next are there when it has ended."""

RETRIES = 20
"""How often a unit is begun anew whose worker process or machine went. One that kills them itself ends with that."""

PATIENCE = 60
"""Seconds in which tasks that run have to end once one was refused."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A cluster for what is done in the block: that to which this process is connected already, or the one at the
    address. `auto` is the one that this machine is of, `local` a new one of this machine alone; an empty address is
    that of RAY_ADDRESS, or else as `auto`, or else as `local`.

    LayoutError where Ray is not installed and where there is no such cluster.
    """
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address or None, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray says some of it with no class of its own
        raise LayoutError(
            f"the Ray cluster{f' `{address}`' if address else ''} cannot be reached: {_words(error)}",
            code="LP227",
            name="cluster",
            help="`ray start --head` on one machine and `ray start --address=HOST:6379` on the others make one; "
            "`local` is one of this machine alone",
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise LayoutError(
            "a conversion on many machines needs ray, which is not installed",
            code="LP151",
            name="not-installed",
            help="pip install 'layoutdsl[torch,ray]' on every machine of the cluster",
        ) from None
    return ray


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


@dataclass(frozen=True)
class Asked:
    """A conversion in words, from which any machine opens the one that the driver has.

    run: a name that no other has. arguments: those of `planned`, with whole paths. homes: the folders of all ranks. of:
    what the conversion is, as the journal says it. files: name -> bytes and time of change of the checkpoint's.
    """

    run: str
    arguments: Mapping[str, Any]
    homes: tuple[Path, ...]
    of: Mapping[str, str]
    files: State


def asked_of(arguments: Mapping[str, Any], conversion: Conversion, store: Store) -> Asked:
    """What to tell a worker process, which may be in another folder. arguments: those of `planned`."""
    kernels, specs = ((one,) if isinstance(one, str) else one for one in (arguments["target"], arguments["specs"]))
    whole = {
        **arguments,
        "model_dir": os.path.abspath(arguments["model_dir"]),
        "target": tuple(os.path.abspath(name) if is_path(name) else name for name in kernels),
        "specs": tuple(os.path.abspath(folder) for folder in specs),
    }
    folders = tuple(Path(os.path.abspath(writer.path)).parent for writer in store.writers)
    return Asked(uuid.uuid4().hex, whole, folders, store.journal.of, _everywhere(conversion.files))


def _everywhere(files: State) -> State:
    """What of the files' state is the same on all machines."""
    return {name: numbers[:2] for name, numbers in files.items()}


# --- the driver -------------------------------------------------------------------------------------------------------


def carry_out(
    arguments: Mapping[str, Any], conversion: Conversion, store: Store, works: Sequence[Unit | Copy], progress: Progress
) -> Done:
    """Carry units out on all machines of the cluster; yields each when it is written and recorded.

    arguments: those of `planned` that made the conversion. LayoutError as without a cluster, where a machine does not
    see the same files, and where Ray's processes on this machine went.
    """
    import ray

    for writer in store.writers:
        os.truncate(writer.path, writer.size)  # whoever writes beyond the end may write zeros up to there
        sync(writer.path)  # what this machine wrote is sent before the others write, and never after
    asked = asked_of(arguments, conversion, store)  # not put: where that is lost, Ray ends the process without a word
    gpus = int(backends.device(conversion.backend) == "cuda")
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(carried_out)
    number = {id(work): at for at, work in enumerate(conversion.units)}
    coming, running = deque(works), dict[Any, Unit | Copy]()
    try:
        while coming or running:
            most = AHEAD * max(int(ray.cluster_resources().get("GPU" if gpus else "CPU", 0)), 1)
            while coming and len(running) < most:
                work = coming.popleft()
                running[task.remote(asked, number[id(work)], storing.key(work))] = work
            ended, _ = ray.wait([*running])
            for one in ended:
                work = running.pop(one)
                finished = store.record(work, _returned(one, work))
                progress.at(work.name, work.size)
                yield work, finished
    except ray.exceptions.RayTaskError:
        raise  # a fault of ours
    except ray.exceptions.RayError as error:
        raise LayoutError(
            f"this process has lost the Ray cluster: {_words(error)}",
            code="LP227",
            name="cluster",
            help="the logs of Ray on this machine say why; start the cluster anew, or convert without it",
        ) from None
    finally:
        _end(running)


def _returned(task: Any, work: Unit | Copy) -> Finished:
    import ray

    try:
        found = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        *_, last = str(error).splitlines()
        if not last.startswith(ModuleNotFoundError.__name__):
            raise
        raise LayoutError(
            f"a machine of the cluster cannot do what it is asked: {last.partition(': ')[2].lower()}",
            code="LP227",
            name="cluster",
            help=SAME,
        ) from None
    except (ray.exceptions.LocalRayletDiedError, ray.exceptions.RaySystemError):
        raise  # not the task's, but the driver's own
    except ray.exceptions.RayError as error:
        raise LayoutError(
            f"`{work.name}` is given up after {RETRIES} retries: its process or its machine went each time: "
            f"{_words(error)}",
            code="LP227",
            name="cluster",
            help="the logs of Ray on that machine say why; too little memory is one reason",
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


def _end(running: Mapping[Any, Unit | Copy]) -> None:
    """Nothing is written any more when this returns: the next run may have another source."""
    import ray

    with suppress(ray.exceptions.RayError):
        for task in running:
            ray.cancel(task)
        ray.wait([*running], num_returns=len(running), timeout=PATIENCE) if running else None


# --- the worker processes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """A conversion as a worker process has opened it."""

    conversion: Conversion
    making: Making
    writers: Sequence[Writer]

    def close(self) -> None:
        for writer in self.writers:
            writer.abandon()

    def carry_out(self, at: int, key: str) -> Finished:
        """Read, make and write one unit: it is on disk when this returns."""
        works = self.conversion.units[at : at + 1]
        if [*map(storing.key, works)] != [key]:
            raise _differs("divides the conversion into other units", SAME)
        work = works[0]
        made = self.making.make(work, self.making.read(work))
        wrote = storing.written(self.writers, work, made)
        self.making.give_back(made)
        return wrote


_joined: dict[str, Joined] = {}
"""The one conversion that this process works for, by its name."""


def carried_out(asked: Asked, at: int, key: str) -> Finished | Exception:
    """The task: one unit, by its number and name. What is refused is returned, for Ray would wrap it."""
    try:
        if asked.run not in _joined:
            while _joined:
                _joined.popitem()[1].close()
            _joined[asked.run] = _join(asked)
        return _joined[asked.run].carry_out(at, key)
    except (LayoutError, OSError) as error:
        return error


def _join(asked: Asked) -> Joined:
    _check_files(asked)
    try:
        conversion = planned(**asked.arguments)
    except LayoutError as error:
        raise _here(error) from None
    writers, of = files_of(conversion, asked.homes)
    if of != asked.of:
        raise _differs("makes other plans of this conversion", SAME)
    joined = Joined(conversion, Making(conversion, conversion.largest), writers)
    try:
        for writer in writers:
            writer.join()
    except OSError as error:
        joined.close()
        raise _differs(f"cannot open `{error.filename}`: {(error.strerror or '').lower()}", SHARED) from None
    return joined


SAME = "every machine of the cluster needs the same layoutdsl, and torch"
SHARED = "source and destination have to be on a file system that all machines share, and nobody may write into them"


def _check_files(asked: Asked) -> None:
    source = Path(asked.arguments["model_dir"])
    found = _everywhere(state(source))
    for name, numbers in asked.files.items():
        if found.get(name) != numbers:
            what = "another" if name in found else "no"
            raise _differs(f"has {what} `{source / name}`", SHARED)


def _differs(what: str, help: str) -> LayoutError:
    return LayoutError(f"machine `{socket.gethostname()}` {what}", code="LP227", name="cluster", help=help)


def _here(error: LayoutError) -> LayoutError:
    return LayoutError.of(
        replace(one, message=f"on machine `{socket.gethostname()}`: {one.message}") for one in error.diagnostics
    )
