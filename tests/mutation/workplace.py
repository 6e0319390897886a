"""A copy of the shipped specs in which one is another: what is loaded by name is what stands there."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layoutdsl import library
from layoutdsl.lint import others

SPECS = Path(__file__).resolve().parents[2] / "specs"


class Workplace:
    def __init__(self, folder: Path):
        self.folder = folder / "specs"
        self._time = itertools.count(1)
        shutil.copytree(SPECS, self.folder)

    @contextmanager
    def entered(self) -> Iterator[Workplace]:
        """Inside, the copy is what is shipped."""
        shipped = library.shipped
        library.shipped = lambda: self.folder
        _forget()
        try:
            yield self
        finally:
            library.shipped = shipped
            _forget()

    @contextmanager
    def changed(self, spec: str, text: str) -> Iterator[Path]:
        """Inside, the file `spec` has that text."""
        path = self.folder / spec
        self._write(path, text)
        try:
            yield path
        finally:
            self._write(path, (SPECS / spec).read_text(encoding="utf-8"))

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: what has been read is known by the file's time and size."""
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(next(self._time), next(self._time)))


def _forget() -> None:
    """What is known of shipped specs by their names, and where they lie."""
    library._RECENT.clear()
    others._paths.cache_clear()
