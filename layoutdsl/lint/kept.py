"""What was found of a file is kept in the user's cache, as long as nothing changes that it depends on.

It depends on the text of the file, on those beside it where it names a base, on all specs that are shipped or in the
folders of the user's own, and on the code at work. An entry is named by the digest of all that: it never gets out
of date, and processes that write the same one write the same. Where nothing has changed, no more is imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from layoutdsl import files, folders
from layoutdsl.lint import record
from layoutdsl.lint.outcome import Examined

MOST_KEPT = 2048
"""Entries that are kept, the newest; one is some hundred bytes."""

_MOST_BYTES = 1 << 20
"""Of a text; more than that no spec has."""

_LIBRARIES = ("pydantic", "yaml")
"""What words some of our findings."""


def examined(paths: Sequence[Path], specs: tuple[str, ...]) -> list[Examined]:
    """All there is to say of each file by itself, kept or found anew."""
    keys = _keys(paths, specs)
    found = {path: one for path in paths if (one := _read(keys[path])) is not None}
    left = [path for path in paths if path not in found]
    if left:
        from layoutdsl.lint import shares

        found |= zip(left, shares.examined(left, specs))
        after = _keys(left, specs)  # what changed meanwhile may have been read before or after
        _keep([(keys[path], found[path]) for path in left if keys[path] == after[path] and not found[path].faults])
    return [found[path] for path in paths]


# --- what findings depend on ------------------------------------------------------------------------------------------


def _keys(paths: Sequence[Path], specs: tuple[str, ...]) -> dict[Path, str]:
    around = [(folder, os.path.realpath(folder), _texts(Path(folder))) for folder in (*specs, folders.shipped())]
    common = repr((sys.version, tuple(_versions()), _code(), around))
    beside = lru_cache(maxsize=None)(_beside)
    return {path: _digest(_parts(path, common, beside)) for path in paths}


def _parts(path: Path, common: str, beside: Callable[[Path], str]) -> Iterator[bytes]:
    """What the findings of one file depend on. Without the word in it, or an escape that may spell it, it has no base:
    nothing beside it is read."""
    content = _content(path)
    yield from (common.encode(), repr((str(path), os.path.realpath(path))).encode(), content)
    if b"base" in content or b"\\" in content:
        yield beside(path.parent).encode()


@lru_cache(maxsize=1)
def _code() -> str:
    """The digest of all code of layoutdsl, as it is when the process begins to work."""
    return _digest(_contents(folders.package(), ".py", os.walk(folders.package())))


def _texts(folder: Path) -> str:
    """The digest of all specs in a folder of specs, however deep."""
    return _digest(_contents(folder, ".yaml", os.walk(folder)))


def _beside(folder: Path) -> str:
    """The digest of the specs that lie in a folder directly."""
    return _digest(_contents(folder, ".yaml", islice(os.walk(folder), 1)))


def _contents(folder: Path, ending: str, found: Iterable[tuple[str, list[str], list[str]]]) -> Iterator[bytes]:
    for path in sorted(os.path.join(inside, name) for inside, _, names in found for name in names):
        if path.endswith(ending):
            yield os.path.relpath(path, folder).encode(errors="surrogateescape")
            yield _content(Path(path))


def _content(path: Path) -> bytes:
    try:
        with files.opened(path) as stream:
            return b"text" + stream.read(_MOST_BYTES + 1)
    except OSError as error:
        return f"error {error.errno}".encode()


def _digest(parts: Iterable[bytes]) -> str:
    """sha256 of several texts, none of which can run into the next."""
    found = hashlib.sha256()
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()


def _versions() -> Iterator[str]:
    """The folders that say which versions are installed, such as `pydantic-2.11.0.dist-info`."""
    for name in _LIBRARIES:
        home = find_spec(name)
        if home is not None and home.origin is not None:
            beside = os.listdir(Path(home.origin).parent.parent)
            yield from sorted(one for one in beside if name in one.lower() and one.endswith("-info"))


# --- the entries ------------------------------------------------------------------------------------------------------


def _folder() -> Path:
    return folders.cache() / "lint"


def _read(key: str) -> Examined | None:
    try:
        return record.read((_folder() / key).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def _keep(found: Sequence[tuple[str, Examined]]) -> None:
    """Write entries, each at once or not at all; a cache that cannot be written keeps nothing."""
    with suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
        for key, one in found:
            _write(_folder() / key, record.written(one))
        _drop_old()


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _drop_old() -> None:
    entries = list(os.scandir(_folder()))
    if len(entries) > MOST_KEPT:
        entries.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in entries[: len(entries) - MOST_KEPT]:
            with suppress(FileNotFoundError):
                os.unlink(entry)
