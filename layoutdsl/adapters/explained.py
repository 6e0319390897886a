"""Under which parameters of a format and which module the tensors of a layer are what they are.

The names are given, the sizes are given; parameters that nobody states are tried. Names, dtypes and shapes must then be
exactly those of the format, but for extents of 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from layoutdsl.errors import LayoutError
from layoutdsl.model import Checkpoint, Module, ParamValue
from layoutdsl.plan import TensorInfo
from layoutdsl.resolve import Matrix, Ranks, Side, bind, matrices, tensors

Params = dict[str, ParamValue]
Sizes = dict[str, int | tuple[int, ...]]

MOST_TRIED = 256
"""Settings that are tried; shipped formats have some dozen."""


@dataclass(frozen=True)
class Explained:
    """The format with all its parameters, the module with its own and the sizes, its matrices, and what the format's
    tensors are, by their names in a plan."""

    spec: Checkpoint
    params: Params
    module: Module
    module_params: Params
    sizes: Sizes
    matrices: tuple[Matrix, ...]
    inputs: dict[str, TensorInfo]

    @property
    def in_parts(self) -> bool:
        return any(matrix.parts for matrix in self.matrices)


def explained(
    own: Mapping[str, torch.Tensor],
    spec: Checkpoint,
    modules: Sequence[tuple[Module, Params, Sizes]],
    stated: Mapping[str, ParamValue],
    likely: Mapping[str, ParamValue],
) -> Explained:
    """The first setting that explains the tensors: modules in their order, then of the parameters that are not stated
    the likely values before the defaults before others.

    own: tensors by their names in a plan. Raises LayoutError that says what differs under the setting that comes
    nearest.
    """
    best, least = "", math.inf
    for module, module_params, sizes in modules:
        found = matrices(module, bind(module, module_params), sizes, Ranks())
        parts = {"parts": "stacked"} if any(matrix.parts for matrix in found) else {}
        for params in _settings(spec, {**parts, **stated} if parts else _without_parts(stated), likely):
            infos = _inputs(spec, params, found)
            wrong = list(_differences(infos, own))
            if not wrong:
                return Explained(spec, params, module, module_params, sizes, found, infos)
            faults = sum(count for _, count in wrong)
            if faults < least:
                best, least = wrong[0][0], faults
    raise LayoutError(
        f"the layer's tensors are not those of `{spec.name}`: {best}",
        code="LP372",
        name="layer-differs",
        help="give the parameters of the quantization config, and the layer before anything changed its tensors",
    )


def _settings(spec: Checkpoint, stated: Mapping[str, ParamValue], likely: Mapping[str, ParamValue]) -> Iterator[Params]:
    fixed = bind(spec, stated)
    wanted = {**fixed, **{name: value for name, value in likely.items() if name in spec.params}}
    ways = {
        name: sorted(
            (False, True) if param.type == "bool" else param.values, key=lambda v, name=name: v != wanted[name]
        )
        for name, param in spec.params.items()
        if name not in stated and param.type in ("bool", "values")
    }
    for values in itertools.islice(itertools.product(*ways.values()), MOST_TRIED):
        yield {**fixed, **dict(zip(ways, values, strict=True))}


def _without_parts(stated: Mapping[str, ParamValue]) -> Params:
    return {name: value for name, value in stated.items() if name != "parts"}


def _inputs(spec: Checkpoint, params: Params, found: Sequence[Matrix]) -> dict[str, TensorInfo]:
    side = Side(spec, params, "whole")
    infos = (
        TensorInfo.of(tensor, matrix.experts[0] if matrix.experts else 0)
        for matrix in found
        for tensor in tensors(side, matrix)
    )
    return {info.name: info for info in infos}


def _differences(infos: Mapping[str, TensorInfo], own: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, int]]:
    """What is wrong, and how much that weighs: a tensor of another form may still be the one that is meant."""
    for name, info in infos.items():
        wanted = f"{' or '.join(info.dtypes)} {list(info.full_shape)}"
        if name not in own:
            yield f"there is no `{name}`, expected {wanted}", 2
            continue
        dtype, shape = str(own[name].dtype).removeprefix("torch."), list(own[name].shape)
        if dtype not in info.dtypes or _squeezed(shape) != _squeezed(info.full_shape):
            yield f"`{name}` is {dtype} {shape}, expected {wanted}", 1
    yield from ((f"`{name}` has no place in it", 2) for name in own if name not in infos)


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]
