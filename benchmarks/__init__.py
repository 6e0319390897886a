"""What layoutdsl costs, as figures against limits. `python -m benchmarks [NAME ...] [--json]`.

Each module here has `measure() -> Iterator[Figure]`; a new benchmark is a new module and a line in MODULES.
"""

from __future__ import annotations

from dataclasses import dataclass

MODULES = ("compile_time", "padding", "repack")


@dataclass(frozen=True)
class Figure:
    """One measured value; `limit` is what it must not exceed (None: for information), `note` says of what it is."""

    name: str
    value: float
    unit: str
    limit: float | None
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.limit is None or self.value <= self.limit
