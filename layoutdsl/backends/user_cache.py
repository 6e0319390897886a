"""The folder that keeps compiled kernels: the user's cache, or one for this process alone."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from layoutdsl.folders import cache as folder

__all__ = ["folder", "temporary"]


def temporary() -> Path:
    """A folder for this process alone, where that one cannot be written; gone at its end."""
    return Path(_temporary().name)


@lru_cache(maxsize=1)
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="layoutdsl-", ignore_cleanup_errors=True)
