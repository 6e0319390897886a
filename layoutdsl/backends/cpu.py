"""The conversion as compiled loops over packed words: one pass, nothing unpacked, experts and outer loops over threads.

cpu_lower.py turns the boxes of a program's moves into launches, cpu_source.py writes the text of their kernels, numba
compiles it. What has no launch, and what holds a code that may have to be refused, is made by the torch backend, one
output at a time: so the bytes and the refusals are its own.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.cpu_lower import Form, Launch, Loop, launches
from layoutdsl.backends.cpu_source import INNER, source
from layoutdsl.backends.torch import Converter, carry_out, scratch
from layoutdsl.codes import Code, code_named
from layoutdsl.plan import Lost, Plan, Program, TensorInfo

__all__ = ["run", "scratch"]

_LAUNCH = threading.Lock()
"""Numba's plainest threading layer ends the process where two threads of Python enter it at once."""

TURNS, PIECE = 64, 1024
"""As many turns as make the threads' shares even; how long a lone loop goes on in one turn."""


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    return carry_out(_Cpu, plan, tensors, out, report)


class _Cpu(Converter):
    """A conversion that makes outputs with kernels where it can."""

    def verify_program(self, program: Program, info: TensorInfo) -> None:
        if self._launches(program) is None:
            super().verify_program(program, info)

    def write_program(self, program: Program, info: TensorInfo, views: Sequence[torch.Tensor]) -> None:
        found = self._launches(program)
        if found is None:
            super().write_program(program, info, views)
            return
        for launch in found:
            of = [self._of(program, launch, expert) for expert in range(len(views))]
            _start(launch, [view.data_ptr() for view in views], of)

    def _of(self, program: Program, launch: Launch, expert: int) -> int:
        if launch.form.how == "fill":
            return 0
        flats = self.sources.given[program.sources[launch.part]]
        return flats[expert if len(flats) > 1 else 0].data_ptr()

    def _launches(self, program: Program) -> tuple[Launch, ...] | None:
        if self.device.type != "cpu":
            return None
        found = launches(self.plan, program)
        if found is None or not self._clean(program):
            return None
        return found

    def _clean(self, program: Program) -> bool:
        """Whether no code of the sources is NaN or infinite. Wherever one stands the torch backend looks further."""
        code = code_named(program.recode.source)
        if program.recode.name != "copy" or _non_finite(code) is None:
            return True
        return not any(_holds(code, flat) for name in program.sources for flat in self._flats(name))

    def _flats(self, name: str) -> Sequence[torch.Tensor]:
        return self.sources.given[name]


def _non_finite(code: Code) -> tuple[int, int] | None:
    """(mask, value) of the codes that are NaN or infinite; None where there are none."""
    if code.name == "e4m3":
        return 0x7F, 0x7F
    if code.name == "e8m0":
        return 0xFF, 0xFF
    if code.kind != "float" or code.name == "e2m1":
        return None
    top = ((1 << code.exponent) - 1) << code.mantissa
    return top, top


def _holds(code: Code, flat: torch.Tensor) -> bool:
    mask, value = _non_finite(code) or (0, 1)
    dtype = np.dtype(f"uint{code.bits}")
    with _LAUNCH:
        return bool(_find(flat.numpy().view(dtype), dtype.type(mask), dtype.type(value)))


@numba.njit(parallel=True, nogil=True, cache=True)
def _find(codes: Any, mask: Any, value: Any) -> Any:
    found = 0
    for at in numba.prange(len(codes)):
        found += (codes[at] & mask) == value
    return found


def _start(launch: Launch, to: list[int], of: list[int]) -> None:
    outer, inner = _shared_out(launch.loops, len(to))
    table = lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 3)  # noqa: E731
    line = lambda row: np.array(row, dtype=np.int64)  # noqa: E731
    arguments = (line(to) + launch.dst, line(of) + launch.src, table(outer), table(inner), line(launch.reads),
                 line(launch.writes), np.uint64(launch.value))
    with _LAUNCH:
        kernel(launch.form)(*arguments)


def _shared_out(loops: tuple[Loop, ...], experts: int) -> tuple[list[Loop], list[Loop]]:
    """Loops whose turns, with the experts, are shared out among threads, and those inside of one turn."""
    cut = max(len(loops) - INNER, 0)
    turns = experts * math.prod(loop[0] for loop in loops[:cut])
    while cut < len(loops) and turns < TURNS:
        count, dst, src = loops[cut]
        piece = max(size for size in range(1, min(count, PIECE) + 1) if count % size == 0)
        if cut == len(loops) - 1 and piece > 1:
            loops = (*loops[:cut], (count // piece, dst * piece, src * piece), (piece, dst, src))
        turns *= loops[cut][0]
        cut += 1
        if piece > 1 and cut == len(loops) - 1:
            break
    inner = loops[cut:]
    return list(loops[:cut]), [(1, 0, 0)] * (INNER - len(inner)) + list(inner)


@lru_cache(maxsize=None)
def kernel(form: Form) -> Callable[..., None]:
    """The compiled kernel of a form, from a file of its own: numba keeps what it has compiled beside it."""
    text = source(form)
    name = f"layoutdsl_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    spec = spec_from_file_location(name, _written(text, f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def _written(text: str, name: str) -> Path:
    """A file with that text, in the user's cache or, where nothing can be written there, in a folder for this run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "layoutdsl"
    try:
        return _file(folder, text, name)
    except OSError:
        return _file(_temporary(), text, name)


def _file(folder: Path, text: str, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    return path


@lru_cache(maxsize=1)
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="layoutdsl-"))
