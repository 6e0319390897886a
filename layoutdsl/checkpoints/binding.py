"""Which tensors of the checkpoint belong to which unit, and the parameters under which the format explains them.

What config.json leaves open (the dtype, whether there is a bias, a shape tensor) is what makes the format's tensors
those of the files: same names, dtypes and shapes. Of alternatives (a dense layer or experts) the files say which is
there; then all of it must be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from layoutdsl import library
from layoutdsl.checkpoints import presence
from layoutdsl.checkpoints.folder import Entry, Folder
from layoutdsl.checkpoints.names import EXPERT, WEIGHT, Names, Places, Sizes, Unit, own_params, placeholders
from layoutdsl.checkpoints.presence import Found, Slot
from layoutdsl.checkpoints.quantization import Declared, Group
from layoutdsl.errors import LayoutError
from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, Format, Module, Param, ParamValue
from layoutdsl.plan import TensorInfo
from layoutdsl.resolve import Matrix, Ranks, Side, bind, matrices, tensors

PLAIN = "plain"
"""The checkpoint spec of layers that are not quantized."""

MOST_TRIED = 4096
"""Settings of what config.json leaves open that are tried, defaults first; shipped formats have some hundred."""

LINEAR = (WEIGHT, "bias")
FLOATS = ("float16", "bfloat16", "float32")
"""The tensors of a layer that is not quantized, and their dtypes."""


@dataclass(frozen=True)
class Job:
    """One unit to convert: its tensors by the plan's names, the module's sizes, and all parameters of the source.

    inputs: plan name -> the one tensor, or one for each expert. group: the format.
    """

    unit: Unit
    group: Group
    inputs: dict[str, tuple[Entry, ...]]
    sizes: dict[str, int | tuple[int, ...]]
    params: dict[str, ParamValue]

    @property
    def only(self) -> tuple[str, ...]:
        """The matrices of the module that are converted; none for all."""
        return self.unit.matrices

    def apart(self, name: str) -> bool:
        """Whether each expert has its own tensor under that plan name."""
        return by_expert(self.unit, name.partition(".")[0])

    @property
    def quantized(self) -> bool:
        return self.group.spec.name != PLAIN

    @property
    def entries(self) -> Iterator[Entry]:
        return itertools.chain.from_iterable(self.inputs.values())

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class Work:
    """All that is to be done with a checkpoint: units to convert, and tensors that every rank gets whole."""

    jobs: tuple[Job, ...]
    copies: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(one.size for one in (*self.jobs, *self.copies))


def bound(
    folder: Folder,
    declared: Declared,
    names: Names,
    architecture: str,
    specs: tuple[str, ...] = (),
    *,
    dtype: str | None = None,
) -> Work:
    """Every tensor's place; `dtype` is the model's, for formats whose tensors leave it open. LayoutError for tensors
    without a place, missing ones, and ones that differ from the format."""
    numbers = Sizes(names, folder.config)
    for key in names.count:
        if key != EXPERT and numbers.count(key) > len(folder.entries):
            raise LayoutError(
                f"config.json counts {numbers.count(key)} of `{key}`, the files hold {len(folder.entries)} tensors",
                code="LP215",
                name="bad-config",
                help="config.json and the files belong to two checkpoints",
            )
    formats = [group.spec for group in declared.groups] + [plain(specs).spec]
    known = list(dict.fromkeys(name for spec in formats for name in _tensor_names(spec)))
    places = Places(names, known, numbers, architecture, specs)
    present = presence.present(folder, places, names, numbers, architecture)
    binder = _Binder(declared, plain(specs), numbers, specs, dtype)
    jobs = itertools.chain.from_iterable(binder.jobs(unit, found) for unit, found in present.units)
    return Work(tuple(jobs), present.copies)


def plain(specs: tuple[str, ...]) -> Group:
    """The format of layers that are not quantized."""
    path = next(path for path in library.files(specs) if path.stem == PLAIN)
    spec = library.read_spec(path)
    assert isinstance(spec, Checkpoint)
    return Group("", spec, path, {}, ())


def _tensor_names(spec: Format) -> Iterator[str]:
    """Every name that a tensor of the format can have in a file."""
    for key, tensor in spec.tensors.items():
        yield key
        yield from (str(fields.name) for fields in (tensor, *tensor.cases) if fields.name is not None)


# --- their formats ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    """What all units of one key share: their matrices, whole, and the module's sizes."""

    matrices: tuple[Matrix, ...]
    sizes: dict[str, int | tuple[int, ...]]

    @staticmethod
    def of(unit: Unit, numbers: Mapping[str, int], specs: tuple[str, ...]) -> _Shape:
        module = load_spec(unit.names.module, specs=specs, kind="module")
        assert isinstance(module, Module)
        sizes = unit.sizes(numbers)
        params = bind(module, own_params(unit.names, module))
        return _Shape(matrices(module, params, sizes, Ranks(), only=unit.matrices), sizes)

    def slot(self, plan_name: str) -> Slot:
        """(matrix, part, tensor) of a plan's name, as `w13.gate.weight_scale`."""
        name, _, rest = plan_name.partition(".")
        matrix = next(matrix for matrix in self.matrices if matrix.name == name)
        part, dot, tensor = rest.partition(".")
        return (name, part, tensor) if dot and part in matrix.parts else (name, "", rest)

    def alone(self) -> Iterator[_Shape]:
        """Each matrix by itself."""
        return (replace(self, matrices=(matrix,)) for matrix in self.matrices)


class _Binder:
    """Finds each unit's format and parameters; units that look alike are asked once."""

    def __init__(self, declared: Declared, plain: Group, numbers: Sizes, specs: tuple[str, ...], dtype: str | None):
        self.declared, self.plain, self.numbers, self.specs, self.dtype = declared, plain, numbers, specs, dtype
        self.shapes: dict[str, _Shape] = {}
        self.known: dict[tuple, dict[str, ParamValue] | LayoutError] = {}

    def jobs(self, unit: Unit, found: Found) -> list[Job]:
        """One, or one for each of the unit's matrices where these are not all of one format."""
        if unit.key not in self.shapes:
            self.shapes[unit.key] = _Shape.of(unit, self.numbers, self.specs)
        shape = self.shapes[unit.key]
        apart = [self._alone(unit, found, one) for one in shape.alone()]
        group = apart[0][1]
        if any(_form(other) != _form(group) for _, other, _, _ in apart):
            return [self._job(*one) for one in apart]
        try:
            return [self._job(unit, group, found, shape)]
        except LayoutError as error:
            return self._apart(apart, error)

    def _alone(self, unit: Unit, found: Found, shape: _Shape) -> tuple[Unit, Group, Found, _Shape]:
        """One matrix of a unit as a unit of its own."""
        (name,) = (matrix.name for matrix in shape.matrices)
        one, own = replace(unit, only=(name,)), {slot: entries for slot, entries in found.items() if slot[0] == name}
        return one, self._group(one, own, shape), own, shape

    def _apart(self, apart: Sequence[tuple[Unit, Group, Found, _Shape]], error: LayoutError) -> list[Job]:
        """The matrices of a unit that has no parameters in common: one has a bias, say. `error` says what is wrong
        with the whole, and is raised where a matrix is wrong as well."""
        if len(apart) == 1:
            raise error
        try:
            return [self._job(*one) for one in apart]
        except LayoutError:
            raise error from None

    def _job(self, unit: Unit, group: Group, found: Found, shape: _Shape) -> Job:
        look = unit.key, unit.only, group.name, group.spec.name, _look(found)
        if look not in self.known:
            self.known[look] = self._params(unit, group, found, shape)
        params = self.known[look]
        if isinstance(params, LayoutError):
            raise params
        inputs: dict[str, tuple[Entry, ...]] = {}
        for info in self._expected(group, shape, params):
            entries = found[shape.slot(info.name)]
            inputs[info.name] = tuple(entries[expert] for expert in sorted(entries))
        return Job(unit, group, inputs, shape.sizes, params)

    def _group(self, unit: Unit, found: Found, shape: _Shape) -> Group:
        """The format of a unit's one matrix, which must be what config.json declares for each of its layers."""
        kinds: dict[str, Group | None] = {}
        for matrix, part, expert in self._layers(unit, shape):
            own = {
                tensor: entries[expert]
                for (m, p, tensor), entries in found.items()
                if (m, p) == (matrix, part) and expert in entries
            }
            layer = unit.layer(matrix, part, expert)
            declared = self.declared.of(layer)
            if not own:
                spec = (declared or self.plain).spec
                codes = next(key for key, tensor in spec.tensors.items() if tensor.role == "codes")
                raise self._missing(unit, (matrix, part, codes), expert, declared or self.plain)
            kinds[layer] = None if _is_plain(own) else declared
            if _is_plain(own) and declared is not None and _must_be_quantized(unit, matrix):
                raise LayoutError(
                    f"config.json declares `{layer}` quantized, the files hold {_entry(own[WEIGHT])}",
                    code="LP218",
                    name="config-differs",
                    help="list it under quantization_config's `ignore` if it was meant to stay as it is",
                )
            if not _is_plain(own) and declared is None:
                raise LayoutError(
                    f"config.json leaves `{layer}` unquantized, the files hold "
                    f"{', '.join(f'`{entry.name}`' for entry in own.values())}",
                    code="LP218",
                    name="config-differs",
                    help="correct the lists in quantization_config",
                )
        one = next(iter(kinds))
        for other, kind in kinds.items():
            if _form(kind) != _form(kinds[one]):
                raise LayoutError(
                    f"`{one}` is {kinds[one] or 'not quantized'}, `{other}` is {kind or 'not quantized'}, "
                    f"but both make up `{unit.name}`",
                    code="LP218",
                    name="config-differs",
                    help="quantize all parts of a fused layer alike, or none",
                )
        return kinds[one] or self.plain

    def _layers(self, unit: Unit, shape: _Shape) -> Iterator[tuple[str, str, int]]:
        """(matrix, part, expert) of every layer of the checkpoint that makes up the unit."""
        for matrix in shape.matrices:
            parts = (matrix.parts or ("",)) if by_part(unit, matrix.name) else ("",)
            experts = matrix.experts[0] if by_expert(unit, matrix.name) and matrix.experts else 1
            yield from ((matrix.name, part, expert) for part in parts for expert in range(experts))

    def _missing(self, unit: Unit, slot: Slot, expert: int, group: Group, expected: str = "") -> LayoutError:
        return LayoutError(
            f"tensor `{unit.source(*slot, expert)}` is in no file{expected}",
            code="LP217",
            name="missing-tensor",
            help=f"`{unit.name}` is made from it, as {group} has it",
        )

    def _params(self, unit: Unit, group: Group, found: Found, shape: _Shape) -> dict[str, ParamValue] | LayoutError:
        """The first parameters under which the format's tensors are those found; else what differs least."""
        best: list[LayoutError] = []
        least = math.inf
        for params in self._candidates(unit, group):
            try:
                wrong = list(self._differences(unit, group, found, shape, params))
            except LayoutError as error:  # parameters that the format cannot have together
                best = best or [error]
                continue
            if not wrong:
                return params
            faults = sum(count for _, count in wrong)
            if faults < least:
                best, least = [error for error, _ in wrong], faults
        return LayoutError.of([diagnostic for error in best[:8] for diagnostic in error.diagnostics])

    def _candidates(self, unit: Unit, group: Group) -> Iterator[dict[str, ParamValue]]:
        """All values of the parameters that neither config.json nor the names state; defaults first."""
        spec = group.spec
        own = {
            name.removeprefix("source."): value
            for name, value in unit.names.params.items()
            if name.startswith("source.")
        }
        own = {name: value for name, value in own.items() if name == "parts" or name in spec.params}
        if any("part" in placeholders(template) for template in unit.names.templates):
            own = {"parts": "apart", **own}
        fixed = bind(spec, {**group.stated, **own})
        loose = {
            name: param
            for name, param in spec.params.items()
            if name not in group.stated and name not in own and param.type in ("bool", "values")
        }
        likely = {**fixed, **({"dtype": self.dtype} if self.dtype else {})}
        choices = [
            sorted(_values(param), key=lambda value, name=name: value != likely[name]) for name, param in loose.items()
        ]
        for values in itertools.islice(itertools.product(*choices), MOST_TRIED):
            yield {**fixed, **dict(zip(loose, values, strict=True))}

    def _expected(self, group: Group, shape: _Shape, params: Mapping[str, ParamValue]) -> Iterator[TensorInfo]:
        side = Side(group.spec, dict(params), "whole")
        for matrix in shape.matrices:
            experts = matrix.experts[0] if matrix.experts else 0
            yield from (TensorInfo.of(tensor, experts) for tensor in tensors(side, matrix))

    def _differences(
        self, unit: Unit, group: Group, found: Found, shape: _Shape, params: Mapping[str, ParamValue]
    ) -> Iterator[tuple[LayoutError, int]]:
        """What is wrong, and how many faults that is: a dtype, a shape, or both."""
        wanted = {shape.slot(info.name): info for info in self._expected(group, shape, params)}
        stated = f"config.json declares {group} and sizes {_shown(shape.sizes)}"
        for slot, info in wanted.items():
            apart = by_expert(unit, slot[0])
            sizes = list(info.shape if apart else info.full_shape)
            expected = f"{' or '.join(info.dtypes)} {sizes}"
            if slot not in found:
                yield self._missing(unit, slot, 0, group, f"; expected {expected}"), 2
                continue
            for expert in range(info.experts if apart else 1):
                entry = found[slot].get(expert)
                if entry is None:
                    yield self._missing(unit, slot, expert, group, f"; expected {expected}"), 2
                    break
                faults = (entry.dtype not in info.dtypes) + (_squeezed(entry.shape) != _squeezed(sizes))
                if faults:
                    error = LayoutError(
                        f"tensor `{entry.name}` of `{entry.file.name}` is {entry}, expected {expected}",
                        code="LP219",
                        name="tensor-differs",
                        help=f"{stated}; the file or config.json is wrong",
                    )
                    yield error, faults
                    break
        for slot, entries in found.items():
            if slot not in wanted:
                entry = next(iter(entries.values()))
                error = LayoutError(
                    f"tensor `{entry.name}` of `{entry.file.name}` has no place in {group}",
                    code="LP216",
                    name="unmatched-tensor",
                    help="config.json describes another format, or the tensor does not belong here",
                )
                yield error, 2


def by_expert(unit: Unit, matrix: str) -> bool:
    """Whether each expert has tensors of its own in the checkpoint."""
    return EXPERT in placeholders(unit.names.template(matrix))


def by_part(unit: Unit, matrix: str) -> bool:
    """Whether each fused part has tensors of its own in the checkpoint."""
    return "part" in placeholders(unit.names.template(matrix))


def _is_plain(own: Mapping[str, Entry]) -> bool:
    return WEIGHT in own and all(tensor in LINEAR and entry.dtype in FLOATS for tensor, entry in own.items())


def _must_be_quantized(unit: Unit, matrix: str) -> bool:
    """Where config.json says so; what has no name of its own for `weight` is no layer that a quantizer knows."""
    return unit.names.quantized == "declared" and "tensor" in placeholders(unit.names.template(matrix, WEIGHT))


def _form(group: Group | None) -> object:
    return group and (group.spec.name, group.stated)


def _look(found: Found) -> tuple:
    """Equal for units whose tensors have equal dtypes and shapes."""
    return tuple(
        sorted((slot, len(entries), frozenset((entry.dtype, entry.shape) for entry in entries.values()))
               for slot, entries in found.items())
    )  # fmt: skip


def _values(param: Param) -> tuple[ParamValue, ...]:
    return (False, True) if param.type == "bool" else param.values


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]


def _entry(entry: Entry) -> str:
    return f"`{entry.name}` of `{entry.file.name}` as {entry}"


def _shown(sizes: Mapping[str, int | tuple[int, ...]]) -> str:
    return ", ".join(f"{axis}={'+'.join(map(str, s)) if isinstance(s, tuple) else s}" for axis, s in sizes.items())
