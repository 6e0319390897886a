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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from layoutdsl.backends import buffers, cpu_memory
from layoutdsl.backends.cpu_lower import TABLES, Form, Launch, Loop, launches
from layoutdsl.backends.cpu_source import INNER, source
from layoutdsl.backends.torch import Converter, carry_into, carry_out, scratch
from layoutdsl.backends.torch_recodes import STORED, twin
from layoutdsl.codes import Code, code_named
from layoutdsl.plan import Check, Lost, Plan, Program, TensorInfo
from layoutdsl.recodes import Recode

__all__ = ["amend", "run", "scratch"]

TURNS, PIECE = 64, 1024
"""As many turns as make threads' shares even; how long the innermost loop goes on where it has to be cut for them."""

SHARE, PIECES = 1 << 21, 4
"""Bytes for which another thread is worth its start; pieces for each, so that one that is held up is helped out."""


def run(
    plan: Plan,
    tensors: buffers.Given,
    out: Mapping[str, torch.Tensor] | None = None,
    report: list[Lost] | None = None,
) -> dict[str, torch.Tensor]:
    return carry_out(_Cpu, plan, tensors, out, report)


def amend(plan: Plan, tensors: buffers.Given, out: Mapping[str, torch.Tensor]) -> None:
    carry_into(_Cpu, plan, tensors, out)


class _Cpu(Converter):
    """A conversion that makes outputs with kernels where it can."""

    def __init__(self, plan: Plan, given: Mapping[str, list[torch.Tensor]], device: torch.device):
        super().__init__(plan, given, device)
        self.found: dict[str, tuple[Launch, ...] | None] = {}

    def _check(self, check: Check, expert: int) -> None:
        """Where all bytes of a tensor are as expected, no place needs to be looked for."""
        bits = code_named(self.plan.input[check.tensor].code).bits
        known = check.kind == "equal" and bits in (4, 8) and 0 <= check.expect[0] < 1 << bits
        if known and self.device.type == "cpu":
            value = check.expect[0] * (17 if bits == 4 else 1)
            flats = self.sources.given[check.tensor]
            if not _any(_is_other, 8, flats[expert if len(flats) > 1 else 0], np.uint8(value)):
                return
        super()._check(check, expert)

    def verify_program(self, program: Program, info: TensorInfo) -> None:
        if self._launches(program) is None:
            super().verify_program(program, info)

    def write_program(self, program: Program, info: TensorInfo, views: Sequence[torch.Tensor]) -> None:
        found = self._launches(program)
        if found is None:
            super().write_program(program, info, views)
            return
        for launch in found:
            table = _table(program.recode)[0] if launch.form.how == "table" else None  # kept until the kernel is done
            value = launch.value if table is None else table.data_ptr()
            _start(launch, [view.data_ptr() for view in views], self._of(program, launch, len(views)), value)

    def _of(self, program: Program, launch: Launch, experts: int) -> list[int]:
        """The address of each expert's source."""
        if launch.form.how == "fill":
            return [0] * experts
        flats = self.sources.given[program.sources[launch.part]]
        return [flats[expert if len(flats) > 1 else 0].data_ptr() for expert in range(experts)]

    def _launches(self, program: Program) -> tuple[Launch, ...] | None:
        """None also where a code of the sources may be refused: the torch backend knows whether it is, and says it."""
        if program.output not in self.found:
            self.found[program.output] = self._find(program)
        return self.found[program.output]

    def _find(self, program: Program) -> tuple[Launch, ...] | None:
        found = launches(self.plan, program) if self.device.type == "cpu" else None
        if found is None:
            return None
        reading = [launch for launch in found if launch.form.how != "fill"]
        if program.output in self.counted and any(launch.form.how == "table" for launch in reading):
            return None
        names = {program.sources[launch.part] for launch in reading}
        if any(_refuses(program.recode, flat) for name in names for flat in self.sources.given[name]):
            return None
        return found


def _refuses(recode: Recode, flat: torch.Tensor) -> bool:
    """Whether some code of a tensor is refused, wherever it stands."""
    code = code_named(recode.source)
    if recode.name in TABLES and code.bits > 4:
        bad = _table(recode)[1]
        return bad is not None and _any(_is_marked, code.bits, flat, bad.numpy())
    found = _non_finite(code) if recode.name == "copy" else None
    return found is not None and _any(_is_masked, code.bits, flat, *map(np.dtype(f"uint{code.bits}").type, found))


def _any(find: Callable[..., bool], bits: int, flat: torch.Tensor, *arguments: Any) -> bool:
    codes = flat.numpy().view(f"uint{bits}")
    found: list[bool] = []
    _share(len(codes), flat.nbytes, lambda first, last: found.append(find(codes[first:last], *arguments)))
    return any(found)


@numba.njit(nogil=True, cache=True)
def _is_masked(codes: Any, mask: Any, value: Any) -> Any:
    found = False
    for code in codes:
        found |= (code & mask) == value
    return found


@numba.njit(nogil=True, cache=True)
def _is_marked(codes: Any, bad: Any) -> Any:
    found = False
    for code in codes:
        found |= bad[code]
    return found


@numba.njit(nogil=True, cache=True)
def _is_other(codes: Any, value: Any) -> Any:
    found = False
    for code in codes:
        found |= code != value
    return found


@lru_cache(maxsize=64)
def _table(recode: Recode) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Target codes by source code, and which source codes are refused, as the torch backend has them."""
    bits = code_named(recode.source).bits
    codes = torch.arange(1 << bits, dtype=torch.int32).to(STORED[bits])
    made, bad = twin(recode, codes)
    return made.contiguous(), bad if bad is not None and bool(bad.any()) else None


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


def _start(launch: Launch, to: list[int], of: list[int], value: int) -> None:
    outer, inner = _shared_out(launch.loops, len(to))
    arguments = (_numbers(to) + launch.dst, _numbers(of) + launch.src, _numbers(outer).reshape(-1, 3),
                 _numbers(inner).reshape(-1, 3), _numbers(launch.reads), _numbers(launch.writes), np.uint64(value))
    made = kernel(launch.form)
    each = (launch.form.word // 8 << launch.form.digits) * math.prod(loop[0] for loop in launch.loops)
    turns = len(to) * math.prod(loop[0] for loop in outer)
    _share(turns, len(to) * each, lambda first, last: made(*arguments, first, last))


def _numbers(found: Sequence[Any]) -> np.ndarray:
    return np.array(found, dtype=np.int64)


def _share(turns: int, size: int, work: Callable[[int, int], object]) -> None:
    """Turns [0, turns), together `size` bytes, among as many threads as numba is set to use."""
    count = max(min(numba.get_num_threads(), size // SHARE, turns), 1)
    if count == 1:
        work(0, turns)
        return
    pieces = min(PIECES * count, turns)
    borders = [turns * piece // pieces for piece in range(pieces + 1)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, borders, borders[1:]))


def _shared_out(loops: tuple[Loop, ...], experts: int) -> tuple[list[Loop], list[Loop]]:
    """Loops whose turns, with the experts, are shared out among threads, and those inside of one turn."""
    cut = max(len(loops) - INNER, 0)
    turns = experts * math.prod(loop[0] for loop in loops[:cut])
    while turns < TURNS and cut < len(loops) - 1:
        turns *= loops[cut][0]
        cut += 1
    if turns < TURNS and loops:
        count, dst, src = loops[-1]
        piece = max(size for size in range(1, PIECE + 1) if count % size == 0)
        loops = (*loops[:-1], (count // piece, dst * piece, src * piece), (piece, dst, src))
        cut += 1
    inner = loops[cut:]
    return list(loops[:cut]), [(1, 0, 0)] * (INNER - len(inner)) + list(inner)


@cache
def kernel(form: Form) -> Callable[..., None]:
    """The compiled kernel of a form, from a file of its own: numba keeps what it has compiled beside it."""
    text = source(form)
    used = Path(cpu_memory.__file__).read_bytes()  # numba would not notice that what a kernel calls has changed
    name = f"layoutdsl_{hashlib.sha256(text.encode() + used).hexdigest()[:16]}"
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
