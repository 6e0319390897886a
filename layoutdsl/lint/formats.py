"""What rules ask of a format: what its tensors state, and which it has for each choice of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product
from typing import TYPE_CHECKING, NamedTuple

from layoutdsl.codes import CODE_OF_DTYPE, DTYPE_BITS, Code, code_named
from layoutdsl.errors import LayoutError
from layoutdsl.grammar import Expr, GrammarError, Template
from layoutdsl.model import Format, Kernel, Param, ParamValue, Tensor
from layoutdsl.resolve import bind
from layoutdsl.source import Route

if TYPE_CHECKING:
    from layoutdsl.lint.subject import Try

EXTENTS = ("n", "k", "group", "groups")
"""Names that an expression knows of the very matrix it is evaluated for."""

_OF_A_WEIGHT = ("codes", "zero_point", "scale", "global_scale")
_MOST_CHOICES = 512
_USUAL_GROUPS = (-1, 32, 128)
_ENDLESS = ("int", "names")
"""Types of parameters that may have any value, unless these are listed."""


class Stated(NamedTuple):
    """A tensor as it is stated, or with one of its cases laid over (`case`: which)."""

    key: str
    case: int | None
    tensor: Tensor
    restated: frozenset[str]

    def path(self, field: str) -> Route:
        """Where the field stands that counts here."""
        inside = ("cases", self.case) if self.case is not None and field in self.restated else ()
        return ("tensors", self.key, *inside, field)


def laid_over(key: str, tensor: Tensor, case: int | None) -> Stated:
    """A tensor with one of its cases."""
    if case is None:
        return Stated(key, None, tensor, frozenset())
    changes = {name: value for name, value in tensor.cases[case] if name != "when" and value is not None}
    return Stated(key, case, tensor.model_copy(update=changes), frozenset(changes))


def stated(spec: Format, *fields: str) -> Iterator[Stated]:
    """Every tensor, and with each of its cases that states one of the fields anew."""
    for key, tensor in spec.tensors.items():
        yield laid_over(key, tensor, None)
        for at in range(len(tensor.cases)):
            one = laid_over(key, tensor, at)
            if one.restated & set(fields):
                yield one


def held(spec: Format, scope: Mapping[str, ParamValue]) -> Iterator[Stated]:
    """The tensors that a format has with these values, each with the case that counts."""
    for key, case in _chosen(spec, scope):
        yield laid_over(key, spec.tensors[key], case)


def settings(spec: Format) -> tuple[tuple[dict[str, ParamValue], dict[str, Stated]], ...]:
    """Scopes that give other tensors, cases, codes or sizes of what weights are made of, and these by their roles."""
    spec = spec.model_copy(update={"tensors": {k: t for k, t in spec.tensors.items() if t.role in _OF_A_WEIGHT}})
    named = sorted(names(expressions(spec)) & {*spec.params})
    found: dict[object, tuple[dict[str, ParamValue], dict[str, Stated]]] = {}
    known: dict[tuple[str, int | None], Stated] = {}
    for scope in choices(spec, {*named, *names(conditions(spec))}):
        chosen = tuple(_chosen(spec, scope))
        key = chosen, tuple(scope[name] for name in named)
        if key not in found:
            for one in chosen:
                known.setdefault(one, laid_over(one[0], spec.tensors[one[0]], one[1]))
            found[key] = scope, {known[one].tensor.role: known[one] for one in chosen}
    return tuple(found.values())


def _chosen(spec: Format, scope: Mapping[str, ParamValue]) -> Iterator[tuple[str, int | None]]:
    """The tensors that a format has with these values, and which case of each counts."""
    for key, tensor in spec.tensors.items():
        if tensor.when is None or holds(tensor.when, scope):
            yield key, next((at for at, case in enumerate(tensor.cases) if holds(case.when, scope)), None)


def by_role(spec: Format, scope: Mapping[str, ParamValue]) -> dict[str, Stated]:
    """The same by their roles."""
    return {one.tensor.role: one for one in held(spec, scope)}


def number(expr: Expr | None, scope: Mapping[str, ParamValue]) -> int | None:
    """The value of an expression where it has one that is a number."""
    if expr is None:
        return None
    try:
        value = expr.evaluate(scope)
    except GrammarError:
        return None
    return value if isinstance(value, int) else None


def holds(condition: Expr, scope: Mapping[str, ParamValue]) -> bool:
    """Whether a condition can be evaluated and is true; a word is, as for resolve."""
    try:
        return bool(condition.evaluate(scope))
    except GrammarError:
        return False


def code_of(tensor: Tensor, scope: Mapping[str, ParamValue]) -> Code | None:
    """The element code of a tensor, where its name is one."""
    dtype = dtype_of(tensor, scope)
    try:
        name = tensor.code.fill(scope) if tensor.code is not None else CODE_OF_DTYPE.get(dtype or "")
        return code_named(name) if name is not None else None
    except (GrammarError, LayoutError):
        return None


def dtype_of(tensor: Tensor, scope: Mapping[str, ParamValue]) -> str | None:
    """The storage type that is written, where its name is one."""
    return _dtype(tensor.dtype[0] if isinstance(tensor.dtype, tuple) else tensor.dtype, scope)


def dtypes_of(tensor: Tensor, scope: Mapping[str, ParamValue]) -> tuple[str, ...]:
    """All storage types that a file may have, where their names are some."""
    stated = tensor.dtype if isinstance(tensor.dtype, tuple) else (tensor.dtype,)
    return tuple(found for one in stated if (found := _dtype(one, scope)) is not None)


def _dtype(template: Template, scope: Mapping[str, ParamValue]) -> str | None:
    try:
        name = template.fill(scope)
    except GrammarError:
        return None
    return name if name in DTYPE_BITS else None


def digits(tensor: Tensor, axis: str) -> tuple[tuple[str, Expr | None], ...]:
    """Name and size of an axis' digits, most significant first; the first has no size."""
    split = next((split for split in tensor.split or () if split.axis == axis), None)
    return tuple((digit.name, digit.size) for digit in split.digits) if split is not None else ((axis, None),)


def weights(tensor: Tensor, axis: str, scope: Mapping[str, ParamValue]) -> dict[str, int] | None:
    """Digit -> how many neighbours of the axis it counts as one; None where a size has no positive value here."""
    found: dict[str, int] = {}
    weight = 1
    for name, size in reversed(digits(tensor, axis)):
        found[name] = weight
        extent = number(size, scope) if size is not None else 1
        if not extent or extent < 0:
            return None
        weight *= extent
    return found


# --- names and choices ------------------------------------------------------------------------------------------------


def conditions(spec: Format) -> Iterator[Expr]:
    """Every condition under which a tensor or a case counts."""
    for tensor in spec.tensors.values():
        yield from tensor.conditions()


def expressions(spec: Format) -> Iterator[Expr | Template]:
    """Everything in a format's tensors that may use a parameter."""
    for tensor in spec.tensors.values():
        yield from tensor.expressions()


def names(found: Iterable[Expr | Template]) -> set[str]:
    return {name for one in found for name, _, _ in one.names()}


def choices(spec: Format, asked: Iterable[str] | None = None) -> Iterator[dict[str, ParamValue]]:
    """Scopes that differ in the parameters and extents `asked` for: those that some condition names, if nothing is."""
    wanted = {*asked} if asked is not None else names(conditions(spec))
    known = {**spec.params, "parts": Param(values=spec.parts.stored)}
    free = {name: _values(param) for name, param in known.items() if name in wanted and name != "group"}
    usual = {**bind(spec, {})}
    for values in islice(product(*free.values()), _MOST_CHOICES):
        for extents in matrices(spec) if wanted & set(EXTENTS) else matrices(spec)[:1]:
            yield {**usual, **dict(zip(free, values)), **extents}


def matrices(spec: Format) -> list[dict[str, int]]:
    """n, k, group and groups of matrices that tell conditions apart: one group and several, n and k near and far."""
    groups = _stated_groups(spec) or _USUAL_GROUPS
    return [
        {"n": n, "k": k, "group": max(group, 0), "groups": -(-k // group) if group > 0 else 1}
        for group in groups
        for k in sorted({group if group > 0 else 128, max(2 * group, 256), 1 << 16})
        for n in (128, 256, 1 << 16)
    ]


def always(spec: Format, tensor: Tensor, condition: Expr, there: Iterable[Mapping[str, ParamValue]]) -> bool:
    """Whether a condition holds wherever the tensor is there: in these scopes, and with extents near its numbers."""
    if not all(holds(condition, scope) for scope in there):
        return False
    asked = {name for one in (condition, *([tensor.when] if tensor.when else [])) for name, _, _ in one.names()}
    if any(param.type in _ENDLESS and not param.values for name, param in spec.params.items() if name in asked):
        return False
    near = {around for at in numbers(condition) for around in (at - 1, at, at + 1) if around > 0} | {1, 2, 1 << 16}
    free = {name: sorted(near) for name in EXTENTS if name in asked}
    if "group" in free:
        free["group"] = [max(group, 0) for group in _stated_groups(spec)] or [0, *free["group"]]
    for scope in there:
        for values in islice(product(*free.values()), _MOST_CHOICES):
            changed = {**scope, **dict(zip(free, values))}
            if (tensor.when is None or holds(tensor.when, changed)) and not holds(condition, changed):
                return False
    return True


def numbers(condition: Expr) -> Iterator[int]:
    """Every number that stands in an expression."""
    if condition.op == "int":
        yield condition.args[0]
    for arg in condition.args:
        if isinstance(arg, Expr):
            yield from numbers(arg)


def scope_of(entry: Try) -> dict[str, ParamValue]:
    """What an expression knows at a size to try of a format."""
    n, k = (int(entry.sizes[axis]) for axis in ("n", "k"))  # pyright: ignore[reportArgumentType]
    group = int(entry.params.get("group", -1))
    return {**entry.params, "n": n, "k": k, "group": max(group, 0), "groups": -(-k // group) if group > 0 else 1}


def _stated_groups(spec: Format) -> tuple[int, ...]:
    """The groups that a format has at all; none where any number may be one."""
    if isinstance(spec, Kernel):
        return spec.accepts.groups
    param = spec.params.get("group")
    return tuple(value for value in (param.values if param is not None else ()) if isinstance(value, int))


def _values(param: Param) -> tuple[ParamValue, ...]:
    if param.values:
        return param.values
    if param.type == "bool":
        return (False, True)
    return (param.default,) if param.default is not None else ({"int": 128}.get(param.type, ""),)
