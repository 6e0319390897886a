"""A spec held against files that were written and are read by code that knows no spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import torch
from conversions import tensor

from layoutdsl.decode import Reading
from layoutdsl.errors import LayoutError
from layoutdsl.model import Format
from layoutdsl.model import Kernel as KernelSpec
from layoutdsl.resolve import Matrix, Side, Stored, Stretch, bind, tensors
from mutation import files


@lru_cache(maxsize=32)
def drawn(spec: str) -> tuple[files.Drawn, ...]:
    return tuple(files.kernels(spec) if spec in files.KERNELS else files.checkpoints(spec))


def wrong(spec: Format) -> str | None:
    """The first thing that a spec says wrongly of the files of its format, if any."""
    if isinstance(spec, KernelSpec) and (said := _accepts(spec)):
        return said
    for file in drawn(spec.name):
        if said := next(_differences(spec, file), None):
            options = " ".join(f"{key}={value}" for key, value in file.params.items()) or "no parameters"
            return f"{said} ({options})"
    return next(_allowed(spec), None)


def _allowed(spec: Format) -> Iterator[str]:
    for params in files.NOWHERE.get(spec.name, ()):
        try:
            bind(spec, params)
        except LayoutError:
            continue
        yield f"there is no file with {params}"


def _accepts(spec: KernelSpec) -> str | None:
    of, accepts = files.KERNELS[spec.name], spec.accepts
    if tuple((tile.n, tile.k) for tile in accepts.tiles) != of.tiles:
        return "the kernel takes other tiles"
    if set(accepts.groups) != of.groups:
        return "the kernel takes other groups"
    return None if accepts.capability == of.capability else "the kernel needs another compute capability"


def _differences(spec: Format, file: files.Drawn) -> Iterator[str]:
    found = {stored.name.removeprefix("m."): stored for stored in laid_out(spec, file)}
    if found.keys() != file.tensors.keys():
        yield f"the tensors are {', '.join(file.tensors)}, not {', '.join(found)}"
        return
    for name, (array, dtypes) in file.tensors.items():
        stored = found[name]
        if stored.dtypes != dtypes:
            yield f"{name} is {' or '.join(dtypes)}, not {' or '.join(stored.dtypes)}"
        if stored.shape != array.shape:
            yield f"{name} has the shape {list(array.shape)}, not {list(stored.shape)}"
        if (stored.experts == "shared") != (name == "input_global_scale" and spec.name in files.KERNELS):
            yield f"{name} is {'each expert' if stored.experts == 'shared' else 'all experts'}'s own"
    yield from _values(found, file, max(int(bind(spec, file.params).get("group", -1)), 0))


def laid_out(spec: Format, file: files.Drawn) -> tuple[Stored, ...]:
    n = tuple(Stretch("n", width, 0, width, width) for width in file.widths)
    k = Stretch("k", file.k, 0, file.k, file.k)
    matrix = Matrix("m", file.parts, n, k, "part", sum(file.widths), (2, 0, 2), True)
    return tensors(Side(spec, bind(spec, file.params), "padded" if isinstance(spec, KernelSpec) else "whole"), matrix)


def _values(found: Mapping[str, Stored], file: files.Drawn, group: int) -> Iterator[str]:
    given = {f"m.{name}": tensor(array, getattr(torch, dtypes[0])) for name, (array, dtypes) in file.tensors.items()}
    reading = Reading(found.values(), given, group)
    k, whole = torch.arange(file.k), slice(None)
    for part, weights in enumerate(file.weights):
        window = reading.at(part, torch.arange(file.widths[part]), k)
        whole = slice(0, file.widths[part])
        if not np.array_equal(window.values(whole).numpy(), weights, equal_nan=True):
            yield f"part {part} has other values"
        others = {"bias": file.biases[part][:, None]} if file.biases else {}
        for role, value in (others | (file.others if not part else {})).items():
            if role not in window.planes:
                yield f"no tensor has the role {role}"
            elif (window.worth(role, whole).numpy() != value).any():
                yield f"part {part} has another {role}"
