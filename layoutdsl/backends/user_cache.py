"""The folder of the user's cache that keeps compiled kernels."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path


def folder() -> Path:
    """`layoutdsl` in XDG_CACHE_HOME, or else in ~/.cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "layoutdsl"


@lru_cache(maxsize=1)
def temporary() -> Path:
    """A folder for this process alone, where that one cannot be written."""
    return Path(tempfile.mkdtemp(prefix="layoutdsl-"))
