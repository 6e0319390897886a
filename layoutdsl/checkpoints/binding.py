"""Which tensors of the checkpoint belong to which unit, and the parameters under which the format explains them.

The templates are expanded once into a dictionary name -> place. What config.json leaves open (the dtype, whether there
is a bias, a shape tensor) is what makes the format's tensors those of the files: same names, dtypes and shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layoutdsl.checkpoints.folder import Entry, Folder, refusal
from layoutdsl.checkpoints.names import Names, Unit, copied_of, numbers_of, units_of
from layoutdsl.checkpoints.quantization import Declared
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.library import load_spec
from layoutdsl.model import Format, Module, Param, ParamValue
from layoutdsl.plan import TensorInfo
from layoutdsl.resolve import Matrix, Ranks, Side, bind, matrices, tensors

PLAIN = {"weight": ("float16", "bfloat16", "float32"), "bias": ("float16", "bfloat16", "float32")}
"""The tensors of a linear layer that is not quantized, and their dtypes."""

Found = dict[tuple[str, str], Entry]
"""(part, tensor of the format) -> the checkpoint's tensor."""


@dataclass(frozen=True)
class Job:
    """One unit to convert: its tensors by the plan's names, the module's sizes, and all parameters of the source."""

    unit: Unit
    inputs: dict[str, Entry]
    sizes: dict[str, int | tuple[int, ...]]
    params: dict[str, ParamValue]
    whole: dict[str, int]

    @property
    def module(self) -> str:
        return self.unit.names.module

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(entry.size for entry in self.inputs.values())


@dataclass(frozen=True)
class Work:
    """All that is to be done with a checkpoint: units to convert, tensors that every rank gets whole, and of those the
    ones that belong to linear layers left unquantized."""

    jobs: tuple[Job, ...]
    copies: tuple[Entry, ...]
    unquantized: tuple[str, ...]


def bound(folder: Folder, declared: Declared, names: Names, architecture: str, specs: tuple[str, ...] = ()) -> Work:
    """Every tensor's place. LayoutError for tensors without one, missing ones, and ones that differ from the format."""
    numbers = numbers_of(names, folder.config)
    for key, count in names.count.items():
        if numbers[count] > len(folder.entries):
            raise LayoutError(
                f"config.json counts {numbers[count]} of `{key}`, the files hold {len(folder.entries)} tensors in all",
                code="LP215",
                name="bad-config",
            )
    units = list(units_of(names, numbers))
    shapes = {unit.key: _Shape.of(unit, numbers, specs) for unit in units}
    places = _dictionary(units, shapes, declared.spec)
    copied = copied_of(names, numbers, folder.config, architecture)
    owned: dict[int, Found] = {}
    copies: list[Entry] = []
    strangers: list[tuple[str, str | None]] = []
    for name, entry in folder.entries.items():
        if name in places:
            at, part, tensor = places[name]
            owned.setdefault(at, {})[part, tensor] = entry
        elif name in copied:
            copies.append(entry)
        else:
            help = did_you_mean(name, places) or did_you_mean(name, copied) if len(strangers) < 8 else None
            strangers.append((f"tensor `{name}` of `{entry.file.name}` is none that names `{names.names}` know", help))
    if strangers:
        raise refusal("LP216", "unmatched-tensor", strangers)
    missing = [
        (f"tensor `{name}` is in no file of `{folder.path}`", None)
        for name, need in copied.items()
        if need == "needed" and name not in folder.entries
    ]
    if missing:
        raise refusal("LP217", "missing-tensor", missing)
    binder = _Binder(declared, shapes)
    jobs: list[Job] = []
    unquantized: list[str] = []
    for at, unit in enumerate(units):
        found = owned.get(at, {})
        if binder.is_quantized(unit, found):
            jobs.append(binder.job(unit, found))
            continue
        unquantized += [unit.layer(part) for part in shapes[unit.key].parts]
        copies += found.values()
    if not jobs:
        raise LayoutError(
            f"no layer of `{folder.path}` is quantized",
            code="LP211",
            name="unknown-format",
            help="there is nothing to convert",
        )
    return Work(tuple(jobs), tuple(copies), tuple(unquantized))


@dataclass(frozen=True)
class _Shape:
    """What all units of one key share: the module's one matrix, whole, and its sizes."""

    matrix: Matrix
    sizes: dict[str, int | tuple[int, ...]]
    whole: dict[str, int]

    @staticmethod
    def of(unit: Unit, numbers: Mapping[str, int], specs: tuple[str, ...]) -> _Shape:
        module = load_spec(unit.names.module, specs=specs, kind="module")
        assert isinstance(module, Module)
        own = {name: value for name, value in unit.names.params.items() if name in module.params}
        sizes = unit.sizes(numbers)
        found = matrices(module, bind(module, own), sizes, Ranks())
        if len(found) != 1:
            raise LayoutError(
                f"module `{module.name}` has {len(found)} matrices, names with one each are served",
                code="LP214",
                name="unknown-architecture",
            )
        return _Shape(found[0], sizes, unit.whole(numbers))

    @property
    def parts(self) -> tuple[str, ...]:
        return self.matrix.parts or ("",)

    def place(self, plan_name: str) -> tuple[str, str]:
        """(part, tensor) of a plan's name, as `linear.q.weight_scale`."""
        rest = plan_name.removeprefix(self.matrix.name + ".")
        part, dot, tensor = rest.partition(".")
        return (part, tensor) if dot and part in self.matrix.parts else ("", rest)


def _dictionary(units: Sequence[Unit], shapes: Mapping[str, _Shape], spec: Format) -> dict[str, tuple[int, str, str]]:
    """Name in the checkpoint -> (unit, part, tensor)."""
    known = dict.fromkeys([*_tensor_names(spec), *PLAIN])
    places: dict[str, tuple[int, str, str]] = {}
    for at, unit in enumerate(units):
        for part in shapes[unit.key].parts:
            for tensor in known:
                name = unit.source(part, tensor)
                if name in places:
                    raise LayoutError(
                        f"two units take the tensor `{name}`: `{units[places[name][0]].name}` and `{unit.name}`",
                        code="LP214",
                        name="unknown-architecture",
                        help="correct the names' templates",
                    )
                places[name] = at, part, tensor
    return places


def _tensor_names(spec: Format) -> Iterator[str]:
    """Every name that a tensor of the format can have in a file."""
    for key, tensor in spec.tensors.items():
        yield key
        yield from (str(fields.name) for fields in (tensor, *tensor.cases) if fields.name is not None)


class _Binder:
    """Finds each unit's parameters; units that look alike are asked once."""

    def __init__(self, declared: Declared, shapes: Mapping[str, _Shape]):
        self.declared, self.shapes = declared, shapes
        self.known: dict[tuple, dict[str, ParamValue]] = {}

    def is_quantized(self, unit: Unit, found: Found) -> bool:
        """Whether a unit is stored in the format, which must be what config.json declares."""
        parts = self.shapes[unit.key].parts
        plain = {
            part: self._is_plain({tensor: entry for (p, tensor), entry in found.items() if p == part}) for part in parts
        }
        for part in parts:
            layer = unit.layer(part)
            if plain[part] and self.declared.covers(layer):
                raise LayoutError(
                    f"config.json declares `{layer}` quantized, the files hold `{unit.source(part, 'weight')}` as "
                    f"{found[part, 'weight']}",
                    code="LP218",
                    name="config-differs",
                    help="list it under quantization_config's `ignore` if it was meant to stay as it is",
                )
            if not plain[part] and not self.declared.covers(layer):
                if not any(p == part for p, _ in found):
                    raise self._missing(unit, part, "weight")
                raise LayoutError(
                    f"config.json leaves `{layer}` unquantized, the files hold "
                    f"{', '.join(f'`{entry.name}`' for (p, _), entry in found.items() if p == part)}",
                    code="LP218",
                    name="config-differs",
                    help="correct the lists in quantization_config",
                )
        if len(set(plain.values())) > 1:
            one, other = (next(part for part in parts if plain[part] is value) for value in (True, False))
            raise LayoutError(
                f"`{unit.layer(other)}` is quantized and `{unit.layer(one)}` is not, but both make up `{unit.name}`",
                code="LP218",
                name="config-differs",
                help="quantize all parts of a fused layer, or none",
            )
        return not plain[parts[0]]

    def _is_plain(self, own: Mapping[str, Entry]) -> bool:
        return "weight" in own and all(
            tensor in PLAIN and entry.dtype in PLAIN[tensor] for tensor, entry in own.items()
        )

    def _missing(self, unit: Unit, part: str, tensor: str, expected: str = "") -> LayoutError:
        return LayoutError(
            f"tensor `{unit.source(part, tensor)}` is in no file{expected}",
            code="LP217",
            name="missing-tensor",
            help=f"`{unit.name}` is made from it, as {self.declared} has it",
        )

    def job(self, unit: Unit, found: Found) -> Job:
        shape = self.shapes[unit.key]
        look = (unit.key, tuple(sorted((place, entry.dtype, entry.shape) for place, entry in found.items())))
        if look not in self.known:
            self.known[look] = self._params(unit, found)
        params = self.known[look]
        inputs = {info.name: found[shape.place(info.name)] for info in self._expected(shape, params)}
        return Job(unit, inputs, shape.sizes, params, shape.whole)

    def _params(self, unit: Unit, found: Found) -> dict[str, ParamValue]:
        """The first parameters under which the format's tensors are those found; else what differs least."""
        best: list[LayoutError] = []
        for params in self._candidates(unit):
            try:
                wrong = list(self._differences(unit, found, params))
            except LayoutError as error:  # parameters that the format cannot have together
                best = best or [error]
                continue
            if not wrong:
                return params
            if not best or len(wrong) < len(best):
                best = wrong
        raise LayoutError.of([diagnostic for error in best[:8] for diagnostic in error.diagnostics])

    def _candidates(self, unit: Unit) -> Iterator[dict[str, ParamValue]]:
        """All values of the parameters that neither config.json nor the names state; defaults first."""
        spec = self.declared.spec
        own = {
            name.removeprefix("source."): value
            for name, value in unit.names.params.items()
            if name.startswith("source.")
        }
        fixed = bind(spec, {**self.declared.stated, **own})
        loose = {
            name: param
            for name, param in spec.params.items()
            if param.config is None and name not in own and param.type in ("bool", "values")
        }
        choices = [
            sorted(_values(param), key=lambda value, name=name: value != fixed[name]) for name, param in loose.items()
        ]
        for values in itertools.product(*choices):
            yield {**fixed, **dict(zip(loose, values, strict=True))}

    def _expected(self, shape: _Shape, params: Mapping[str, ParamValue]):
        side = Side(self.declared.spec, dict(params), "whole")
        return [TensorInfo.of(tensor, 0) for tensor in tensors(side, shape.matrix)]

    def _differences(self, unit: Unit, found: Found, params: Mapping[str, ParamValue]) -> Iterator[LayoutError]:
        shape = self.shapes[unit.key]
        wanted = {shape.place(info.name): info for info in self._expected(shape, params)}
        for (part, tensor), info in wanted.items():
            dtypes, sizes = " or ".join(info.dtypes), list(info.full_shape)
            stated = f"config.json declares {self.declared} and sizes {_shown(shape.sizes)}"
            if (part, tensor) not in found:
                yield self._missing(unit, part, tensor, f"; expected {dtypes} {sizes}")
                continue
            entry = found[part, tensor]
            if entry.dtype not in info.dtypes or _squeezed(entry.shape) != _squeezed(sizes):
                yield LayoutError(
                    f"tensor `{entry.name}` of `{entry.file.name}` is {entry}, expected {dtypes} {sizes}",
                    code="LP219",
                    name="tensor-differs",
                    help=f"{stated}; the file or config.json is wrong",
                )
        for place, entry in found.items():
            if place not in wanted:
                yield LayoutError(
                    f"tensor `{entry.name}` of `{entry.file.name}` has no place in {self.declared}",
                    code="LP216",
                    name="unmatched-tensor",
                )


def _values(param: Param) -> tuple[ParamValue, ...]:
    return (False, True) if param.type == "bool" else param.values


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]


def _shown(sizes: Mapping[str, int | tuple[int, ...]]) -> str:
    return ", ".join(f"{axis}={'+'.join(map(str, s)) if isinstance(s, tuple) else s}" for axis, s in sizes.items())
