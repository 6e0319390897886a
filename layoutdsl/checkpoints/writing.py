"""Output that is whole or not there: safetensors files filled tensor by tensor, in a folder that is named last."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdsl.checkpoints.folder import DTYPES
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    import torch

_SPELLED = {name: (spelled, width) for spelled, (name, width) in DTYPES.items()}
ALIGNMENT = 8

Described = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> its dtype, as torch names it, and its shape."""


class Writer:
    """A safetensors file of tensors that are known beforehand and come in any order, one in memory at a time.

    Wide elements stand first, so that every tensor is aligned to its own width.
    """

    def __init__(self, path: Path, described: Described, metadata: Mapping[str, str]):
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self.places: dict[str, tuple[int, int]] = {}
        at = 0
        for name in sorted(described, key=lambda name: (-_SPELLED[described[name][0]][1], name)):
            dtype, shape = described[name]
            spelled, width = _SPELLED[dtype]
            size = math.prod(shape) * width
            header[name] = {"dtype": spelled, "shape": list(shape), "data_offsets": [at, at + size]}
            self.places[name] = at, size
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        self.base, self.size = 8 + len(text), 8 + len(text) + at
        self.left = set(described)
        self.file = path.open("xb")
        self.file.write(len(text).to_bytes(8, "little") + text)
        self.file.flush()
        _reserve(self.file.fileno(), self.size)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        start, size = self.places[name]
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        assert name in self.left and raw.nbytes == size, name
        self.file.seek(self.base + start)
        self.file.write(memoryview(raw))
        self.left.discard(name)

    def close(self) -> None:
        """Everything on disk. Requires that every tensor was written."""
        assert not self.left, sorted(self.left)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def abandon(self) -> None:
        with suppress(OSError):
            self.file.close()


def _reserve(handle: int, size: int) -> None:
    """Room for the whole file, so that a full disk is told now and not after an hour; where the file system can."""
    try:
        os.posix_fallocate(handle, 0, size)
    except AttributeError:
        return
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise


def check_new(final: Path) -> None:
    """LayoutError where an output folder is there already and not empty."""
    if final.is_symlink() or (final.exists() and not (final.is_dir() and not any(final.iterdir()))):
        raise LayoutError(
            f"`{final}` is there already",
            code="LP220",
            name="destination",
            help="name a new folder, or remove this one first",
        )


@contextmanager
def published(final: Path) -> Iterator[Path]:
    """A new folder beside `final` that is renamed to it when the block ends well, and removed when it does not.

    Raises LayoutError where `final` is there and not empty, and where the disk says no.
    """
    check_new(final)
    made: list[Path] = []
    temporary = final.parent / f".{final.name}.{secrets.token_hex(4)}.partial"
    try:
        made = [folder for folder in final.parents if not folder.exists()]
        temporary.mkdir(parents=True)  # another rank that failed may have removed the parent just now
        yield temporary
        sync(temporary)
        if final.exists():
            final.rmdir()
        temporary.rename(final)
        sync(final.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError) and error.strerror:  # the loader of libraries has none: that is no full disk
            place = f"`{error.filename}`" if error.filename else f"into `{final}`"
            raise LayoutError(
                f"cannot write {place}: {error.strerror.lower()}",
                code="LP220",
                name="destination",
                help="nothing was left behind; make room or choose another place",
            ) from None
        raise


def sync(path: Path) -> None:
    """A file's or a folder's entries on disk."""
    if os.name == "nt" and path.is_dir():
        return  # there folders cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
