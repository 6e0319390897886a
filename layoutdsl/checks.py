"""What must hold inside one spec beyond its schema: names that exist, digits that stand once, values over tensors.

Everything here reads the validated model and the text's spans; numbers are resolve.py's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from layoutdsl import source
from layoutdsl.codes import DTYPE_BITS, code_named, meant
from layoutdsl.errors import Diagnostic, LayoutError, did_you_mean
from layoutdsl.grammar import Expr, Formula, Template
from layoutdsl.model import KINDS, Format, Matrix, Module, Spec, Tensor
from layoutdsl.source import Tree


def validated(tree: Tree) -> Spec:
    """The model of a spec's tree; raises LayoutError with all findings."""
    kinds = [kind for kind in KINDS if isinstance(tree.data, dict) and kind in tree.data]
    if len(kinds) != 1:
        found = f"found {' and '.join(f'`{kind}`' for kind in kinds)}" if kinds else "found none of them"
        known = tuple(tree.data) if isinstance(tree.data, dict) else ()
        near = next((did_you_mean(str(key), KINDS) for key in known if did_you_mean(str(key), KINDS)), None)
        raise LayoutError.of(
            [
                tree.diagnostic(
                    "LD020",
                    "kind-unstated",
                    f"a spec is one of `checkpoint: NAME`, `kernel: NAME`, `module: NAME`, {found}",
                    (),
                    help=near or "name the spec with the key of its kind",
                )
            ]
        )
    spec = source.validate(tree, KINDS[kinds[0]])
    assert isinstance(spec, Spec)
    found = list(islice(_format(spec, tree) if isinstance(spec, Format) else _module(spec, tree), source.MAX_FINDINGS))
    if found:
        raise LayoutError.of(sorted(found, key=_place))
    return spec


def _place(finding: Diagnostic) -> tuple[int, int]:
    return (finding.span.line, finding.span.column) if finding.span else (0, 0)


def _module(spec: Spec, tree: Tree) -> Iterator[Diagnostic]:
    assert isinstance(spec, Module)
    for name, matrix in spec.matrices.items():
        yield from _matrix(tree, spec, matrix, ("matrices", name))
    for kind, template in spec.ranks.items():
        yield from _names(tree, template, spec.params, ("ranks", kind))
        if all(isinstance(piece, str) for piece in template.pieces):
            yield from _known(tree, "".join(template.pieces), spec.axes, ("ranks", kind), "axis")
    for at, axis in enumerate(spec.visible):
        yield from _known(tree, axis, spec.axes, ("visible", at), "axis")
    for key in ("default", "serves"):
        for axis, other in getattr(spec, key).items():
            yield from _known(tree, axis, spec.axes, (key, axis), "axis")
            yield from _known(tree, other, spec.axes, (key, axis), "axis")
    if spec.experts is not None:
        yield from _known(tree, spec.experts, spec.axes, ("experts",), "axis")
    if spec.tight is not None:
        yield from _names(tree, spec.tight, spec.params, ("tight",), _words(spec))


def _words(spec: Spec) -> set[str]:
    """What an expression may compare a parameter with."""
    return {str(value) for param in spec.params.values() for value in param.values}


def _matrix(tree: Tree, spec: Module, matrix: Matrix, path: tuple[Any, ...]) -> Iterator[Diagnostic]:
    products = {("k",): matrix.k}
    if isinstance(matrix.n, dict):
        products |= {("n", part): axes for part, axes in matrix.n.items()}
        if matrix.parts:
            yield tree.diagnostic(
                "LD112",
                "parts-twice",
                "the keys of `n` name the parts already",
                (*path, "parts"),
                key=True,
                help="leave `parts` out",
            )
    else:
        products["n",] = matrix.n
    for place, axes in products.items():
        for axis in axes:
            yield from _known(tree, axis, spec.axes, (*path, *place), "axis")
    if isinstance(matrix.parts, Template):
        yield from _names(tree, matrix.parts, spec.params, (*path, "parts"))
    if matrix.when is not None:
        yield from _names(tree, matrix.when, spec.params, (*path, "when"), _words(spec))


def _format(spec: Format, tree: Tree) -> Iterator[Diagnostic]:
    scope = {**spec.params, "parts": None, "n": None, "k": None, "groups": None}
    words = _words(spec) | {"apart", "stacked", "alternating"}
    for key, tensor in spec.tensors.items():
        path = ("tensors", key)
        yield from _digits(tree, tensor, None, path)
        for at, case in enumerate(tensor.cases):
            if case.order is not None or case.split is not None:
                yield from _digits(tree, tensor, at, path)
        for place, expr in _expressions(tensor, path):
            yield from _names(tree, expr, scope, place, words)
        for place, template in _templates(tensor, path):
            if all(isinstance(piece, str) for piece in template.pieces):
                yield from _fixed_name(tree, "".join(template.pieces), place)
    for factor in spec.value.tensors():
        name = factor.args[0]
        if name not in spec.tensors:
            yield tree.diagnostic(
                "LD103",
                "unknown-tensor",
                f"unknown tensor `{name}`",
                ("value",),
                within=(factor.start, factor.end),
                help=did_you_mean(name, spec.tensors) or f"tensors: {', '.join(spec.tensors)}",
            )
    roles = list(_roles(spec, tree))
    yield from roles
    if not roles and all(factor.args[0] in spec.tensors for factor in spec.value.tensors()):
        yield from _form(spec, tree)


def _form(spec: Format, tree: Tree) -> Iterator[Diagnostic]:
    """A weight is worth its code, or its code minus its zero point, times each of its scales once."""
    roles = {key: tensor.role for key, tensor in spec.tensors.items()}
    found = sorted(_factor_role(factor, roles) for factor in spec.value.factors())
    scales = sorted(role for role in roles.values() if role in ("scale", "global_scale"))
    codes = "codes - zero_point" if "zero_point" in roles.values() else "codes"
    if found != sorted([codes, *scales]):
        by_role = {role: key for key, role in roles.items()}
        first = by_role["codes"] if codes == "codes" else f"({by_role['codes']} - {by_role['zero_point']})"
        wanted = " * ".join([first, *(by_role[role] for role in ("scale", "global_scale") if role in scales)])
        yield tree.diagnostic(
            "LD501",
            "value-form",
            "a weight is worth its code, less its zero point, times each of its scales once; this says something else",
            ("value",),
            help=f"with these roles it is `{wanted}`",
        )


def _factor_role(factor: Formula, roles: Mapping[str, str]) -> str:
    """`scale`, `codes`, `codes - zero_point`, or what no value has."""
    if factor.op == "tensor":
        return roles[factor.args[0]]
    return " - ".join(_factor_role(arg, roles) if arg.op == "tensor" else "(...)" for arg in factor.args)


def _roles(spec: Format, tree: Tree) -> Iterator[Diagnostic]:
    used = {factor.args[0] for factor in spec.value.tensors()}
    seen: dict[str, str] = {}
    for key, tensor in spec.tensors.items():
        if tensor.role in seen:
            yield tree.diagnostic(
                "LD106",
                "role-twice",
                f"`{key}` and `{seen[tensor.role]}` both have the role {tensor.role}",
                ("tensors", key, "role"),
                help="give one tensor per role, with cases where it varies",
            )
        seen[tensor.role] = key
        counts = tensor.role in ("codes", "zero_point", "scale", "global_scale")
        if counts and key not in used and not _mistyped(key, used - spec.tensors.keys()):
            yield tree.diagnostic(
                "LD107",
                "value-incomplete",
                f"`{key}` is a {tensor.role} tensor, but `value` does not use it",
                ("value",),
                help="write what one weight is worth, such as `(q - z) * s`",
            )
        if not counts and key in used:
            yield tree.diagnostic(
                "LD107",
                "value-incomplete",
                f"`value` uses `{key}`, whose role {tensor.role} is no part of a weight",
                ("value",),
            )
    if "codes" not in seen:
        yield tree.diagnostic(
            "LD108",
            "no-codes",
            "no tensor has the role codes",
            ("tensors",),
            key=True,
            help="the tensor of the weights' codes states `role: codes`",
        )
    elif spec.tensors[seen["codes"]].when is not None:
        yield tree.diagnostic(
            "LD108",
            "no-codes",
            f"`{seen['codes']}` holds the codes, but is there only under a condition",
            ("tensors", seen["codes"], "when"),
            help="leave `when` out; what differs between the codes of a format stands in `cases`",
        )


def _digits(tree: Tree, tensor: Tensor, case: int | None, path: tuple[Any, ...]) -> Iterator[Diagnostic]:
    """Every digit of every axis once in the order, and nothing else; a case's split and order laid over."""
    over = tensor.cases[case] if case is not None else None
    split = (over.split if over is not None and over.split is not None else tensor.split) or ()
    order = over.order if over is not None and over.order is not None else tensor.order
    inside = ("cases", case) if over is not None and over.order is not None else ()
    place = (*path, *inside, "order")
    for axis in split:
        if axis.axis not in ("n", "k"):
            in_case = ("cases", case) if over is not None and over.split is not None else ()
            yield tree.diagnostic(
                "LD103",
                "unknown-axis",
                f"`{axis.axis}` is no axis that can be split",
                (*path, *in_case, "split"),
                within=(axis.start, axis.start + len(axis.axis)),
                help="axes are n (outputs) and k (inputs)",
            )
            return
    known = {digit.name: axis.axis for axis in split for digit in axis.digits}
    for axis in ("n", "k"):
        if axis not in {axis.axis for axis in split}:
            known[axis] = axis
    present = {item.name for item in order}
    for item in order:
        if item.role != "one" and item.name not in known and item.name not in ("e", "p"):
            yield tree.diagnostic(
                "LD102",
                "unknown-digit",
                f"`{item.name}` is no digit of tensor `{path[1]}`",
                place,
                within=(item.start, item.end),
                help=did_you_mean(item.name, known) or f"digits: {', '.join(known)}",
            )
        if item.name == "e" and item.role != "shared":
            yield tree.diagnostic(
                "LD109",
                "expert-digit",
                "experts always stand outermost and are not written",
                place,
                within=(item.start, item.end),
                help="write (e) where all experts share one value",
            )
    strangers = [item.name for item in order if item.role != "one" and item.name not in (*known, "e", "p")]
    for name in known:
        if name not in present and not _mistyped(name, strangers):
            yield tree.diagnostic(
                "LD101",
                "digit-missing",
                f"the order of `{path[1]}` leaves out `{name}` of axis {known[name]}",
                place,
                help=f"store it, or write ({name}) where its elements share one stored value",
            )


def _mistyped(name: str, strangers: Iterable[str]) -> bool:
    """Whether one of the unknown names is likely meant to be this one, so that one finding is enough."""
    return any(did_you_mean(stranger, [name]) for stranger in strangers)


def _expressions(tensor: Tensor, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Expr]]:
    if tensor.when is not None:
        yield (*path, "when"), tensor.when
    holders = [((), tensor), *((("cases", at), case) for at, case in enumerate(tensor.cases))]
    for inside, holder in holders:
        for field in ("scaled", "plus"):
            if (expr := getattr(holder, field)) is not None:
                yield (*path, *inside, field), expr
        for at, expr in enumerate(holder.shape or ()):
            yield (*path, *inside, "shape", at), expr
        for axis in holder.split or ():
            for digit in axis.digits:
                if digit.size is not None:
                    yield (*path, *inside, "split"), digit.size
    for at, case in enumerate(tensor.cases):
        yield (*path, "cases", at, "when"), case.when


def _templates(tensor: Tensor, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Template]]:
    holders = [((), tensor), *((("cases", at), case) for at, case in enumerate(tensor.cases))]
    for inside, holder in holders:
        if holder.code is not None:
            yield (*path, *inside, "code"), holder.code
        for at, dtype in enumerate(holder.dtype if isinstance(holder.dtype, tuple) else (holder.dtype,)):
            if dtype is not None:
                yield (*path, *inside, "dtype", *((at,) if isinstance(holder.dtype, tuple) else ())), dtype


def _fixed_name(tree: Tree, name: str, place: tuple[Any, ...]) -> Iterator[Diagnostic]:
    if "dtype" in place:
        if name not in DTYPE_BITS:
            yield tree.diagnostic(
                "LD311",
                "unknown-dtype",
                f"`{name}` is no dtype",
                place,
                help=meant(name, DTYPE_BITS) or f"dtypes: {', '.join(DTYPE_BITS)}",
            )
        return
    try:
        code_named(name)
    except LayoutError as error:
        yield tree.diagnostic("LD310", "unknown-code", error.message, place, help=error.help)


def _names(
    tree: Tree, expr: Expr | Template, scope: Any, place: tuple[Any, ...], words: set[str] = frozenset()
) -> Iterator[Diagnostic]:  # pyright: ignore
    for name, start, end in expr.names():
        if name not in scope and name not in words:
            yield tree.diagnostic(
                "LD104",
                "unknown-name",
                f"unknown name `{name}`",
                place,
                within=(start, end),
                help=did_you_mean(name, scope) or f"known here: {', '.join(scope)}",
            )


def _known(tree: Tree, name: str, known: Any, place: tuple[Any, ...], what: str) -> Iterator[Diagnostic]:
    if name not in known:
        yield tree.diagnostic(
            "LD103",
            f"unknown-{what}",
            f"unknown {what} `{name}`",
            place,
            help=did_you_mean(name, known) or f"known: {', '.join(known)}",
        )
