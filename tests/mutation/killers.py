"""What tells a changed spec from the right one, cheapest first. Each killer says what it saw, or None."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import _pytest.outcomes
import conversions
import numpy as np
import yaml

from layoutdsl import conform, library
from layoutdsl.errors import LayoutError
from layoutdsl.lint.rule import rules
from layoutdsl.lint.subject import Subject
from layoutdsl.logical import prove_spec
from layoutdsl.model import Format
from mutation import decoded, listed

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FAILED = (Exception, _pytest.outcomes.Failed)
PACKAGE = Path(library.__file__).parent


def lint(path: Path) -> str | None:
    """The reader, what must hold inside a spec, and the rules; not the proofs."""
    try:
        tree, spec = library.read_tree(path), library.read_spec(path)
    except LayoutError as error:
        return error.diagnostics[0].code
    subject = Subject(spec, tree, ())
    for rule in rules():
        found = [*(rule.check_tree(tree) if rule.check_tree else ()), *(rule.check(subject) if rule.check else ())]
        if found:
            return rule.code
    return None


def decoder(path: Path) -> str | None:
    spec = library.read_spec(path)
    if not isinstance(spec, Format):
        return None
    try:
        return decoded.wrong(spec)
    except LayoutError as error:
        return f"{error.diagnostics[0].code} {error.message}"


def proof(path: Path) -> str | None:
    spec = library.read_spec(path)
    try:
        for entry in spec.try_:
            prove_spec(spec, entry)
    except LayoutError as error:
        first = error.diagnostics[0]
        return f"{first.code} {first.name}"
    return None


# --- recorded cases ---------------------------------------------------------------------------------------------------


def recorded(path: Path) -> str | None:
    for case in cases_of(path.stem, path.parent.name):
        try:
            said = conform._wrong(GOLDEN, case, "torch", ())
        except FAILED as error:
            said = _said(error)
        if said:
            return f"{case['id']}: {said}"
    return None


@lru_cache(maxsize=64)
def cases_of(spec: str, kind: str) -> tuple[dict, ...]:
    """The recorded cases that a spec takes part in, those of few bytes first."""
    table = yaml.safe_load((Path(conform.__file__).parent / "data" / "conform.yaml").read_text(encoding="utf-8"))
    modules = {"linear": "dense", "linear_fused": "dense", "moe_gated": "moe", "moe_plain": "moe"}

    def takes_part(case: dict) -> bool:
        source = table["formats"][case["format"]]["checkpoint"]
        target = table["targets"][case["target"]][case["format"]]
        return spec in (source, target) or (kind == "module" and modules.get(spec) == case["kind"])

    found = [case for case in json.loads((GOLDEN / "index.json").read_text())["cases"] if takes_part(case)]
    found.sort(key=lambda case: (GOLDEN / case["file"]).stat().st_size)
    return tuple(conform._valid(case) for case in found)


# --- conversions, plans and configurations ----------------------------------------------------------------------------


def converted(path: Path) -> str | None:
    """Conversions, each side read by its own decoder."""
    rng = np.random.default_rng(7)
    for job in listed.jobs(path.stem):
        try:
            conversions.check(job, rng)
        except FAILED as error:
            return f"{job.module} {' '.join(f'{axis}={size}' for axis, size in job.sizes.items())}: {_said(error)}"
    return None


def planned(path: Path) -> str | None:
    """What plans must be, worked out by hand: tests/fixtures/cases.yaml."""
    return _first(listed.plans(path.stem))


def configured(path: Path) -> str | None:
    """What config.json of public checkpoints means."""
    return _first(listed.configurations()) if path.parent.name == "checkpoint" else None


def _first(checks: Iterator[tuple[str, Callable[[], None]]]) -> str | None:
    for name, check in checks:
        try:
            check()
        except FAILED as error:
            return f"{name}: {_said(error)}"
    return None


def _said(error: BaseException) -> str:
    """What a failed check says. What the package raises is a refusal, or a fault of its own, which is no verdict."""
    if not isinstance(error, LayoutError) and Path(_innermost(error)).is_relative_to(PACKAGE):
        raise error
    lines = [line for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[0])[:120] if lines else type(error).__name__


def _innermost(error: BaseException) -> str:
    return traceback.extract_tb(error.__traceback__)[-1].filename


Killer = Callable[[Path], str | None]
CHEAP: dict[str, Killer] = {"lint": lint, "decoder": decoder}
CONFIGURED: dict[str, Killer] = {"lint": lint, "config": configured}
DEAR: dict[str, Killer] = {
    "proof": proof,
    "conversion": converted,
    "recorded": recorded,
    "plan": planned,
}
