"""What layoutdsl costs, as figures against limits: `python -m benchmarks [NAME ...] [--quick] [--json] [--write]`.

Each module of MODULES has `measure(scale) -> Iterator[Figure]`; a new benchmark is a new module and a line there. Scale
`quick` runs every line of it at a size where the figures mean nothing. A module may ask for several processes, of whose
figures the medians count (PROCESSES).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MODULES = (
    "compile_time", "padding", "repack", "memory", "pairs", "layers", "growth", "in_place", "first_use", "lint",
    "convert",
)  # fmt: skip

Scale = Literal["full", "quick"]


@dataclass(frozen=True)
class Figure:
    """One measured value; `limit` is what it must not exceed and `least` what it must reach (None: for information),
    `note` says of what it is."""

    name: str
    value: float
    unit: str
    limit: float | None
    note: str = ""
    least: float | None = None

    @property
    def missed(self) -> str:
        """OVER the limit, UNDER what it must reach, or nothing."""
        if self.limit is not None and self.value > self.limit:
            return "OVER"
        return "UNDER" if self.least is not None and self.value < self.least else ""

    @property
    def wanted(self) -> str:
        """What the value must be, in words."""
        bounds = (("at least", self.least), ("at most", self.limit))
        return ", ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
