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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutdsl import files
from layoutdsl.checkpoints import folder
from layoutdsl.errors import LayoutError

FORM = 1
"""Version of the lines."""

PLANS = "plans"
"""What a conversion is called by the digest of all that it writes beside tensors, its plans among it."""

State = Mapping[str, folder.State]
"""File name -> what it looks like."""


@dataclass(frozen=True)
class Finished:
    """One unit: the digest of its plans, of the bytes written, what its files looked like, and values lost to 0."""

    plans: str
    wrote: str
    files: State
    lost: tuple[tuple[str, int, int, int], ...]


def state(place: Path) -> State:
    """What the files of a checkpoint look like now; nothing where they cannot be seen, which reading them will say."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted((*place.glob("*.safetensors"), *place.glob("*.json"))):
        try:
            seen = path.stat()
        except OSError:
            continue
        found[path.name] = folder.state_of(seen)
    return found


def began(path: Path) -> bool:
    """Whether a journal says what it is of."""
    try:
        first, _ = next(_lines(path), (None, 0))
    except OSError:
        return False
    return isinstance(first, dict) and isinstance(first.get("of"), dict)


class Journal:
    """The journal of one conversion; written from its first finished unit on.

    of: what the conversion is, in words by name. files: what the checkpoint's files looked like before they were read.
    """

    def __init__(self, path: Path, of: Mapping[str, str], files: State):
        self.path, self.of, self.files = path, dict(of), files
        self.finished: dict[str, Finished] = {}
        self._lock, self._file = threading.Lock(), -1
        self._length = 0
        now: State = {}
        for line, end in _lines(path):
            try:
                if not self._length:
                    self._check({str(key): str(value) for key, value in line["of"].items()}, line["form"])
                elif "files" in line:
                    now = {name: tuple(map(int, numbers)) for name, numbers in line["files"].items()}
                else:
                    lost = tuple((str(of), *map(int, numbers)) for of, *numbers in line["lost"])
                    if any(len(one) != 4 for one in lost):
                        break
                    self.finished[str(line["unit"])] = Finished(str(line["plans"]), str(line["wrote"]), now, lost)
            except (AttributeError, KeyError, TypeError, ValueError):
                break  # no line of ours: what comes after it is not trusted either
            self._length = end

    def _check(self, began: Mapping[str, str], form: int) -> None:
        if form == FORM and began == self.of:
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


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines that were written to their end, and the byte after each; none where there is no journal."""
    try:
        with files.opened(path) as file:
            text = file.read()
    except FileNotFoundError:
        return
    begin = 0
    while end := text.find(b"\n", begin) + 1:
        try:
            yield json.loads(text[begin:end]), end
        except (ValueError, RecursionError):
            return
        begin = end
