"""From files to findings, file by file; one that fails does not stop the others, nor does a failure of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from layoutdsl.errors import Diagnostic
from layoutdsl.folders import near, real, shipped
from layoutdsl.lint.outcome import Examined, Fault, Outcome
from layoutdsl.lint.select import EVERY, Selection
from layoutdsl.lint.suppress import applied

__all__ = ["Fault", "Outcome", "chosen", "lint", "run"]


def lint(paths: Sequence[str], specs: Sequence[str] = ()) -> tuple[list[Diagnostic], int]:
    """All findings in the files and folders `paths`, and how many files these are; a failure of our own is raised.

    Without paths: the shipped specs and those of the folders `specs`, which are also searched for what a spec names.
    """
    outcome = run(paths, specs)
    for fault in outcome.faults:
        raise fault.error
    return list(outcome.findings), len(outcome.files)


def each(paths: Sequence[Path], specs: tuple[str, ...]) -> list[Examined]:
    """All there is to say of each file by itself, one after the other."""
    from layoutdsl.lint.examine import examined

    return [examined(path, specs) for path in paths]


def run(
    paths: Sequence[str],
    specs: Sequence[str] = (),
    selection: Callable[[Path], Selection] = lambda _: EVERY,
    examine: Callable[[Sequence[Path], tuple[str, ...]], Sequence[Examined]] = each,
) -> Outcome:
    """As `lint`, with the findings that the selection of each file wants, and with the failures of our own."""
    roots = [(root, list(_expanded(root))) for root in [Path(path) for path in paths] or [*map(Path, specs), shipped()]]
    places: dict[Path, Path] = {}
    for path in (path for _, files in roots for path in files):
        places.setdefault(real(path), path)
    left = dict(zip(places.values(), examine(tuple(places.values()), tuple(specs))))
    found: list[Diagnostic] = []
    faults: list[Fault] = []
    across: dict[Path, tuple[Diagnostic, ...]] = {}
    layouts: dict[str, str] = {}
    for root, files in roots:
        names: dict[str, Path] = {}
        if not files:
            found.append(Diagnostic("LD032", "no-specs", f"`{root}` holds no spec", help="specs are `NAME.yaml` files"))
        for path in files:
            if (one := left.pop(path, None)) is not None:
                across[path] = (*_twice(one, path, names), *_alike(one, layouts))
                one.findings += across[path]
                found += chosen(one, selection(path))
                faults += one.faults
    return Outcome(tuple(found), tuple(places.values()), tuple(faults), across)


def again(outcome: Outcome, path: Path, specs: tuple[str, ...], text: str) -> Examined:
    """What there is to say of a file of an outcome where its text is another one by now."""
    from layoutdsl.lint.examine import examined

    one = examined(path, specs, text)
    if one.name_at is not None:
        span, line = one.name_at
        one.findings += (replace(finding, span=span, source=(line,)) for finding in outcome.across[path])
    return one


def chosen(one: Examined, selection: Selection) -> list[Diagnostic]:
    """What is shown of a file: the findings that are wanted and not suppressed, by their lines."""
    wanted = [finding for finding in one.findings if selection.has(finding.code)]
    if one.refusals:
        return sorted(dict.fromkeys((*one.refusals, *wanted)), key=_place)
    shown = [finding for finding in applied(one.suppressions, wanted, selection) if selection.has(finding.code)]
    explained = {code for finding in shown for code in one.explains.get(finding.code, ())}
    return sorted((finding for finding in shown if finding.code not in explained), key=_place)


def _expanded(root: Path) -> Iterator[Path]:
    """A file itself, or all files of a folder, written relative to the current folder where they stand inside it."""
    here = Path.cwd()
    for path in sorted(root.rglob("*.yaml")) if root.is_dir() else [root]:
        inside = path.relative_to(root).parts
        is_left_out = "names" in inside or any(part.startswith(".") for part in inside)
        if path == root or not (is_left_out or path.is_dir()):
            yield near(path, here)


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


def _alike(one: Examined, layouts: dict[str, str]) -> Iterator[Diagnostic]:
    """The finding that another file of the run describes the same, where the rule does not know of that file."""
    if one.name is None or one.name_at is None:
        return
    known = layouts.setdefault(one.layout, one.name)
    if known != one.name and not any(finding.code == "LD901" for finding in one.findings):
        span, line = one.name_at
        yield Diagnostic(
            "LD901", "duplicate-spec", f"`{one.name}` says the same as the {one.kind} `{known}`", span,
            help=f"use `{known}`, or state what differs", source=(line,),
        )  # fmt: skip
