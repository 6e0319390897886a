"""The sizes and parameters at which two versions are held against each other.

Those that either version tries; at the first of them each value of each parameter in turn, and each way in which fused
parts are stored. What is given on the command line takes the place of all of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layoutdsl.model import Format, Kernel, Param, ParamValue, Spec

MOST = 64
"""Settings that are compared at most; the first are those to try."""

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """Sizes and parameters, each as pairs."""

    sizes: tuple[tuple[str, Size], ...]
    params: tuple[tuple[str, ParamValue], ...] = ()

    def __str__(self) -> str:
        sizes = [f"{axis}={','.join(map(str, size)) if isinstance(size, tuple) else size}" for axis, size in self.sizes]
        values = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in self.params]
        return " ".join([*sizes, *values])

    def at(self, **params: ParamValue) -> Setting:
        """The same setting with these parameters."""
        return Setting(self.sizes, tuple({**dict(self.params), **params}.items()))

    def for_spec(self, spec: Spec) -> dict[str, ParamValue]:
        """The parameters that a spec has; `parts` and `names` are how fused parts are stored and called."""
        return {name: value for name, value in self.params if name in spec.params or name in ("parts", "names")}


def settings_of(
    before: Format, after: Format, sizes: Mapping[str, Size], params: Mapping[str, ParamValue]
) -> tuple[Setting, ...]:
    """All settings, each once. `sizes` and `params` are given: they hold in every setting."""
    found = dict.fromkeys(_fixed(one, sizes, params) for one in _all(before, after))
    return tuple(found)[:MOST]


def _fixed(setting: Setting, sizes: Mapping[str, Size], params: Mapping[str, ParamValue]) -> Setting:
    chosen = {**dict(setting.sizes), **sizes}
    names = dict(setting.params).get("names")
    if isinstance(n := chosen["n"], int) and isinstance(names, str):
        chosen["n"] = (n,) * len(names.split(","))
    return Setting(tuple(chosen.items()), tuple({**dict(setting.params), **params}.items()))


def _all(before: Format, after: Format) -> Iterator[Setting]:
    tried = [_tried(entry) for spec in (after, before) for entry in spec.try_]
    yield from tried
    first = tried[0]
    for name in dict.fromkeys((*after.params, *before.params)):
        values = [value for spec in (after, before) if name in spec.params for value in _values(spec, name)]
        yield from (first.at(**{name: value}) for value in dict.fromkeys(values))
    for way, names in _fused(before, after):
        yield first.at(parts=way, names=",".join(names))


def _tried(entry: Mapping[str, ParamValue | tuple[int, ...]]) -> Setting:
    sizes = tuple((axis, entry[axis]) for axis in ("n", "k") if axis in entry)
    return Setting(sizes, tuple((name, value) for name, value in entry.items() if name not in ("n", "k")))  # pyright: ignore


def _values(spec: Format, name: str) -> Sequence[ParamValue]:
    """The values of a parameter that are few: a group's are those that a kernel takes."""
    param: Param = spec.params[name]
    if param.values:
        return param.values
    if param.type == "bool":
        return (False, True)
    if param.type == "group":
        return spec.accepts.groups if isinstance(spec, Kernel) else (-1,)
    return ()


def _fused(before: Format, after: Format) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each way to store fused parts with the names of the first order; every order, where these are not the same."""
    orders = dict.fromkeys((*after.parts.orders, *before.parts.orders))
    if after.parts.orders == before.parts.orders:
        orders = dict.fromkeys(tuple(orders)[:1])
    alone = {frozenset(order): order for order in reversed(orders)}  # those of a set stand in one order or the other
    ways = dict.fromkeys((*after.parts.stored, *before.parts.stored))
    yield from ((way, order) for order in alone.values() for way in ways)
