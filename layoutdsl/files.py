"""Files that a stranger made: regular ones alone, and no link that leads out of the folder that was given.

A pipe would keep us waiting for ever, a device need have no end. A link out of its folder would show, in a report, what
stands in a file that nobody gave: `specs/x.yaml` may point at a password.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from layoutdsl.folders import real


def opened(path: Path, *folders: Path) -> BinaryIO:
    """A file, open to be read. If it is a link, it must lead into its own folder or one of `folders`.

    OSError says in lower case why it cannot be read.
    """
    if path.is_symlink() and not any(real(path).is_relative_to(real(folder)) for folder in (path.parent, *folders)):
        raise OSError(errno.EACCES, "it is a link out of its folder")
    try:
        return open(path, "rb", opener=_regular)
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a null character") from None


def _regular(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is no regular file")


def reason(error: OSError) -> str:
    """Why a file cannot be read, in lower case."""
    return (error.strerror or "unknown reason").lower()
