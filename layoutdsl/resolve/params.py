"""A spec's parameters with values: given, taken over from the source, or default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.grammar import Expr, GrammarError, Template, parse_names
from layoutdsl.model import Format, Param, ParamValue, Spec

MAX_EXTENT = 1 << 40
"""Largest extent of an axis; products of two stay far below what JSON and 64 bits hold."""

Scope = dict[str, ParamValue]


def evaluated(expr: Expr, scope: Mapping[str, ParamValue], where: str) -> int | str:
    """The value of an expression of a spec; LayoutError where it has none, `where` says whose it is."""
    try:
        return expr.evaluate(scope)
    except GrammarError as error:
        raise _bad(where, error) from None


def filled(template: Template, scope: Mapping[str, ParamValue], where: str) -> str:
    """The text of a template of a spec, in the same way."""
    try:
        return template.fill(scope)
    except GrammarError as error:
        raise _bad(where, error) from None


def _bad(where: str, error: GrammarError) -> LayoutError:
    return LayoutError(f"{where}: {error.message}", code="LD104", name="bad-expression", help=error.help)


def bind(spec: Spec, given: Mapping[str, ParamValue], inherited: Mapping[str, ParamValue] | None = None) -> Scope:
    """Values of all parameters of a spec: given, else inherited where allowed, else the default.

    A format also has the parameter `parts` (how fused parts are stored).
    """
    params = spec.params
    if isinstance(spec, Format):
        params = {**params, "parts": _parts(spec.parts.stored)}
    for name in given:
        if name not in params:
            raise LayoutError(
                f"`{spec.name}` has no parameter `{name}`",
                code="LP101",
                name="unknown-parameter",
                help=did_you_mean(name, params) or f"its parameters: {', '.join(params) or 'none'}",
            )
    bound: Scope = {}
    for name, param in params.items():
        if name in given:
            bound[name] = _checked(spec.name, name, param, given[name])
        elif inherited and name in inherited and name != "parts":
            bound[name] = _inherited(spec.name, name, param, inherited[name])
        else:
            bound[name] = _default(param)
    return bound


@lru_cache
def _parts(stored: tuple[str, ...]) -> Param:
    return Param(values=stored)


def _inherited(spec: str, name: str, param: Param, value: ParamValue) -> ParamValue:
    try:
        return _checked(spec, name, param, value)
    except LayoutError as error:
        raise LayoutError(
            error.message + ", which the source has",
            code="LP102",
            name="parameter-value",
            help=f"{error.help}; `target.{name}=...` sets it for the target alone",
        ) from None


def _default(param: Param) -> ParamValue:
    if param.default is not None:
        return param.default
    if param.values:
        return param.values[0]
    return {"bool": False, "int": 0, "group": -1, "names": ""}.get(param.type, "")


def _checked(spec: str, name: str, param: Param, value: ParamValue) -> ParamValue:
    if param.type == "bool" and isinstance(value, bool):
        return value
    if param.type in ("int", "group") and _is_extent(param, value) and (not param.values or value in param.values):
        return value
    if param.type == "values" and any(value == allowed and type(value) is type(allowed) for allowed in param.values):
        return value
    if param.type == "names" and isinstance(value, str):
        try:
            parse_names(value)
            return value
        except GrammarError:
            pass
    allowed = ", ".join(str(allowed).lower() if isinstance(allowed, bool) else str(allowed) for allowed in param.values)
    expected = allowed or {"bool": "true or false", "int": "a positive number", "names": "names apart by commas"}.get(
        param.type, "a positive number, or -1 for one group over the whole axis"
    )
    shown = str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, str) and _READS_OTHERWISE.fullmatch(value):
        shown = f'the text "{value}"'
    raise LayoutError(
        f"parameter `{name}` of `{spec}` cannot be {shown}",
        code="LP102",
        name="parameter-value",
        help=f"expected {expected}",
    )


_READS_OTHERWISE = re.compile(r"[Tt]rue|[Ff]alse|-?[0-9]+")
"""Text that would be a boolean or a number without quotes."""


def _is_extent(param: Param, value: ParamValue) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return 0 < value <= MAX_EXTENT or (param.type == "group" and value == -1)
