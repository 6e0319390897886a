"""What there is to say of one file as text, and back: for other processes, and for later runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from layoutdsl.errors import Diagnostic, Edit, Span
from layoutdsl.lint.outcome import Examined
from layoutdsl.lint.suppress import Suppression


def written(one: Examined) -> str:
    """One line of JSON behind its sha256. Requires that nothing failed: a failure of our own is no text."""
    assert not one.faults
    body = json.dumps(asdict(one))
    return f"{_digest(body)} {body}"


def read(text: str) -> Examined | None:
    """The same back; None where the text is not one that `written` made, whole and unchanged."""
    digest, _, body = text.partition(" ")
    return _examined(json.loads(body)) if digest == _digest(body) else None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _examined(data: dict[str, Any]) -> Examined:
    at = data["name_at"]
    return Examined(
        refusals=[_diagnostic(**one) for one in data["refusals"]],
        findings=[_diagnostic(**one) for one in data["findings"]],
        suppressions=tuple(_suppression(**one) for one in data["suppressions"]),
        explains={code: tuple(codes) for code, codes in data["explains"].items()},
        name=data["name"],
        name_at=(Span(**at[0]), at[1]) if at else None,
        kind=data["kind"],
        layout=data["layout"],
    )


def _diagnostic(span: Any, source: Any, fix: Any, place: None, **fields: Any) -> Diagnostic:
    edit = Edit(Span(**fix["span"]), fix["text"]) if fix else None
    return Diagnostic(span=Span(**span) if span else None, source=tuple(source), fix=edit, **fields)


def _suppression(span: Any, words: Any, **fields: Any) -> Suppression:
    return Suppression(span=Span(**span), words=tuple(map(tuple, words)), **fields)  # pyright: ignore
