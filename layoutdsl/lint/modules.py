"""What rules ask of a module: which matrix writes an axis, which one reads it, and what ranks may cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdsl.grammar import Template
from layoutdsl.model import Matrix, Module
from layoutdsl.source import Route


def products(spec: Module) -> Iterator[tuple[Route, Sequence[str]]]:
    """Every product of axes that a matrix lies on, and where it stands."""
    for name, matrix in spec.matrices.items():
        yield from ((("matrices", name, *place), axes) for place, axes in outputs(matrix))
        yield ("matrices", name, "k"), matrix.k


def outputs(matrix: Matrix) -> Iterator[tuple[Route, Sequence[str]]]:
    """The axes of a matrix' outputs, part by part where each has its own."""
    if isinstance(matrix.n, dict):
        yield from ((("n", part), axes) for part, axes in matrix.n.items())
    else:
        yield ("n",), matrix.n


def writers(spec: Module, axis: str) -> list[str]:
    """The matrices whose outputs lie on an axis."""
    return [name for name, matrix in spec.matrices.items() if any(axes[0] == axis for _, axes in outputs(matrix))]


def readers(spec: Module, axis: str) -> list[str]:
    """The matrices whose inputs lie on an axis."""
    return [name for name, matrix in spec.matrices.items() if matrix.k[0] == axis]


def inner(spec: Module) -> dict[str, tuple[str, str]]:
    """Axes that stay inside the module -> a matrix that writes each and another that reads it."""
    found: dict[str, tuple[str, str]] = {}
    for axis in spec.axes:
        pairs = [(a, b) for a in writers(spec, axis) for b in readers(spec, axis) if a != b]
        if pairs and axis not in spec.visible:
            found[axis] = pairs[0]
    return found


def has_parts(matrix: Matrix) -> bool:
    """Whether a matrix has several parts, or may have."""
    return (
        len(matrix.n) > 1 if isinstance(matrix.n, dict) else isinstance(matrix.parts, Template) or len(matrix.parts) > 1
    )


def cuts(spec: Module, kind: str) -> set[str]:
    """The axes that ranks of a kind may cut, whatever the parameters are; `none` is left out."""
    template = spec.ranks.get(kind)  # pyright: ignore[reportArgumentType]
    if template is None:
        return set()
    if all(isinstance(piece, str) for piece in template.pieces):
        return {"".join(template.pieces)} - {"none"}
    used = [spec.params[name] for name, _, _ in template.names() if name in spec.params]
    return {str(value) for param in used for value in param.values} - {"none"}
