"""Which formats a lone safetensors file could be, told from the names, dtypes and shapes of its tensors alone.

    found = identify("model.safetensors")      # layoutdsl identify model.safetensors
    print(found)

Tensors make up layers by their names; experts that look alike count as one layer. Each format says which layers it
explains and with which parameters, what the file leaves open (an offset of zero points, say), or else what is in the
way. No weight is read, and no config.json.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layoutdsl.checkpoints.fitting import Params, Setting, Trial, said, text
from layoutdsl.checkpoints.folder import Entry, read_header
from layoutdsl.checkpoints.quantization import checkpoints
from layoutdsl.errors import LayoutError
from layoutdsl.model import Checkpoint, ParamValue
from layoutdsl.plan import Plan

FLOATS = ("float16", "bfloat16", "float32")
BY_LAYER = ("bias", "input_scale", "weight_shape")
"""Roles of tensors that some layers of a file have and others lack."""

MOST_OTHERS = 4
"""Settings that fit as well and are shown at most."""

_EXPERT = re.compile(r"(\.experts?)\.\d+(?=\.|$)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl identify`."""
    parser.add_argument("file", metavar="FILE", help="a safetensors file; its config.json is not needed")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl identify` and print what it found; 1 where no format fits."""
    found = identify(args.file, args.specs)
    print(found)
    return 0 if found.fits else 1


@dataclass(frozen=True)
class Fit:
    """A format with parameters that so many layers can be read with.

    by_layer: parameters that layers do not agree in. open: values of a parameter among which the file does not decide.
    others: what other settings that fit as well have different, several parameters at once.
    """

    format: str
    layers: int
    params: Params
    by_layer: tuple[str, ...]
    open: dict[str, tuple[ParamValue, ...]]
    others: tuple[Params, ...]

    def lines(self, width: int, layers: int) -> Iterator[str]:
        """`layers`: how many the file has."""
        whole = "the one layer" if layers == 1 else f"all {layers} layers"
        stated = ", ".join([*said(self.params), *(f"{name} by layer" for name in self.by_layer)])
        which = whole if self.layers == layers else f"{self.layers} of {layers} layers"
        yield f"{self.format:{width}}{stated}{'  ' if stated else ''}fits {which}"
        for name, values in self.open.items():
            yield f"{'':{width}}{name}={' or '.join(map(text, values))}: the file does not say"
        for params in self.others:
            yield f"{'':{width}}or {', '.join(said(params))}: the file does not say"


@dataclass(frozen=True)
class Identified:
    """All that was found. `misses` has a sentence for each format that fits no layer; where some format fits others,
    `odd` has one for a layer of each kind that none fits. `written`: what a file of `convert` says of itself."""

    file: str
    layers: int
    shapes: int
    rest: int
    fits: tuple[Fit, ...]
    odd: tuple[str, ...]
    misses: dict[str, str]
    written: str = ""

    def __str__(self) -> str:
        shapes = f" (in {_count(self.shapes, 'shape')})" if self.layers else ""
        head = f"{self.file}: {_count(self.layers, 'layer')}{shapes}, {_count(self.rest, 'other tensor')}"
        width = max((len(fit.format) for fit in self.fits), default=0) + 2
        lines = [line for fit in self.fits for line in fit.lines(width, self.layers)]
        lines += [f"fits none: {why}" for why in self.odd]
        head += f"\n{self.written}" if self.written else ""
        return "\n".join([head, *lines, *(f"not {name}: {why}" for name, why in self.misses.items())])


def identify(path: str | Path, specs: Sequence[str] = ()) -> Identified:
    """Try every checkpoint format, shipped or in the folders `specs`, on the tensors of one safetensors file.

    Raises LayoutError where the file is none, or cut short.
    """
    entries, metadata = read_header(Path(path))
    trials = {spec.name: Trial(spec) for spec, _ in checkpoints(specs)}
    looks = _looks(entries, [trial.spec for trial in trials.values()])
    fits: list[Fit] = []
    misses: dict[str, str] = {}
    fitted: set[int] = set()
    for name, trial in trials.items():
        found = list(_fits(trial, looks))
        fits += [fit for fit, _ in found]
        fitted = fitted.union(*(ats for _, ats in found))
        if not found:
            misses[name] = _miss(trial, looks[0]) if looks else "no tensor has the name of its codes"
    fits.sort(key=lambda fit: -fit.layers)
    left = [look for at, look in enumerate(looks) if at not in fitted] if fits else []
    return Identified(
        str(path),
        layers=sum(len(look.layers) for look in looks),
        shapes=len(looks),
        rest=len(entries) - sum(len(look.tensors) * look.times for look in looks),
        fits=tuple(fits),
        odd=tuple(_miss(trials[fits[0].format], look) for look in left),
        misses=misses,
        written=_written(metadata),
    )


def _written(metadata: Mapping[str, str]) -> str:
    """`written by layoutdsl convert: rank 0 of 2, for marlin_int4_a16`; empty for any other file."""
    plans = [text for key, text in metadata.items() if key.startswith("layoutdsl.plan.")]
    try:
        number, tp, ep = (int(metadata[f"layoutdsl.{key}"][:9]) for key in ("rank", "tp", "ep"))
        kernels = {plan.target.spec for plan in (Plan.from_json(text, prove=False) for text in plans)} - {"plain"}
        if not all(map(str.isprintable, kernels)):
            return ""
    except (KeyError, ValueError, LayoutError):
        return ""
    return f"written by layoutdsl convert: rank {number} of {tp * ep}, for {', '.join(sorted(kernels))}"


# --- layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """Layers whose tensors look the same: their names (experts as one), how often, and the tensors of the first."""

    layers: tuple[str, ...]
    times: int
    tensors: dict[str, Entry]


def _looks(entries: Mapping[str, Entry], specs: Sequence[Checkpoint]) -> list[_Look]:
    """The layers of a file, the most frequent look first. Unquantized ones count where there are no others."""
    codes, known = ({name for spec in specs for name in _names(spec, roles)} for roles in (("codes",), ()))
    found: dict[str, dict[str, Entry]] = {}
    for name, entry in entries.items():
        layer, tensor = _divided(name, known)
        found.setdefault(layer, {})[tensor] = entry
    matrices = {layer: own for layer, own in found.items() if codes & own.keys()}
    layers = {layer: own for layer, own in matrices.items() if not _is_plain(own)}
    if not layers:
        layers = {layer: own for layer, own in matrices.items() if len(own["weight"].shape) > 1}
    alike: dict[tuple[object, ...], list[str]] = {}
    for layer, own in layers.items():
        look = tuple(sorted((tensor, entry.dtype, entry.shape) for tensor, entry in own.items()))
        alike.setdefault(look, []).append(layer)
    looks = [
        _Look(tuple(dict.fromkeys(_EXPERT.sub(r"\1.*", name) for name in names)), len(names), layers[names[0]])
        for names in alike.values()
    ]
    return sorted(looks, key=lambda look: -len(look.layers))


def _names(spec: Checkpoint, roles: Sequence[str]) -> Iterator[str]:
    """Every name that the spec's tensors of these roles, or of all, can have."""
    for key, tensor in spec.tensors.items():
        if not roles or tensor.role in roles:
            yield key
            yield from (fields.name for fields in (tensor, *tensor.cases) if fields.name is not None)


def _divided(name: str, known: set[str]) -> tuple[str, str]:
    """Layer and tensor. Where experts share a tensor, the layer may end within a word: `gate_up_proj_scales`."""
    layer, _, last = name.rpartition(".")
    if last not in known:
        for at, char in enumerate(last):
            if char == "_" and last[at + 1 :] in known:
                return name[: at - len(last)], last[at + 1 :]
    return layer, last


def _is_plain(own: Mapping[str, Entry]) -> bool:
    return own.keys() <= {"weight", "bias"} and all(entry.dtype in FLOATS for entry in own.values())


# --- a format for layers ----------------------------------------------------------------------------------------------


def _fits(trial: Trial, looks: Sequence[_Look]) -> Iterator[tuple[Fit, set[int]]]:
    """The parameters that explain most layers, and which; then those that explain most of what is left; and so on."""
    loose = [
        str(tensor.when.args[0])
        for tensor in trial.spec.tensors.values()
        if tensor.role in BY_LAYER and tensor.when is not None and tensor.when.op == "name"
    ]

    def shared(setting: Setting) -> tuple[tuple[str, ParamValue], ...]:
        return tuple((name, value) for name, value in setting.params.items() if name not in loose)

    found = {at: {shared(setting): setting for setting in trial.fits(look.tensors)} for at, look in enumerate(looks)}
    left = {at for at, settings in found.items() if settings}
    while left:
        covers: dict[tuple[tuple[str, ParamValue], ...], set[int]] = {}
        for at in left:
            for key in found[at]:
                covers.setdefault(key, set()).add(at)
        most = max(covers.values(), key=lambda ats: sum(len(looks[at].layers) for at in ats))
        keys = [key for key, ats in covers.items() if ats == most]
        first = min(most)
        layers = sum(len(looks[at].layers) for at in most)
        varying = {name: {found[at][keys[0]].params[name] for at in most} for name in loose}
        yield _fit(trial, [found[first][key] for key in keys], layers, varying), most
        left -= most


def _fit(trial: Trial, settings: Sequence[Setting], layers: int, varying: Mapping[str, set[ParamValue]]) -> Fit:
    """What settings that fit the same layers have in common, and in what they differ."""
    base, *more = sorted(settings, key=lambda setting: trial.rank(setting.params))
    meanings = {setting.meaning for setting in more}
    promised = trial.promised(base)

    def fits(name: str, value: ParamValue) -> bool:
        setting = trial.setting({**base.params, name: value}, base.parts)
        if setting is None or setting.meaning == base.meaning:
            return value == base.params[name] or (setting is not None and name in promised)
        return setting.meaning in meanings

    by_layer = tuple(name for name, found in varying.items() if len(found) > 1)
    telling = [name for name in trial.telling(base) if name not in by_layer and varying.get(name) != {False}]
    values = {name: tuple(value for value in trial.choices[name] if fits(name, value)) for name in telling}
    opened = {name: found for name, found in values.items() if len(found) > 1}
    others = [
        {name: value for name, value in one.params.items() if value != base.params[name] and name not in opened}
        for one in more
    ]
    return Fit(
        trial.spec.name,
        layers,
        {name: base.params[name] for name in telling if name not in opened},
        by_layer,
        opened,
        tuple(params for at, params in enumerate(others) if params and params not in others[:at])[:MOST_OTHERS],
    )


def _miss(trial: Trial, look: _Look) -> str:
    return trial.miss(look.layers[0], look.tensors)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
