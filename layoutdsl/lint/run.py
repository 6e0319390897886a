"""From files to findings: text, schema, what must hold inside each spec, the rules, and the proofs at sizes to try.

A file that fails does not stop the others, and all findings of a file are made in one go, as far as it can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from layoutdsl import library
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.lint.rule import Found, Rule, rules
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Tree


def lint(paths: Sequence[str], specs: Sequence[str] = ()) -> tuple[list[Diagnostic], int]:
    """All findings in the files and folders `paths`, and how many files these are.

    Without paths: the shipped specs and those of the folders `specs`, which are also searched for what a spec names.
    """
    roots = [Path(path) for path in paths] or [*map(Path, specs), library.shipped()]
    found: list[Diagnostic] = []
    seen: set[Path] = set()
    for root in roots:
        names: dict[str, Path] = {}
        files = list(_expanded(root))
        if not files:
            found.append(Diagnostic("LD032", "no-specs", f"`{root}` holds no spec", help="specs are `NAME.yaml` files"))
        for path in files:
            if path.resolve() not in seen:
                seen.add(path.resolve())
                found += sorted(_file(path, names, tuple(specs)), key=_place)
    return found, len(seen)


def report(found: Sequence[Diagnostic], files: int) -> str:
    """The findings as text; the last line counts them."""
    count = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "no findings"
    where = f"{files} file{'s' * (files != 1)}"
    last = f"{count} in {where}" if found else f"{where}, {count}"
    return "\n\n".join([*(finding.render() for finding in found), last])


def _expanded(root: Path) -> Iterator[Path]:
    """A file itself, or all specs of a folder, written relative to the current folder where they stand inside it."""
    here = Path.cwd()
    for path in sorted(root.rglob("*.yaml")) if root.is_dir() else [root]:
        inside = path.relative_to(root).parts
        if "names" not in inside and not any(part.startswith(".") for part in inside):
            yield path.relative_to(here) if path.is_relative_to(here) else path


def _place(finding: Diagnostic) -> tuple[int, int]:
    return (finding.span.line, finding.span.column) if finding.span is not None else (0, 0)


def _file(path: Path, names: dict[str, Path], specs: tuple[str, ...]) -> Iterator[Diagnostic]:
    try:
        tree = library.read_tree(path, specs=specs)
    except LayoutError as error:
        yield from error.diagnostics
        return
    for rule in rules():
        if rule.check_tree is not None:
            yield from _made(rule, tree, rule.check_tree(tree))
    try:
        spec = library.read_spec(path, specs=specs)
    except LayoutError as error:
        yield from error.diagnostics
        return
    subject = Subject(spec, tree, specs)
    for rule in rules():
        if rule.check is not None:
            yield from _made(rule, tree, rule.check(subject))
    if spec.name in names:
        kind = library.kind_of(spec)
        yield tree.diagnostic(
            "LD031", "name-twice", f"`{spec.name}` is also the name of `{names[spec.name]}`", (kind,),
            help="give each spec of a folder its own name, whatever its kind",
        )
    names.setdefault(spec.name, path)
    yield from _proofs(subject)


def _made(rule: Rule, tree: Tree, found: Iterable[Found]) -> Iterator[Diagnostic]:
    """What a rule found, where it stands; what stands in the text of a base is a finding of the base."""
    for one in found:
        if tree.home(one.path) is tree:
            at = tree.diagnostic(
                rule.code, rule.name, one.message, one.path, help=one.help, within=one.within, key=one.key
            )
            yield replace(at, fix=one.fix)


def _proofs(subject: Subject) -> Iterator[Diagnostic]:
    """What the proofs of a spec at its sizes to try find; the same finding only at the first size that shows it."""
    from layoutdsl.logical import prove_spec

    seen: set[tuple[str, str]] = set()
    for at, entry in enumerate(subject.spec.try_):
        try:
            prove_spec(subject.spec, entry, subject.specs)
        except LayoutError as error:
            for finding in error.diagnostics:
                if (finding.code, finding.message) not in seen:
                    seen.add((finding.code, finding.message))
                    yield _placed(finding, subject.tree, at)


def _placed(finding: Diagnostic, tree: Tree, at: int) -> Diagnostic:
    if finding.span is not None:
        return finding
    there = tree.diagnostic(finding.code, finding.name, finding.message, ("try", at))
    return replace(there, help=finding.help)
