"""Output that is whole or not there: made in a folder `.NAME.partial` beside it, and renamed when all is on disk.

    .NAME.partial/out       what becomes NAME
    .NAME.partial/journal   what of it is finished (journal.py); from its first line on a failure leaves the folder

Whoever works in it holds its lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from layoutdsl import files
from layoutdsl.errors import LayoutError

try:
    import fcntl
except ImportError:  # Windows, where no other process can remove what this one has open
    fcntl = None

OUT = "out"
JOURNAL = "journal"
LOCK = "lock"


def partial_of(final: Path) -> Path:
    """Where an output is made."""
    return final.parent / f".{final.name}.partial"


def _is_there(path: Path) -> bool:
    """Whether something is there that this user may see."""
    try:
        return path.exists()
    except OSError:
        return False


def check_new(final: Path) -> None:
    """LayoutError where an output folder is there already and not empty."""
    try:
        there = final.is_symlink() or (final.exists() and not (final.is_dir() and not any(final.iterdir())))
    except OSError as error:
        raise LayoutError(
            f"cannot write `{final}`: {files.reason(error)}",
            code="LP220",
            name="destination",
            help="choose another place, or one that this user may see",
        ) from None
    if there:
        partial = partial_of(final)
        if partial.is_dir() and not (partial / OUT).exists():  # a run was killed after the output got its name
            with suppress(LayoutError, OSError), _locked(partial):
                _remove(partial)
        raise LayoutError(
            f"`{final}` is there already",
            code="LP220",
            name="destination",
            help="name a new folder, or remove this one first",
        )


@contextmanager
def published(final: Path, *, restart: bool = False) -> Iterator[Path]:
    """The folder in which the output is made: it gets its name when the block ends well.

    What an earlier run has finished is there, unless it is to `restart`. A block that fails before anything is finished
    leaves nothing; else the error says what is kept. LayoutError where `final` is there and not empty, where another
    process makes it, and where the disk says no.
    """
    check_new(final)
    partial = partial_of(final)
    made: list[Path] = []
    try:
        with ExitStack() as stack:
            made = [folder for folder in final.parents if not folder.exists()]
            final.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(partial))
            check_new(final)  # another process may just have made it
            if restart or not _is_there(partial / JOURNAL):  # where nothing is recorded, what lies there is of no use
                _clear(partial)
            try:
                (partial / OUT).mkdir(exist_ok=True)
                yield partial
                _rename(partial / OUT, final)
            finally:
                if not _is_there(partial / JOURNAL) or not _is_there(partial / OUT):
                    _remove(partial)
    except BaseException as error:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        _explain(error, final, partial)
        raise


def _explain(error: BaseException, final: Path, partial: Path) -> None:
    """Say what is kept and how to go on; of a disk that says no, make a refusal."""
    kept = f"what is finished is kept in `{partial}`: the same command goes on, with --restart it begins anew"
    kept = kept if _is_there(partial / JOURNAL) else ""
    if isinstance(error, OSError) and error.strerror:  # the loader of libraries has none: that is no full disk
        place = f"`{error.filename}`" if error.filename else f"into `{final}`"
        raise LayoutError(
            f"cannot write {place}: {error.strerror.lower()}",
            code="LP220",
            name="destination",
            help=f"make room or choose another place; {kept or 'nothing was left behind'}",
        ) from None
    if not kept or (isinstance(error, LayoutError) and error.diagnostics[0].code in ("LP225", "LP226")):
        return
    if not isinstance(error, LayoutError):
        error.add_note(kept)
        return
    first = error.diagnostics[0]
    help = f"{first.help}; {kept}" if first.help else kept
    error.diagnostics = (replace(first, help=help), *error.diagnostics[1:])


def _rename(place: Path, final: Path) -> None:
    sync(place)
    if final.exists():
        final.rmdir()
    place.rename(final)
    sync(final.parent)


@contextmanager
def _locked(partial: Path) -> Iterator[None]:
    """The folder, made where it is not there, for this process alone. LayoutError where another has it."""
    handle = _lock(partial)
    try:
        yield
    finally:
        os.close(handle)


def _lock(partial: Path) -> int:
    while True:
        partial.mkdir(parents=True, exist_ok=True)  # another rank that failed may have removed the parent just now
        with suppress(FileNotFoundError):  # another process has just removed the folder
            handle = os.open(partial / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if fcntl is not None:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), (partial / LOCK).stat()):
                    return handle
            except BlockingIOError:
                os.close(handle)
                raise LayoutError(
                    f"another process is making `{partial.parent / partial.name[1 : -len('.partial')]}`",
                    code="LP226",
                    name="destination-busy",
                    help="wait until it has ended, or name another folder",
                ) from None
            os.close(handle)


def _clear(partial: Path) -> None:
    """All that an earlier run has left, but the lock. The journal first: what it speaks of goes after it."""
    (partial / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(partial / OUT, ignore_errors=True)


def _remove(partial: Path) -> None:
    _clear(partial)
    shutil.rmtree(partial, ignore_errors=True)


def sync(path: Path) -> None:
    """A file's or a folder's entries on disk."""
    if os.name == "nt" and path.is_dir():
        return  # there folders cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
