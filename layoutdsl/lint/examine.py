"""One file: its text, schema, what must hold inside the spec, the rules, and the proofs at sizes to try.

All findings are made in one go, as far as the file can be read. A failure of our own becomes a `Fault`, and what else
can be said of the file is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from layoutdsl import library, resolve
from layoutdsl.errors import Diagnostic, LayoutError, Place, Span
from layoutdsl.lint import others
from layoutdsl.lint.formats import held, scope_of
from layoutdsl.lint.outcome import Examined, Fault
from layoutdsl.lint.rule import Found, Rule, rule_of, rules
from layoutdsl.lint.subject import Subject, Try
from layoutdsl.lint.suppress import suppressions
from layoutdsl.model import Format, Spec
from layoutdsl.source import Route, Tree


def examined(path: Path, specs: tuple[str, ...] = (), text: str | None = None) -> Examined:
    """All there is to say of one file, or of `text` in its place."""
    one = stated(path, specs, text)
    one.add(proven(path, specs, text))
    return one


def stated(path: Path, specs: tuple[str, ...] = (), text: str | None = None) -> Examined:
    """What the text, the schema and the rules say of one file."""
    one = Examined()
    try:
        _examine(one, path, specs, text)
    except Exception as error:
        one.faults.append(Fault(str(path), "reading it", error))
    _explain(one)
    return one


def proven(path: Path, specs: tuple[str, ...] = (), text: str | None = None) -> Examined:
    """What the proofs say of one file, where it is a spec; if it is none, `stated` says so."""
    one = Examined()
    with suppress(Exception):
        tree = _tree(path, specs, text)
        spec = library.spec_in(tree)
        try:
            one.findings += _proofs(spec, tree, specs)
        except Exception as error:
            one.faults.append(Fault(str(path), "the proof", error))
    _explain(one)
    return one


STAGES = (stated, proven)
"""What there is to do for each file, in the order in which it is told."""


def _explain(one: Examined) -> None:
    for code in sorted({finding.code for finding in one.findings}):
        if (rule := rule_of(code)) and rule.explains:
            one.explains[code] = rule.explains


def _tree(path: Path, specs: tuple[str, ...], text: str | None) -> Tree:
    if text is None:
        return library.read_tree(path, specs=specs)
    return library.tree_of(text, str(path), specs=specs)


def _examine(one: Examined, path: Path, specs: tuple[str, ...], text: str | None) -> None:
    try:
        tree = _tree(path, specs, text)
    except LayoutError as error:
        one.refusals += (_in_file(finding, path) for finding in error.diagnostics)
        return
    one.suppressions = suppressions(tree)
    for rule in rules():
        if (check_tree := rule.check_tree) is not None:
            _ask(one, tree, rule, lambda check=check_tree: check(tree))
    try:
        spec = library.spec_in(tree)
    except LayoutError as error:
        one.refusals += error.diagnostics
        return
    assert isinstance(tree.data, dict)
    one.kind = library.kind_of(spec)
    one.layout = others.layout(one.kind, tree.data)
    named = tree.diagnostic("LD031", "name-twice", "", (one.kind,))
    one.name, one.name_at = spec.name, (named.span, named.source[0]) if named.span is not None else None
    subject = Subject(spec, tree, specs)
    for rule in rules():
        if (check := rule.check) is not None:
            _ask(one, tree, rule, lambda check=check: check(subject))


def _ask(one: Examined, tree: Tree, rule: Rule, found: Callable[[], Iterable[Found]]) -> None:
    """Collect what a rule finds, where it stands; what stands in the text of a base is a finding of the base."""
    try:
        for finding in found():
            if tree.home(finding.path) is tree:
                at = tree.diagnostic(
                    rule.code, rule.name, finding.message, finding.path,
                    help=finding.help, within=finding.within, key=finding.key,
                )  # fmt: skip
                one.findings.append(replace(at, fix=finding.fix))
    except Exception as error:
        one.faults.append(Fault(tree.file, f"the rule {rule.code}", error))


def _proofs(spec: Spec, tree: Tree, specs: tuple[str, ...]) -> Iterator[Diagnostic]:
    """What the proofs of a spec at its sizes to try find; the same finding only at the first size that shows it, and
    one of each code where the spec states the cause."""
    from layoutdsl.logical import prove_spec

    seen: set[tuple[str, object]] = set()
    for at, entry in enumerate(spec.try_):
        try:
            prove_spec(spec, entry, specs)
        except LayoutError as error:
            for finding in error.diagnostics:
                placed = _placed(finding, spec, tree, at)
                same = (finding.code, finding.message if finding.place is None else placed.span)
                if same not in seen:
                    seen.add(same)
                    yield placed


def _in_file(finding: Diagnostic, path: Path) -> Diagnostic:
    """A finding that stands nowhere is one of the file as a whole: tools show it at the first line."""
    return finding if finding.span is not None else replace(finding, span=Span(str(path), 1, 1, 1, 1))


def _placed(finding: Diagnostic, spec: Spec, tree: Tree, at: int) -> Diagnostic:
    """A finding where the spec states its cause, else at the size that shows it."""
    if finding.span is not None:
        return finding
    path, within, place = ("try", at), None, finding.place
    if place is not None and place.path[:1] in tree.keys:
        path, within = _stated_at(place, spec, at), place.within
    return tree.diagnostic(finding.code, finding.name, finding.message, path, help=finding.help, within=within)


def _stated_at(place: Place, spec: Spec, at: int) -> Route:
    """Its path, in the case that counts at a size to try."""
    if not isinstance(spec, Format) or place.path[0] != "tensors":
        return place.path
    _, key, field = place.path
    sizes = {name: value for name, value in spec.try_[at].items() if name in ("n", "k")}
    params = {name: value for name, value in spec.try_[at].items() if name not in sizes}
    scope = scope_of(Try(("try", at), resolve.bind(spec, params), sizes))  # pyright: ignore[reportArgumentType]
    return next((one.path(str(field)) for one in held(spec, scope) if one.key == key), place.path)
