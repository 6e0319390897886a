"""A checkpoint's config.json alone: which units its layers are made of, their sizes and their format.

Names of the architecture say which units there are and how large; `quantization_config` says their format, as for
`inspect`. What only the files tell is taken as is usual: parameters that config.json does not state have their
defaults, layers that a quantizer may leave out (a router) are as they were, and of alternatives (a dense MLP or
experts) all whose sizes are stated are there. What a model may lack altogether (a layer that predicts further tokens)
has a row that tells of one, and is in no sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from layoutdsl import library
from layoutdsl.checkpoints.binding import Job, by_part, plain
from layoutdsl.checkpoints.folder import read_config
from layoutdsl.checkpoints.names import (
    EXPERT,
    Names,
    Sizes,
    Unit,
    for_architecture,
    instances,
    parts_of,
    placeholders,
)
from layoutdsl.checkpoints.opening import architecture_of, dtype_of
from layoutdsl.checkpoints.planning import Planner, kernels_asked
from layoutdsl.checkpoints.quantization import Declared, Group, declared
from layoutdsl.checkpoints.report import folded
from layoutdsl.coverage.needs import Asked, Need, Row, side
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.grammar import Expr
from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, ParamValue
from layoutdsl.resolve import bind


def folder(
    path: str, named: str | None, params: Mapping[str, ParamValue], to: Sequence[str], specs: tuple[str, ...]
) -> Asked:
    """What the model of the folder `path` needs, in its own format or, where one is `named`, in that. params: the
    kernels' own, or with a format named those of both sides."""
    config = read_config(Path(path))
    architecture = architecture_of(config)
    names = for_architecture(architecture, specs)
    formats, kernel_params = _formats(config, named, params, specs)
    reader = _Reader(names, architecture, _Numbers(names, config), formats, dtype_of(config), specs)
    planner = Planner((), kernels_asked(to, specs), specs, dtype_of(config), kernel_params)
    rows = [_row(jobs, reader, planner) for jobs in reader.alike()]
    _check_known(kernel_params, rows, specs)
    title = f"{architecture} by its config.json, all units of a kind together"
    return Asked(path, "unit", str(formats), title, tuple(rows), tuple(_notes(rows)), summed=True)


def _check_known(params: Mapping[str, ParamValue], rows: Sequence[Row], specs: tuple[str, ...]) -> None:
    """LayoutError for a parameter that none of the kernels has."""
    targets = {need.target for row in rows for _, need in row.needs if need.target != need.source}
    known = {name for target in targets for name in load_spec(target, specs=specs).params}
    for name in params:
        if name not in known:
            raise LayoutError(
                f"no side has a parameter `{name}`",
                code="LP101",
                name="unknown-parameter",
                help=did_you_mean(name, known) or f"parameters: {', '.join(sorted(known))}",
            )


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    choices: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.choice and row.alternative == row.needs[0][0]:
            choices.setdefault(row.choice, {}).setdefault(row.alternative, row.name)
    if several := [" or ".join(ways.values()) for ways in choices.values() if len(ways) > 1]:
        yield (
            "layoutdsl does not work out from config.json which layers have which of these; the sum takes the "
            f"largest everywhere, so it is the most that a rank can need of them: {'; '.join(several)}"
        )
    if apart := [row.name for row in rows if row.maybe]:
        yield f"a model may lack these; their bytes are those of one, and the sum leaves them out: {', '.join(apart)}"
    yield "embeddings, norms and what else is copied whole come on top: config.json does not state their sizes"


def _formats(
    config: Mapping[str, Any], named: str | None, params: Mapping[str, ParamValue], specs: tuple[str, ...]
) -> tuple[Declared, dict[str, ParamValue]]:
    """The formats of the layers, and the kernels' parameters."""
    if named is None:
        if config.get("quantization_config") is None:
            raise LayoutError(
                "config.json has no `quantization_config` (a mapping): the checkpoint is not quantized",
                code="LP211",
                name="unknown-format",
                help="--source names the format that it would be quantized to, such as `--source gptq`",
            )
        return declared(config, specs), {key.removeprefix("target."): value for key, value in params.items()}
    spec = load_spec(named, specs=specs, kind="checkpoint")
    assert isinstance(spec, Checkpoint)
    own = side(params, "source", {**spec.params, "parts": None})
    bind(spec, own)
    group = Group("", spec, _path_of(spec, named, specs), own, ())
    rest = {key.removeprefix("target."): value for key, value in params.items()
            if key not in own and not key.startswith("source.")}  # fmt: skip
    return Declared((group,), (), (("", group),)), rest


def _path_of(spec: Checkpoint, named: str, specs: tuple[str, ...]) -> Path:
    paths = (path for path in library.files(specs) if path.stem == named)
    return next(paths, Path(named))


class _Numbers(Sizes):
    """Numbers of config.json; one that cannot be worked out says what to state instead."""

    def __getitem__(self, name: str) -> int:
        try:
            return super().__getitem__(name)
        except LayoutError as error:
            if error.help is not None:
                raise
            finding = error.diagnostics[0]
            stated = [f"`{key}`" for way in self.names.config[name] for key in _alone(way) if key not in self.stated]
            help = f"state {' or '.join(stated)} in config.json" if stated else "correct config.json"
            raise LayoutError.of([replace(finding, help=help)]) from None


def _alone(way: Expr) -> list[str]:
    """The key of config.json that states a number by itself; none where it is worked out of several."""
    keys = [key for key, _, _ in way.names()]
    return keys if len(keys) == 1 else []


MOST_LAYERS = 4096


@dataclass(frozen=True)
class _Reader:
    """Finds the units that a model has, with their formats."""

    names: Names
    architecture: str
    numbers: Sizes
    formats: Declared
    dtype: str | None
    specs: tuple[str, ...]

    def alike(self) -> Iterator[list[Job]]:
        """Units of one kind, format and size, together."""
        self._check()
        for key in filter(self._is_there, self.names.units):
            found: dict[tuple[object, ...], list[Job]] = {}
            for unit in instances(self.names, key, self.numbers):
                for job in self._jobs(unit):
                    found.setdefault((job.only, job.group.spec.name, *job.params.items()), []).append(job)
            yield from found.values()

    def _check(self) -> None:
        """LayoutError for more layers than any model has, and where no alternative of a choice has its sizes stated."""
        for key in self.names.count:
            if key != EXPERT and self.numbers.count(key) > MOST_LAYERS:
                raise LayoutError(
                    f"config.json counts {self.numbers.count(key)} of `{key}`, more than any model has",
                    code="LP215",
                    name="bad-config",
                    help=f"correct config.json; at most {MOST_LAYERS} are taken",
                )
        choices: dict[str, list[str]] = {}
        for key, unit in self.names.units.items():
            there = unit.there
            if there.choice is not None and (not there.in_ or self.architecture in there.in_):
                choices.setdefault(there.choice, []).append(key)
        for keys in choices.values():
            if not any(self.names.units[key].there.maybe or self._is_stated(key) for key in keys):
                Unit(keys[0], self.names.units[keys[0]], ()).sizes(self.numbers)  # raises, and names what is lacking

    @cached_property
    def _twice(self) -> set[str]:
        """Alternatives that are the same layer as an earlier one, written in another way: one tensor for all experts,
        or one for each."""
        seen: set[tuple[object, ...]] = set()
        twice: set[str] = set()
        for key, unit in self.names.units.items():
            if unit.there.choice is None or not self._is_stated(key):
                continue
            look = (unit.there.choice, unit.module, *Unit(key, unit, ()).sizes(self.numbers).items())
            if look in seen:
                twice.add(key)
            seen.add(look)
        return twice

    def _is_there(self, key: str) -> bool:
        """Whether the architecture has the unit, and what it stands beside; of those that a model may lack, whether
        config.json states its sizes."""
        there = self.names.units[key].there
        if (there.in_ and self.architecture not in there.in_) or key in self._twice:
            return False
        if there.with_ and not any(map(self._is_there, there.with_)):
            return False
        return (there.choice is None and not there.maybe) or self._is_stated(key)

    def may_lack(self, key: str) -> bool:
        """Whether a model may have none of a unit that `_is_there`: names say so, and config.json states no number
        that is for such units alone; or so it is of all that the unit stands beside. An alternative counts as there."""
        there = self.names.units[key].there
        if there.choice is not None:
            return False
        if there.maybe and not self._used(key) - self._always_used:
            return True
        beside = [other for other in there.with_ if self._is_there(other)]
        return bool(beside) and all(map(self.may_lack, beside))

    def _used(self, key: str) -> set[str]:
        """Numbers that a unit's sizes are worked out of."""
        sizes = self.names.units[key].sizes.values()
        return {name for each in sizes for size in each for name, _, _ in size.names()}

    @cached_property
    def _always_used(self) -> set[str]:
        """Numbers that units need which no `maybe` concerns."""
        units = self.names.units

        def is_sure(key: str) -> bool:
            there = units[key].there
            return there.choice is not None or not (there.maybe or (there.with_ and not any(map(is_sure, there.with_))))

        return set[str]().union(*(self._used(key) for key in units if is_sure(key)))

    def _is_stated(self, key: str) -> bool:
        try:
            Unit(key, self.names.units[key], ()).sizes(self.numbers)
        except LayoutError:
            return False
        return True

    def _jobs(self, unit: Unit) -> list[Job]:
        """One, or one for each of the unit's matrices where these are not all of one format."""
        groups = {matrix: self._group(unit, matrix) for matrix, _ in parts_of(unit.names, self.specs)}
        kinds = list(groups.values())
        if all((kind.spec.name, kind.stated) == (kinds[0].spec.name, kinds[0].stated) for kind in kinds):
            return [self._job(unit, kinds[0], groups)]
        return [self._job(replace(unit, only=(matrix,)), group, (matrix,)) for matrix, group in groups.items()]

    def _job(self, unit: Unit, group: Group, matrices: Iterable[str]) -> Job:
        own = {name.removeprefix("source."): value for name, value in unit.names.params.items()
               if name.startswith("source.")}  # fmt: skip
        own = {name: value for name, value in own.items() if name == "parts" or name in group.spec.params}
        if any(by_part(unit, matrix) for matrix in matrices):
            own = {"parts": "apart", **own}
        if self.dtype and "dtype" in group.spec.params:
            own = {"dtype": self.dtype, **own}
        params = bind(group.spec, {**own, **group.stated})
        return Job(unit, group, {}, unit.sizes(self.numbers), params)

    def _group(self, unit: Unit, matrix: str) -> Group:
        """The format that config.json declares for all layers of a unit's matrix."""
        if unit.names.quantized == "maybe" or "tensor" not in placeholders(unit.names.template(matrix)):
            return plain(self.specs)
        kinds: dict[str, Group | None] = {}
        for name, part in parts_of(unit.names, self.specs):
            if name == matrix:
                layer = unit.layer(matrix, part if by_part(unit, matrix) else "")
                kinds[layer] = self.formats.of(layer)
        first = next(iter(kinds))
        for layer, kind in kinds.items():
            if kind != kinds[first]:
                raise LayoutError(
                    f"`{first}` is {kinds[first] or 'not quantized'}, `{layer}` is {kind or 'not quantized'}, "
                    f"but both make up `{unit.name}`",
                    code="LP218",
                    name="config-differs",
                    help="quantize all parts of a fused layer alike, or none",
                )
        return kinds[first] or plain(self.specs)


def _row(jobs: Sequence[Job], reader: _Reader, planner: Planner) -> Row:
    job, names = jobs[0], reader.names
    target, params = planner.target(job)
    need = Need(
        str(job.group.path), target, job.unit.names.module, tuple(job.sizes.items()), tuple(params.items()),
        job.only,
    )  # fmt: skip
    choice, alternative = _choice(names, job.unit.key)
    maybe = reader.may_lack(job.unit.key)
    count = 1 if maybe else len(jobs)
    return Row(folded([one.unit for one in jobs]), ((job.unit.key, need),), count, choice, alternative, maybe)


def _choice(names: Names, key: str) -> tuple[str, str]:
    """The choice that a unit belongs to and the alternative that it is part of: its own, or that of what it stands
    beside."""
    there = names.units[key].there
    if there.choice is not None:
        return there.choice, key
    return _choice(names, there.with_[0]) if there.with_ else ("", "")
