"""A version of a spec: a name, a path, or a path at a git revision.

    opened("marlin_int4_a16")                            the shipped spec, or one of the user's folders
    opened("specs/kernel/marlin_int4_a16.yaml")          the file as it is now
    opened("main:specs/kernel/marlin_int4_a16.yaml")     the file as git holds it, by git's own rules for such names

A version at a revision has its bases from there too. Git only hands out what it holds: no filter, pager or hook runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layoutdsl import library, source
from layoutdsl.errors import LayoutError
from layoutdsl.model import Spec

SECONDS = 30
LONGEST_CHAIN = 16
_NAME = re.compile(r"\w[\w.-]{0,99}")


@dataclass(frozen=True)
class Version:
    """A spec, what it is called, and its text as plain data, laid over its base's."""

    label: str
    spec: Spec
    data: dict[str, Any]


@dataclass(frozen=True)
class Revision:
    """What git holds: `name` is a revision, a colon and a path; `folder` is where git is asked."""

    name: str
    folder: Path = Path()

    def beside(self, base: str) -> Revision:
        """The spec `base` in the same folder of the same revision."""
        revision, _, path = self.name.rpartition(":")
        folder = path.rpartition("/")
        return Revision(f"{revision}:{folder[0]}{folder[1]}{base}.yaml", self.folder)


def opened(name: str, specs: tuple[str, ...] = (), label: str | None = None) -> Version:
    """The version that `name` means. Raises LayoutError with all findings in it, or where git has nothing of it."""
    if ":" in name and not Path(name).exists():
        return at_revision(Revision(name), specs)
    return version_of(library.read_tree(library.path_of(name, specs=specs), specs=specs), label or name)


def committed(name: str, specs: tuple[str, ...] = ()) -> Version:
    """The version of a file in the last commit of its repository."""
    path = library.path_of(name, specs=specs)
    if not path.is_file():
        source.read_file(path)  # which says what is wrong with it
    return at_revision(Revision(f"HEAD:./{path.name}", path.parent), specs, f"HEAD:{_from_here(path)}")


def _from_here(path: Path) -> str:
    """A path as git takes it behind a revision in the current folder, and not from the top of the repository."""
    found = Path(os.path.relpath(path)).as_posix()
    return found if found.startswith("../") else f"./{found}"


def at_revision(revision: Revision, specs: tuple[str, ...], label: str | None = None) -> Version:
    """The version that git holds there, with its bases as they are there."""
    label = label or revision.name
    tree = source.read(_text(revision, label), label)
    with tempfile.TemporaryDirectory(prefix="layoutdsl-") as folder:
        _write_bases(Path(folder), revision, tree)
        there = replace(tree, file=str(Path(folder) / revision.name.rpartition("/")[2].rpartition(":")[2]))
        return version_of(library.over_base(there, specs=specs), label)


def version_of(tree: source.Tree, label: str) -> Version:
    """The version that a tree holds, laid over its base."""
    spec = library.spec_in(tree)
    assert isinstance(tree.data, dict)
    return Version("".join(char if char.isprintable() else "\ufffd" for char in label), spec, tree.data)


def _write_bases(folder: Path, revision: Revision, tree: source.Tree) -> None:
    """Write the chain of bases that stand beside a spec at its revision, as far as git has them there."""
    for _ in range(LONGEST_CHAIN):
        base = tree.data.get("base") if isinstance(tree.data, dict) else None
        if not isinstance(base, str) or not _NAME.fullmatch(base):
            return
        content = _blob(revision.beside(base))
        if isinstance(content, str):  # it may stand elsewhere
            return
        (folder / f"{base}.yaml").write_bytes(content)
        tree = source.read_file(folder / f"{base}.yaml")


def _text(revision: Revision, label: str) -> str:
    content = _blob(revision)
    if isinstance(content, str):
        raise _no_version(f"git has no `{label}`: {content}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _no_version(f"`{label}` is not UTF-8") from None


def _blob(revision: Revision) -> bytes | str:
    """The bytes of a file that git holds, or git's reason why it cannot say."""
    name = revision.name
    if name.startswith("-") or not name.isprintable():
        raise _no_version(f"`{name!r:.80}` is no revision and path")
    command = ["git", "-C", str(revision.folder), "cat-file", "blob", name]
    quiet = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=quiet)  # fmt: skip
    except OSError as error:
        raise _no_version(f"git cannot be run: {(error.strerror or 'unknown reason').lower()}") from None
    with done:
        assert done.stdout is not None and done.stderr is not None
        content = done.stdout.read(source.MAX_BYTES + 1)
        if len(content) > source.MAX_BYTES:
            done.kill()
            raise _no_version(f"`{name}` is larger than {source.MAX_BYTES} bytes")
        said = done.stderr.read(4096).decode("utf-8", "replace").strip()
    return content if done.returncode == 0 else said.removeprefix("fatal: ").splitlines()[0] if said else "no reason"


def _no_version(message: str) -> LayoutError:
    return LayoutError(
        message,
        code="LP190",
        name="no-such-version",
        help="REVISION:PATH names a file from the top of its repository, REVISION:./PATH one from here",
    )
