"""Finding and loading specs: a shipped name, a name in the user's own folder, or a path."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from layoutdsl import checks, source
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.folders import real, shipped
from layoutdsl.model import INHERITED, KINDS, Spec
from layoutdsl.source import Tree

Stamp = tuple[str, int, int]
"""A file, when it was changed, and its bytes."""


def files(folders: tuple[str, ...] = ()) -> Iterator[Path]:
    """Every spec file of the shipped folder and of the user's, in order; the user's come first."""
    for folder in (*map(Path, folders), shipped()):
        if not folder.is_dir():
            raise LayoutError(f"`{folder}` is no folder of specs", code="LP105", name="no-such-folder")
        yield from sorted(path for path in folder.rglob("*.yaml") if _is_spec(path, folder))


def _is_spec(path: Path, folder: Path) -> bool:
    return "names" not in path.relative_to(folder).parts and not path.is_dir()


def load_spec(name: str | Spec, *, specs: tuple[str, ...] = (), kind: str | None = None) -> Spec:
    """The spec of that name or path, validated; a spec is returned as it is.

    `kind` (checkpoint, kernel, module; several apart by |) narrows the search and is checked.

    Raises LayoutError with every finding in the file, or with the nearest names where there is no such spec.
    """
    if not isinstance(name, str):
        spec = name
    elif not specs and (known := recent(name, kind)) is not None:
        return known
    elif is_path(name):
        spec = read_spec(Path(name), specs=specs)
    else:
        spec = read_spec(_find(name, specs, kind), specs=specs) if specs else _shipped(name, kind)
    if kind is not None and kind_of(spec) not in kind.split("|"):
        raise LayoutError(
            f"`{spec.name}` is a {kind_of(spec)} spec, a {kind.replace('|', ' or ')} spec is needed",
            code="LP106",
            name="wrong-kind",
            help="source and target are checkpoint or kernel specs, the module is a module spec",
        )
    return spec


_RECENT: dict[tuple[str, str | None], tuple[Spec, tuple[Stamp, ...]]] = {}
"""Shipped specs by name, and what their files were like."""


def _shipped(name: str, kind: str | None) -> Spec:
    path = _find(name, (), kind)
    tree = _built(_tree(path), ())
    spec, stamps = spec_in(tree), tuple(_stamps(tree))
    fits = kind is None or kind_of(spec) in kind.split("|")
    if fits and _built(_tree(path), ()).digest == tree.digest:  # no file has changed in between
        _RECENT[name, kind] = spec, stamps
    return spec


def recent(name: str, kind: str | None) -> Spec | None:
    """The spec that was shipped by that name when it was last read, where none of its files has changed."""
    known = _RECENT.get((name, kind))
    if known is None:
        return None
    try:
        for file, changed, size in known[1]:
            now = os.stat(file)
            if now.st_mtime_ns != changed or now.st_size != size:
                return None
    except OSError:
        return None
    return known[0]


def _stamps(tree: Tree) -> Iterator[Stamp]:
    """What the files of a spec and of its bases are like."""
    found = os.stat(tree.file)
    yield tree.file, found.st_mtime_ns, found.st_size
    if tree.base is not None:
        yield from _stamps(tree.base)


def _find(name: str, specs: tuple[str, ...], kind: str | None) -> Path:
    for folder in (*map(Path, specs), shipped()):
        for place in dict.fromkeys((*(kind or "").split("|"), *KINDS, ".")):
            if (path := folder / place / f"{name}.yaml").is_file():
                return path
        if not folder.is_dir():
            raise LayoutError(
                f"`{folder}` is no folder of specs",
                code="LP105",
                name="no-such-folder",
                help="--specs and `specs` name folders of YAML files",
            )
    known: dict[str, Path] = {}
    for path in files(specs):
        known.setdefault(path.stem, path)
    if name in known:
        return known[name]
    wanted = [stem for stem, path in known.items() if kind is None or path.parent.name in kind.split("|")]
    raise LayoutError(
        f"there is no spec `{name}`",
        code="LP107",
        name="no-such-spec",
        help=did_you_mean(name, known) or f"known: {', '.join(wanted)}",
    )


def read_spec(path: Path, *, specs: tuple[str, ...] = ()) -> Spec:
    """One spec file, laid over its base where it names one; every finding is raised in one LayoutError.

    A base is looked for next to the file, in the folders `specs` and among the shipped specs.
    """
    return spec_in(read_tree(path, specs=specs))


def read_tree(path: Path, *, specs: tuple[str, ...] = ()) -> Tree:
    """The text of one spec file, laid over its base where it names one; what cannot be read is raised."""
    return _built(_tree(path), specs)


def path_of(name: str, *, specs: tuple[str, ...] = ()) -> Path:
    """The file of the spec of that name; a path is returned as it is."""
    return Path(name) if is_path(name) else _find(name, specs, None)


def is_path(name: str) -> bool:
    """Whether a spec is called by its path."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def spec_of(text: str, file: str, *, specs: tuple[str, ...] = ()) -> Spec:
    """A spec from text; `file` is what findings call it."""
    return spec_in(tree_of(text, file, specs=specs))


def tree_of(text: str, file: str, *, specs: tuple[str, ...] = ()) -> Tree:
    """The tree of a spec from text, laid over its base where it names one."""
    return over_base(source.read(text, file), specs=specs)


def over_base(tree: Tree, *, specs: tuple[str, ...] = ()) -> Tree:
    """A tree laid over its base, where it names one; that is looked for next to the file of the tree first."""
    return _built(tree, specs)


def spec_in(tree: Tree) -> Spec:
    """The spec that a tree holds, validated; trees of the same text hold the same spec."""
    return _BY_DIGEST.get(tree.digest) or _register(checks.validated(tree), tree.digest)


def spec_of_data(data: dict[str, Any]) -> Spec:
    """A spec from plain data that a program made; nothing but its schema is checked."""
    kind = next(kind for kind in KINDS if kind in data)
    text = hashlib.sha256(repr(data).encode()).hexdigest()
    return _BY_DIGEST.get(text) or _register(KINDS[kind].model_validate(data), text)


def _tree(path: Path) -> Tree:
    """The text of one file, read again when it changes."""
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except OSError:
        return _read(path, 0, 0)


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> Tree:
    return source.read_file(path)


def _built(tree: Tree, specs: tuple[str, ...], builds: tuple[Tree, ...] = ()) -> Tree:
    """A build laid over its base, which is sound by itself; any other tree as it is."""
    data = tree.data
    if not isinstance(data, dict) or "base" not in data or [kind for kind in KINDS if kind in data] != ["kernel"]:
        return tree
    path, builds = _base(tree, data["base"], specs), (*builds, tree)
    if real(path) in (real(Path(build.file)) for build in builds):
        ring = ", ".join(f"`{file.stem}`" for file in (*(Path(build.file) for build in builds), path))
        raise _at_base(builds[0], "LD035", "base-loop", f"these bases have no end: {ring}")
    try:
        base = _built(_tree(path), specs, builds)
        kind = kind_of(spec_in(base))
    except LayoutError as error:
        first = error.diagnostics[0]
        if first.code == "LD035":
            raise
        said = f"the base `{path.stem}` has findings itself, the first of them: {first.message}"
        raise _at_base(tree, "LD036", "base-unsound", said, f"see `layoutdsl lint {path}`") from None
    if kind != "kernel":
        raise _at_base(tree, "LD034", "base-kind", f"`{path.stem}` is a {kind} spec, the base of a kernel is a kernel")
    return tree.over(base, INHERITED)


def _base(tree: Tree, name: Any, specs: tuple[str, ...]) -> Path:
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        said = "expected the name of a kernel spec for `base`"
        raise _at_base(tree, "LD033", "unknown-base", said, "name the kernel, not its file")
    folder = Path(tree.file).parent
    if (path := folder / f"{name}.yaml").is_file():
        return path
    try:
        return _find(name, specs, "kernel")
    except LayoutError as error:
        near = did_you_mean(name, (path.stem for path in folder.glob("*.yaml") if path != Path(tree.file)))
        raise _at_base(tree, "LD033", "unknown-base", error.message, near or error.help) from None


def _at_base(tree: Tree, code: str, name: str, message: str, help: str | None = None) -> LayoutError:
    return LayoutError.of([tree.diagnostic(code, name, message, ("base",), help=help)])


def _register(spec: Spec, text: str) -> Spec:
    _DIGESTS[id(spec)] = (spec, text)
    _BY_DIGEST[text] = spec
    return spec


_DIGESTS: dict[int, tuple[Spec, str]] = {}
_BY_DIGEST: dict[str, Spec] = {}
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,99}")
"""A name that cannot be a path: a plan may come from anyone, and names its specs."""


def digest(spec: Spec) -> str:
    """sha256 of the spec's text, and of its bases' where it has any."""
    return _DIGESTS[id(spec)][1]


def recall(name: str, text: str, specs: tuple[str, ...] = ()) -> Spec:
    """The spec that a plan was made from: its name and the sha256 of its text.

    Raises LayoutError where the spec of that name has another text by now.
    """
    if text not in _BY_DIGEST and _PLAIN_NAME.fullmatch(name):
        load_spec(name, specs=specs)
    spec = _BY_DIGEST.get(text)
    if spec is None or spec.name != name:
        raise LayoutError(
            f"spec `{name}` is not the one that the plan was made from",
            code="LP108",
            name="other-spec",
            help="compile the plan anew, or give the folder of its specs",
        )
    return spec


def kind_of(spec: Spec) -> str:
    return next(kind for kind, model in KINDS.items() if isinstance(spec, model))
