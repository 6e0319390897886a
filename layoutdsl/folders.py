"""Where the shipped specs stand, and what may be kept between runs."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@lru_cache(maxsize=1)
def shipped() -> Path:
    """The folder of the shipped specs: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "specs"
    return inside if inside.is_dir() else _PACKAGE.parent / "specs"


def near(path: Path, here: Path) -> Path:
    """A path, relative to the folder `here` where it stands inside it."""
    return path.relative_to(here) if path.is_relative_to(here) else path


def real(path: Path) -> Path:
    """Where a path leads; a link that leads to itself stays as it is, so that opening it says so."""
    return Path(os.path.realpath(path))


def package() -> Path:
    """The folder of layoutdsl's own code."""
    return _PACKAGE


def cache() -> Path:
    """`layoutdsl` in XDG_CACHE_HOME, or else in ~/.cache; it may not exist. A relative one counts as none, as XDG has
    it: it would be another folder wherever one stands."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (stated if stated.is_absolute() else Path("~/.cache").expanduser()) / "layoutdsl"
