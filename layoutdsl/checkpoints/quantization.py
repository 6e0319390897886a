"""What config.json says about the weights' formats, read through the checkpoint specs' own data.

    declared = declared(config)
    declared.of("model.layers.0.mlp.down_proj")      # the Group of that layer; None: left as it was

A spec's `detect` names the entries of `quantization_config` that tell its format; each parameter's `config` and `map`
say where its value stands. No format is known here by name, only the ways in which libraries let layers differ:
compressed-tensors' `config_groups`, GPTQModel's `dynamic`, ModelOpt's `quantized_layers`, and the lists of layers that
are left out. Each part that speaks for layers of its own is read as if it stood alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from layoutdsl import library
from layoutdsl.checkpoints.patterns import Pattern, Work
from layoutdsl.errors import LayoutError
from layoutdsl.model import Checkpoint, ParamValue
from layoutdsl.resolve import bind

IGNORED = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
"""Keys of quantization_config that list layers left as they were: names, parts of names, names with `*`, or `re:` and a
pattern."""

MAX_GROUPS = 64
"""Most formats that one checkpoint mixes."""

_CLASS = re.compile(r"\w*Linear\w*|")
"""A target that means a class of linear layers, and so all of them; the empty one is ours."""


@dataclass(frozen=True)
class Group:
    """A format with parameters that config.json declares, by which group, and for which layers: `targets` are names,
    `re:` and a pattern, or a class of layers; none for all."""

    name: str
    spec: Checkpoint
    path: Path
    stated: dict[str, ParamValue]
    targets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.spec.name} with {', '.join(f'{k}={_text(v)}' for k, v in self.stated.items()) or 'its defaults'}"


@dataclass(frozen=True)
class Declared:
    """All that config.json declares: its groups, the entries of the lists of layers left unquantized, and which group a
    target leads to (None: unquantized), where the first that means a layer counts."""

    groups: tuple[Group, ...]
    ignored: tuple[str, ...]
    rules: tuple[tuple[str, Group | None], ...]

    def __post_init__(self) -> None:
        _ = self._left_patterns, self._patterns  # a bad pattern is refused at once

    def of(self, layer: str) -> Group | None:
        """The group that config.json declares for that linear layer; None: left unquantized."""
        if layer not in self._known:
            self._known[layer] = self._found(layer)
        return self._known[layer]

    def _found(self, layer: str) -> Group | None:
        steps = layer.split(".")
        runs = (".".join(steps[i:j]) for i in range(len(steps)) for j in range(i + 1, len(steps) + 1))
        if any(run in self._left for run in runs) or any(pattern.matches(layer) for pattern in self._left_patterns):
            return None
        if layer in self._names:
            return self._names[layer]
        return next((group for pattern, group in self._patterns if pattern.matches(layer)), None)

    @cached_property
    def _known(self) -> dict[str, Group | None]:
        return {}

    @cached_property
    def _left(self) -> set[str]:
        return {entry.strip(".") for entry in self.ignored if not _is_pattern(entry)}

    @cached_property
    def _work(self) -> Work:
        return Work()

    @cached_property
    def _left_patterns(self) -> list[Pattern]:
        return [Pattern(entry, self._work) for entry in dict.fromkeys(self.ignored) if _is_pattern(entry)]

    @cached_property
    def _names(self) -> dict[str, Group | None]:
        return {target: group for target, group in self.rules if _precedence(target) == 0}

    @cached_property
    def _patterns(self) -> list[tuple[Pattern, Group | None]]:
        wide = [(target, group) for target, group in self.rules if _precedence(target)]
        return [(Pattern(target if target.startswith("re:") else "re:", self._work), group) for target, group in wide]

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.groups)))


def _precedence(target: str) -> int:
    """compressed-tensors' order: names before patterns before classes of layers."""
    return 1 if target.startswith("re:") else 2 if _CLASS.fullmatch(target) else 0


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or "*" in entry


def declared(config: Mapping[str, Any], specs: Sequence[str] = ()) -> Declared:
    """The formats of a checkpoint, what config.json says of their parameters, and for which layers."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        raise LayoutError(
            "config.json has no `quantization_config` (a mapping): the checkpoint is not quantized",
            code="LP211",
            name="unknown-format",
            help="convert takes quantized checkpoints; quantize this one first",
        )
    known = list(checkpoints(specs))
    groups: list[Group] = []
    rules: dict[str, int | None] = {}
    seen: dict[str, int] = {}
    targets: dict[int, list[str]] = {}
    for part in _parts(quantization):
        at = None if part.says is None else seen.get(part.own)
        if at is None and part.says is not None:
            at = seen[part.own] = _placed(_group(part, known), groups)
        if at is not None and groups[at].targets:
            targets.setdefault(at, []).extend(part.targets)
        rules.update(dict.fromkeys(part.targets or ("",), at))
    if not groups:
        raise LayoutError(
            "no part of quantization_config quantizes weights",
            code="LP211",
            name="unknown-format",
            help="a config group states its weights under `weights`",
        )
    for at, every in targets.items():
        groups[at] = replace(groups[at], targets=tuple(every))
    ordered = sorted(rules) if "config_groups" in quantization else list(rules)
    leads = [(target, rules[target]) for target in sorted(ordered, key=_precedence)]
    return Declared(
        tuple(groups),
        ignored=tuple(_ignored(quantization)),
        rules=tuple((target, None if at is None else groups[at]) for target, at in leads),
    )


def _ignored(quantization: Mapping[str, Any]) -> Iterator[str]:
    """Entries of the lists of layers left out; GPTQModel says of the output layer alone whether it is quantized."""
    for key in IGNORED:
        yield from _strings(quantization.get(key))
    if quantization.get("lm_head") is False:
        yield "lm_head"


@dataclass(frozen=True)
class _Part:
    """A part of quantization_config that speaks for some layers: what it would say alone, None for unquantized. Parts
    with the same `own` say the same."""

    own: str
    name: str
    place: str
    targets: tuple[str, ...]
    says: dict[str, Any] | None


def _parts(quantization: Mapping[str, Any]) -> Iterator[_Part]:
    """Every part; those of equal precedence in the order in which they count."""
    layers, groups, dynamic = (quantization.get(key) for key in ("quantized_layers", "config_groups", "dynamic"))
    if isinstance(layers, dict):
        for layer, own in _mappings("quantized_layers", layers):
            says = {**quantization, "config_groups": None, **own}
            yield _Part(repr(own), "", f"quantized_layers.{layer}", (layer,), says)
        return
    if isinstance(groups, dict) and groups:
        for name, own in _mappings("config_groups", groups):
            form = {"format": own["format"]} if own.get("format") else {}
            says = {**quantization, "config_groups": {name: own}, **form}
            targets = tuple(_strings(own.get("targets")))
            speaks = own.get("weights") is not None
            yield _Part(name, name, f"config_groups.{name}", targets, says if speaks else None)
        return
    yield _Part("", "", "", (), dict(quantization))
    for pattern, own in _mappings("dynamic", dynamic if isinstance(dynamic, dict) else {}):
        says = None if pattern.startswith("-:") else {**quantization, **own}
        yield _Part(repr(own), "", f"dynamic.{pattern}", ("re:" + re.sub(r"^[-+]:", "", pattern),), says)


def _mappings(key: str, data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, own in data.items():
        if not isinstance(own, dict):
            raise LayoutError(
                f"config.json: `{key}.{name}` is {_text(own)[:80]}, a mapping is needed",
                code="LP215",
                name="bad-config",
            )
        yield name, own


def _group(part: _Part, known: Sequence[tuple[Checkpoint, Path]]) -> Group:
    """The one format that a part's entries name, with the parameters that they state."""
    assert part.says is not None
    found = [(spec, path) for spec, path in known if _detects(spec, part.says)]
    if len(found) != 1:
        _undetected(part, [spec for spec, _ in found or known], bool(found))
    spec, path = found[0]
    stated: dict[str, ParamValue] = {}
    for name, param in spec.params.items():
        ways = (param.config,) if isinstance(param.config, str) else param.config or ()
        values = [value for way in ways for value in _values(part.says, way)]
        if not values:
            continue
        value = next((value for value in values if value is not None), None)
        value = (param.map or {}).get(_text(value), value)
        if isinstance(value, str) and value.isdecimal() and value not in param.values:
            value = int(value)
        if value is not None:
            stated[name] = value
    try:
        bind(spec, stated)
    except LayoutError as error:
        where = f"config.json: `{part.place}`: " if part.place else "config.json: "
        raise LayoutError(
            where + error.message, code=error.diagnostics[0].code, name="parameter-value", help=error.help
        ) from None
    return Group(part.name, spec, path, stated, part.targets)


def _placed(group: Group, groups: list[Group]) -> int:
    """Where a group stands among all: config groups apart, nameless ones that state the same as one."""
    for at, other in enumerate(groups):
        if not group.name and (other.spec.name, other.stated) == (group.spec.name, group.stated):
            return at
    if len(groups) == MAX_GROUPS:
        raise LayoutError(f"config.json declares more than {MAX_GROUPS} formats", code="LP215", name="bad-config")
    groups.append(group)
    return len(groups) - 1


def checkpoints(specs: Sequence[str]) -> Iterator[tuple[Checkpoint, Path]]:
    """Every checkpoint spec; the user's own stands for a shipped one of the same name."""
    seen: set[str] = set()
    for path in library.files(tuple(specs)):
        if path.stem not in seen:
            seen.add(path.stem)
            spec = library.read_spec(path, specs=tuple(specs))
            if isinstance(spec, Checkpoint):
                yield spec, path


def _detects(spec: Checkpoint, quantization: Mapping[str, Any]) -> bool:
    """Whether one of the spec's alternatives holds: `null` also stands for what is not there, `*` for all that is."""

    def states(key: str, wanted: Sequence[str]) -> bool:
        value = next(iter(_values(quantization, key)), None)
        return _text(value) in wanted or ("*" in wanted and value is not None)

    return any(all(states(key, wanted) for key, wanted in entries.items()) for entries in spec.detect)


def _undetected(part: _Part, known: Sequence[Checkpoint], several: bool) -> NoReturn:
    assert part.says is not None
    keys = dict.fromkeys(key for spec in known for entries in spec.detect for key in entries)
    stated = [f"{key}: {_text(value)}" for key in keys for value in _values(part.says, key)]
    where = f"`{part.place}` of quantization_config" if part.place else "quantization_config"
    says = f"{where} says {', '.join(stated) or 'none of ' + ', '.join(keys)}"
    names = ", ".join(spec.name for spec in known if spec.detect)
    raise LayoutError(
        f"{says}, which {'several formats go by: ' + names if several else 'is no format that a spec detects'}",
        code="LP211",
        name="unknown-format",
        help="let each spec's `detect` name more entries"
        if several
        else f"known: {names}; another is a spec with `detect` in a folder of --specs",
    )


def lookup(data: Any, steps: Sequence[str], at: str = "") -> Iterator[tuple[str, Any]]:
    """Every (place, value) under a dotted path; `*` stands for any key, a number for an element of a list."""
    if not steps:
        yield at, data
        return
    step, rest = steps[0], steps[1:]
    if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
        yield from lookup(data[int(step)], rest, f"{at}.{step}")
    elif isinstance(data, dict):
        for key in data if step == "*" else [step] if step in data else []:
            yield from lookup(data[key], rest, f"{at}.{key}".lstrip("."))


def _values(quantization: Mapping[str, Any], way: str) -> list[Any]:
    return [value for _, value in lookup(quantization, way.split("."))]


def _strings(value: Any) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    """A value of config.json as a spec writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
