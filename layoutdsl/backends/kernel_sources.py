"""The CUDA sources of `kernels`, and kernels joined into one text: what a compiler and the key of a cache get to see.

A kernel begins with `#include "device.cuh"`, which declares all that it may use.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent

_INCLUDE = re.compile(r'^[ \t]*#include "([\w./]+\.cuh?)"[ \t]*$')


@lru_cache(maxsize=1)
def folder() -> Path:
    """The folder of the CUDA sources: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "kernels"
    return inside if inside.is_dir() else _PACKAGE.parent / "kernels"


def joined(text: str, name: str = "kernel.cu") -> str:
    """The text with each file that it includes from `kernels` pasted in, once; `name` is the text's own in messages.

    #line directives keep the names and lines of the pasted files. Includes of other files than .cuh stay.
    """
    return "".join(_lines(text, name, set()))


def _lines(text: str, name: str, seen: set[str]) -> list[str]:
    made = [f'#line 1 "{name}"\n']
    for number, line in enumerate(text.splitlines(), 1):
        found = _INCLUDE.match(line)
        if found is None:
            made.append(f"{line}\n")
            continue
        if found[1] not in seen:
            seen.add(found[1])
            made += _lines(_read(found[1]), found[1], seen)
        made.append(f'#line {number + 1} "{name}"\n')
    return [line if line != "#pragma once\n" else "\n" for line in made]


@lru_cache(maxsize=64)
def _read(name: str) -> str:
    return (folder() / name).read_text(encoding="utf-8")
