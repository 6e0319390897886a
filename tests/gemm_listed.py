"""The kernels that CI compiles for every arch and runs: every code with each kind of its scales, every group, type of
activation and kind of module, tiles of data/gemm.yaml, and the kernels beside them.

    for entry in LISTED:
        entry.kernel        the GEMM
        entry.beside        what else its test launches
    kernels()               all of them, each once: at most 60
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from typing import Any

from layoutdsl.gemm.activate import Activate, Combine
from layoutdsl.gemm.align import Align
from layoutdsl.gemm.instance import Instance
from layoutdsl.gemm.quantize import quantizer
from layoutdsl.gemm.table import Tile, shipped

SIZES = {"n": 200, "k": 352}
"""Of dense matrices: stored as 256 x 384, so that every tile takes them."""

EXPERTS = {"e": 4, "i": 256, "h": 384}
"""Of a rank's mixture, so that w13 and w2 have several groups of every size."""

TOP_K = 2

ROWS = (1, 5, 16, 33, 64)

STORED = {
    "u4b8": ("u4b8", "", "group"),
    "u4": ("u4", "", "group"),
    "u8b128": ("u8b128", "", "group"),
    "u8": ("u8", "", "group"),
    "e4m3": ("e4m3", "", "group"),
    "e4m3_blocks": ("e4m3", "", "group"),
    "mxfp8": ("e4m3", "", "e8m0"),
    "nvfp4": ("e2m1", "", "s0e5m3"),
    "mxfp4": ("e2m1", "", "e8m0"),
    "gpt_oss": ("e2m1", "", "e8m0"),
    "u4b8_s8": ("u4b8", "s8", "group"),
    "u4_s8": ("u4", "s8", "group"),
    "u8b128_s8": ("u8b128", "s8", "group"),
    "u4b8_e4m3": ("u4b8", "e4m3", "group"),
    "u4_e4m3": ("u4", "e4m3", "group"),
    "mxfp4_e4m3": ("e2m1", "e4m3", "e8m0"),
}
"""Name in gemm_cases.SOURCES -> code, kind of 8-bit activations, and what scales of several groups are."""

GROUPS = {"e8m0": 32, "s0e5m3": 16}
FLOATS = {"float16": "f16", "bfloat16": "bf16"}
CODES = {"s8": "int8", "e4m3": "float8_e4m3fn"}


@dataclass(frozen=True)
class Listed:
    """A case of gemm_cases, the tile that it gets, and how many rows of activations.

    group        of 16-bit scales: -1 is one per channel
    activation   of a mixture of experts between its two GEMMs; empty for a dense GEMM
    alternating  whether the parts gate and up of its first matrix alternate
    """

    name: str
    dtype: str
    group: int = 0
    activation: str = ""
    alternating: bool = False
    tile: Tile | None = None
    rows: int = 0

    def __str__(self) -> str:
        return self.kernel.name

    @property
    def by_experts(self) -> bool:
        return bool(self.activation)

    @property
    def splits(self) -> int:
        """How many blocks share the inputs of a dense kernel's tile."""
        return 2 if self.rows <= 5 else 1

    @property
    def classed(self) -> str:
        """The tiles of data/gemm.yaml that it may have."""
        code, kind, _ = STORED[self.name]
        return f"{8 if code in ('u8b128', 'u8', 'e4m3') else 4}x{8 if kind else 16}"

    @property
    def kernel(self) -> Instance:
        code, kind, several = STORED[self.name]
        scale, group = ("channel", 0) if self.group < 0 else (several, GROUPS.get(several, self.group))
        floats = FLOATS[self.dtype]
        facts = self.tile.model_dump()
        return Instance(
            code, kind or floats, scale, group, **facts, rows="experts" if self.by_experts else "dense",
            result=floats if kind else "",
        )  # fmt: skip

    @property
    def module(self) -> str:
        return ("moe_plain" if self.activation == "relu2" else "moe_gated") if self.by_experts else "linear"

    @property
    def beside(self) -> tuple[Any, ...]:
        kind = STORED[self.name][1]
        if kind:
            return quantizer(self.dtype, CODES[kind], 384), *([Align(EXPERTS["e"])] if self.by_experts else ())
        if not self.by_experts:
            return ()
        parts = "plain" if self.activation == "relu2" else "alternating" if self.alternating else "split"
        return Align(EXPERTS["e"]), Activate(self.activation, parts, self.dtype), Combine(self.dtype)


FORMS = (
    Listed("u4b8", "float16", -1),
    Listed("u4b8", "bfloat16", 32),
    Listed("u4b8", "float16", 64),
    Listed("u4b8", "float16", 128),
    Listed("u4b8", "bfloat16", 128),
    Listed("u4", "bfloat16", -1),
    Listed("u4", "float16", 32),
    Listed("u4", "bfloat16", 64),
    Listed("u4", "float16", 128),
    Listed("nvfp4", "float16"),
    Listed("nvfp4", "bfloat16"),
    Listed("mxfp4", "bfloat16"),
    Listed("u4b8", "float16", 128, "silu"),
    Listed("u4", "bfloat16", 32, "gelu"),
    Listed("nvfp4", "bfloat16", 0, "relu2"),
    Listed("gpt_oss", "bfloat16", 0, "swiglu_oai", alternating=True),
    Listed("u8b128", "bfloat16", -1),
    Listed("u8b128", "float16", 32),
    Listed("u8", "float16", 64),
    Listed("u8b128", "float16", 128),
    Listed("u8", "float16", -1),
    Listed("u8", "bfloat16", 32),
    Listed("e4m3", "float16", -1),
    Listed("e4m3", "bfloat16", -1),
    Listed("e4m3_blocks", "float16", 32),
    Listed("e4m3_blocks", "bfloat16", 64),
    Listed("e4m3_blocks", "float16", 128),
    Listed("mxfp8", "bfloat16"),
    Listed("u8b128", "bfloat16", 64, "gelu_tanh"),
    Listed("e4m3_blocks", "bfloat16", 128, "silu"),
    Listed("u4b8_s8", "float16", -1),
    Listed("u4b8_s8", "bfloat16", 32),
    Listed("u4b8_s8", "bfloat16", 128),
    Listed("u4_s8", "bfloat16", -1),
    Listed("u4_s8", "float16", 64),
    Listed("u4b8_e4m3", "bfloat16", -1),
    Listed("u4b8_e4m3", "float16", 64),
    Listed("u4b8_e4m3", "bfloat16", 128),
    Listed("u4_e4m3", "float16", -1),
    Listed("u4_e4m3", "bfloat16", 32),
    Listed("mxfp4_e4m3", "bfloat16"),
    Listed("u4b8_s8", "bfloat16", 64, "silu"),
    Listed("u4_e4m3", "bfloat16", 128, "silu"),
    Listed("u8b128_s8", "bfloat16", -1),
    Listed("u8b128_s8", "float16", 32),
    Listed("u8b128_s8", "bfloat16", 64),
    Listed("u8b128_s8", "float16", 128),
)


def tiles(classed: str) -> list[Tile]:
    """All of the table's, those with the same rows as far apart as may be."""
    rows = shipped().tiles[classed]
    found = dict.fromkeys(tile.model_copy(update={"fill": 0.0}) for row in rows for tile in row.tiles)
    seen = Counter()
    turns = {tile: (seen.update([tile.m]) or seen[tile.m], tile.m) for tile in found}
    return sorted(turns, key=turns.get)


def _with_tiles() -> Iterator[Listed]:
    """Tiles of a class by turns, and numbers of rows by turns."""
    turns = {classed: cycle(tiles(classed)) for classed in shipped().tiles}
    for form, rows in zip(FORMS, cycle(ROWS)):
        yield replace(form, tile=next(turns[form.classed]), rows=rows)


LISTED = tuple(_with_tiles())


@cache
def kernels() -> tuple[Any, ...]:
    """The GEMMs, then the others."""
    return tuple(dict.fromkeys([*(one.kernel for one in LISTED), *(more for one in LISTED for more in one.beside)]))
