"""Which tile a GEMM gets for its shape, and how many blocks share the inputs of a tile: data/gemm.yaml, read strictly.

    >>> choose("u4b8", "f16", rows=1, n=4096, k=4096, multiprocessors=108)
    Choice(tile=Tile(m=16, n=128, k=128, depth=4, stages=4), splits=6)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from layoutdsl import source
from layoutdsl.codes import code_named
from layoutdsl.errors import LayoutError

_FILE = Path(__file__).resolve().parent.parent / "data" / "gemm.yaml"

FAMILIES = ((64, 128), (128, 64))
"""Multiples of n and k, of which every matrix that a kernel takes has a pair."""

WIDTHS = {"f16": 16, "bf16": 16, "s8": 8, "e4m3": 8}
"""Bits of an activation."""

Positive = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tile(_Strict):
    """What a block makes: m x n results from k inputs at a time. `depth` warps of each 64 columns share them."""

    m: Literal[16, 32, 48, 64]
    n: Literal[64, 128, 256]
    k: Literal[64, 128]
    depth: Literal[1, 2, 4, 8]
    stages: Annotated[int, Field(ge=2, le=8)]
    fill: float = Field(0.0, ge=0, exclude=True)

    def fits(self, n: int, k: int) -> bool:
        return n % self.n == 0 and k % self.k == 0


class Row(_Strict):
    rows: Positive | None = None
    tiles: Annotated[tuple[Tile, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _serves_all(self) -> Self:
        for n, k in FAMILIES:
            if not any(tile.fits(n, k) and not tile.fill for tile in self.tiles):
                raise ValueError(f"no tile without `fill` takes {n} x {k} for up to {self.rows} rows")
        if len({tile.m for tile in self.tiles}) > 1:
            raise ValueError(f"the tiles for up to {self.rows} rows differ in m")
        return self


class Splits(_Strict):
    """steps: the fewest k of a tile that a split has; blocks: how many a multiprocessor is to have."""

    steps: Positive
    blocks: Positive


class Table(_Strict):
    version: Literal["1"]
    shared: Positive
    splits: Splits
    tiles: dict[Literal["4x16", "8x16", "4x8", "8x8"], Annotated[tuple[Row, ...], Field(min_length=1, strict=False)]]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name, rows in self.tiles.items():
            bounds = [row.rows for row in rows]
            if bounds[-1] is not None or None in bounds[:-1] or bounds[:-1] != sorted(set(bounds[:-1])):
                raise ValueError(f"{name}: `rows` grow from row to row, and only the last has none")
        missing = {"4x16", "8x16", "4x8", "8x8"} - set(self.tiles)
        if missing:
            raise ValueError(f"there are no tiles for {', '.join(sorted(missing))}")
        for width in sorted(set(WIDTHS.values())):
            heights = {tuple((row.rows, row.tiles[0].m) for row in self.tiles[f"{bits}x{width}"]) for bits in (4, 8)}
            if len(heights) > 1:
                # Of a mixture of experts, whose rows are sorted once for both matrices.
                raise ValueError(f"4x{width} and 8x{width} differ in `rows`, or in m for as many")
        return self


@dataclass(frozen=True)
class Choice:
    """A tile, and how many blocks share the inputs of one."""

    tile: Tile
    splits: int


@lru_cache(maxsize=1)
def shipped() -> Table:
    """The table that comes with the package."""
    return read(_FILE)


def read(file: Path) -> Table:
    """A table; LayoutError where it is none."""
    try:
        return Table.model_validate(source.read_file(file).data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise LayoutError(
            f"{file.name} is no table of tiles: {place or 'text'}: {first['msg']}",
            code="LP357",
            name="not-a-table",
            help="the comment at its top says what a table is; the one that came with the package is whole",
        ) from None


def rows_of(code: str, kind: str) -> tuple[Row, ...]:
    """The table for weights and activations of so many bits; LayoutError for activations that are not multiplied."""
    if kind not in WIDTHS:
        raise LayoutError(
            f"no tensor core multiplies activations of {kind}",
            code="LP344",
            name="no-kernel",
            help=f"they are {', '.join(WIDTHS)}",
        )
    return shipped().tiles[f"{code_named(code).bits}x{WIDTHS[kind]}"]  # pyright: ignore[reportArgumentType]


def tiles(code: str, kind: str) -> tuple[Tile, ...]:
    """Every tile that some shape gets."""
    return tuple(dict.fromkeys(tile for row in rows_of(code, kind) for tile in row.tiles))


@lru_cache(maxsize=1 << 14)
def choose(code: str, kind: str, *, rows: int, n: int, k: int, multiprocessors: int, copies: int = 1) -> Choice:
    """For so many rows of activations and a matrix stored n x k, on a GPU of so many multiprocessors; for `copies` of
    them, as many experts have. What is stored says nothing of m: it is the same for all matrices of a code."""
    if min(rows, multiprocessors, copies) < 1:
        raise LayoutError(
            f"a tile for {rows} rows of {copies} matrices on {multiprocessors} multiprocessors",
            code="LP342",
            name="wrong-input",
            help="there is at least one of each; a product of no rows needs no kernel",
        )
    table = shipped()
    of = next(row for row in rows_of(code, kind) if row.rows is None or rows <= row.rows)
    for tile in of.tiles:
        if not tile.fits(n, k):
            continue
        blocks = copies * -(-rows // tile.m) * (n // tile.n)
        most = max(1, k // tile.k // table.splits.steps)
        if blocks * most >= multiprocessors * tile.fill:
            return Choice(tile, min(most, max(1, multiprocessors * table.splits.blocks // blocks)))
    raise LayoutError(
        f"no tile takes a matrix stored {n} x {k}",
        code="LP359",
        name="no-tile",
        help=" or ".join(f"n is a multiple of {n} and k of {k}" for n, k in FAMILIES),
    )
