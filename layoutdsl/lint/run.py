"""From files to findings: text, schema, what must hold inside each spec, the rules, and the proofs at sizes to try.

A file that fails does not stop the others, and all findings of a file are made in one go, as far as it can be read.
Nor does a failure of our own: it becomes a `Fault`, and what else can be said of the file is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from layoutdsl import library
from layoutdsl.errors import Diagnostic, LayoutError, Span
from layoutdsl.lint.rule import Found, Rule, rule_of, rules
from layoutdsl.lint.select import EVERY, Selection
from layoutdsl.lint.subject import Subject
from layoutdsl.lint.suppress import Suppression, applied, suppressions
from layoutdsl.source import Tree


@dataclass(frozen=True)
class Fault:
    """A failure of our own: in which file, what was at work, and what it raised."""

    file: str
    stage: str
    error: Exception

    def __str__(self) -> str:
        what = " ".join(str(self.error).split()) or "no reason given"
        return f"{self.file}: {self.stage} failed: {type(self.error).__name__}: {what}"


@dataclass(frozen=True)
class Outcome:
    """What a run found, in the order of the files and of their lines."""

    findings: tuple[Diagnostic, ...]
    files: tuple[Path, ...]
    faults: tuple[Fault, ...] = ()


@dataclass
class Examined:
    """All there is to say of one file by itself, whatever is selected and suppressed.

    `refusals` keep the spec from being read, so they are always shown: nothing else is known of it then.
    """

    refusals: list[Diagnostic] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    suppressions: tuple[Suppression, ...] = ()
    faults: list[Fault] = field(default_factory=list)
    name: str | None = None
    name_at: tuple[Span, str] | None = None


def lint(paths: Sequence[str], specs: Sequence[str] = ()) -> tuple[list[Diagnostic], int]:
    """All findings in the files and folders `paths`, and how many files these are; a failure of our own is raised.

    Without paths: the shipped specs and those of the folders `specs`, which are also searched for what a spec names.
    """
    outcome = run(paths, specs)
    for fault in outcome.faults:
        raise fault.error
    return list(outcome.findings), len(outcome.files)


def run(
    paths: Sequence[str], specs: Sequence[str] = (), selection: Callable[[Path], Selection] = lambda _: EVERY
) -> Outcome:
    """As `lint`, with the findings that the selection of each file wants, and with the failures of our own."""
    roots = [Path(path) for path in paths] or [*map(Path, specs), library.shipped()]
    found: list[Diagnostic] = []
    faults: list[Fault] = []
    seen: dict[Path, Path] = {}
    for root in roots:
        names: dict[str, Path] = {}
        files = list(_expanded(root))
        if not files:
            found.append(Diagnostic("LD032", "no-specs", f"`{root}` holds no spec", help="specs are `NAME.yaml` files"))
        for path in files:
            if path.resolve() not in seen:
                seen[path.resolve()] = path
                one = examined(path, tuple(specs))
                one.findings += _twice(one, path, names)
                found += chosen(one, selection(path))
                faults += one.faults
    return Outcome(tuple(found), tuple(seen.values()), tuple(faults))


def examined(path: Path, specs: tuple[str, ...] = (), text: str | None = None) -> Examined:
    """All there is to say of one file, or of `text` in its place."""
    one = Examined()
    try:
        _examine(one, path, specs, text)
    except Exception as error:
        one.faults.append(Fault(str(path), "reading it", error))
    return one


def chosen(one: Examined, selection: Selection) -> list[Diagnostic]:
    """What is shown of a file: the findings that are wanted and not suppressed, by their lines."""
    wanted = [finding for finding in one.findings if selection.has(finding.code)]
    if one.refusals:
        return sorted(dict.fromkeys((*one.refusals, *wanted)), key=_place)
    shown = [finding for finding in applied(one.suppressions, wanted, selection) if selection.has(finding.code)]
    explained = {code for finding in shown if (rule := rule_of(finding.code)) for code in rule.explains}
    return sorted((finding for finding in shown if finding.code not in explained), key=_place)


def _expanded(root: Path) -> Iterator[Path]:
    """A file itself, or all specs of a folder, written relative to the current folder where they stand inside it."""
    here = Path.cwd()
    for path in sorted(root.rglob("*.yaml")) if root.is_dir() else [root]:
        inside = path.relative_to(root).parts
        if "names" not in inside and not any(part.startswith(".") for part in inside):
            yield path.relative_to(here) if path.is_relative_to(here) else path


def _place(finding: Diagnostic) -> tuple[int, int]:
    return (finding.span.line, finding.span.column) if finding.span is not None else (0, 0)


def _twice(one: Examined, path: Path, names: dict[str, Path]) -> Iterator[Diagnostic]:
    """The finding that another file of the folder has the same name."""
    if one.name is None or one.name_at is None:
        return
    if one.name in names:
        span, line = one.name_at
        yield Diagnostic(
            "LD031", "name-twice", f"`{one.name}` is also the name of `{names[one.name]}`", span,
            help="give each spec of a folder its own name, whatever its kind", source=(line,),
        )  # fmt: skip
    names.setdefault(one.name, path)


def _examine(one: Examined, path: Path, specs: tuple[str, ...], text: str | None) -> None:
    try:
        tree = (
            library.read_tree(path, specs=specs) if text is None else library.tree_of(text, str(path), specs=specs)
        )
    except LayoutError as error:
        one.refusals += error.diagnostics
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
    named = tree.diagnostic("LD031", "name-twice", "", (library.kind_of(spec),))
    one.name, one.name_at = spec.name, (named.span, named.source[0]) if named.span is not None else None
    subject = Subject(spec, tree, specs)
    for rule in rules():
        if (check := rule.check) is not None:
            _ask(one, tree, rule, lambda check=check: check(subject))
    try:
        one.findings += _proofs(subject)
    except Exception as error:
        one.faults.append(Fault(str(path), "the proof", error))


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
