"""What a rule looks at: a valid spec, its text, and its layouts at the sizes to try.

    for one in subject.tries:
        for tensor in one.tensors:
            ...  # one.params["group"], tensor.code, tensor.shape ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from layoutdsl import resolve
from layoutdsl.errors import LayoutError
from layoutdsl.lint.formats import Stated, settings
from layoutdsl.lint.others import Text, others
from layoutdsl.model import Format, Module, ParamValue, Spec
from layoutdsl.resolve import Matrix, Ranks, Scope, Side, Stored, Stretch
from layoutdsl.source import Tree


@dataclass(frozen=True)
class Try:
    """One entry of `try` with numbers; `path` leads to it.

    `params` are the spec's parameters with their values, `sizes` the extents of its axes (a format's are n and k). A
    format has the `tensors` of one plain n by k matrix, a module its `matrices` on a single rank; the other is empty.
    """

    path: tuple[str, int]
    params: Scope
    sizes: Mapping[str, int | tuple[int, ...]]
    tensors: tuple[Stored, ...] = ()
    matrices: tuple[Matrix, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A valid spec, its text (laid over its base, where it has one), and the folders where it finds others."""

    spec: Spec
    tree: Tree
    specs: tuple[str, ...] = ()

    @cached_property
    def tries(self) -> tuple[Try, ...]:
        """The entries of `try` that resolve; what is wrong with the others, the proofs say."""
        return tuple(self._tries())

    @cached_property
    def settings(self) -> tuple[tuple[dict[str, ParamValue], dict[str, Stated]], ...]:
        """Parameters that make a difference, and a format's tensors by their roles then; a module has none."""
        return settings(self.spec) if isinstance(self.spec, Format) else ()

    @cached_property
    def others(self) -> tuple[tuple[str, Text], ...]:
        """Name and text of every other spec of this kind, without documentation."""
        return tuple(others(self.spec, Path(self.tree.file), self.specs))

    def _tries(self) -> Iterator[Try]:
        for at, entry in enumerate(self.spec.try_):
            try:
                if isinstance(self.spec, Module):
                    yield _of_module(self.spec, ("try", at), entry)
                elif isinstance(self.spec, Format):
                    yield _of_format(self.spec, ("try", at), entry)
            except LayoutError:
                continue


Entry = Mapping[str, ParamValue | tuple[int, ...]]


def _of_format(spec: Format, path: tuple[str, int], entry: Entry) -> Try:
    sizes = {axis: _extent(entry.get(axis)) for axis in ("n", "k")}
    params = resolve.bind(spec, {name: value for name, value in entry.items() if name not in sizes})  # pyright: ignore
    outputs, inputs = (Stretch(axis, size, 0, size, size) for axis, size in sizes.items())
    matrix = Matrix("m", (), (outputs,), inputs, "part", sizes["n"], None, True)
    return Try(path, params, sizes, tensors=resolve.tensors(Side(spec, params, "whole"), matrix))


def _of_module(spec: Module, path: tuple[str, int], entry: Entry) -> Try:
    sizes = {name: value for name, value in entry.items() if name in spec.axes}
    params = resolve.bind(spec, {name: value for name, value in entry.items() if name not in sizes})  # pyright: ignore
    found = resolve.matrices(spec, params, sizes, Ranks())  # pyright: ignore[reportArgumentType]
    return Try(path, params, sizes, matrices=found)  # pyright: ignore[reportArgumentType]


def _extent(value: ParamValue | tuple[int, ...] | None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LayoutError("a size to try is a positive integer")
    return value
