"""Name templates: which tensors of a model family make up one unit, as data (specs/names/*.yaml).

    names = for_architecture("LlamaForCausalLM")
    places = Places(names, ("qweight", "scales"))
    places.find("model.layers.3.self_attn.q_proj.qweight")
        # Place("qkv", "linear", "q", "qweight"), {"layer": 3}

A file's head comment in specs/names/llama.yaml explains its keys. Templates are compiled once, with the numbers of
layers and experts left open: finding a tensor is one look into a dictionary, however many there are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from layoutdsl import library, source
from layoutdsl.errors import Diagnostic, LayoutError, did_you_mean
from layoutdsl.grammar import Expr, GrammarError, Template, parse_template
from layoutdsl.library import load_spec
from layoutdsl.model import Base, Module, Name, Number, ParamValue
from layoutdsl.resolve import bind, filled, held_matrices, part_names
from layoutdsl.source import Tree

Numbers = Annotated[tuple[Number, ...], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]

Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


class There(Base):
    """When a unit or a copied tensor must be in the checkpoint: always, unless one of these says otherwise."""

    maybe: bool = False
    in_: tuple[str, ...] = Field((), alias="in", description="in these architectures always, in others never")
    unless: str | None = Field(None, description="a key of config.json that makes it optional")
    with_: tuple[str, ...] = Field((), alias="with", description="wherever one of these units is, and nowhere else")
    choice: str | None = Field(None, description="of all units with this word exactly one is there")


_WORDS = {"always": {}, "maybe": {"maybe": True}}
Presence = Annotated[
    There, BeforeValidator(lambda value: _WORDS.get(value, value) if isinstance(value, str) else value)
]


class UnitNames(Base):
    """What is converted as one: a module with the names of its tensors."""

    module: str
    only: Words = Field((), description="the matrices that the unit has of its module, if not all")
    there: Presence = There()
    quantized: Literal["declared", "maybe"] = Field(
        "declared", description="maybe: it may be left as it was though config.json does not say so"
    )
    params: dict[str, ParamValue] = Field({})
    sizes: dict[str, Numbers] = Field(min_length=1, description="extent of each axis; a list where parts differ")
    parts: dict[str, str] = Field({}, description="part -> what {part} stands for in the source's names")
    source: Name | dict[str, Name]
    weight: dict[str, Name] = Field({}, description="matrix -> the weight's name, where `source` does not give it")
    output: Name | dict[str, Name]

    def template(self, matrix: str, tensor: str = "") -> Template:
        if tensor == WEIGHT and matrix in self.weight:
            return self.weight[matrix]
        return self.source[matrix] if isinstance(self.source, dict) else self.source

    @property
    def templates(self) -> tuple[Template, ...]:
        return _each(self.source)

    def outputs(self, matrix: str) -> tuple[Template, ...]:
        """The name in the output of one matrix, or of all where none is named."""
        return (self.output[matrix],) if isinstance(self.output, dict) and matrix else _each(self.output)


def _each(names: Template | dict[str, Template]) -> tuple[Template, ...]:
    return tuple(names.values()) if isinstance(names, dict) else (names,)


class Names(Base):
    version: Literal["1"]
    names: str
    doc: str = Field(min_length=1)
    source: str = Field(min_length=1, description="where the names come from")
    architectures: tuple[str, ...] = Field(min_length=1, description="as config.json states them")
    config: dict[str, Numbers] = Field(min_length=1)
    count: dict[str, Words] = Field(
        {}, description="placeholder -> the number of `config` that counts it; of several the least that the files need"
    )
    units: dict[str, UnitNames] = Field(min_length=1)
    copied: dict[str, Presence] = Field({})


MOST_INSTANCES = 1 << 20
"""Most units of one kind."""

EXPERT = "expert"
"""The placeholder that counts experts where each has tensors of its own; all others count units."""

WEIGHT = "weight"
"""The tensor that a source without {tensor} names."""


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
    for key, counts in names.count.items():
        for count in counts:
            if count not in names.config:
                yield _unknown(tree, count, names.config, ("count", key), None)
    for key, unit in names.units.items():
        place = ("units", key)
        for axis, sizes in unit.sizes.items():
            for at, size in enumerate(sizes):
                inside = (at,) if ("units", key, "sizes", axis, at) in tree.spans else ()
                yield from _names_in(tree, size, names.config, (*place, "sizes", axis, *inside))
        yield from _templates(names, unit, tree, place)
        yield from _presence(names, unit.there, tree, (*place, "there"))
    for text, there in names.copied.items():
        yield from _presence(names, there, tree, ("copied", text))
        try:
            yield from _names_in(tree, parse_template(text), names.count, ("copied", text))
        except GrammarError as error:
            yield tree.diagnostic("LD024", "grammar", error.message, ("copied", text), key=True, help=error.help)


def _templates(names: Names, unit: UnitNames, tree: Tree, place: tuple[Any, ...]) -> Iterator[Diagnostic]:
    sources = _by_matrix(unit.source)
    for field, templates in (("source", sources), ("weight", unit.weight)):
        for matrix, template in templates.items():
            inside = (*place, field, matrix) if matrix else (*place, field)
            yield from _names_in(tree, template, (*names.count, "part", "tensor"), inside)
    outputs = _by_matrix(unit.output)
    if isinstance(unit.output, dict):
        yield from (_unknown(tree, name, sources, (*place, "output", name), None) for name in {*outputs} - {*sources})
        if missing := [name for name in sources if name not in outputs]:
            yield _lacking(tree, f"no name for matrix `{missing[0]}`", (*place, "output"))
    for matrix, template in outputs.items():
        inside = (*place, "output", matrix) if matrix else (*place, "output")
        yield from _names_in(tree, template, (*names.count, "matrix", "tensor"), inside)
        wanted = {"tensor", *(("matrix",) if len(sources) > 1 and not matrix else ())} - placeholders(template)
        if wanted:
            yield _lacking(tree, f"the name lacks `{{{min(wanted)}}}`", inside)


def _by_matrix(names: Template | dict[str, Template]) -> dict[str, Template]:
    """Matrix -> its name; of one name for all the matrix is empty."""
    return names if isinstance(names, dict) else {"": names}


def _lacking(tree: Tree, message: str, place: tuple[Any, ...]) -> Diagnostic:
    help = "{tensor} stands for the kernel's own tensor names, {matrix} for the module's matrices"
    return tree.diagnostic("LD104", "unknown-name", message, place, help=help)


def _presence(names: Names, there: There, tree: Tree, place: tuple[Any, ...]) -> Iterator[Diagnostic]:
    for unit in there.with_:
        if unit not in names.units:
            yield _unknown(tree, unit, names.units, place, None)


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


class Sizes(Mapping[str, int]):
    """The numbers that the templates need, from config.json; each is worked out when a unit asks for it."""

    def __init__(self, names: Names, config: Mapping[str, Any]):
        self.names = names
        # A list of layers' kinds counts the layers.
        lengths = {key: len(value) if isinstance(value, list) else value for key, value in config.items()}
        self.stated = {k: v for k, v in lengths.items() if isinstance(v, int) and not isinstance(v, bool)}
        self.others = {k: v for k, v in lengths.items() if k not in self.stated}
        self.known: dict[str, int] = {}
        self.least: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        if name not in self.known:
            self.known[name] = self._found(name)
        return self.known[name]

    def count(self, placeholder: str) -> int:
        """How often a placeholder repeats: of several numbers the least that reaches what `need` was told, else the
        greatest."""
        if placeholder not in self._counts:
            self._counts[placeholder] = self._count(placeholder)
        return self._counts[placeholder]

    def _count(self, placeholder: str) -> int:
        stated = [self[name] for name in self.names.count[placeholder] if self._way(name)]
        numbers = stated or [self[self.names.count[placeholder][0]]]
        enough = [number for number in numbers if number >= self.least.get(placeholder, 0)]
        return min(enough) if placeholder in self.least and enough else max(numbers)

    def need(self, placeholder: str, number: int) -> None:
        """The files hold so many, at least."""
        self.least[placeholder] = max(number, self.least.get(placeholder, 0))
        self._counts.pop(placeholder, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.config)

    def __len__(self) -> int:
        return len(self.names.config)

    def _found(self, name: str) -> int:
        way = self._way(name)
        if way is None:
            ways = self.names.config[name]
            keys = [[key for key, _, _ in way.names()] for way in ways]
            needed = " or ".join(" and ".join(f"`{key}`" for key in of_way) for of_way in keys)
            wrong = next((key for of_way in keys for key in of_way if self.others.get(key) is not None), None)
            raise LayoutError(
                f"config.json lacks {needed} (a whole number)" if wrong is None
                else f"config.json says {self.others[wrong]!r:.40} for `{wrong}`, a whole number is needed",
                code="LP215",
                name="bad-config",
                help=f"names `{self.names.names}` need it for the sizes of the layers",
            )
        found = _evaluated(way, self.stated)
        if found < 1:
            raise LayoutError(
                f"config.json makes `{name}` {found}, at least 1 is needed",
                code="LP215",
                name="bad-config",
                help="correct config.json",
            )
        return found

    def _way(self, name: str) -> Expr | None:
        """The first expression of which config.json states every key."""
        ways = self.names.config[name]
        return next((way for way in ways if all(key in self.stated for key, _, _ in way.names())), None)


def _evaluated(expr: Expr, scope: Mapping[str, int]) -> int:
    try:
        return int(expr.evaluate(scope))
    except GrammarError as error:
        raise LayoutError(
            f"the numbers of config.json do not fit: {error.message}", code="LP215", name="bad-config"
        ) from None


@dataclass(frozen=True)
class Unit:
    """One instance of a unit: its key among the templates and the value of each placeholder but the expert's. `only`:
    the matrix that it is about, where those of the templates are converted apart."""

    key: str
    names: UnitNames
    at: tuple[tuple[str, int], ...]
    only: tuple[str, ...] = ()

    @property
    def matrices(self) -> tuple[str, ...]:
        """The matrices that it has of its module; none for all."""
        return self.only or self.names.only

    def source(self, matrix: str, part: str, tensor: str, expert: int = 0) -> str:
        """Name in the checkpoint."""
        spelled = self.names.parts.get(part, part)
        scope = {**dict(self.at), EXPERT: expert, "part": spelled, "tensor": tensor}
        return filled(self.names.template(matrix, tensor), scope, "a name")

    def layer(self, matrix: str, part: str, expert: int = 0) -> str:
        """Name of the layer in the checkpoint that a part comes from."""
        return self.source(matrix, part, "", expert).rstrip("._")

    def output(self, matrix: str, tensor: str) -> str:
        (template,) = self.names.outputs(matrix)
        return filled(template, {**dict(self.at), "matrix": matrix, "tensor": tensor}, "a name")

    @cached_property
    def name(self) -> str:
        return self.folded(dict(self.at))

    def folded(self, values: Mapping[str, Any]) -> str:
        """The unit's name with something else for each placeholder, as in `layers.{0..47}`: that of its matrix, or how
        the names of all its matrices begin."""
        matrix = self.matrices[0] if len(self.matrices) == 1 else ""
        named = [
            filled(template, {**values, "matrix": matrix or _ANY, "tensor": ""}, "a name").rstrip("._").split(".")
            for template in self.names.outputs(matrix)
        ]
        alike = itertools.takewhile(lambda steps: len({*steps}) == 1 and _ANY not in steps[0], zip(*named))
        return ".".join(steps[0] for steps in alike) or self.key

    def sizes(self, numbers: Mapping[str, int]) -> dict[str, int | tuple[int, ...]]:
        found = {axis: tuple(_evaluated(size, numbers) for size in sizes) for axis, sizes in self.names.sizes.items()}
        return {axis: sizes if len(sizes) > 1 else sizes[0] for axis, sizes in found.items()}


_ANY = "{matrix}"
"""Stands for a matrix."""


# --- from a tensor's name to its place --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What a name means: a tensor of the format in a part of a unit's matrix; a copied tensor has no unit."""

    unit: str | None
    matrix: str = ""
    part: str = ""
    tensor: str = ""


class Places:
    """Every name that a checkpoint may hold. `tensors` are the names that tensors of its formats can have, `numbers`
    limit the placeholders."""

    def __init__(
        self,
        names: Names,
        tensors: Sequence[str],
        numbers: Sizes,
        architecture: str,
        specs: tuple[str, ...] = (),
    ):
        self.counts, self.numbers = tuple(names.count), numbers
        self.known: dict[str, list[tuple[tuple[str | int, ...], Place]]] = {}
        for key, unit in names.units.items():
            if not unit.there.in_ or architecture in unit.there.in_:
                for matrix, part in parts_of(unit, specs):
                    self._add_unit(key, unit, matrix, part, tensors)
        for text, there in names.copied.items():
            if not there.in_ or architecture in there.in_:
                self._add(parse_template(text), {}, Place(None, tensor=text))

    def find(self, name: str) -> tuple[Place, dict[str, int]] | None:
        """The place of a tensor and the numbers in its name; None for a stranger."""
        shape, found = _numbered(name)
        for slots, place in self.known.get(shape, ()):
            if all(map(self._holds, slots, found)):
                return place, {slot: value for slot, value in zip(slots, found, strict=True) if isinstance(slot, str)}
        return None

    def close_to(self, name: str) -> str | None:
        """`did you mean ...`, with the numbers of the name itself; or which of these config.json does not count."""
        shape, found = _numbered(name)
        for slots, _ in self.known.get(shape, ()):
            for slot, value in zip(slots, found, strict=True):
                if isinstance(slot, str) and value >= self.numbers.count(slot):
                    return f"config.json counts {self.numbers.count(slot)} of `{slot}`"
        near, numbers = did_you_mean(shape, self.known), iter(found)
        return near and re.sub(_NUMBER, lambda _: str(next(numbers, "N")), near)

    def _holds(self, slot: str | int, value: int) -> bool:
        return value < self.numbers.count(slot) if isinstance(slot, str) else slot == value

    def _add_unit(self, key: str, unit: UnitNames, matrix: str, part: str, tensors: Sequence[str]) -> None:
        used = placeholders(unit.template(matrix))
        words = {"part": unit.parts.get(part, part)}
        part = part if "part" in used else ""
        for tensor in tensors if "tensor" in used else (WEIGHT,):
            self._add(unit.template(matrix, tensor), {**words, "tensor": tensor}, Place(key, matrix, part, tensor))

    def _add(self, template: Template, words: Mapping[str, str], place: Place) -> None:
        steps = filled(template, {**{name: _NUMBER + name for name in self.counts}, **words}, "a name").split(".")
        slots = tuple(
            int(step) if step.isdecimal() else step.removeprefix(_NUMBER)
            for step in steps
            if step.isdecimal() or step.startswith(_NUMBER)
        )
        shape = ".".join(_NUMBER if step.isdecimal() or step.startswith(_NUMBER) else step for step in steps)
        found = self.known.setdefault(shape, [])
        if any(other == slots and taken != place for other, taken in found):
            raise LayoutError(
                f"two of the names are `{template.fill({**{n: f'{{{n}}}' for n in self.counts}, **words})}`",
                code="LP214",
                name="unknown-architecture",
                help="correct the names' templates",
            )
        if (slots, place) not in found:
            found.append((slots, place))


_NUMBER = "#"
"""Stands for a number between dots."""


def _numbered(name: str) -> tuple[str, tuple[int, ...]]:
    steps = name.split(".")
    return (
        ".".join(_NUMBER if step.isdecimal() else step for step in steps),
        tuple(int(step) for step in steps if step.isdecimal()),
    )


def parts_of(unit: UnitNames, specs: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every (matrix, part) of a unit; the part is empty where a matrix has none."""
    module = load_spec(unit.module, specs=specs, kind="module")
    assert isinstance(module, Module)
    bound = bind(module, own_params(unit, module))
    held = held_matrices(module, bound, unit.only)
    named = unit.source if isinstance(unit.source, dict) else [*held][:1]
    if set(named) != set(held):
        has = f"names for {', '.join(named)}" if isinstance(unit.source, dict) else "one name"
        raise LayoutError(
            f"{has}, the matrices of module `{module.name}` are {', '.join(held)}",
            code="LP214",
            name="unknown-architecture",
            help="state a template for each matrix under `source`, or with `only` which of them the unit has",
        )
    for name, matrix in held.items():
        parts = part_names(matrix.parts, bound) if isinstance(matrix.parts, Template) else matrix.parts
        yield from ((name, part) for part in (matrix.n if isinstance(matrix.n, dict) else parts) or ("",))


def own_params(unit: UnitNames, module: Module) -> dict[str, ParamValue]:
    """Those of a unit's parameters that are its module's."""
    return {name: value for name, value in unit.params.items() if name in module.params}


def instances(names: Names, key: str, numbers: Sizes) -> Iterator[Unit]:
    """Every instance that a unit can have, in order of the placeholders' numbers."""
    unit = names.units[key]
    words = set().union(*map(placeholders, unit.templates))
    used = [name for name in names.count if name in words and name != EXPERT]
    for values in _every(used, numbers):
        yield Unit(key, unit, tuple(zip(used, values, strict=True)))


def _every(used: Sequence[str], numbers: Sizes) -> Iterator[tuple[int, ...]]:
    """Every value that the placeholders can have together; LayoutError where these are too many."""
    counts = [numbers.count(name) for name in used]
    if math.prod(counts) > MOST_INSTANCES:
        raise LayoutError(
            f"config.json counts {' times '.join(map(str, counts))} of {' and '.join(f'`{name}`' for name in used)}",
            code="LP215",
            name="bad-config",
            help=f"a checkpoint has at most {MOST_INSTANCES} units of a kind",
        )
    return itertools.product(*map(range, counts))


def copies_of(names: Names, text: str, numbers: Sizes) -> Iterator[tuple[str, tuple[tuple[str, int], ...]]]:
    """Every tensor that a template of `copied` stands for, with the numbers in its name."""
    template = parse_template(text)
    used = [name for name in names.count if name in placeholders(template)]
    for values in _every(used, numbers):
        at = tuple(zip(used, values, strict=True))
        yield filled(template, dict(at), "a name"), at


def placeholders(template: Template) -> set[str]:
    """Names in the braces of a template."""
    return {name for name, _, _ in template.names()}
