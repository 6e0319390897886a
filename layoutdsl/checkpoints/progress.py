"""How far long work has come: one line on stderr, silent where that is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType


class Progress:
    """A bar with share, bytes, rate, time left and what is at hand.

    with Progress(total=1 << 30) as progress:
        progress.at("model.layers.0", size)      # this comes now, and is so many bytes of the total
    """

    def __init__(self, total: int):
        self.total, self.done, self.now, self.start = total, 0, 0, time.perf_counter()
        self.shown = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def at(self, name: str, size: int) -> None:
        """What came before is done; `name`, so many bytes of the total, is worked on now."""
        self.done, self.now = self.done + self.now, size
        if self.shown:
            sys.stderr.write(f"\r\x1b[K{self.line(name, shutil.get_terminal_size().columns)}")
            sys.stderr.flush()

    def line(self, name: str, width: int) -> str:
        """` 42 % ████░░░░  1.2 of 2.9 GB  310.0 MB/s  5 s left  model.layers.7`, cut to the width."""
        share = self.done / max(self.total, 1)
        rate = self.done / max(time.perf_counter() - self.start, 1e-9)
        left = clock((self.total - self.done) / rate) + " left" if self.done else "starting"
        full = int(share * BAR)
        bar = "█" * full + "░" * (BAR - full)
        sizes = f"{in_bytes(self.done)} of {in_bytes(self.total)}"
        return f"{100 * share:3.0f} % {bar}  {sizes}  {in_bytes(rate)}/s  {left}  {name}"[: max(width - 1, 20)]

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


BAR = 20
"""Width of the bar in characters."""


def clock(seconds: float) -> str:
    """`12 s`, `3 min 05 s`, `1 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def in_bytes(count: float) -> str:
    """`512 B`, `1.5 MB`; powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
