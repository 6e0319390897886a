"""The folder of the user's cache that keeps compiled kernels."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path


def folder() -> Path:
    """`layoutdsl` in XDG_CACHE_HOME, or else in ~/.cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "layoutdsl"


def temporary() -> Path:
    """A folder for this process alone, where that one cannot be written; gone at its end."""
    return Path(_temporary().name)


@lru_cache(maxsize=1)
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="layoutdsl-", ignore_cleanup_errors=True)
