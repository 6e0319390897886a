"""What config.json says about the weights' format, read through the checkpoint specs' own data.

A spec's `detect` names the entries of `quantization_config` that tell its format; each parameter's `config` and `map`
say where its value stands. No format is known here by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from layoutdsl import library
from layoutdsl.errors import LayoutError
from layoutdsl.model import Checkpoint, ParamValue
from layoutdsl.resolve import bind

IGNORED = ("ignore", "modules_to_not_convert")
"""Keys of quantization_config that list layers left as they were: names, parts of names, or `re:` and a pattern."""

TARGETS = "config_groups.*.targets"
"""Which layers a config group means: a class of layers, names, or `re:` and a pattern."""


@dataclass(frozen=True)
class Declared:
    """The format that config.json declares: its spec and the spec's file, parameters, lists of layers."""

    spec: Checkpoint
    path: Path
    stated: dict[str, ParamValue]
    ignored: tuple[str, ...]
    targets: tuple[str, ...]

    def covers(self, layer: str) -> bool:
        """Whether config.json declares that linear layer quantized."""
        if any(pattern.match(layer) for pattern in self._ignored):
            return False
        # A target without a dot that is no name of a layer is a class of layers, such as all linear ones.
        return (
            not self.targets
            or any("." not in t and not t.startswith("re:") for t in self.targets)
            or any(pattern.match(layer) for pattern in self._targets)
        )

    @cached_property
    def _ignored(self) -> list[re.Pattern[str]]:
        return [_pattern(entry) for entry in self.ignored]

    @cached_property
    def _targets(self) -> list[re.Pattern[str]]:
        return [_pattern(entry) for entry in self.targets]

    def __str__(self) -> str:
        return f"{self.spec.name} with {', '.join(f'{k}={_text(v)}' for k, v in self.stated.items()) or 'its defaults'}"


def _pattern(entry: str) -> re.Pattern[str]:
    if not entry.startswith("re:"):
        return re.compile(rf"(.*\.)?{re.escape(entry)}(\..*)?$")
    try:
        return re.compile(entry[3:])
    except re.error as error:
        raise LayoutError(f"config.json: `{entry}` is no pattern: {error}", code="LP215", name="bad-config") from None


def declared(config: Mapping[str, Any], specs: Sequence[str] = ()) -> Declared:
    """The format of a checkpoint and what config.json says of its parameters."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        raise LayoutError(
            "config.json has no `quantization_config`: the checkpoint is not quantized",
            code="LP211",
            name="unknown-format",
            help="convert takes quantized checkpoints; quantize this one first",
        )
    found = [(spec, path) for spec, path in _checkpoints(specs) if _detects(spec, quantization)]
    if len(found) != 1:
        raise _undetected(
            quantization, [spec for spec, _ in found] or [spec for spec, _ in _checkpoints(specs)], bool(found)
        )
    spec, path = found[0]
    stated: dict[str, ParamValue] = {}
    for name, param in spec.params.items():
        ways = (param.config,) if isinstance(param.config, str) else param.config or ()
        values = [value for way in ways for value in _agreed(quantization, way)]
        if not values:
            continue
        value = next((value for value in values if value is not None), None)
        value = (param.map or {}).get(_text(value), value)
        if value is not None:
            stated[name] = value
    try:
        bind(spec, stated)
    except LayoutError as error:
        raise LayoutError(
            f"config.json: {error.message}", code=error.diagnostics[0].code, name="parameter-value", help=error.help
        ) from None
    ignored = [entry for key in IGNORED for entry in _strings(quantization.get(key))]
    targets = [entry for _, value in lookup(quantization, TARGETS.split(".")) for entry in _strings(value)]
    return Declared(spec, path, stated, tuple(ignored), tuple(targets))


def _checkpoints(specs: Sequence[str]) -> Iterator[tuple[Checkpoint, Path]]:
    """Every checkpoint spec; the user's own stands for a shipped one of the same name."""
    seen: set[str] = set()
    for path in library.files(tuple(specs)):
        if path.stem not in seen:
            seen.add(path.stem)
            spec = library.read_spec(path)
            if isinstance(spec, Checkpoint):
                yield spec, path


def _detects(spec: Checkpoint, quantization: Mapping[str, Any]) -> bool:
    def states(key: str, wanted: str) -> bool:
        values = [value for _, value in lookup(quantization, key.split("."))]
        return bool(values) and all(_text(value) == wanted for value in values)

    return bool(spec.detect) and all(states(key, wanted) for key, wanted in spec.detect.items())


def _undetected(quantization: Mapping[str, Any], known: Sequence[Checkpoint], several: bool) -> LayoutError:
    keys = dict.fromkeys(key for spec in known for key in spec.detect)
    stated = [f"{key}: {_text(value)}" for key in keys for _, value in lookup(quantization, key.split("."))]
    says = f"quantization_config says {', '.join(stated) or 'none of ' + ', '.join(keys)}"
    names = ", ".join(spec.name for spec in known)
    return LayoutError(
        f"{says}, which {'several formats go by: ' + names if several else 'is no format that a spec detects'}",
        code="LP211",
        name="unknown-format",
        help="let each spec's `detect` name more entries"
        if several
        else "known: "
        + "; ".join(f"{s.name} ({', '.join(f'{k}: {v}' for k, v in s.detect.items())})" for s in known if s.detect),
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


def _agreed(quantization: Mapping[str, Any], way: str) -> list[Any]:
    """The one value under a path, or none; a refusal where config groups differ."""
    values = list(lookup(quantization, way.split(".")))
    for value in values[1:]:
        if _text(value[1]) != _text(values[0][1]):
            one, other = (f"`{place}` is {_text(found)}" for place, found in (values[0], value))
            raise LayoutError(
                f"config.json quantizes layers differently: {one}, {other}",
                code="LP215",
                name="bad-config",
                help="only checkpoints whose config groups agree are converted",
            )
    return [value for _, value in values[:1]]


def _strings(value: Any) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    """A value of config.json as a spec writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
