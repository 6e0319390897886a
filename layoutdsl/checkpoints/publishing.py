"""Output that is whole or not there: made in a folder `.NAME.partial` beside it, and renamed when all is on disk.

    .NAME.partial/out       what becomes NAME
    .NAME.partial/journal   what of it is finished (journal.py); from its first line on a failure leaves the folder
    .NAME.partial/lock      held by whoever works in it

Nothing else is ever removed there, and no link is followed. A conversion for all ranks makes DST, one for a rank makes
DST/rank-R: they exclude each other, since each takes its lock before it looks for the other's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from layoutdsl import files
from layoutdsl.checkpoints import journal
from layoutdsl.errors import LayoutError
from layoutdsl.folders import real

try:
    import fcntl
except ImportError:  # Windows, where no other process can remove what this one has open
    fcntl = None

OUT = "out"
JOURNAL = "journal"
LOCK = "lock"

_OURS = re.compile(rf"{LOCK}|{JOURNAL}|{OUT}/(rank-\d+/)?(model\.safetensors|config\.json)?")
"""What a conversion makes in such a folder; names of folders end with a slash."""


def partial_of(final: Path) -> Path:
    """Where an output is made."""
    return final.parent / f".{final.name}.partial"


def _final_of(partial: Path) -> Path:
    """The output that is made there."""
    return partial.with_name(partial.name[1:].removesuffix(".partial"))


def check_new(final: Path) -> None:
    """LayoutError where an output folder is there already and not empty, where another process makes a part of it or
    what it is a part of, and where something that no conversion has made is in the way."""
    if final.name in ("", ".."):
        raise LayoutError(
            f"`{final}` is no name that an output could get",
            code="LP220",
            name="destination",
            help="name a new folder",
        )
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
        forget(final)
        _fail_there(final)
    whole = partial_of(real(final.parent))
    _check_free(whole)
    if _kept(whole):
        raise LayoutError(
            f"`{whole}` has what another conversion finished, into all of `{final.parent}`",
            code="LP225",
            name="other-conversion",
            help="the arguments that it was begun with go on, without --rank; or remove that folder",
        )
    if strange := _strange(partial_of(final)):
        _fail_strange(strange)


def check_apart(source: Path, destination: Path) -> None:
    """LayoutError where one of them is in the other: tensors of the output would be taken for the checkpoint's."""
    one, other = real(source), real(destination)
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise LayoutError(
            f"`{destination}` and the checkpoint `{source}` are one in the other",
            code="LP220",
            name="destination",
            help="name a folder that is not in the checkpoint's, nor around it",
        )


def check_only(place: Path, homes: Sequence[Path]) -> None:
    """LayoutError where the output that is made there has another rank's folder."""
    for path in sorted(place.iterdir()):
        if path not in homes and place not in homes:
            _fail_strange(path)


def _fail_strange(path: Path) -> NoReturn:
    raise LayoutError(
        f"`{path}` is in the way: this conversion has not made it",
        code="LP220",
        name="destination",
        help="move it elsewhere, or name another folder",
    )


def _fail_there(final: Path) -> NoReturn:
    """The output is there, or what runs of single ranks have begun in it, which is hidden."""
    message = f"`{final}` is there already"
    for partial in sorted(final.glob(".rank-*.partial")):
        _check_free(partial)
        message += f", with `{partial}`, from which --rank {_final_of(partial).name.removeprefix('rank-')} goes on"
    raise LayoutError(message, code="LP220", name="destination", help="name a new folder, or remove this one first")


def _check_free(partial: Path) -> None:
    """LayoutError where another process works in the folder."""
    with suppress(OSError), files.opened(partial / LOCK) as file:
        _hold(file.fileno(), partial, shared=True)


def _within(partial: Path) -> Iterator[tuple[Path, bool]]:
    """All that is there, the deepest first, and whether a conversion makes such a thing: a link or a pipe it never
    does."""
    for place, folders, names in os.walk(partial, topdown=False):
        for name, end in (*((name, "") for name in names), *((name, "/") for name in folders)):
            path = Path(place, name)
            spelled = path.relative_to(partial).as_posix() + end
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:  # another process has just removed it
                continue
            plain = stat.S_ISDIR(mode) if end else stat.S_ISREG(mode)
            yield path, plain and bool(_OURS.fullmatch(spelled))


def _strange(partial: Path) -> Path | None:
    """Something that no conversion has made."""
    if os.path.islink(partial):
        return partial
    return next((path for path, ours in _within(partial) if not ours), None)


def forget(final: Path) -> None:
    """Remove what a run has left that was killed after the output got its name."""
    partial = partial_of(final)
    with suppress(LayoutError, OSError):
        if partial.is_dir() and not partial.is_symlink() and not (partial / OUT).exists():
            with _locked(partial):
                _remove(partial)


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
            try:
                check_new(final)  # another process may just have made it, or begun with all ranks or with one
                if restart or not _kept(partial):  # where nothing is recorded, what lies there is of no use
                    _clear(partial)
                (partial / OUT).mkdir(exist_ok=True)
                yield partial
                _rename(partial / OUT, final)
            finally:
                if not _kept(partial):
                    _remove(partial)
    except BaseException as error:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        _explain(error, final, partial)
        raise


def _kept(partial: Path) -> bool:
    """Whether a run can go on from what is there."""
    return os.path.exists(partial / OUT) and journal.began(partial / JOURNAL)


def _explain(error: BaseException, final: Path, partial: Path) -> None:
    """Say what is kept and how to go on; of a disk that says no, make a refusal."""
    kept = f"what is finished is kept in `{partial}`: the same command goes on, with --restart it begins anew"
    kept = kept if _kept(partial) else ""
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
                _hold(handle, partial)
                if os.path.samestat(os.fstat(handle), (partial / LOCK).stat()):
                    return handle
            except (LayoutError, OSError):
                os.close(handle)
                raise
            os.close(handle)


def _hold(handle: int, partial: Path, *, shared: bool = False) -> None:
    """Take the lock that is open. LayoutError where another process has it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LayoutError(
            f"another process is making `{_final_of(partial)}`",
            code="LP226",
            name="destination-busy",
            help="wait until it has ended, or name another folder",
        ) from None


def _clear(partial: Path) -> None:
    """All that an earlier run has left, but the lock. The journal first: what it speaks of goes after it."""
    left = [path for path, ours in _within(partial) if ours and path != partial / LOCK]
    for path in sorted(left, key=lambda path: path != partial / JOURNAL):
        if not path.is_dir():
            path.unlink()
            continue
        with suppress(OSError):  # somebody may just have put something into it
            path.rmdir()


def _remove(partial: Path) -> None:
    with suppress(OSError):
        _clear(partial)
        (partial / LOCK).unlink()
        partial.rmdir()


def sync(path: Path) -> None:
    """A file's or a folder's entries on disk."""
    if os.name == "nt" and path.is_dir():
        return  # there folders cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
