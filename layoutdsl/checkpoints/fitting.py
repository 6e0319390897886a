"""Under which parameters a format's tensors are those of a layer, when all that is known are names, dtypes and shapes.

    trial = Trial(spec)
    trial.fits({"qweight": Entry(...), "scales": Entry(...)})      # settings; if none, trial.miss says what is wrong

Parameters are tried, not solved for. Those that names and dtypes rule out go first; for the others n and k are looked
for among the layer's extents, and the tensors must then have exactly the shapes that the spec gives them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from layoutdsl.checkpoints.folder import Entry
from layoutdsl.codes import DTYPE_BITS
from layoutdsl.errors import LayoutError
from layoutdsl.model import Checkpoint, Param, ParamValue
from layoutdsl.plan import TensorInfo
from layoutdsl.resolve import Matrix, Side, Stored, Stretch, bind, tensors

EXTENTS = (128, 64, 32, 16, 256, 512, 1024)
"""Sizes of groups and blocks that are tried, beside a spec's default and, of groups, one for all."""

MOST = 4096
"""Settings of one format that are tried at most."""

SAMPLE = (1 << 12, 1 << 20)
"""n and k at which settings are told apart: so large that all groups and blocks differ."""

Own = Mapping[str, Entry]
"""A layer's tensors by the last part of their names."""

Params = dict[str, ParamValue]


@dataclass(frozen=True)
class Setting:
    """A format with a value for each parameter, and what its tensors are at the sample size. `parts`: those of a fused
    matrix that is one tensor."""

    params: Params
    parts: tuple[str, ...]
    tensors: dict[str, Stored]

    @cached_property
    def meaning(self) -> tuple[object, ...]:
        """Equal for settings under which the same tensors stand for the same weights."""
        return tuple(
            (name, t.role, t.code, t.dtypes, t.plus, t.scaled, t.reciprocal, t.n, t.k)
            for name, t in self.tensors.items()
        )

    @cached_property
    def form(self) -> tuple[object, ...]:
        """Equal for settings whose tensors have the same names, dtypes and shapes at every size."""
        return tuple((name, t.dtypes, t.code.bits, t.n, t.k, t.shape) for name, t in self.tensors.items())


class Trial:
    """One checkpoint format, to be tried on layers."""

    def __init__(self, spec: Checkpoint):
        self.spec = spec
        default = bind(spec, {})
        self.choices = {
            name: tuple(dict.fromkeys((default[name], *_values(param)))) for name, param in spec.params.items()
        }
        tensors = ((key, t) for key, t in spec.tensors.items() if t.role == "codes")
        self.codes = [
            name for key, t in tensors for name in (key, *(f.name for f in (t, *t.cases))) if name is not None
        ]
        self._extents = [name for name, param in spec.params.items() if param.type in ("int", "group")]
        self._default = {name: default[name] for name in self._extents}
        self._known: dict[tuple[object, ...], Setting | None] = {}

    def fits(self, own: Own) -> list[Setting]:
        """The settings under which the tensors are the format's; of those that mean the same the nearest to default."""
        if not any(name in own for name in self.codes):
            return []
        for parts in self._parts:
            settings = self._named(own, parts)
            shapes = {setting.form: setting for setting in settings}
            good = {form for form, setting in shapes.items() if not self._differing(setting, own)}
            if good:
                return [setting for setting in settings if setting.form in good]
        return []

    def setting(self, params: Params, parts: tuple[str, ...] = ()) -> Setting | None:
        """None where the format cannot have these parameters together."""
        key = (tuple(params.items()), parts)
        if key not in self._known:
            found = self._tensors(params, *SAMPLE, parts)
            self._known[key] = None if found is None else Setting(params, parts, found)
        return self._known[key]

    def rank(self, params: Params) -> tuple[int, ...]:
        """Settings are sorted by how many parameters leave their defaults; of equal ones other bits before groups."""
        places = {name: self.choices[name].index(value) for name, value in params.items()}
        return sum(map(bool, places.values())), *(places[name] for name in self._extents), *places.values()

    def telling(self, setting: Setting) -> list[str]:
        """The parameters of which another value would mean something else."""

        def means(name: str, value: ParamValue) -> object:
            other = self.setting({**setting.params, name: value}, setting.parts)
            return setting.meaning if other is None else other.meaning

        promised = self.promised(setting)
        return [
            name
            for name, values in self.choices.items()
            if name in promised or any(means(name, value) != setting.meaning for value in values)
        ]

    def promised(self, setting: Setting) -> set[str]:
        """The parameters by which a tensor is there. One that another makes redundant still says what it holds: that
        all zero points are equal, that inputs stand in their order."""
        present = (
            tensor.when
            for key, tensor in self.spec.tensors.items()
            if tensor.when is not None
            and {key, *(fields.name for fields in (tensor, *tensor.cases))} & {*setting.tensors}
        )
        return {name for when in present for name, _, _ in when.names()} & self.choices.keys()

    def miss(self, layer: str, own: Own) -> str:
        """What keeps a layer from being of this format under the settings that come nearest, in one sentence."""
        codes = [name for name in self.codes if name in own]
        if not codes:
            return f"layer `{layer}` has no tensor `{self.codes[0]}`"
        strange = [(_strange(setting, own), setting) for setting in self._settings(self._default, ())]
        if not strange:
            return "it has no setting that can be tried"
        least = min(len(names) for names, _ in strange)
        near = [setting for names, setting in strange if len(names) == least]
        if not least:
            return self._other_shape(own)
        name = _strange(near[0], own)[0]
        if name not in own:
            return f"layer `{layer}` has no tensor `{name}`"
        if name not in near[0].tensors:
            return f"tensor `{own[name].name}` has no place in it"
        dtypes = dict.fromkeys(dtype for one in near if name in one.tensors for dtype in one.tensors[name].dtypes)
        return f"tensor `{own[name].name}` is {own[name]}, expected {' or '.join(dtypes)}"

    def _other_shape(self, own: Own) -> str:
        settings = self._named(own, ())
        found, near = min(((self._differing(one, own), one) for one in settings), key=lambda one: len(one[0]))
        tried = [name for name, value in near.params.items() if any(one.params[name] != value for one in settings)]
        return f"{found[0]}{' with ' if tried else ''}{', '.join(said({name: near.params[name] for name in tried}))}"

    # settings ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> list[tuple[str, ...]]:
        """None; and two or three in one tensor, where some tensor has a value for each."""
        orders = (fields.order for tensor in self.spec.tensors.values() for fields in (tensor, *tensor.cases))
        if "stacked" not in self.spec.parts.stored or not any(d.name == "p" for order in orders for d in order or ()):
            return [()]
        found = (next((names[:many] for names in self.spec.parts.orders if len(names) >= many), ()) for many in (2, 3))
        return [(), *filter(None, found)]

    def _settings(self, fixed: Params, parts: tuple[str, ...]) -> Iterator[Setting]:
        """Every setting that agrees with `fixed`, the default first."""
        ways = [(fixed[name],) if name in fixed else values for name, values in self.choices.items()]
        for values in itertools.islice(itertools.product(*ways), MOST):
            if (setting := self.setting(dict(zip(self.choices, values)), parts)) is not None:
                yield setting

    def _named(self, own: Own, parts: tuple[str, ...]) -> list[Setting]:
        """Settings whose tensors have the layer's names and dtypes; of equal ones the nearest to default."""
        named = [setting.params for setting in self._settings(self._default, parts) if not _strange(setting, own)]
        loose = [{name: value for name, value in params.items() if name not in self._extents} for params in named]
        found: dict[tuple[object, ...], Setting] = {}
        every = (setting for fixed in loose for setting in self._settings(fixed, parts))
        for setting in sorted(every, key=lambda setting: self.rank(setting.params)):
            found.setdefault(setting.meaning, setting)
        return list(found.values())

    # shapes -----------------------------------------------------------------------------------------------------------

    def _differing(self, setting: Setting, own: Own) -> list[str]:
        """The tensors of another shape, at the n and k that explain most; none where the setting fits."""
        codes = next(own[name] for name in self.codes if name in own)
        best = [f"tensor `{codes.name}` is {codes}, which no n and k explain"] * (len(own) + 1)
        for n, k, experts in _sizes(setting, own):
            found = self._tensors(setting.params, n, k, setting.parts, experts)
            if found is None or found.keys() != own.keys():
                continue
            shapes = {name: list(TensorInfo.of(tensor, experts).full_shape) for name, tensor in found.items()}
            wrong = [
                f"tensor `{own[name].name}` is {own[name]}, expected {shape}"
                for name, shape in shapes.items()
                if not _same(shape, own[name].shape, n)
            ]
            best = min(best, wrong, key=len)
            if not best:
                break
        return best

    def _tensors(
        self, params: Params, n: int, k: int, parts: tuple[str, ...], experts: int = 0
    ) -> dict[str, Stored] | None:
        """The format's tensors at a size, by name; None where it cannot have them."""
        several = len(parts) or 1
        widths = [n - n // several * (several - 1), *[n // several] * (several - 1)]
        rows = tuple(Stretch("n", width, 0, width, width) for width in widths)
        every = (experts, 0, experts) if experts else None
        matrix = Matrix("m", parts, rows, Stretch("k", k, 0, k, k), "part", n, every, True)
        try:
            bound = bind(self.spec, {**params, "parts": "stacked"} if parts else params)
            return {
                stored.name.removeprefix("m."): stored for stored in tensors(Side(self.spec, bound, "whole"), matrix)
            }
        except LayoutError:
            return None


def _values(param: Param) -> tuple[ParamValue, ...]:
    if param.type == "bool":
        return (False, True)
    return param.values or {"int": EXTENTS, "group": (*EXTENTS, -1)}.get(param.type, ())


def _strange(setting: Setting, own: Own) -> list[str]:
    """Tensors that the layer lacks, has with another dtype (codes before all others), or has too many."""
    wanted = sorted(setting.tensors.items(), key=lambda item: item[1].role != "codes")
    wrong = [name for name, stored in wanted if name not in own or own[name].dtype not in stored.dtypes]
    return [*wrong, *(name for name in own if name not in setting.tensors)]


def _sizes(setting: Setting, own: Own) -> Iterator[tuple[int, int, int]]:
    """The n, k and number of experts (0: no such axis) that the tensor of the codes has room for, the largest first.

    n and k are extents of tensors, or as many codes as words of that extent hold, or what one leaves of the other.
    """
    name, stored = next((name, stored) for name, stored in setting.tensors.items() if stored.role == "codes")
    codes = own[name]
    in_word = DTYPE_BITS[codes.dtype] // stored.code.bits
    shared = {entry.shape[:1] for entry in own.values() if math.prod(entry.shape) > 1}
    for experts in (0, codes.shape[0]) if len(codes.shape) > 2 and len(shared) == 1 else (0,):
        count = math.prod(codes.shape[bool(experts) :]) * in_word
        extents = {extent for entry in own.values() for extent in entry.shape[bool(experts) :] if extent}
        extents |= {extent * in_word for extent in extents}
        pairs = {(n, k) for n in extents for k in (*extents, count // n) if n * k <= count < 2 * n * k}
        first = codes.shape[bool(experts)] if len(codes.shape) > bool(experts) else 1
        # Where nothing fits, the error is told for a likely reading: rows of outputs or of inputs.
        likely = sorted(pairs, key=lambda pair: (first not in pair, -pair[0] * pair[1], pair))
        yield from ((n, k, experts) for n, k in likely)


def _same(shape: Sequence[int], found: Sequence[int], n: int) -> bool:
    """Equal but for extents of 1. What one side has as a list and the other as a matrix is the same only where it has a
    value per output: a scale of the whole is no block."""
    a, b = ([extent for extent in one if extent != 1] for one in (shape, found))
    return a == b and ((len(shape) > 1) == (len(found) > 1) or a == [n])


def said(params: Params) -> Iterator[str]:
    """Parameters as a user writes them: `bits=4`."""
    return (f"{name}={text(value)}" for name, value in params.items())


def text(value: ParamValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
