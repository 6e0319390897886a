"""Name templates: which tensors of a model family make up one matrix, as data (specs/names/*.yaml).

    names = for_architecture("LlamaForCausalLM")
    numbers = numbers_of(names, config)                  # {"hidden": 4096, "layers": 32, ...}
    units = list(units_of(names, numbers))               # q, k, v of layer 0; o of layer 0; ...
    units[0].source("q", "weight_packed")                # "model.layers.0.self_attn.q_proj.weight_packed"

A file's head comment in specs/names/llama.yaml explains its keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from layoutdsl import library, source
from layoutdsl.errors import Diagnostic, LayoutError, did_you_mean
from layoutdsl.grammar import Expr, GrammarError, Template, parse_template
from layoutdsl.model import Base, Name, Number, ParamValue
from layoutdsl.source import Tree

Numbers = Annotated[tuple[Number, ...], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


class UnitNames(Base):
    """What is converted as one: a module with the names of its tensors."""

    module: str
    params: dict[str, ParamValue] = Field({})
    sizes: dict[str, Numbers] = Field(min_length=1, description="extent of each axis; a list where parts differ")
    whole: dict[str, Number] = Field({}, description="axis -> how many neighbours a rank keeps together")
    source: Name
    output: Name


class There(Base):
    """When a tensor that is copied must be in the checkpoint: always, unless one of these says otherwise."""

    maybe: bool = False
    in_: tuple[str, ...] = Field((), alias="in", description="in these architectures always, in others never")
    unless: str | None = Field(None, description="a key of config.json that makes it optional")


_WORDS = {"always": {}, "maybe": {"maybe": True}}
Presence = Annotated[
    There, BeforeValidator(lambda value: _WORDS.get(value, value) if isinstance(value, str) else value)
]


class Names(Base):
    version: Literal["1"]
    names: str
    doc: str = Field(min_length=1)
    source: str = Field(min_length=1, description="where the names come from")
    architectures: tuple[str, ...] = Field(min_length=1, description="as config.json states them")
    config: dict[str, Numbers] = Field(min_length=1)
    count: dict[str, str] = Field({}, description="placeholder -> the number of `config` that counts it")
    units: dict[str, UnitNames] = Field(min_length=1)
    copied: dict[str, Presence] = Field({})


def for_architecture(architecture: str, specs: tuple[str, ...] = ()) -> Names:
    """The names of an architecture, from the user's folders or the shipped one; LayoutError where there are none."""
    known: list[str] = []
    for folder in (*map(Path, specs), library.shipped()):
        for path in sorted(folder.glob("names/*.yaml")):
            stat = path.stat()
            names = _read(path, stat.st_mtime_ns, stat.st_size)
            if architecture in names.architectures:
                return names
            known += names.architectures
    raise LayoutError(
        f"no names are known for the architecture `{architecture}`",
        code="LP214",
        name="unknown-architecture",
        help=did_you_mean(architecture, known)
        or f"known: {', '.join(known)}; another is a file names/NAME.yaml in a folder of --specs",
    )


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Names:
    tree = source.read_file(path)
    names = source.validate(tree, Names)
    if found := list(_findings(names, tree)):
        raise LayoutError.of(found)
    return names


def _findings(names: Names, tree: Tree) -> Iterator[Diagnostic]:
    for key, count in names.count.items():
        if count not in names.config:
            yield _unknown(tree, count, names.config, ("count", key), None)
    for key, unit in names.units.items():
        place = ("units", key)
        for axis, sizes in unit.sizes.items():
            for at, size in enumerate(sizes):
                inside = (at,) if ("units", key, "sizes", axis, at) in tree.spans else ()
                yield from _names_in(tree, size, names.config, (*place, "sizes", axis, *inside))
        for axis, size in unit.whole.items():
            yield from _names_in(tree, size, names.config, (*place, "whole", axis))
            if axis not in unit.sizes:
                yield _unknown(tree, axis, unit.sizes, (*place, "whole", axis), None)
        yield from _names_in(tree, unit.source, (*names.count, "part", "tensor"), (*place, "source"))
        yield from _names_in(tree, unit.output, (*names.count, "tensor"), (*place, "output"))
        for field in ("source", "output"):
            if "tensor" not in {name for name, _, _ in getattr(unit, field).names()}:
                yield tree.diagnostic(
                    "LD104",
                    "unknown-name",
                    "the name lacks `{tensor}`",
                    (*place, field),
                    help="{tensor} stands for the format's own tensor names",
                )
    for text in names.copied:
        try:
            for name, _, _ in parse_template(text).names():
                if name not in names.count:
                    yield _unknown(tree, name, names.count, ("copied", text), None)
        except GrammarError as error:
            yield tree.diagnostic("LD024", "grammar", error.message, ("copied", text), key=True, help=error.help)


def _names_in(tree: Tree, expr: Expr | Template, known: Any, place: tuple[Any, ...]) -> Iterator[Diagnostic]:
    for name, start, end in expr.names():
        if name not in known:
            yield _unknown(tree, name, known, place, (start, end))


def _unknown(tree: Tree, name: str, known: Any, place: tuple[Any, ...], within: tuple[int, int] | None) -> Diagnostic:
    return tree.diagnostic(
        "LD104",
        "unknown-name",
        f"unknown name `{name}`",
        place,
        within=within,
        help=did_you_mean(name, known) or f"known here: {', '.join(known)}",
    )


# --- with the numbers of one model ------------------------------------------------------------------------------------


def numbers_of(names: Names, config: Mapping[str, Any]) -> dict[str, int]:
    """The numbers that the templates need, from config.json."""
    stated = {key: value for key, value in config.items() if isinstance(value, int) and not isinstance(value, bool)}
    found: dict[str, int] = {}
    for name, ways in names.config.items():
        way = next((way for way in ways if all(key in stated for key, _, _ in way.names())), None)
        if way is None:
            needed = " or ".join(" and ".join(f"`{key}`" for key, _, _ in way.names()) for way in ways)
            raise LayoutError(
                f"config.json lacks {needed} (a whole number)",
                code="LP215",
                name="bad-config",
                help=f"names `{names.names}` need it for the sizes of the layers",
            )
        found[name] = _evaluated(way, stated)
        if found[name] < 1:
            raise LayoutError(
                f"config.json makes `{name}` {found[name]}, at least 1 is needed", code="LP215", name="bad-config"
            )
    return found


def _evaluated(expr: Expr, scope: Mapping[str, int]) -> int:
    try:
        return int(expr.evaluate(scope))
    except GrammarError as error:
        raise LayoutError(
            f"the numbers of config.json do not fit: {error.message}", code="LP215", name="bad-config"
        ) from None


@dataclass(frozen=True)
class Unit:
    """One instance of a unit: its key among the templates and the value of each placeholder."""

    key: str
    names: UnitNames
    at: tuple[tuple[str, int], ...]

    def source(self, part: str, tensor: str) -> str:
        """Name in the checkpoint."""
        return self.names.source.fill({**dict(self.at), "part": part, "tensor": tensor})

    def layer(self, part: str) -> str:
        """Name of the layer in the checkpoint that a part comes from."""
        return self.source(part, "").rstrip("._")

    def output(self, tensor: str) -> str:
        return self.names.output.fill({**dict(self.at), "tensor": tensor})

    @property
    def name(self) -> str:
        return self.output("").rstrip("._")

    def folded(self, values: Mapping[str, str]) -> str:
        """The unit's name with something else for each placeholder, as in `layers.{0..47}`."""
        return self.names.output.fill({**values, "tensor": ""}).rstrip("._")

    def sizes(self, numbers: Mapping[str, int]) -> dict[str, int | tuple[int, ...]]:
        found = {axis: tuple(_evaluated(size, numbers) for size in sizes) for axis, sizes in self.names.sizes.items()}
        return {axis: sizes if len(sizes) > 1 else sizes[0] for axis, sizes in found.items()}

    def whole(self, numbers: Mapping[str, int]) -> dict[str, int]:
        return {axis: _evaluated(size, numbers) for axis, size in self.names.whole.items()}


def units_of(names: Names, numbers: Mapping[str, int]) -> Iterator[Unit]:
    """Every unit of a model, layer by layer."""
    used = {
        key: [name for name in names.count if name in _placeholders(unit.source)] for key, unit in names.units.items()
    }
    for wanted in dict.fromkeys(tuple(placeholders) for placeholders in used.values()):
        for values in itertools.product(*(range(numbers[names.count[name]]) for name in wanted)):
            for key, unit in names.units.items():
                if tuple(used[key]) == wanted:
                    yield Unit(key, unit, tuple(zip(wanted, values, strict=True)))


def copied_of(names: Names, numbers: Mapping[str, int], config: Mapping[str, Any], architecture: str) -> dict[str, str]:
    """Every tensor that is copied whole -> whether it is `needed`, or only `allowed`."""
    found: dict[str, str] = {}
    for text, there in names.copied.items():
        if there.in_ and architecture not in there.in_:
            continue
        template = parse_template(text)
        loops = [name for name in names.count if name in _placeholders(template)]
        optional = there.maybe or (there.unless is not None and bool(config.get(there.unless)))
        for values in itertools.product(*(range(numbers[names.count[name]]) for name in loops)):
            found[template.fill(dict(zip(loops, values, strict=True)))] = "allowed" if optional else "needed"
    return found


def _placeholders(template: Template) -> set[str]:
    return {name for name, _, _ in template.names()}
