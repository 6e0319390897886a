"""What a conversion has finished, so that another run goes on from there.

A text file, one JSON object a line: first the conversion that it is of, then, as it comes, what the checkpoint's files
look like, and for each finished unit its plans and the digest of all bytes that were written. A line that was torn by a
kill ends the journal. Nothing in it is taken on trust: a unit counts as finished where plans, files and the bytes that
are on disk are what it says.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutdsl.errors import LayoutError

FORM = 1
"""Version of the lines."""

PLANS = "plans"
"""What a conversion is called by the digest of all that it writes beside tensors, its plans among it."""

State = Mapping[str, tuple[int, ...]]
"""File name -> its size and when it and its entry were last changed, in nanoseconds."""


@dataclass(frozen=True)
class Finished:
    """One unit: the digest of its plans, of the bytes written, what its files looked like, and values lost to 0."""

    plans: str
    wrote: str
    files: State
    lost: tuple[tuple[str, int, int, int], ...]


def state(folder: Path) -> State:
    """What the files of a checkpoint look like now; nothing where they cannot be seen, which reading them will say."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.json"))):
        try:
            seen = path.stat()
        except OSError:
            continue
        found[path.name] = seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
    return found


class Journal:
    """The journal of one conversion; written from its first finished unit on.

    of: what the conversion is, in words by name. files: what the checkpoint's files looked like before they were read.
    """

    def __init__(self, path: Path, of: Mapping[str, str], files: State):
        self.path, self.of, self.files = path, dict(of), files
        self.finished: dict[str, Finished] = {}
        self._lock, self._file = threading.Lock(), -1
        lines, self._length = _read(path)
        if lines:
            self._check(lines[0])
        now: State = {}
        for line in lines[1:]:
            if "files" in line:
                now = {name: tuple(numbers) for name, numbers in line["files"].items()}
            else:
                lost = tuple((name, expert, count, of) for name, expert, count, of in line["lost"])
                self.finished[line["unit"]] = Finished(line["plans"], line["wrote"], now, lost)

    def _check(self, first: Mapping[str, Any]) -> None:
        began = first["of"] if first.get("form") == FORM else {}
        if began == self.of:
            return
        names = [name for name in self.of if name in began and began[name] != self.of[name] and name != PLANS]
        told = f": {names[0]} {began[names[0]]}, now {self.of[names[0]]}" if names else ""
        raise LayoutError(
            f"`{self.path.parent}` has what another conversion finished{told}",
            code="LP225",
            name="other-conversion",
            help="--restart begins anew; the arguments that it was begun with go on",
        )

    def add(self, unit: str, finished: Finished) -> None:
        """A unit is finished. Any thread may say so."""
        record = {"unit": unit, "plans": finished.plans, "wrote": finished.wrote, "lost": finished.lost}
        with self._lock:
            if self._file < 0:
                self._begin()
            _append(self._file, record)

    def _begin(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        os.ftruncate(self._file, self._length)
        os.lseek(self._file, 0, os.SEEK_END)
        if not self._length:
            _append(self._file, {"form": FORM, "of": self.of})
        _append(self._file, {"files": self.files})

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _append(file: int, record: Mapping[str, Any]) -> None:
    text = (json.dumps(record, separators=(",", ":")) + "\n").encode()
    while text:
        text = text[os.write(file, text) :]


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines that were written to their end, and the bytes that these are; none where there is no journal."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    found: list[dict[str, Any]] = []
    length = 0
    while end := text.find(b"\n", length) + 1:
        try:
            found.append(json.loads(text[length:end]))
        except ValueError:
            break
        length = end
    return found, length
