"""Small changes of a spec, numbered. Each is a text of its own; two that are the same text are one.

Everything is changed but what says nothing of the format (version, doc, source, the first line) and the sizes at which
lint proves it (try). A spec with a base states little itself: what it takes over is changed in its base.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path as File
from typing import get_args

from layoutdsl.model import ROLES, Param
from mutation import strings
from mutation.document import Document, Edit, Path, edited

Change = tuple[str, list[Edit]]
"""What is changed, in words, and how."""

UNSAID = {"version", "doc", "source", "try"}
TYPES = get_args(Param.model_fields["type"].annotation)


@dataclass(frozen=True)
class Mutant:
    """A changed spec: that of the file `spec` (`kernel/NAME.yaml`), its number there, and what is changed."""

    spec: str
    number: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{File(self.spec).stem} {self.number}: {self.what}"

    @property
    def section(self) -> str:
        """The part of the spec that is changed: `tensors.order`, `detect`."""
        path = re.match(r"[\w.*]+", self.what)[0].split(".")  # pyright: ignore[reportOptionalSubscript]
        if path[0] == "params":
            return f"params.{path[2]}" if path[2:] and path[2] in ("config", "map") else "params"
        known = [step for step in path[2:] if step in _FIELDS or step == "role"]
        return f"tensors.{known[-1]}" if path[0] == "tensors" and known else path[0]


def mutants(folder: File, file: File) -> Iterator[Mutant]:
    """Every small change of a spec file, also those that its schema does not let pass."""
    document, seen = Document(file.read_text(encoding="utf-8")), set()
    seen.add(document.text)
    number = itertools.count(1)
    for what, edits in changes(document):
        text = edited(document.text, edits)
        if text not in seen:
            yield Mutant(file.relative_to(folder).as_posix(), next(number), what, text)
        seen.add(text)


def changes(document: Document) -> Iterator[Change]:
    for key in document.entries(document.root):
        if key not in UNSAID:
            yield from _SECTIONS.get(key, _nothing)(document, (key,))


def _nothing(document: Document, path: Path) -> Iterator[Change]:
    yield from ()


# --- edits that fit anywhere ------------------------------------------------------------------------------------------


def _named(path: Path) -> str:
    return ".".join(map(str, path))


def _dropped(document: Document, path: Path) -> Change:
    return f"{_named(path)} dropped", [document.drop(path)]


def _written(document: Document, path: Path, others: Iterator[str] | tuple[str, ...]) -> Iterator[Change]:
    for other in others:
        yield f"{_named(path)}: {document.source(path)} -> {other}", [document.write(path, other)]


def _swapped(document: Document, path: Path) -> Iterator[Change]:
    """Two neighbours of a list in each other's place."""
    for at in range(len(document.node(path).value) - 1):
        yield f"{_named(path)}: {at} and {at + 1} swapped", document.swap((*path, at), (*path, at + 1))


def _list(document: Document, path: Path) -> Iterator[Change]:
    """An element of a list dropped, two neighbours swapped."""
    if len(document.node(path).value) > 1:
        yield from (_dropped(document, (*path, at)) for at in range(len(document.node(path).value)))
        yield from _swapped(document, path)


def _texts(document: Document, path: Path) -> Iterator[Change]:
    """One text or a list of them: another key or name for each, one left out, two swapped."""
    value = document.node(path).value
    if isinstance(value, str):
        yield from _written(document, path, (f"{value}_", *((value.rpartition(".")[2],) if "." in value else ())))
        return
    for at, one in enumerate(value):
        yield from _written(document, (*path, at), (f"{one.value}_",))
    yield from _list(document, path)


def _flag(document: Document, path: Path) -> Iterator[Change]:
    yield from _written(document, path, ("false" if document.node(path).value == "true" else "true",))


# --- parameters -------------------------------------------------------------------------------------------------------


def _params(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    for name, node in document.entries(document.node(path)).items():
        at = (*path, name)
        yield _dropped(document, at)
        entries = document.entries(node)
        if not entries:
            yield from _list(document, at)
            continue
        if "values" in entries:
            yield from _list(document, (*at, "values"))
        if "type" in entries:
            yield from _written(document, (*at, "type"), tuple(one for one in TYPES if one != entries["type"].value))
        if "default" in entries:
            yield _dropped(document, (*at, "default"))
            yield from _default(document, (*at, "default"))
        if "config" in entries:
            yield _dropped(document, (*at, "config"))
            yield from _texts(document, (*at, "config"))
        if "map" in entries:
            yield from _map(document, (*at, "map"))


def _default(document: Document, path: Path) -> Iterator[Change]:
    value = document.node(path).value
    if value in ("true", "false"):
        yield from _flag(document, path)
    elif value.lstrip("-").isdecimal():
        yield from _written(document, path, ("128",) if value == "-1" else (str(int(value) // 2), "-1"))
    else:
        yield from _written(document, path, (",".join(reversed(value.split(","))),))


def _map(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    entries = document.entries(document.node(path))
    for key, node in entries.items():
        yield _dropped(document, (*path, key))
        others = {one.value for one in entries.values()} - {node.value}
        yield from _written(document, (*path, key), tuple(sorted(others)))


# --- parts, accepts, detect -------------------------------------------------------------------------------------------


def _parts(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    yield _dropped(document, (*path, "orders"))
    yield _dropped(document, (*path, "stored"))
    yield from _list(document, (*path, "stored"))
    yield from _list(document, (*path, "orders"))
    for at in range(len(document.node((*path, "orders")).value)):
        yield from _list(document, (*path, "orders", at))


def _accepts(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    tiles, groups = (*path, "tiles"), (*path, "groups")
    yield from _list(document, tiles)
    yield f"{_named(tiles)}: n 64, k 64 added", [document.append(tiles, "{n: 64, k: 64}")]
    for at in range(len(document.node(tiles).value)):
        yield f"{_named(tiles)}.{at}: n and k swapped", document.swap((*tiles, at, "n"), (*tiles, at, "k"))
        for axis in "nk":
            size = int(document.node((*tiles, at, axis)).value)
            yield from _written(document, (*tiles, at, axis), (str(size // 2), str(2 * size)))
    yield from _list(document, groups)
    there = [one.value for one in document.node(groups).value]
    for new in (one for one in ("-1", "16", "32", "64", "128", "256") if one not in there):
        yield f"{_named(groups)}: {new} added", [document.append(groups, new)]
    for at, one in enumerate(document.node(groups).value):
        if int(one.value) > 0:
            yield from _written(document, (*groups, at), (str(int(one.value) // 2), str(2 * int(one.value))))
    yield _dropped(document, (*path, "capability"))
    yield from _written(document, (*path, "capability"), ("75", "80", "89", "90"))


def _detect(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    node = document.node(path)
    if not document.entries(node):
        yield from _list(document, path)
    for at in [path] if document.entries(node) else [(*path, at) for at in range(len(node.value))]:
        for key, wanted in document.entries(document.node(at)).items():
            if len(document.entries(document.node(at))) > 1:
                yield _dropped(document, (*at, key))
            yield f"{_named((*at, key))}: another key", [document.rename((*at, key), f"{key}_")]
            yield from _texts(document, (*at, key))
            if isinstance(wanted.value, str):
                yield from _written(document, (*at, key), tuple(one for one in ("*", "null") if one != wanted.value))


# --- tensors ----------------------------------------------------------------------------------------------------------


def _tensors(document: Document, path: Path) -> Iterator[Change]:
    for name, node in document.entries(document.node(path)).items():
        at = (*path, name)
        yield _dropped(document, at)
        yield _renamed(document, at)
        roles = [role for role in ROLES if role != document.entries(node)["role"].value]
        yield from _written(document, (*at, "role"), tuple(roles))
        yield from _fields(document, at)
        yield from _added(document, at, document.entries(node)["role"].value)


def _renamed(document: Document, path: Path) -> Change:
    """Another name, also in the value."""
    edits = [document.rename(path, f"{path[-1]}_")]
    value = document.node(("value",)).value
    tokens = [f"{token}_" if token == path[-1] else token for token in strings._TOKEN.findall(value)]
    return f"{_named(path)}: another name", [*edits, document.write(("value",), " ".join(tokens))]


def _fields(document: Document, path: Path) -> Iterator[Change]:
    for field in document.entries(document.node(path)):
        at = (*path, field)
        if field in ("when", "code", "split", "shape", "scaled", "plus", "reciprocal", "derive", "name"):
            yield _dropped(document, at)
        yield from _FIELDS.get(field, _nothing)(document, at)


def _cases(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    yield from _list(document, path)
    for at in range(len(document.node(path).value)):
        yield from _fields(document, (*path, at))


def _dtypes(document: Document, path: Path) -> Iterator[Change]:
    value = document.node(path).value
    if isinstance(value, str):
        yield from _written(document, path, tuple(strings.codes(value)))
        return
    yield from _list(document, path)
    for at, one in enumerate(value):
        yield from _written(document, (*path, at), tuple(strings.codes(one.value)))


def _shape(document: Document, path: Path) -> Iterator[Change]:
    yield from _list(document, path)
    for at, one in enumerate(document.node(path).value):
        yield from _written(document, (*path, at), tuple(strings.numbers(one.value)))


def _of(others: Callable[[str], Iterator[str]]) -> Callable[[Document, Path], Iterator[Change]]:
    return lambda document, path: _written(document, path, tuple(others(document.node(path).value)))


_FIELDS = {
    "when": _of(strings.conditions),
    "order": _of(strings.orders),
    "split": _of(strings.splits),
    "code": _of(strings.codes),
    "dtype": _dtypes,
    "shape": _shape,
    "scaled": _of(strings.numbers),
    "plus": _of(strings.numbers),
    "reciprocal": _flag,
    "name": _texts,
    "cases": _cases,
}


def _added(document: Document, path: Path, role: str) -> Iterator[Change]:
    """What would change a value by a little."""
    there = document.entries(document.node(path))
    added = {"zero_point": (("plus", "1"), ("plus", "-1"))}.get(role, ())
    if "scale" in role:
        added = ("scaled", "1"), ("scaled", "-1"), ("reciprocal", "true")
    if role == "bias":
        added = (("scaled", "1"),)
    if role == "codes":
        added = ("when", "groups > 1"), ("when", "parts == stacked")
    for key, new in added:
        if key not in there:
            yield f"{_named(path)}: {key}: {new} added", [document.add(path, key, new)]
    case = ("cases", "[{when: groups > 1, code: u4b8}]") if role == "codes" else ("when", "groups > 1")
    if case[0] not in there:
        yield f"{_named(path)}: {case[0]}: {case[1]} added", [document.add(path, *case)]


# --- modules ----------------------------------------------------------------------------------------------------------


def _axes(document: Document, path: Path) -> Iterator[Change]:
    yield from (_dropped(document, (*path, axis)) for axis in document.entries(document.node(path)))


def _names_of_axes(document: Document) -> list[str]:
    return list(document.entries(document.node(("axes",))))


def _mapped(document: Document, path: Path) -> Iterator[Change]:
    """A mapping of axes to axes: each left out, each with another axis."""
    yield _dropped(document, path)
    for key, node in document.entries(document.node(path)).items():
        if len(document.entries(document.node(path))) > 1:
            yield _dropped(document, (*path, key))
        others = [axis for axis in (*_names_of_axes(document), "none") if axis != node.value]
        yield from _written(document, (*path, key), tuple(others))
        for axis in others:
            if axis not in document.entries(document.node(path)) and path != ("ranks",):
                yield f"{_named((*path, key))}: of {axis}", [document.rename((*path, key), axis)]


def _experts(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    yield from _written(document, path, tuple(
        axis for axis in _names_of_axes(document) if axis != document.node(path).value
    ))


def _visible(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    yield from _list(document, path)
    seen = [one.value for one in document.node(path).value]
    for axis in _names_of_axes(document):
        if axis not in seen:
            yield f"{_named(path)}: {axis} added", [document.append(path, axis)]


def _matrices(document: Document, path: Path) -> Iterator[Change]:
    for name, node in document.entries(document.node(path)).items():
        at, entries = (*path, name), document.entries(node)
        if len(document.entries(document.node(path))) > 1:
            yield _dropped(document, at)
        yield f"{_named(at)}: another name", [document.rename(at, f"{name}_")]
        yield f"{_named(at)}: n and k swapped", document.swap((*at, "n"), (*at, "k"))
        for place in ([(*at, "n", part) for part in document.entries(entries["n"])] or [(*at, "n")]) + [(*at, "k")]:
            yield from _written(document, place, tuple(_products(document, document.node(place).value)))
        parts = document.entries(entries["n"])
        if parts:
            keys = list(parts)
            yield from (_dropped(document, (*at, "n", part)) for part in keys)
            for a, b in itertools.pairwise(keys):
                edits = [document.rename((*at, "n", a), b), document.rename((*at, "n", b), a)]
                yield f"{_named(at)}.n: {a} and {b} swapped", edits
        if "parts" in entries:
            yield _dropped(document, (*at, "parts"))
            if isinstance(entries["parts"].value, list):
                yield from _texts(document, (*at, "parts"))
        if "pad" in entries:
            yield _dropped(document, (*at, "pad"))
            yield from _written(document, (*at, "pad"), ("part" if entries["pad"].value == "tail" else "tail",))
        else:
            yield f"{_named(at)}: pad: tail added", [document.add(at, "pad", "tail")]
        if "when" in entries:
            yield _dropped(document, (*at, "when"))
            yield from _written(document, (*at, "when"), tuple(strings.conditions(entries["when"].value)))


def _products(document: Document, text: str) -> Iterator[str]:
    """Another axis in the place of one, one left out, two swapped."""
    axes = text.split(" ")
    for at, axis in enumerate(axes):
        for other in _names_of_axes(document):
            if other != axis:
                yield " ".join([*axes[:at], other, *axes[at + 1 :]])
    if len(axes) > 1:
        yield from axes
        yield " ".join(reversed(axes))


def _activation(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    yield from _written(document, path, ("unknown",))


def _tight(document: Document, path: Path) -> Iterator[Change]:
    yield _dropped(document, path)
    yield from _written(document, path, tuple(strings.conditions(document.node(path).value)))


_SECTIONS = {
    "params": _params,
    "parts": _parts,
    "accepts": _accepts,
    "detect": _detect,
    "tensors": _tensors,
    "value": _of(strings.values),
    "axes": _axes,
    "default": _mapped,
    "experts": _experts,
    "ranks": _mapped,
    "serves": _mapped,
    "visible": _visible,
    "matrices": _matrices,
    "activation": _activation,
    "tight": _tight,
}
